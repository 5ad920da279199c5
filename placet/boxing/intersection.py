"""Box intersection: any change, peer to peer; each rank gets what it needs and lacks.

    terms(e)     what must be combined to make element e: one value if no axis is
                 partial, one per coordinate of the partial axes otherwise (and one per
                 overlapping part of a halo's adjoint)          -> terms.terms_of
    sharers(e)   the ranks that must hold e after; those along the destination's partial
                 axes may share the terms out, the same way on all replicas
                                                            -> _families, _receivers
    received     for each rank the terms that it takes and does not hold -> _deliver

One all-to-all with mostly zero counts carries it. The two layouts may be on different
meshes; ranks of either take part. Where a part is held by several ranks, the one that
sent least so far sends, so replicas share the load.

Source: Alpa (arXiv:2201.12023), 5.1, cross-mesh resharding; differs in terms (partial
values), halos and in the balance between replicas.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from placet.boxing.counts import held, kept
from placet.boxing.lowered import Lowered, Piece
from placet.boxing.moves import AllToAll
from placet.boxing.parts import (
    dst_box,
    identity,
    inside,
    local_shapes,
    move_dtype,
    move_reduction,
    scale,
    src_box,
)
from placet.boxing.rule import Change, Rule
from placet.boxing.terms import (
    Coordinate,
    is_adjoint,
    needed_box,
    term_of,
    terms_of,
)
from placet.placement.layout import (
    Box,
    Layout,
    Shape,
    chunk,
    intersect,
    num_elements,
)
from placet.placement.placement import Partial, Placement, Split


@dataclass(frozen=True)
class Copy:
    """A box of one tensor that goes from one rank to another, or stays on one."""

    sender: int
    receiver: int
    tensor: int
    box: Box
    term: Coordinate


def applies(src: Placement, dst: Placement) -> bool:
    """Always; whether two reductions agree is a matter of the whole layout."""
    del src, dst
    return True


def received_bytes(change: Change) -> int:
    """Bytes received by all ranks together."""
    same_mesh = change.src.mesh == change.dst.mesh
    if _is_adjoint_change(change):
        elements = held(change.shapes, change.src)
        elements -= held(change.shapes, change.dst)
    elif same_mesh and _is_plain(change):
        elements = held(change.shapes, change.dst)
        elements -= kept(change.shapes, change.src, change.dst)
    elif _is_plain(change):
        ranks = change.dst.mesh.ranks
        elements = sum(_lacked(change, r) for r in ranks)
    else:
        copies = all_copies(change)
        moved = (c for c in copies if c.sender != c.receiver)
        elements = sum(num_elements(c.box) for c in moved)
    return elements * change.dtype.itemsize


def lower(change: Change, rank: int) -> Lowered:
    """Send others what they lack, get what this rank lacks, keep the rest."""
    copies = all_copies(change)
    mine = [c for c in copies if c.receiver == rank]
    stays = [c for c in mine if c.sender == rank]
    members = _component(change, rank)
    got = [c for c in mine if c.sender != rank]
    got.sort(key=lambda c: members.index(c.sender))
    given = [c for c in copies if c.sender == rank != c.receiver]
    given.sort(key=lambda c: members.index(c.receiver))
    reduction = change.src.reduction or change.dst.reduction or "sum"
    accumulate = len({c.term for c in mine}) > 1
    covered = sum(num_elements(c.box) for c in mine)
    dst_shapes = local_shapes(change.shapes, change.dst, rank)
    wanted = _wanted(change, rank) if dst_shapes is not None else 0
    multiply, divide = scale(change)
    return Lowered(
        src_shapes=local_shapes(change.shapes, change.src, rank),
        dst_shapes=dst_shapes,
        dtype=change.dtype,
        pack=tuple(Piece(c.tensor, _inside_src(change, c, rank)) for c in given),
        move=_move(change, members) if len(members) > 1 else None,
        unpack=tuple(Piece(c.tensor, _inside_dst(change, c, rank)) for c in got),
        keep=tuple(
            (
                Piece(c.tensor, _inside_src(change, c, rank)),
                Piece(c.tensor, _inside_dst(change, c, rank)),
            )
            for c in stays
        ),
        fill=(
            identity(reduction, change.dtype)
            if accumulate or covered < wanted
            else None
        ),
        accumulate=move_reduction(reduction, change.dtype) if accumulate else None,
        multiply=multiply,
        divide=divide,
    )


RULE = Rule("intersection", applies, received_bytes, lower)


@lru_cache(maxsize=4096)
def all_copies(change: Change) -> tuple[Copy, ...]:
    """Every copy between ranks, and within them, in one order that all ranks share."""
    sent: dict[int, int] = dict.fromkeys(change.src.mesh.ranks, 0)
    copies: list[Copy] = []
    for tensor, shape in enumerate(change.shapes):
        terms = terms_of(shape, change.src)
        for box, sharers in _families(shape, change.dst):
            for (term, part), holders in terms.items():
                common = intersect(box, part)
                if not num_elements(common):
                    continue
                receivers = _receivers(change, (tensor, term, common), sharers)
                pieces = _cut(common, len(receivers))
                for piece, replicas in zip(pieces, receivers, strict=True):
                    for rank in replicas:
                        what = tensor, term, piece
                        copies += _deliver(change, what, tuple(holders), rank, sent)
    return tuple(copies)


def _families(shape: Shape, layout: Layout) -> list[tuple[Box, list[list[int]]]]:
    """The parts of a destination: (box, the ranks by which term of it they hold).

    The ranks of one inner list are replicas and must end up equal. There is one list
    if no axis is partial; otherwise the lists share the terms out among them.
    """
    found: dict[Coordinate, tuple[Box, dict[Coordinate, list[int]]]] = {}
    for rank in layout.mesh.ranks:
        pairs = list(zip(layout.mesh.coordinate(rank), layout.placements, strict=True))
        split = tuple(c for c, p in pairs if isinstance(p, Split))
        shared = tuple(c for c, p in pairs if isinstance(p, Partial))
        family = found.setdefault(split, (needed_box(shape, layout, rank), {}))
        family[1].setdefault(shared, []).append(rank)
    return [(box, list(sharers.values())) for box, sharers in found.values()]


def _receivers(
    change: Change, what: tuple[int, Coordinate, Box], sharers: list[list[int]]
) -> list[list[int]]:
    """Which of the sharers of a part take a term: those that hold most of it.

    Equals share it. Where none holds any, a rank that holds another part of the same
    term goes first, so that terms stay apart. Halos overlap, and a term must be equal
    wherever it is held: there the choice may not depend on the part.
    """
    if len(sharers) == 1:
        return sharers
    tensor, term, box = what
    if _has_halo(change.dst):
        same = change.src.mesh == change.dst.mesh
        if not same or change.src.partial_axes != change.dst.partial_axes:
            return sharers[:1]
        return [rs for rs in sharers if _holds_term(change.src, rs[0], term)]

    def fit(replicas: list[int]) -> tuple[int, int]:
        own = [r for r in replicas if _holds_term(change.src, r, term)]
        held = (intersect(box, src_box(change, tensor, r)) for r in own)
        return sum(map(num_elements, held)), len(own)

    best = max(map(fit, sharers))
    receivers = [replicas for replicas in sharers if fit(replicas) == best]
    all_hold = best[0] == num_elements(box) * len(receivers[0])
    return receivers[:1] if all_hold or not box else receivers


def _deliver(
    change: Change,
    what: tuple[int, Coordinate, Box],
    holders: tuple[int, ...],
    receiver: int,
    sent: dict[int, int],
) -> Iterator[Copy]:
    """Bring one box of one term to a rank, but for what it holds."""
    tensor, term, box = what
    lacking = [box]
    if _holds_term(change.src, receiver, term):
        held = src_box(change, tensor, receiver)
        common = intersect(box, held)
        if num_elements(common):
            yield Copy(receiver, receiver, tensor, common, term)
        lacking = _subtract(box, held)
    for part in lacking:
        if num_elements(part):
            sender = min(holders, key=lambda r: (sent[r], holders.index(r)))
            sent[sender] += num_elements(part)
            yield Copy(sender, receiver, tensor, part, term)


def _holds_term(layout: Layout, rank: int, term: Coordinate) -> bool:
    return rank in layout.mesh.ranks and term_of(layout, rank) == term


def _has_halo(layout: Layout) -> bool:
    found = (p for p in layout.placements if isinstance(p, Split))
    return any(any(p.halo) and not p.adjoint for p in found)


def _is_adjoint_change(change: Change) -> bool:
    """Whether a halo's adjoint is summed away, all else staying alike.

    Each rank then receives what others' overlaps hold of its own slice.
    """
    if len(change.axes) != 1:
        return False
    (axis,) = change.axes
    old, new = change.src.placement(axis), change.dst.placement(axis)
    if not (isinstance(old, Split) and old.adjoint and new == Split(old.dim)):
        return False
    return change.src.split_axes(old.dim) == (axis,)


def _is_plain(change: Change) -> bool:
    """Whether each rank needs its own box of its own term, and nothing is summed."""
    layouts = (change.src, change.dst)
    adjoint = any(is_adjoint(p) for layout in layouts for p in layout.placements)
    partial = change.src.partial_axes, change.dst.partial_axes
    same = change.src.mesh == change.dst.mesh and partial[0] == partial[1]
    return not adjoint and (same or partial == ((), ()))


def _lacked(change: Change, rank: int) -> int:
    """Elements that a rank needs and does not hold, in a plain change."""
    lacked = 0
    for tensor in range(len(change.shapes)):
        needed = dst_box(change, tensor, rank)
        lacked += num_elements(needed)
        if rank in change.src.mesh.ranks:
            lacked -= num_elements(intersect(needed, src_box(change, tensor, rank)))
    return lacked


def _wanted(change: Change, rank: int) -> int:
    return sum(
        num_elements(dst_box(change, t, rank)) for t in range(len(change.shapes))
    )


def _subtract(box: Box, hole: Box) -> list[Box]:
    """A box without a hole, as boxes."""
    if not num_elements(intersect(box, hole)):
        return [box]
    rest = []
    for dim, (lo, hi) in enumerate(hole):
        start, stop = box[dim]
        for a, b in ((start, min(lo, stop)), (max(hi, start), stop)):
            if a < b:
                rest.append((*box[:dim], (a, b), *box[dim + 1 :]))
        inner = max(start, lo), min(stop, hi)
        box = (*box[:dim], inner, *box[dim + 1 :])
    return rest


def _cut(box: Box, num_parts: int) -> list[Box]:
    """A box cut along its longest dim."""
    if num_parts == 1 or not box:
        return [box]
    dim = max(range(len(box)), key=lambda d: box[d][1] - box[d][0])
    start, stop = box[dim]
    pieces = (chunk(start, stop, num_parts, i) for i in range(num_parts))
    return [(*box[:dim], piece, *box[dim + 1 :]) for piece in pieces]


def _inside_src(change: Change, copy: Copy, rank: int) -> Box:
    return inside(copy.box, src_box(change, copy.tensor, rank))


def _inside_dst(change: Change, copy: Copy, rank: int) -> Box:
    return inside(copy.box, dst_box(change, copy.tensor, rank))


@lru_cache(maxsize=4096)
def _components(change: Change) -> dict[int, tuple[int, ...]]:
    """For each rank the ranks with which it exchanges, directly or through others."""
    ranks = sorted({*change.src.mesh.ranks, *change.dst.mesh.ranks})
    group = {rank: {rank} for rank in ranks}
    for copy in all_copies(change):
        joined = group[copy.sender]
        if copy.receiver not in joined:
            joined |= group[copy.receiver]
            for rank in joined:
                group[rank] = joined
    return {rank: tuple(sorted(members)) for rank, members in group.items()}


def _component(change: Change, rank: int) -> tuple[int, ...]:
    return _components(change).get(rank, (rank,))


@lru_cache(maxsize=4096)
def _move(change: Change, members: tuple[int, ...]) -> AllToAll:
    """The all-to-all among ranks that exchange; what a rank keeps is not in it."""
    place = {rank: i for i, rank in enumerate(members)}
    counts = [[0] * len(members) for _ in members]
    for c in all_copies(change):
        if c.sender != c.receiver and c.sender in place:
            counts[place[c.sender]][place[c.receiver]] += num_elements(c.box)
    return AllToAll(members, tuple(map(tuple, counts)), move_dtype(change.dtype))
