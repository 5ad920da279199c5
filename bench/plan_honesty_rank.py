"""One rank of bench/plan_honesty.py: plans, predicts, runs them and prints both.

python -m bench.plan_honesty_rank SPEC        # as torchrun's worker; SPEC is JSON

    links, machine    as measured when the run begins       -> bench.lab_measured
    a plan            made by rank 0, predicted from these, sent to all, run by all in
                      turn

All plans of a model must lose the same, or they are no plans of it.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from bench.lab_measured import open_measured
from bench.plan_honesty_plans import MODELS, Named, drawn, experts
from bench.wire_lab_rank import MARK, sent_by_cards
from placet.cost.machine import Machine
from placet.cost.objective import seconds_objective
from placet.cost.timeline import timeline_of
from placet.placement.cluster import Cluster
from placet.planner.planning import plan
from placet.program.capture import capture, state_tensors
from placet.program.graph import Graph
from placet.program.normalise.normalise import normalise
from placet.program.program import bytes_text
from placet.program.refine import Refined, refine
from placet.run.events import NodeFired
from placet.run.planned import PlannedStep
from placet.wire.interface import Wire
from testing.models.example import Example

SAME_LOSS = 1e-3
"""Relative; float32, and sums in other orders."""

SEARCH_SECONDS = 8.0


@dataclass(frozen=True)
class Spec:
    """What a rank is to measure.

    Args:
        model: a key of `bench.plan_honesty_plans.MODELS`.
        num_drawn: plans at random, besides the experts' and the planner's.
        num_steps: of each plan.
        seed: of the drawn ones.
        plans: whether the planner's own is among them.
    """

    model: str
    num_drawn: int
    num_steps: int
    seed: int = 0
    plans: bool = True


@dataclass(frozen=True)
class Work:
    """What a run in the lab is to measure.

    Args:
        specs: a model each.
        machine_seconds: how long the machine is measured.
    """

    specs: tuple[Spec, ...]
    machine_seconds: float


@dataclass(frozen=True)
class Ran:
    """A plan on this rank.

    Args:
        name: of the plan.
        is_drawn: at random.
        predicted: seconds of a step.
        seconds: of each step.
        computing: seconds of each step in which this rank's segments ran.
        sent_bytes: of each step, by the host's cards.
    """

    name: str
    is_drawn: bool
    predicted: float
    seconds: tuple[float, ...]
    computing: tuple[float, ...]
    sent_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """A model's plans on this rank.

    Args:
        links: as measured: name, latency and bytes/s of each class.
        machine: as measured, for people.
        ran: each plan.
    """

    links: tuple[tuple[str, float, float], ...]
    machine: str
    ran: tuple[Ran, ...]

    @staticmethod
    def from_json(text: str) -> "Found":
        """What a rank printed."""
        given = json.loads(text)
        ran = tuple(Ran(**one) for one in given.pop("ran"))
        return Found(**given, ran=ran)


@dataclass(frozen=True)
class Made:
    """A plan as rank 0 sends it to all."""

    named: Named
    refined: Refined
    predicted: float


class Step:
    """A plan's step on this rank, on whole states and batch."""

    def __init__(
        self,
        made: Made,
        graph: Graph,
        states: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        wire: Wire,
    ) -> None:
        self.computing = 0.0
        division = made.named.division
        self.step = PlannedStep(
            graph, division, made.refined, wire, observer=self._observe
        )
        self.states = {
            name: self.step.cut(tensor, division.homes[name]).clone()
            for name, tensor in states.items()
        }
        self.batch = batch

    def __call__(self) -> float:
        """One step; its loss."""
        self.computing = 0.0
        loss = self.step(self.states, self.batch).loss
        assert loss is not None
        return float(loss)

    def _observe(self, event: NodeFired) -> None:
        if event.lane == "compute":
            self.computing += event.end_seconds - event.start_seconds


