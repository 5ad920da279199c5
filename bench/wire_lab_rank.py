"""One rank of bench/wire_lab.py: measures in the lab and prints what it found.

python -m bench.wire_lab_rank SPEC        # as torchrun's worker; SPEC is JSON

against gloo    engine | gloo | gloo again                        -> _beside_gloo
hierarchy       hierarchical | rank-ordered ring | the ring again -> _hierarchy
priority        urgent first | first come first served | again    -> _priority
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench.harness import Measured, Samples, Side, measure
from bench.wires import WireKind, open_wire
from placet.boxing.moves import AllReduce
from placet.wire.interface import Future, Wire

MARK = "MEASURED "
"""The line that holds the findings begins so."""

NUM_BULK = 4
URGENT_BYTES = 256 * 2**10
UNDER_WAY_SECONDS = 0.2
"""The urgent move comes so long after the bulk: it has to overtake on the way."""


@dataclass(frozen=True)
class Spec:
    """What a rank is to measure.

    Args:
        what: "gloo", "hierarchy" or "priority".
        wire: which wire is ours.
        num_bytes: of the all-reduce, or of all bulk together.
        num_pairs, budget_seconds, num_warm_up: see `bench.harness.measure`.
    """

    what: str
    wire: WireKind
    num_bytes: int
    num_pairs: int
    budget_seconds: float
    num_warm_up: int


@dataclass(frozen=True)
class Found:
    """What a rank found: by side (ours, peer, control) a list with an entry a step.

    Args:
        seconds, cpu_seconds: of a step.
        card_bytes: per card of the host, bytes that it sent in a step, for all ranks.
        urgent_seconds: from the urgent move's submission to its end; else empty.
    """

    seconds: list[list[float]]
    cpu_seconds: list[list[float]]
    card_bytes: dict[str, list[list[int]]]
    urgent_seconds: list[list[float]]

    @property
    def measured(self) -> Measured:
        """The steps' times, as the harness knows them."""
        pairs = zip(self.seconds, self.cpu_seconds, strict=True)
        return Measured(*(Samples(tuple(s), tuple(c)) for s, c in pairs))

    @property
    def urgent(self) -> Measured:
        """The urgent moves' times."""
        return Measured(*(Samples(tuple(s), ()) for s in self.urgent_seconds))


class Watch:
    """Writes down what the host's cards send from one step's start to the next's.

    To the next's start, because a rank may be done while its last bytes still queue.
    """

    def __init__(self) -> None:
        self.returned: dict[str, list[float | None]] = {}
        self._sides: list[str] = []
        self._readings: list[dict[str, int]] = []

    def align(self) -> None:
        """Wait for all ranks, then read the counters."""
        dist.barrier()
        self._readings.append(sent_by_cards())

    def side(self, name: str, step: Callable[[], float | None]) -> Side:
        """A side whose steps are watched."""

        def watched() -> None:
            self._sides.append(name)
            self.returned.setdefault(name, []).append(step())

        return Side(name, watched)

    def sent(self, side: str, card: str) -> list[int]:
        """Bytes that a card sent in each of a side's steps; after a last `align`."""
        return [
            after[card] - before[card]
            for name, (before, after) in zip(
                self._sides, pairwise(self._readings), strict=True
            )
            if name == side
        ]


