"""torch.distributed's calls as moves.

A call takes tensors of any layout; a move takes flat contiguous elements. So each
function here says which moves a call is, on which memory (the caller's own where it is
contiguous), and what is left to do with the results (divide, copy back).

    all_reduce            AllReduce
    all_gather            AllGather
    reduce_scatter        ReduceScatter
    reduce                ReduceScatter in which all goes to the root
    broadcast             BroadcastFrom
    gather, scatter       AllToAll with counts at the root only
    all_to_all            an AllToAll for each pair: see NOTE [Pairs]
    send, recv            AllToAll of a pair, one way
    barrier               AllReduce of one element

# NOTE [Pairs]
In an uneven all-to-all a rank knows what it gives each other and gets from it, but not
what others exchange; an AllToAll move names it all. Exchanging the counts first would
make the call wait for all ranks before it has even begun, so that two such calls in
opposite orders wait for each other. A pair's own counts are known to both, so a call
becomes size - 1 moves, each complete in itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastFrom,
    Move,
    ReduceScatter,
)
from placet.torch_private.c10d import ReduceOp
from placet.wire.process_group_memory import (
    apart,
    flat,
    joined,
    shares_memory,
    shares_storage,
    write,
)
from placet.wire.process_group_reduce import (
    fold_all,
    from_wire,
    reduction_for,
    to_wire,
)


@dataclass(frozen=True)
class Place:
    """Where this rank is in a group.

    Args:
        members: the group's ranks on the wire, in the group's order.
        me: this rank's index in them.
    """

    members: tuple[int, ...]
    me: int

    @property
    def size(self) -> int:
        """How many members there are."""
        return len(self.members)

    def member(self, index: int) -> int:
        """A member's rank on the wire.

        Raises:
            ValueError: there is none of that index.
        """
        last = self.size - 1
        if not 0 <= index <= last:
            raise ValueError(f"rank {index} of the group; name one of 0 to {last}")
        return self.members[index]


@dataclass(frozen=True)
class Transfer:
    """One move of a call.

    Args:
        move: what to submit.
        payload: with which elements.
        out: where its result goes; None for new memory.
        finish: what is left to do with the result.
        part: tells the moves of one call apart.
    """

    move: Move
    payload: Tensor
    out: Tensor | None = None
    finish: Callable[[Tensor], None] | None = None
    part: str = ""


def all_reduce(place: Place, tensor: Tensor, op: ReduceOp) -> Transfer:
    """All get the reduction of all tensors, in place."""
    reduction = reduction_for(op, tensor.dtype, place.size)
    mine = to_wire(flat(tensor), reduction)
    if reduction.on_wire is None:
        counts = (mine.numel(),) * place.size
        gather = AllGather(place.members, counts, mine.dtype)

        def finish_fold(found: Tensor) -> None:
            assert reduction.fold is not None
            write(tensor, fold_all(found, place.size, reduction.fold))

        return Transfer(gather, mine, None, finish_fold)
    move = AllReduce(place.members, mine.numel(), mine.dtype, reduction.on_wire)
    if reduction.is_plain and shares_memory(mine, tensor):
        return Transfer(move, mine, mine)

    def finish(found: Tensor) -> None:
        write(tensor, from_wire(found, tensor.dtype, reduction))

    return Transfer(move, mine, mine, finish)


def reduce_scatter(
    place: Place, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp
) -> Transfer:
    """Member i gets the reduction of all inputs[i]; one input is cut evenly.

    Raises:
        ValueError: the sizes do not fit.
    """
    if len(inputs) == 1 and place.size > 1:
        count, rest = divmod(inputs[0].numel(), place.size)
        counts = (count,) * place.size
        _demand(rest == 0, "the input", inputs[0].numel(), f"{place.size} equal parts")
    else:
        counts = tuple(each.numel() for each in inputs)
    _demand(len(counts) == place.size, "inputs", len(counts), f"{place.size} tensors")
    wanted = counts[place.me]
    _demand(output.numel() == wanted, "the output", output.numel(), f"{wanted}")
    _same_dtype(output, inputs)
    return _reduce_scatter(place, output, joined(inputs), counts, op)


def reduce(place: Place, tensor: Tensor, root: int, op: ReduceOp) -> Transfer:
    """The root's tensor becomes the reduction of all; others keep theirs."""
    place.member(root)
    counts = [0] * place.size
    counts[root] = tensor.numel()
    output = tensor if place.me == root else tensor.new_empty(0)
    return _reduce_scatter(place, output, flat(tensor), tuple(counts), op)