def find(spec: Spec, wire: Wire, cluster: Cluster, machine: Machine) -> Found:
    """Measure on this rank; all ranks do so at once."""
    torch.manual_seed(0)
    example = MODELS[spec.model]
    model, batch = example.model_fn(), example.batch_fn()
    captured = capture(model, batch, example.loss)
    graph = normalise(captured.graph, wire.num_ranks)
    box: list[list[Made]] = [[]]
    if wire.rank == 0:
        box[0] = _make(spec, example, graph, cluster, machine)
    dist.broadcast_object_list(box, src=0)
    states = {n: t.clone() for n, t in state_tensors(model, graph).items()}
    tensors = captured.flatten(batch)
    steps = [Step(made, graph, states, tensors, wire) for made in box[0]]
    _check_losses([(m.named.name, s()) for m, s in zip(box[0], steps, strict=True)])
    rounds = [[_timed(step) for step in steps] for _ in range(spec.num_steps)]
    return Found(
        links=tuple((x.name, x.latency_s, x.link_bytes_per_s) for x in cluster.links),
        machine=_text(machine),
        ran=tuple(
            Ran(
                made.named.name,
                made.named.is_drawn,
                made.predicted,
                *zip(*timed, strict=True),
            )
            for made, timed in zip(box[0], zip(*rounds, strict=True), strict=True)
        ),
    )


def _text(machine: Machine) -> str:
    rates = [f"{w} {d} {r / 1e9:.1f} Gflop/s" for w, d, r in machine.flops_per_s]
    rates += [f"{r / 1e9:.1f} GB/s of {bytes_text(n)}" for n, r in machine.near]
    return (
        f"{', '.join(rates)}, {machine.memory_bytes_per_s / 1e9:.1f} GB/s of more, "
        f"{machine.call_seconds * 1e6:.0f} us a call, "
        f"{machine.boxing_seconds * 1e6:.0f} us a boxing"
    )


def _make(
    spec: Spec, example: Example, graph: Graph, cluster: Cluster, machine: Machine
) -> list[Made]:
    """All plans, refined and predicted."""
    good = experts(spec.model, graph)
    if spec.plans:
        torch.manual_seed(0)
        best = plan(
            example.model_fn(),
            example.batch_fn(),
            example.loss,
            cluster=cluster,
            machine=machine,
            time_limit_seconds=SEARCH_SECONDS,
        )
        good.insert(0, Named("planner", best.division))
    named = [*good, *drawn(graph, good, spec.num_drawn, spec.seed)]
    return [_made(graph, one, cluster, machine) for one in named]


def _made(graph: Graph, named: Named, cluster: Cluster, machine: Machine) -> Made:
    division = named.division
    refined = refine(graph, division, name=named.name, cluster=cluster)
    prices = seconds_objective(division.mesh, cluster, machine)
    return Made(named, refined, timeline_of(graph, division, refined, prices).seconds)


def _timed(step: Step) -> tuple[float, float, int]:
    """Seconds, computing seconds and sent bytes of a step."""
    dist.barrier()
    before, began = sum(sent_by_cards().values()), time.perf_counter()
    step()
    seconds = time.perf_counter() - began
    dist.barrier()  # the last bytes may still queue where a rank is done
    return seconds, step.computing, sum(sent_by_cards().values()) - before


def _check_losses(losses: Sequence[tuple[str, float]]) -> None:
    first = losses[0][1]
    for name, loss in losses:
        if abs(loss / first - 1) > SAME_LOSS:
            raise AssertionError(f"{name} loses {loss:.6g}, not {first:.6g}")


def main(arguments: Sequence[str]) -> None:
    """Measure links and machine, then one spec after the other."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    given = json.loads(arguments[0])
    wire, cluster, machine = open_measured("honesty", given["machine_seconds"])
    for spec in given["specs"]:
        found = find(Spec(**spec), wire, cluster, machine)
        print(MARK + json.dumps(asdict(found)), flush=True)
    dist.barrier()
    wire.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
