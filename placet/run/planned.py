"""Run one step of a plan on this rank.

    parts of states and batch -> the program's nodes, in order -> loss, gradients,
                                                                  new buffers, extras

A compute node waits for what its boxings bring, then runs; a boxing is submitted and
left to travel. What no later node reads is dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from placet.boxing.ledger import Ledger
from placet.placement.layout import Layout, part_box, relative
from placet.program.division import Division
from placet.program.graph import Graph
from placet.program.lifetimes import awaited, in_place, last_reads
from placet.program.node import Boxing, Compute, Node
from placet.program.refine import Refined
from placet.run.events import Observer, ignore
from placet.run.executor import Binding, Executor
from placet.run.local_ops import segments_of
from placet.wire.interface import Wire


@dataclass(frozen=True)
class StepResult:
    """What a step makes on one rank.

    Args:
        loss: 0-d, the mean over the global batch, equal on all ranks.
        count: 0-d, the number of targets, if the loss function gave it.
        news: parameter -> its gradient, buffer -> its new value: this rank's part.
        extras: further results of a step without backward: whole, on all ranks.
    """

    loss: Tensor | None
    count: Tensor | None
    news: Mapping[str, Tensor]
    extras: tuple[Tensor, ...] = ()


class PlannedStep:
    """A refined program, ready to run on one rank.

    Args:
        graph, division, refined: what the plan says.
        wire: carries the boxings.
        compile: have Inductor compile the segments.
    """

    def __init__(
        self,
        graph: Graph,
        division: Division,
        refined: Refined,
        wire: Wire,
        ledger: Ledger | None = None,
        observer: Observer = ignore,
        *,
        compile: bool = False,
    ) -> None:
        self.graph = graph
        self.refined = refined
        self.division = division
        program = refined.program
        self.executor = Executor(
            program, wire, Ledger() if ledger is None else ledger, observer
        )
        self._values: dict[str, Tensor] = {}
        self._segments = segments_of(
            graph, refined, division.signatures, wire.rank, compile=compile
        )
        self._last = last_reads(program.nodes)
        self._awaited = awaited(program.nodes)
        consuming = in_place(graph, refined)
        for boxing in program.boxings():
            self._bind(boxing, consume=boxing.name in consuming)

    def cut(self, tensor: Tensor, layout: Layout) -> Tensor:
        """This rank's part of a whole tensor; a view."""
        shape = tuple(tensor.shape)
        whole = tuple((0, size) for size in shape)
        box = part_box(shape, layout, self.executor.wire.rank)
        return tensor[relative(box, whole)]

    def __call__(
        self, states: Mapping[str, Tensor], batch: Sequence[Tensor], *, step: int = 0
    ) -> StepResult:
        """Run the step.

        Args:
            states: this rank's part of every parameter and buffer, by name.
            batch: the global batch's tensors, of which this rank takes its parts.
            step: the training step; keys random numbers.
        """
        self.executor.begin_step(step)
        given = dict(zip(self.graph.inputs, batch, strict=True))
        self._values = {s.tensor: states[s.name] for s in self.graph.states}
        for name, (tensor, layout) in self.refined.batch.items():
            self._values[name] = self.cut(given[tensor], layout)
        with torch.no_grad():
            for index, node in enumerate(self.refined.program.nodes):
                self._fire(index, node)
        return self._result()

    def _fire(self, index: int, node: Node) -> None:
        for boxing in self._awaited[index]:
            self.executor.wait(boxing)
        if isinstance(node, Compute):
            segment = self._segments[node.name]
            parts = [self._values[name] for name in node.inputs]
            for name in self._last[index]:
                self._values.pop(name, None)
            made = self.executor.run(node.name, node.lane, lambda: segment(parts))
            self._values.update(zip(node.outputs, made, strict=True))
        elif isinstance(node, Boxing):
            self.executor.submit(node.name)
        for name in self._last[index]:
            self._values.pop(name, None)

    def _bind(self, boxing: Boxing, *, consume: bool) -> None:
        def source() -> list[Tensor]:
            return [self._values[name] for name in boxing.inputs]

        def sink(parts: Sequence[Tensor]) -> None:
            self._values.update(zip(boxing.outputs, parts, strict=True))

        self.executor.bind(boxing.name, Binding(source, sink, consume=consume))

    def _result(self) -> StepResult:
        values, self._values = self._values, {}
        wiring, graph = self.refined.wiring, self.graph

        def result(name: str | None) -> Tensor | None:
            return None if name is None else values[wiring.results[name]]

        news = {name: values[tensor] for name, tensor in wiring.news.items()}
        extras = tuple(values[wiring.results[name]] for name in graph.extras)
        return StepResult(result(graph.loss), result(graph.count), news, extras)