def _reduce_scatter(
    place: Place, output: Tensor, payload: Tensor, counts: tuple[int, ...], op: ReduceOp
) -> Transfer:
    reduction = reduction_for(op, payload.dtype, place.size)
    start = sum(counts[: place.me])
    wanted = slice(start, start + counts[place.me])
    mine = to_wire(payload, reduction)
    if reduction.on_wire is None:
        gather = AllGather(place.members, (mine.numel(),) * place.size, mine.dtype)

        def finish_fold(found: Tensor) -> None:
            assert reduction.fold is not None
            write(output, fold_all(found, place.size, reduction.fold)[wanted])

        return Transfer(gather, mine, None, finish_fold)
    # A complex number is two elements on the wire.
    width = mine.numel() // max(1, payload.numel()) if payload.is_complex() else 1
    counts = tuple(count * width for count in counts)
    move = ReduceScatter(place.members, counts, mine.dtype, reduction.on_wire)
    out = to_wire(flat(output), reduction) if reduction.factor is None else None
    if out is not None and reduction.is_plain and shares_memory(out, output):
        return Transfer(move, apart(mine, out), out)

    def finish(found: Tensor) -> None:
        write(output, from_wire(found, output.dtype, reduction))

    return Transfer(move, mine, None, finish)


def broadcast(place: Place, tensor: Tensor, root: int) -> Transfer:
    """All get the root's tensor, in place.

    Raises:
        ValueError: there is no such root.
    """
    mine = flat(tensor)
    src = place.member(root)
    move = BroadcastFrom(place.members, src, mine.numel(), mine.dtype)
    if shares_memory(mine, tensor):
        return Transfer(move, mine, mine)
    finish = None if place.me == root else _writer(tensor)
    return Transfer(move, mine, mine, finish)


def all_gather(place: Place, outputs: Sequence[Tensor], own: Tensor) -> Transfer:
    """Each gets all members' tensors, in one output or one for each member.

    Raises:
        ValueError: the sizes do not fit.
    """
    mine = flat(own)
    if len(outputs) == 1 and place.size > 1:
        counts = (mine.numel(),) * place.size
        size = outputs[0].numel()
        _demand(size == sum(counts), "the output", size, f"{sum(counts)} elements")
    else:
        counts = tuple(each.numel() for each in outputs)
    _demand(len(counts) == place.size, "outputs", len(counts), f"{place.size} tensors")
    expected = counts[place.me]
    _demand(mine.numel() == expected, "the input", mine.numel(), f"{expected} elements")
    _same_dtype(own, outputs)
    move = AllGather(place.members, counts, mine.dtype)
    if len(outputs) == 1:
        out = flat(outputs[0])
        if shares_memory(out, outputs[0]):
            start = sum(counts[: place.me])
            slot = out[start : start + expected]
            # FSDP2 gathers from the very place where the own part belongs.
            own_slot = mine.data_ptr() == slot.data_ptr()
            return Transfer(move, mine if own_slot else apart(mine, out), out)
    return Transfer(move, mine, None, _splitter(outputs))


def gather(place: Place, outputs: Sequence[Tensor], own: Tensor, root: int) -> Transfer:
    """The root gets all members' tensors, all of one size.

    Raises:
        ValueError: the outputs do not fit, or there is no such root.
    """
    place.member(root)
    mine = flat(own)
    if place.me == root:
        _same_dtype(own, outputs)
        _all_of_size("outputs", outputs, mine.numel(), place.size)
    row = tuple(mine.numel() if i == root else 0 for i in range(place.size))
    move = AllToAll(place.members, (row,) * place.size, mine.dtype)
    return Transfer(move, mine, None, _splitter(outputs) if place.me == root else None)


def scatter(
    place: Place, output: Tensor, inputs: Sequence[Tensor], root: int
) -> Transfer:
    """Member i gets the root's inputs[i], all of one size.

    Raises:
        ValueError: the inputs do not fit, or there is no such root.
    """
    place.member(root)
    count = output.numel()
    nothing = (0,) * place.size
    table = [(count,) * place.size if i == root else nothing for i in range(place.size)]
    move = AllToAll(place.members, tuple(table), output.dtype)
    payload = output.detach().new_empty(0)
    if place.me == root:
        _same_dtype(output, inputs)
        _all_of_size("inputs", inputs, count, place.size)
        payload = joined(inputs)
    return _into(move, payload, output)


