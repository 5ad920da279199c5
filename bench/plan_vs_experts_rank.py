"""One rank of bench/plan_vs_experts.py: times all sides and prints what it found.

python -m bench.plan_vs_experts_rank SPEC        # as torchrun's worker; SPEC is JSON

Every side starts with the same weights and batch, so the first step's loss, a mean over
the ranks, must be one number; a side that computes another thing ends the run.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from bench.harness import affordable
from bench.lab_measured import open_measured
from bench.plan_models import MODELS
from bench.plan_ours import OURS
from bench.plan_peers import PEERS, Step
from bench.wire_lab_rank import MARK, sent_by_cards
from placet.cost.machine import Machine
from placet.wire.interface import Wire

SAME_LOSS = 1e-4
"""Relative; float32, and sums in other orders."""

MACHINE_SECONDS = 2.0
"""How long each rank measures its machine, for our plans' prices."""


@dataclass(frozen=True)
class Spec:
    """What a rank is to measure.

    Args:
        model: a key of `bench.plan_models.MODELS`.
        sides: keys of PEERS and OURS; one may be named twice, as a control.
        num_rounds: steps wanted of each side.
        budget_seconds: fewer rounds where so many would take longer.
        num_warm_up: rounds before.
    """

    model: str
    sides: tuple[str, ...]
    num_rounds: int
    budget_seconds: float
    num_warm_up: int = 2


@dataclass(frozen=True)
class Found:
    """What a rank found: by side a list with an entry a step.

    Args:
        seconds: of a step.
        sent_bytes: by the host's cards, until the next step begins.
        plans: what our sides chose, for people.
    """

    seconds: list[list[float]]
    sent_bytes: list[list[int]]
    plans: dict[str, str]


def find(spec: Spec, wire: Wire, machine: Machine) -> Found:
    """Measure on this rank; all ranks do so at once."""
    plans: dict[str, str] = {}
    steps = [_build(side, spec, (wire, machine), plans) for side in spec.sides]
    _check_losses(dict(enumerate(steps)), spec)
    began = time.perf_counter()
    for _ in range(spec.num_warm_up):
        _round(steps, 0)
    seconds = (time.perf_counter() - began) / spec.num_warm_up
    numbers = [affordable(spec.num_rounds, seconds, spec.budget_seconds)]
    dist.broadcast_object_list(numbers, src=0)
    rounds = [_round(steps, index) for index in range(numbers[0])]
    by_side = [list(zip(*side, strict=True)) for side in zip(*rounds, strict=True)]
    return Found(
        seconds=[list(side[0]) for side in by_side],
        sent_bytes=[list(side[1]) for side in by_side],
        plans=plans,
    )


def _build(
    side: str, spec: Spec, on: tuple[Wire, Machine], plans: dict[str, str]
) -> Step:
    """A side's step; all start with the same weights and batch."""
    example = MODELS[spec.model]
    torch.manual_seed(0)
    model, batch = example.model_fn(), example.batch_fn()
    if side in PEERS:
        return PEERS[side](example, model, batch)
    made = OURS[side](example, model, batch, *on)
    plans[side] = (
        f"{made.mesh}, {made.cost:.6g} {made.unit}, bound {made.bound:.6g}, "
        f"{made.seconds:.1f} s to plan"
    )
    return made.step


def _round(steps: Sequence[Step], index: int) -> list[tuple[float, int]]:
    """Seconds and bytes of one step of each side, from another side on each time."""
    found = [(0.0, 0)] * len(steps)
    for turn in range(len(steps)):
        place = (turn + index) % len(steps)
        dist.barrier()
        before, start = sum(sent_by_cards().values()), time.perf_counter()
        steps[place]()
        seconds = time.perf_counter() - start
        dist.barrier()  # the last bytes may still queue where a rank is done
        found[place] = seconds, sum(sent_by_cards().values()) - before
    return found


def _check_losses(steps: Mapping[int, Step], spec: Spec) -> None:
    """All sides compute the same first step, and the same second one."""
    for _ in range(2):
        losses = torch.tensor([steps[place]() for place in sorted(steps)])
        dist.all_reduce(losses)
        losses /= dist.get_world_size()
        if float((losses - losses[0]).abs().max() / losses[0].abs()) > SAME_LOSS:
            named = ", ".join(
                f"{side} {loss:.6g}"
                for side, loss in zip(spec.sides, losses.tolist(), strict=True)
            )
            raise AssertionError(f"{spec.model}: sides lose differently: {named}")


def main(arguments: Sequence[str]) -> None:
    """Measure one spec after the other; a line of findings for each."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    specs = [Spec(**given) for given in json.loads(arguments[0])]
    wire, _, machine = open_measured("plan_vs_experts", MACHINE_SECONDS)
    for spec in specs:
        print(MARK + json.dumps(asdict(find(spec, wire, machine))), flush=True)
    dist.barrier()
    wire.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
