"""One rank of bench/plan_vs_experts.py: times all sides and prints what it found.

python -m bench.plan_vs_experts_rank SPEC        # as torchrun's worker; SPEC is JSON

Every side starts with the same weights and batch, so the first step's loss, a mean over
the ranks, must be one number; a side that computes another thing ends the run. Sides
that are far from the fastest are stepped in the first rounds only: theirs are minutes.
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

FAR, NUM_FAR_ROUNDS = 2.5, 3
"""Who takes so many times the fastest's step cannot be the best."""

MACHINE_SECONDS = 2.0
"""How long each rank measures its machine, for our plans' prices."""


@dataclass(frozen=True)
class Spec:
    """What a rank is to measure.

    Args:
        model: a key of `bench.plan_models.MODELS`.
        sides: keys of PEERS and OURS; one may be named twice, as a control.
        num_rounds: steps wanted of each side that is not far.
        budget_seconds: fewer rounds where so many would take longer.
    """

    model: str
    sides: tuple[str, ...]
    num_rounds: int
    budget_seconds: float


@dataclass(frozen=True)
class Found:
    """What a rank found: by side a list with an entry a round; fewer of far sides.

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
    built = {
        s: _build(s, spec, (wire, machine), plans) for s in dict.fromkeys(spec.sides)
    }
    _check_losses(built, spec)
    steps = [built[side] for side in spec.sides]
    warm = _slowest([seconds for seconds, _ in _round(steps, 0).values()])
    near = [i for i, seconds in enumerate(warm) if seconds <= FAR * min(warm)]
    round_seconds = sum(warm[i] for i in near)
    num_rounds = affordable(spec.num_rounds, round_seconds, spec.budget_seconds)
    seconds: list[list[float]] = [[] for _ in steps]
    sent: list[list[int]] = [[] for _ in steps]
    for index in range(num_rounds):
        places = range(len(steps)) if index < NUM_FAR_ROUNDS else near
        for place, found in _round(steps, index, places).items():
            seconds[place].append(found[0])
            sent[place].append(found[1])
    return Found(seconds, sent, plans)


def _slowest(seconds: Sequence[float]) -> list[float]:
    """Of each side the slowest rank's, the same on all ranks."""
    found = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return list(map(float, found))


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


def _round(
    steps: Sequence[Step], index: int, places: Sequence[int] | None = None
) -> dict[int, tuple[float, int]]:
    """Seconds and bytes of one step of some sides, from another side on each time."""
    turns = sorted(range(len(steps)) if places is None else places)
    first = index % len(turns)
    found = {}
    for place in (*turns[first:], *turns[:first]):
        dist.barrier()
        before, start = sum(sent_by_cards().values()), time.perf_counter()
        steps[place]()
        seconds = time.perf_counter() - start
        dist.barrier()  # the last bytes may still queue where a rank is done
        found[place] = seconds, sum(sent_by_cards().values()) - before
    return dict(sorted(found.items()))


def _check_losses(steps: Mapping[str, Step], spec: Spec) -> None:
    """All sides compute the same first step, and the same second one."""
    for _ in range(2):
        losses = torch.tensor([step() for step in steps.values()])
        dist.all_reduce(losses)
        losses /= dist.get_world_size()
        if float((losses - losses[0]).abs().max() / losses[0].abs()) > SAME_LOSS:
            named = ", ".join(
                f"{side} {loss:.6g}"
                for side, loss in zip(steps, losses.tolist(), strict=True)
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