def all_to_all(
    place: Place, outputs: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[Transfer, ...]:
    """Member j gets inputs[j] of all; see NOTE [Pairs].

    Raises:
        ValueError: the number or the own part's size does not fit.
    """
    for name, given in (("inputs", inputs), ("outputs", outputs)):
        _demand(len(given) == place.size, name, len(given), f"{place.size} tensors")
    me = place.me
    here, there = inputs[me].numel(), outputs[me].numel()
    _demand(here == there, "the own output", there, f"{here} elements as the own input")
    _same_dtype(inputs[me], [*inputs, *outputs])
    transfers = [
        _exchange(place, peer, inputs[peer], outputs[peer])
        for peer in range(place.size)
        if peer != me and inputs[peer].numel() + outputs[peer].numel()
    ]
    own = inputs[me].detach().clone()
    outputs[me].detach().copy_(own.view(outputs[me].shape))
    return tuple(transfers)


def all_to_all_single(
    place: Place,
    output: Tensor,
    own: Tensor,
    output_splits: Sequence[int],
    input_splits: Sequence[int],
) -> tuple[tuple[Transfer, ...], Callable[[], None] | None]:
    """Like `all_to_all`, of rows of one tensor; and what is left to do in the end.

    Args:
        place: this rank's.
        output, own: of any shape; cut along their first dim.
        output_splits, input_splits: rows of each member; none for equal parts.

    Raises:
        ValueError: the splits do not fit the tensors.
    """
    mine, target = flat(own), flat(output)
    if mine.numel() and shares_storage(mine, target):
        mine = mine.clone()
    inputs = _rows(place, "input", own, mine, input_splits)
    outputs = _rows(place, "output", output, target, output_splits)
    transfers = all_to_all(place, outputs, inputs)
    if shares_memory(target, output):
        return transfers, None
    return transfers, lambda: write(output, target)


def send(place: Place, tensor: Tensor, dst: int) -> Transfer:
    """Give a tensor to one other member."""
    return _exchange(place, dst, tensor, tensor.detach().new_empty(0))


def receive(place: Place, tensor: Tensor, src: int) -> Transfer:
    """Take a tensor from one other member."""
    return _exchange(place, src, tensor.detach().new_empty(0), tensor)


def barrier(place: Place) -> Transfer:
    """Wait until all members have come."""
    element = torch.zeros(1, dtype=torch.uint8)
    move = AllReduce(place.members, 1, torch.uint8, "max")
    return Transfer(move, element, element)


def _exchange(place: Place, peer: int, given: Tensor, taken: Tensor) -> Transfer:
    """One pair's share: give elements to a member and take some from it."""
    me = place.me
    mine, other = place.member(me), place.member(peer)
    give, take = given.numel(), taken.numel()
    if mine < other:
        group, table = (mine, other), ((0, give), (take, 0))
    else:
        group, table = (other, mine), ((0, take), (give, 0))
    move = AllToAll(group, table, given.dtype)
    return _into(move, flat(given), taken, f"{min(me, peer)}-{max(me, peer)}")


def _into(move: Move, payload: Tensor, output: Tensor, part: str = "") -> Transfer:
    out = flat(output)
    if shares_memory(out, output):
        return Transfer(move, apart(payload, out), out, part=part)
    return Transfer(move, payload, out, _writer(output), part=part)


def _writer(target: Tensor) -> Callable[[Tensor], None]:
    return lambda found: write(target, found)


def _splitter(outputs: Sequence[Tensor]) -> Callable[[Tensor], None]:
    def finish(found: Tensor) -> None:
        pieces = torch.split(found, [each.numel() for each in outputs])
        for output, piece in zip(outputs, pieces, strict=True):
            write(output, piece)

    return finish


def _rows(
    place: Place, name: str, tensor: Tensor, elements: Tensor, splits: Sequence[int]
) -> list[Tensor]:
    num_rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        count, rest = divmod(num_rows, place.size)
        _demand(rest == 0, f"rows of the {name}", num_rows, f"{place.size} equal parts")
        splits = [count] * place.size
    _demand(len(splits) == place.size, f"{name} splits", len(splits), f"{place.size}")
    _demand(sum(splits) == num_rows, f"rows in {name} splits", sum(splits), num_rows)
    width = math.prod(tensor.shape[1:])
    return list(torch.split(elements, [rows * width for rows in splits]))


def _demand(fits: bool, name: str, given: int, needed: object) -> None:
    if not fits:
        raise ValueError(f"{name}: {given} given, needs {needed}")


def _same_dtype(one: Tensor, others: Sequence[Tensor]) -> None:
    for other in others:
        if other.dtype != one.dtype:
            raise ValueError(
                f"tensors of {one.dtype} and of {other.dtype} in one call; convert one"
            )


def _all_of_size(name: str, tensors: Sequence[Tensor], count: int, size: int) -> None:
    _demand(len(tensors) == size, name, len(tensors), f"{size} tensors")
    for tensor in tensors:
        _demand(tensor.numel() == count, name, tensor.numel(), f"{count} elements each")
