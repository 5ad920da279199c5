"""The linear relaxation of a problem: a lower bound, and often the plan itself.

Columns, all between 0 and 1:

    x[v, k]     how much node class v takes choice k; sum_k x[v, k] = 1
    f[t, S, e]  how much of tensor class t goes over step e for the consumers S
    b[t, S, l]  how much of S parts in two at layout l                  -> flows.py

A tensor is made in layout l as much as its producer's choices say, and read in l as
much as each consumer's say; flows join the two. With the x whole the flows are the
cheapest trees (the recursion of Dreyfus and Wagner, read as a linear program), so only
the x, and whether a tensor is gathered again, have to be whole numbers in an exact
model. Tensors with more than four consumers get one flow for each and pay a step as
much as its largest flow, which is a bound of the tree and not always the tree.

Ties. Nodes of one class share x, tensors of one class share f and b, and rows that join
them are sums of rows of the program without ties (`joints.py`). Let z be any feasible
point of the program without ties, such as any plan. Average z over the members of each
class. Each tied row is a sum of untied rows over all members of a class, of nodes or of
tensors, with every column replaced by its class's average: so the average satisfies it,
and costs the same, because members have the same prices. Hence the tied program's value
is at most the untied one's, for any grouping of nodes with equal tables and of tensors
with equal domains and numbers of consumers: it is a bound of the problem in which
everyone decides alone. Whole numbers with ties, however, are a restriction.

Memory. One row: states, plus what the forward keeps for the backward (see
`problem.kept_bytes`). A tensor is kept, or gathered again, or, in the relaxation, a
mixture: its ends are parted in two, each with trees of its own     -> _parted
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from placet.boxing.routes import Domain
from placet.planner.classes import Ties
from placet.planner.duals import Certificate, certify
from placet.planner.flows import Ends, Tree, add_tree
from placet.planner.joints import Joints
from placet.planner.linear import Builder, Model, Numbers
from placet.planner.problem import Floats, Problem

TRACE = 1e-6
"""What a solver leaves of a choice that it does not take."""


class Relaxation(NamedTuple):
    """A model and what its columns mean.

    Args:
        model: to be solved.
        choices: per node class, the choices that were kept.
        columns: per node class, their columns.
        convex: per node class, the row in which they sum to 1.
        regathered: per tensor class its column, -1 where there is none.
        trees: those whose branches are told apart.
    """

    model: Model
    choices: tuple[Numbers, ...]
    columns: tuple[Numbers, ...]
    convex: Numbers
    regathered: tuple[int, ...]
    trees: tuple[Tree, ...]

    def relaxed(self, seconds: float, method: str = "highs") -> "Relaxed":
        """Solves it, and certifies a bound of all plans, however it went."""
        found = self.model.relaxed(seconds, method)
        proof = certify(self.model, self.trees, self.columns, self.convex, found.prices)
        if found.status == "infeasible":
            proof = proof._replace(bound=np.inf)
        return Relaxed(found.values, found.cost, proof, found.status)

    def taken(self, values: Floats) -> list[int]:
        """The choice of each node class that a solution takes most of."""
        return [
            int(choices[int(values[columns].argmax())])
            for choices, columns in zip(self.choices, self.columns, strict=True)
        ]

    def used(self, values: Floats) -> list[Numbers]:
        """The choices of each node class that a solution takes at all."""
        return [
            choices[values[columns] > min(TRACE, float(values[columns].max()) / 2)]
            for choices, columns in zip(self.choices, self.columns, strict=True)
        ]


class Relaxed(NamedTuple):
    """A solved relaxation; fields as `linear.Solved`, with a certificate."""

    values: Floats | None
    cost: float
    proof: Certificate
    status: str


def relax(
    problem: Problem,
    ties: Ties,
    choices: Sequence[Numbers] | None = None,
    *,
    least_memory: bool = False,
    alike: bool = False,
    most: float | None = None,
) -> Relaxation:
    """The relaxation of a problem.

    Args:
        choices: per node class, those worth keeping; None for all.
        least_memory: price memory and nothing else, without a limit.
        alike: members of a class must decide alike; its value bounds such plans only.
        most: leave out paths that cost more, and branches that are at no tree's end,
            so that only the certificate, and not the model's value, is a bound.
    """
    build = _Build(problem, ties, choices, least_memory, most)
    return build.relaxation(alike=alike)


@dataclass(frozen=True)
class _Memory:
    """How memory enters: in a row of its own, or as the price."""

    row: int
    unit: float


class _Build:
    def __init__(
        self,
        problem: Problem,
        ties: Ties,
        choices: Sequence[Numbers] | None,
        least_memory: bool,
        most: float | None,
    ) -> None:
        self.problem = problem
        self.ties = ties
        self.most = most
        self.builder = Builder()
        self.trees: list[Tree] = []
        self.least_memory = least_memory
        self.memory: _Memory | None = None
        if problem.memory_bytes is not None and not least_memory:
            row = int(self.builder.rows(1, -np.inf, 1.0)[0])
            self.memory = _Memory(row, 1.0 / max(problem.memory_bytes, 1.0))
        self.choices = tuple(
            choices or [np.arange(len(problem.nodes[g[0]].costs)) for g in ties.nodes]
        )
        self.columns: list[Numbers] = []
        self.convex: list[Numbers] = []

    def relaxation(self, *, alike: bool) -> Relaxation:
        for group, kept in zip(self.ties.nodes, self.choices, strict=True):
            node = self.problem.nodes[group[0]]
            held = node.state_bytes[kept] * len(group)
            costs = held if self.least_memory else node.costs[kept] * len(group)
            columns = self.builder.columns(costs, integer=True, most=np.inf)
            self.columns.append(columns)
            self.convex.append(self.builder.rows(1, 1, 1))
            self.builder.put(self.convex[-1], columns, 1.0)
            if self.memory is not None and held.any():
                self.builder.put(self.memory.row, columns, held * self.memory.unit)
        joints = Joints(
            self.builder,
            self.problem,
            self.ties,
            self.choices,
            self.columns,
            alike=alike,
        )
        again = tuple(
            self._add_tensor(joints, t) for t in range(len(self.ties.tensors))
        )
        model = self.builder.build()
        return Relaxation(
            model,
            self.choices,
            tuple(self.columns),
            np.concatenate(self.convex),
            again,
            tuple(self.trees),
        )

    def _tree(
        self, domain: Domain, made: Ends, reads: Sequence[Ends], weight: float
    ) -> None:
        tree = add_tree(self.builder, domain, made, reads, weight, most=self.most)
        if tree is not None:
            self.trees.append(tree)

    def _add_tensor(self, joints: Joints, index: int) -> int:
        """Adds a tensor class; returns its column of gathering again."""
        problem = self.problem
        group = self.ties.tensors[index]
        first = problem.tensors[group[0]]
        late = problem.late_reads[group[0]]
        if not first.consumers:
            return -1
        made = joints.ends(index, -1)
        reads = [joints.ends(index, c) for c in joints.consumers[index]]
        is_late = [c in late for c in joints.consumers[index]]
        weight = 0.0 if self.least_memory else float(len(group))
        if not late or not (self.memory or self.least_memory):
            self._tree(first.domain, made, reads, weight)
            return -1
        stored = any(
            not problem.nodes[problem.tensors[t].producer[0]].signatures for t in group
        )
        return self._parted(first.domain, made, reads, is_late, stored, len(group))

    def _parted(
        self,
        domain: Domain,
        made: Ends,
        reads: Sequence[Ends],
        is_late: Sequence[bool],
        stored: bool,
        count: int,
    ) -> int:
        """A tensor that is kept or gathered again; returns the column that says which.

        kept: one tree for all; each layout that a late consumer reads is held.
        again: a tree for the early ones, one for the late; the made layout is held.
        """
        builder = self.builder
        weight = 0.0 if self.least_memory else float(count)
        again = builder.columns([0.0], integer=True)
        made_kept, made_again = self._part(made)
        parts = [self._part(read) for read in reads]
        whole = builder.rows(1, 0, 0)
        builder.put(whole, made_again.columns, 1.0)
        builder.put(whole, again, -1.0)
        self._tree(domain, made_kept, [kept for kept, _ in parts], weight)
        for phase in (False, True):
            ends = [x for (_, x), y in zip(parts, is_late, strict=True) if y == phase]
            self._tree(domain, made_again, ends, weight)
        sizes = domain.local_bytes * count
        if not stored:
            self._hold(made_again.columns, sizes[made_again.layouts])
        late_parts = [kept for (kept, _), x in zip(parts, is_late, strict=True) if x]
        layouts = np.unique(np.concatenate([p.layouts for p in late_parts]))
        held = self._held(sizes[layouts])
        for part in late_parts:
            # held[l] >= read[l] (- made[l], where that is the producer's own memory)
            rows = builder.rows(len(part.layouts), 0, np.inf)
            builder.put(rows, held[np.searchsorted(layouts, part.layouts)], 1.0)
            builder.put(rows, part.columns, -1.0)
            if stored:
                _, mine, its = np.intersect1d(
                    part.layouts, made_kept.layouts, return_indices=True
                )
                builder.put(rows[mine], made_kept.columns[its], 1.0)
        return int(again[0])

    def _part(self, ends: Ends) -> tuple[Ends, Ends]:
        """New columns for each layout of two parts that make up an end."""
        builder = self.builder
        layouts, position = np.unique(ends.layouts, return_inverse=True)
        kept = builder.columns(np.zeros(len(layouts)))
        again = builder.columns(np.zeros(len(layouts)))
        rows = builder.rows(len(layouts), 0, 0)
        builder.put(rows, kept, 1.0)
        builder.put(rows, again, 1.0)
        builder.put(rows[position], ends.columns, -ends.values)
        ones = np.ones(len(layouts))
        return Ends(layouts, kept, ones), Ends(layouts, again, ones)

    def _held(self, sizes: Floats) -> Numbers:
        """Columns that say how much of each layout is held."""
        if self.least_memory:
            return self.builder.columns(sizes)
        columns = self.builder.columns(np.zeros(len(sizes)))
        self._hold(columns, sizes)
        return columns

    def _hold(self, columns: Numbers, sizes: Floats) -> None:
        """Columns take memory."""
        if self.memory is not None:
            self.builder.put(self.memory.row, columns, sizes * self.memory.unit)
            return
        held = self.builder.columns(sizes)
        rows = self.builder.rows(len(columns), 0, 0)
        self.builder.put(rows, held, 1.0)
        self.builder.put(rows, columns, -1.0)
