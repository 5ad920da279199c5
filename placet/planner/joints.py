"""Where node classes and tensor classes meet.

Let v be a class of |v| nodes and s a slot of theirs. All tensors at that slot may be of
one class t: then t is in layout l there as much as x[v] says. At the ends of a row of
layers they are of several classes: the last layer's result is read by somebody else.
The members of one such class t are some of v's, which need not decide as v does on
average, so t gets columns of its own, e[t, l], joined to the others' only in sum:

    sum_l e[t, l] = (members of t at this slot) / |t|
    sum_t |t| e[t, l] = |v| sum over choices k with layout l of x[v, k]

The average over classes of any plan satisfies both (<= in the second, where some of the
slot's tensors are read by nobody and left out).                       -> Joints.ends

Where all members of a class must decide alike, every end is x itself; that is the tied
restriction, for plans and not for bounds                              -> alike
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from placet.planner.classes import Ties
from placet.planner.flows import Ends
from placet.planner.linear import Builder, Numbers
from placet.planner.problem import Problem
from placet.planner.routing import Positions

Slot = tuple[int, int, bool]
"""Node class, slot, whether it is an output."""


class Joints:
    """The ends of tensor classes, in the columns of node classes.

    Args:
        choices, columns: per node class, what it may choose, and the model's columns.
        alike: whether all members of a class must decide alike.
    """

    def __init__(
        self,
        builder: Builder,
        problem: Problem,
        ties: Ties,
        choices: Sequence[Numbers],
        columns: Sequence[Numbers],
        *,
        alike: bool,
    ) -> None:
        self.builder = builder
        self.problem = problem
        self.ties = ties
        self.choices = choices
        self.columns = columns
        self.alike = alike
        self.consumers = [self._different(group) for group in ties.tensors]
        self.meeting: dict[Slot, Counter[tuple[int, int]]] = {}
        for t, group in enumerate(ties.tensors):
            if problem.tensors[group[0]].consumers:
                for end in (-1, *self.consumers[t]):
                    for slot, count in self._slots(group, end).items():
                        self.meeting.setdefault(slot, Counter())[t, end] += count
        self._rows: dict[Slot, tuple[Positions, Numbers]] = {}

    def ends(self, index: int, end: int) -> Ends:
        """How much a tensor class is in each layout at one of its ends.

        Args:
            index: of the tensor class.
            end: which consumer; -1 for the producer.
        """
        group = self.ties.tensors[index]
        parts = []
        for slot, count in self._slots(group, end).items():
            v, _, _ = slot
            whole = len(self.meeting[slot]) == 1 and count == len(self.ties.nodes[v])
            if whole or self.alike:
                values = np.full(len(self.columns[v]), count / len(group))
                parts.append(Ends(self._layouts(slot), self.columns[v], values))
            else:
                parts.append(self._own(slot, count, len(group)))
        return Ends(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _own(self, slot: Slot, count: int, size: int) -> Ends:
        """Columns of a tensor class of its own, joined to the others' in sum."""
        builder, members = self.builder, len(self.ties.nodes[slot[0]])
        if slot not in self._rows:
            covered = sum(self.meeting[slot].values())
            layouts, at = np.unique(self._layouts(slot), return_inverse=True)
            lower = 0.0 if covered == members else -np.inf
            rows = builder.rows(len(layouts), lower, 0.0)
            builder.put(rows[at], self.columns[slot[0]], -1.0)
            self._rows[slot] = layouts, rows
        layouts, rows = self._rows[slot]
        columns = builder.columns(np.zeros(len(layouts)))
        builder.put(rows, columns, size / members)
        share = count / size
        builder.put(builder.rows(1, share, share), columns, 1.0)
        return Ends(layouts, columns, np.ones(len(layouts)))

    def _layouts(self, slot: Slot) -> Positions:
        """(kept choices,) the layout of a slot."""
        v, s, is_output = slot
        node = self.problem.nodes[self.ties.nodes[v][0]]
        table = node.output_layouts if is_output else node.input_layouts
        layouts: Positions = table[self.choices[v], s].astype(np.intp)
        return layouts

    def _slots(self, group: tuple[int, ...], end: int) -> Counter[Slot]:
        """Where the members of a tensor class have an end, and how many."""
        places = (
            self.problem.tensors[t].producer
            if end < 0
            else self.problem.tensors[t].consumers[end]
            for t in group
        )
        return Counter((self.ties.node_class[n], s, end < 0) for n, s in places)

    def _different(self, group: tuple[int, ...]) -> list[int]:
        """Consumers, without slots of one node that always want the same."""
        seen: dict[tuple[object, ...], int] = {}
        tensors = [self.problem.tensors[t] for t in group]
        for c in range(len(tensors[0].consumers)):
            places = [tensor.consumers[c] for tensor in tensors]
            wants = (self.problem.nodes[n].input_layouts[:, s] for n, s in places)
            key = (*(n for n, _ in places), *(w.tobytes() for w in wants))
            seen.setdefault(key, c)
        return list(seen.values())
