"""Trees of boxings as flows.

Let S be a set of consumers and f_S its flow over the steps of a domain. At a layout l

    out f_S(l) - in f_S(l) = made(l), where S is everyone
                             + what parts into S here - what of S parts here
                             - read_c(l), where S = {c}                  -> _branching

With whole ends a solution of least cost is the tree of Dreyfus and Wagner: S walks
together to l, parts in two there, and each part goes on alone. For a single consumer
this is a path, and pairs of ends may say the same with fewer columns -> _pairs
For many consumers the number of sets explodes: then one flow f_c for each consumer, and
a step paid as much as its largest flow, y >= f_c                   -> _covering

Source: S. E. Dreyfus and R. A. Wagner, "The Steiner problem in graphs", Networks 1
(1971); T. Koch and A. Martin, "Solving Steiner tree problems in graphs to optimality",
Networks 32 (1998) for the flows that share steps.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from placet.boxing.routes import MAX_EXACT, Domain
from placet.planner.linear import Builder, Numbers
from placet.planner.problem import Floats
from placet.planner.routing import Positions, near, needed_steps, path_steps

MAX_COLUMNS = 40_000
"""Of one tensor; above this its sets of consumers are not told apart."""


class Ends(NamedTuple):
    """How much of a tensor starts, or ends, in each layout.

    Args:
        layouts: (entries,) may repeat.
        columns: (entries,) of the model.
        values: (entries,) the column times this is that much in that layout.
    """

    layouts: Positions
    columns: Numbers
    values: Floats


class Side(NamedTuple):
    """Where a tree starts, or one consumer's end.

    Args:
        layouts: (entries,) in its domain, each once.
        rows: (entries,) of the model, that say how much is there.
    """

    layouts: Positions
    rows: Numbers


class Tree(NamedTuple):
    """A tree in a model.

    Args:
        domain: all its layouts, whichever the model knows.
        weight: what each price is multiplied by.
        made, reads: its ends.
        columns: the first of its own, and the first after.
    """

    domain: Domain
    weight: float
    made: Side
    reads: tuple[Side, ...]
    columns: tuple[int, int]


def add_tree(
    builder: Builder,
    domain: Domain,
    made: Ends,
    reads: Sequence[Ends],
    weight: float,
    *,
    most: float | None = None,
) -> Tree | None:
    """Adds what it costs to bring a tensor from where it is made to all its readers.

    Args:
        weight: what each price is multiplied by.
        most: the model may leave out layouts that are none of the ends, and paths that
            cost more; only the tree's certificate knows them (`duals.py`).

    Returns:
        None where branches are not told apart, or there is nothing to pay.
    """
    if not reads:
        return None
    sets = (1 << len(reads)) - 1
    num_steps = len(needed_steps(domain)[0])
    if len(reads) > 1 and (len(reads) > MAX_EXACT or sets * num_steps > MAX_COLUMNS):
        _covering(builder, domain, made, reads, weight)
        return None
    kept, known = np.arange(len(domain.layouts)), domain
    if most is not None:
        kept = np.unique(np.concatenate([made.layouts, *(x.layouts for x in reads)]))
        known = near(domain, tuple(kept.tolist()), most)
    first = builder.num_columns
    add = _single if len(reads) == 1 else _branching
    ends = (_moved(made, kept), [_moved(read, kept) for read in reads])
    sides = add(builder, known, *ends, weight)
    start, *goals = (Side(kept[side.layouts], side.rows) for side in sides)
    return Tree(domain, weight, start, tuple(goals), (first, builder.num_columns))


def _moved(ends: Ends, kept: Positions) -> Ends:
    """Ends, numbered as in a domain of the kept layouts alone."""
    return ends._replace(layouts=np.searchsorted(kept, ends.layouts))


def _single(
    builder: Builder,
    domain: Domain,
    made: Ends,
    reads: Sequence[Ends],
    weight: float,
) -> tuple[Side, ...]:
    """One consumer: pairs of ends or a flow, whichever is smaller."""
    (read,) = reads
    sources, sinks = np.unique(made.layouts), np.unique(read.layouts)
    steps = path_steps(domain, sources, sinks)
    if len(sources) * len(sinks) <= len(steps[0]) + len(domain.layouts):
        return _pairs(builder, domain, made, read, weight)
    rows = builder.rows(len(domain.layouts), 0, 0)
    _flow(builder, domain, rows, steps, weight)
    builder.put(rows[made.layouts], made.columns, -made.values)
    builder.put(rows[read.layouts], read.columns, read.values)
    return Side(sources, rows[sources]), Side(sinks, rows[sinks])


def _pairs(
    builder: Builder, domain: Domain, made: Ends, read: Ends, weight: float
) -> tuple[Side, ...]:
    sources, at = np.unique(made.layouts, return_inverse=True)
    sinks, to = np.unique(read.layouts, return_inverse=True)
    prices = domain.prices[np.ix_(sources, sinks)]
    i, j = np.nonzero(np.isfinite(prices))
    columns = builder.columns(prices[i, j] * weight, most=np.inf)
    out = builder.rows(len(sources), 0, 0)
    into = builder.rows(len(sinks), 0, 0)
    builder.put(out[i], columns, 1.0)
    builder.put(into[j], columns, -1.0)
    builder.put(out[at], made.columns, -made.values)
    # As in a flow, what comes to an end counts against what is read there.
    builder.put(into[to], read.columns, read.values)
    return Side(sources, out), Side(sinks, into)


def _flow(
    builder: Builder,
    domain: Domain,
    rows: Numbers,
    steps: tuple[Positions, Positions],
    weight: float,
) -> None:
    """Columns of a flow over steps: what leaves a layout less what comes to it."""
    src, dst = steps
    columns = builder.columns(domain.steps[src, dst] * weight, most=np.inf)
    builder.put(rows[src], columns, 1.0)
    builder.put(rows[dst], columns, -1.0)


def _branching(
    builder: Builder,
    domain: Domain,
    made: Ends,
    reads: Sequence[Ends],
    weight: float,
) -> tuple[Side, ...]:
    """A flow for each set of consumers."""
    size = len(domain.layouts)
    everywhere = np.arange(size)
    full = (1 << len(reads)) - 1
    rows = {s: builder.rows(size, 0, 0) for s in range(1, full + 1)}
    for s in rows:
        sources = np.unique(made.layouts) if s == full else everywhere
        single = s & (s - 1) == 0
        sinks = np.unique(reads[s.bit_length() - 1].layouts) if single else everywhere
        _flow(builder, domain, rows[s], path_steps(domain, sources, sinks), weight)
        for half in range((s - 1) & s, 0, -1):
            if half & s != half or half < s ^ half:
                continue
            columns = builder.columns(np.zeros(size), most=np.inf)
            builder.put(rows[s], columns, 1.0)
            builder.put(rows[half], columns, -1.0)
            builder.put(rows[s ^ half], columns, -1.0)
    builder.put(rows[full][made.layouts], made.columns, -made.values)
    sides = [(full, made)]
    for c, read in enumerate(reads):
        builder.put(rows[1 << c][read.layouts], read.columns, read.values)
        sides.append((1 << c, read))
    places = ((s, np.unique(end.layouts)) for s, end in sides)
    return tuple(Side(at, rows[s][at]) for s, at in places)


def _covering(
    builder: Builder,
    domain: Domain,
    made: Ends,
    reads: Sequence[Ends],
    weight: float,
) -> None:
    """A flow for each consumer, and steps paid as much as the largest."""
    src, dst = needed_steps(domain)
    paid = builder.columns(domain.steps[src, dst] * weight)
    for read in reads:
        rows = builder.rows(len(domain.layouts), 0, 0)
        flow = builder.columns(np.zeros(len(src)))
        builder.put(rows[src], flow, 1.0)
        builder.put(rows[dst], flow, -1.0)
        builder.put(rows[made.layouts], made.columns, -made.values)
        builder.put(rows[read.layouts], read.columns, read.values)
        cover = builder.rows(len(src), 0, np.inf)
        builder.put(cover, paid, 1.0)
        builder.put(cover, flow, -1.0)
