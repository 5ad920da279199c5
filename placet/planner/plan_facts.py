"""What people are told of a plan: its heavy operators, its boxings, and their bytes.

    work     the forward's operators that compute                      -> work_of
    peak     what the fullest rank holds                               -> fullest_peak
    overlap  the program's nodes on two lanes, computing and links     -> timeline_of
    moves    each boxing step, with the mean bytes a rank receives     -> moves_of
    ratio    sum of those bytes for the tensors of matrix products, or views of them /
             sum over products of the least that each would move alone, with one copy
             of each matrix                                            -> matmul_ratio

The ratio is below 1 where copies save moves: data parallelism keeps weights whole.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from placet.boxing.path import mean_bytes
from placet.cost.compute import is_view
from placet.cost.flops import flops
from placet.cost.objective import Objective, Seconds
from placet.cost.timeline import timeline_of
from placet.placement.cluster import Cluster
from placet.planner.matmul_bound import bound_words
from placet.planner.plan_names import ranges
from placet.planner.storage import Storage
from placet.program.division import Division
from placet.program.fullest import fullest_peak
from placet.program.functions.linear import contract, linear
from placet.program.graph import Graph
from placet.program.program import change
from placet.program.refine import refine
from placet.program.route import steps_of
from placet.program.signature import Operator, operator_of, target_name

MAX_MOVES = 16
"""Rows of boxings that are kept and shown."""

Work = tuple[tuple[str, str, str], ...]
Moves = tuple[tuple[str, str, int, float], ...]

_aten = torch.ops.aten


@dataclass(frozen=True)
class Facts:
    """The figures of a division; see `placet.planner.plan_data.PlanData`.

    Args:
        overlapped_seconds: of a step with boxings beside computing; None in bytes.
    """

    memory_bytes: float
    memory_at: str
    memory_use: Mapping[str, float]
    overlapped_seconds: float | None
    matmul_ratio: float | None
    work: Work
    moves: Moves


def facts_of(
    graph: Graph,
    division: Division,
    objective: Objective,
    storage: Storage,
    cluster: Cluster | None = None,
) -> Facts:
    """All that people are told of a division."""
    refined = refine(graph, division, name="plan", cluster=cluster)
    peak = fullest_peak(graph, division, refined, storage.kept)
    seconds = None
    if isinstance(objective, Seconds):
        seconds = timeline_of(graph, division, refined, objective).seconds
    return Facts(
        peak.num_bytes,
        peak.where,
        peak.by_category,
        seconds,
        matmul_ratio(graph, division),
        work_of(graph, division),
        moves_of(graph, division),
    )


def work_of(graph: Graph, division: Division) -> Work:
    """The heavy operators of the forward, by module, and how they are divided."""
    groups: dict[tuple[str, str], list[str]] = {}
    for op in graph.ops:
        if op.phase == "forward" and flops(operator_of(op, graph)) > 0:
            signatures = _axes_text(division, op.name)
            key = target_name(op.target), signatures
            groups.setdefault(key, []).append(op.module or "(model)")
    rows = []
    for (target, signatures), modules in groups.items():
        for module in ranges(list(dict.fromkeys(modules))):
            rows.append((module, target, signatures))
    return tuple(rows)


def moves_of(graph: Graph, division: Division) -> Moves:
    """The boxings, alike ones together, with the mean bytes that a rank receives."""
    modules = {n: op.module for op in graph.ops for n in op.outputs if n is not None}
    for state in graph.states:
        modules[state.tensor] = state.name
        if state.new is not None:
            modules[state.new] = f"{state.name} (new)"
    counts: Counter[tuple[str, str]] = Counter()
    sizes: dict[tuple[str, str], float] = {}
    names: dict[str, dict[str, None]] = {}
    for name, changed, price in _priced_boxings(graph, division):
        module = modules.get(name) or "(loss)"
        stem = ".".join("#" if part.isdigit() else part for part in module.split("."))
        names.setdefault(stem, {})[module] = None
        if price >= 1:
            counts[stem, changed] += 1
            sizes[stem, changed] = sizes.get((stem, changed), 0.0) + price
    largest = sorted(sizes.items(), key=lambda pair: -pair[1])[:MAX_MOVES]
    return tuple(
        (", ".join(ranges(list(names[stem]))), changed, counts[stem, changed], size)
        for (stem, changed), size in largest
    )


def matmul_ratio(graph: Graph, division: Division) -> float | None:
    """Bytes that a rank receives for matrix products, over the least for each alone.

    Returns:
        None where no matrix product has to move anything: there is none, or one rank.
    """
    least = 0.0
    matrices: set[str | None] = set()
    for op in graph.ops:
        operator = operator_of(op, graph)
        shape = _product_shape(operator)
        if shape is not None:
            itemsize = operator.inputs[0].dtype.itemsize
            least += bound_words(shape, division.mesh.num_ranks) * itemsize
            matrices.update((*op.inputs, *op.outputs))
    views = [op for op in graph.ops if is_view(op.target)]
    for op in (*views, *reversed(views)):
        if not matrices.isdisjoint((*op.inputs, *op.outputs)):
            matrices.update((*op.inputs, *op.outputs))
    boxings = _priced_boxings(graph, division)
    moved = sum(price for name, _, price in boxings if name in matrices)
    return moved / least if least else None


def _priced_boxings(
    graph: Graph, division: Division
) -> Iterator[tuple[str, str, float]]:
    """Every boxing step: its tensor, the change, and mean bytes received."""
    for name, step in steps_of(graph, division):
        yield name, change(step.change.src, step.change.dst), mean_bytes(step)


def _product_shape(operator: Operator) -> tuple[int, int, int] | None:
    """(i, j, k) of a product [i, j] times [j, k]; None for other operators."""
    if operator.target is linear:
        x, w = operator.inputs[:2]
        return math.prod(x.shape[:-1]), *_matrix(w.shape)
    if operator.target is contract:
        a, b = operator.inputs
        return a.shape[-1], math.prod(a.shape[:-1]), b.shape[-1]
    if operator.target in (_aten.mm.default, _aten.addmm.default):
        a, b = operator.inputs[-2:]
        return a.shape[0], *_matrix(b.shape)
    return None


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = shape
    return rows, columns


def _axes_text(division: Division, name: str) -> str:
    pairs = zip(division.signatures[name], division.mesh.axes, strict=True)
    return ";  ".join(f"{signature!r} @{axis}" for signature, axis in pairs)