def sent_by_cards() -> dict[str, int]:
    """Bytes that each network card of this host has sent so far."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    split = (line.partition(":") for line in lines)
    return {
        name.strip(): int(numbers.split()[8])
        for name, _, numbers in split
        if name.strip().startswith("eth")
    }


def find(spec: Spec, wire: Wire) -> Found:
    """Measure on this rank; all ranks do so at once."""
    make: dict[str, Callable[[Spec, Wire], Sequence[Callable[[], float | None]]]] = {
        "gloo": _beside_gloo,
        "hierarchy": _hierarchy,
        "priority": _priority,
    }
    watch, names = Watch(), ("ours", "peer", "control")
    steps = zip(names, make[spec.what](spec, wire), strict=True)
    ours, peer, control = (watch.side(name, step) for name, step in steps)
    measured = measure(
        ours,
        peer,
        control,
        num_pairs=spec.num_pairs,
        budget_seconds=spec.budget_seconds,
        num_warm_up=spec.num_warm_up,
        agree=_agree,
        align=watch.align,
    )
    watch.align()
    sides = (measured.ours, measured.peer, measured.control)
    first = spec.num_warm_up
    return Found(
        seconds=[list(side.seconds) for side in sides],
        cpu_seconds=[list(side.cpu_seconds) for side in sides],
        card_bytes={
            card: [watch.sent(name, card)[first:] for name in names]
            for card in sent_by_cards()
        },
        urgent_seconds=[
            [seconds for seconds in watch.returned[name][first:] if seconds is not None]
            for name in names
        ],
    )


def _agree(number: int) -> int:
    numbers = [number]
    dist.broadcast_object_list(numbers, src=0)
    return numbers[0]


def _beside_gloo(spec: Spec, wire: Wire) -> list[Callable[[], None]]:
    data = torch.zeros(spec.num_bytes // 4)
    again = dist.new_group(backend="gloo")

    def gloo(group: dist.ProcessGroup | None) -> Callable[[], None]:
        return lambda: _no_result(dist.all_reduce(data, group=group))

    return [
        _all_reduce(wire, _ring(wire, spec.num_bytes), data),
        gloo(None),
        gloo(again),
    ]


def _hierarchy(spec: Spec, wire: Wire) -> list[Callable[[], None]]:
    ring = _ring(wire, spec.num_bytes)
    hierarchical = AllReduce(
        ring.group,
        ring.num_elements,
        ring.dtype,
        algorithm="hierarchical",
        blocks=((0, 1), (2, 3)),
    )
    steps = []
    for move in (hierarchical, ring, ring):
        _check_sum(wire, move)
        steps.append(_all_reduce(wire, move, torch.zeros(move.num_elements)))
    return steps


def _priority(spec: Spec, wire: Wire) -> list[Callable[[], float]]:
    bulk_move = _ring(wire, spec.num_bytes // NUM_BULK)
    urgent_move = _ring(wire, URGENT_BYTES)
    bulk = [torch.zeros(bulk_move.num_elements) for _ in range(NUM_BULK)]
    urgent = torch.zeros(urgent_move.num_elements)

    def step(priority: int) -> float:
        futures: list[Future] = [
            wire.submit(bulk_move, data, key=f"bulk.{i}", out=data)
            for i, data in enumerate(bulk)
        ]
        time.sleep(UNDER_WAY_SECONDS)
        began = time.perf_counter()
        wire.submit(
            urgent_move, urgent, key="urgent", priority=priority, out=urgent
        ).wait()
        seconds = time.perf_counter() - began
        for future in futures:
            future.wait()
        return seconds

    return [lambda: step(1), lambda: step(0), lambda: step(0)]


def _ring(wire: Wire, num_bytes: int) -> AllReduce:
    return AllReduce(tuple(range(wire.num_ranks)), num_bytes // 4, torch.float32)


def _all_reduce(wire: Wire, move: AllReduce, data: Tensor) -> Callable[[], None]:
    key = f"{move.algorithm}.{move.num_elements}"
    return lambda: _no_result(wire.submit(move, data, key=key, out=data).wait())


def _no_result(result: object) -> None:
    """A step that returns nothing has no urgent move."""


def _check_sum(wire: Wire, move: AllReduce) -> None:
    given = torch.arange(move.num_elements).remainder(97).float() + wire.rank
    found = wire.submit(move, given, key=f"check.{move.algorithm}").wait()
    ranks = sum(range(wire.num_ranks))
    expected = wire.num_ranks * (given - wire.rank) + ranks
    if not torch.equal(found, expected):
        raise AssertionError(f"a wrong sum from {move}")


def parse(line: str) -> Found:
    """What a rank printed behind MARK."""
    return Found(**json.loads(line))


def main(arguments: Sequence[str]) -> None:
    """Measure one spec after the other; a line of findings for each."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    specs: list[dict[str, Any]] = json.loads(arguments[0])
    wire = open_wire(specs[0]["wire"])
    for spec in specs:
        print(MARK + json.dumps(asdict(find(Spec(**spec), wire))), flush=True)
    dist.barrier()
    wire.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
