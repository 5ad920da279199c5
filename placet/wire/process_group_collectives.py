"""The collectives of a process group, by the names that torch calls.

Each function is a method of `PlacetProcessGroup`: it says which moves the call is, and
what tells it from others; the group starts them. `opts` is what torch passes, or None.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from placet.torch_private.c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Work,
    reduction_of,
)
from placet.wire import process_group_calls as calls
from placet.wire.process_group_calls import Place, Transfer

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """A call to start.

    Args:
        kind: of collective.
        what: dtype, shape, reduction, root: what tells the call from others.
        transfers: its moves.
        outputs: the tensors that hold the result in the end.
        has_site: whether all members make it from the same line.
        is_async: whether the caller goes on without waiting.
        finish: what is left to do when all transfers are done.
        source: the sender of what is received.
    """

    kind: str
    what: tuple[Hashable, ...]
    transfers: Sequence[Transfer]
    outputs: list[Any]
    has_site: bool = True
    is_async: bool = True
    finish: Callable[[], None] | None = None
    source: int = -1


class Caller(ABC):
    """The group that a function here is a method of."""

    place: Place

    @abstractmethod
    def start(self, request: Request) -> Work:
        """Submit a call's moves."""

    @abstractmethod
    def torch_group(self, tensors: Sequence[Tensor]) -> Any:
        """The group of torch's own for tensors that the wire cannot carry, or None."""


def allreduce(
    group: Caller, tensors: list[Tensor] | Tensor, opts: Any = None, timeout: Any = None
) -> Work:
    """All get the reduction of all tensors, in place."""
    given, opts = _listed(tensors), _with_op(opts, AllreduceOptions)
    other = group.torch_group(given)
    if other is not None:
        return _work(other.allreduce(given, opts))
    transfers = [calls.all_reduce(group.place, each, opts.reduceOp) for each in given]
    what = (*_likeness(given), reduction_of(opts.reduceOp)[0])
    is_async = opts.asyncOp
    return group.start(Request("all_reduce", what, transfers, given, is_async=is_async))


def allreduce_coalesced(group: Caller, tensors: list[Tensor], opts: Any = None) -> Work:
    """Several all-reduces at once."""
    other = group.torch_group(tensors)
    if other is not None:
        return _work(other.allreduce_coalesced(tensors, opts))
    return allreduce(group, tensors, opts)


def broadcast(
    group: Caller, tensors: list[Tensor] | Tensor, opts: Any = None, timeout: Any = None
) -> Work:
    """All get the root's tensors, in place."""
    given = _listed(tensors)
    if not isinstance(opts, BroadcastOptions):
        root, opts = opts or 0, BroadcastOptions()
        opts.rootRank = root
    other = group.torch_group(given)
    if other is not None:
        return _work(other.broadcast(given, opts))
    transfers = [calls.broadcast(group.place, each, opts.rootRank) for each in given]
    what = (*_likeness(given), f"from {opts.rootRank}")
    return group.start(
        Request("broadcast", what, transfers, given, False, opts.asyncOp)
    )


def reduce(group: Caller, tensors: list[Tensor], opts: Any = None) -> Work:
    """The root's tensors become the reduction of all."""
    opts = _with_op(opts, ReduceOptions)
    other = group.torch_group(tensors)
    if other is not None:
        return _work(other.reduce(tensors, opts))
    root, op = opts.rootRank, opts.reduceOp
    transfers = [calls.reduce(group.place, each, root, op) for each in tensors]
    what = (*_likeness(tensors), reduction_of(op)[0], f"to {root}")
    return group.start(Request("reduce", what, transfers, tensors, False, opts.asyncOp))


def allgather(
    group: Caller,
    output_tensors: list[list[Tensor]],
    input_tensors: list[Tensor],
    opts: Any = None,
) -> Work:
    """All get all members' tensors, each into a tensor of its own."""
    opts = opts or AllgatherOptions()
    other = group.torch_group(input_tensors)
    if other is not None:
        return _work(other.allgather(output_tensors, input_tensors, opts))
    pairs = zip(output_tensors, input_tensors, strict=True)
    transfers = [calls.all_gather(group.place, outs, own) for outs, own in pairs]
    what = _likeness([each for outs in output_tensors for each in outs])
    is_async = opts.asyncOp
    return group.start(
        Request("all_gather", what, transfers, output_tensors, is_async=is_async)
    )


def all_gather_single(
    group: Caller, output: Tensor, input: Tensor, opts: Any = None
) -> Work:
    """All get all members' tensors, one after the other in one."""
    return all_gather_single_coalesced(group, [output], [input], opts)


def all_gather_single_coalesced(
    group: Caller,
    output_lists: list[Tensor],
    input_list: list[Tensor],
    opts: Any = None,
) -> Work:
    """Several of `all_gather_single` at once."""
    opts = opts or AllgatherOptions()
    other = group.torch_group(input_list)
    if other is not None:
        return _work(other.all_gather_single_coalesced(output_lists, input_list, opts))
    pairs = zip(output_lists, input_list, strict=True)
    transfers = [calls.all_gather(group.place, [out], own) for out, own in pairs]
    what, is_async = _likeness(input_list), opts.asyncOp
    return group.start(
        Request("all_gather_single", what, transfers, output_lists, is_async=is_async)
    )


def reduce_scatter(
    group: Caller,
    output_tensors: list[Tensor],
    input_tensors: list[list[Tensor]],
    opts: Any = None,
) -> Work:
    """Member i gets the reduction of all members' i-th tensor."""
    opts = _with_op(opts, ReduceScatterOptions)
    other = group.torch_group(output_tensors)
    if other is not None:
        return _work(other.reduce_scatter(output_tensors, input_tensors, opts))
    transfers = [
        calls.reduce_scatter(group.place, out, given, opts.reduceOp)
        for out, given in zip(output_tensors, input_tensors, strict=True)
    ]
    like = _likeness([each for given in input_tensors for each in given])
    what, is_async = (*like, reduction_of(opts.reduceOp)[0]), opts.asyncOp
    return group.start(
        Request("reduce_scatter", what, transfers, output_tensors, is_async=is_async)
    )


def reduce_scatter_single(
    group: Caller, outputTensor: Tensor, inputTensor: Tensor, opts: Any = None
) -> Work:
    """Member i gets the reduction of the i-th part of all members' tensors."""
    return reduce_scatter_single_coalesced(group, [outputTensor], [inputTensor], opts)


def reduce_scatter_single_coalesced(
    group: Caller,
    outputTensors: list[Tensor],
    inputTensors: list[Tensor],
    opts: Any = None,
) -> Work:
    """Several of `reduce_scatter_single` at once."""
    opts = _with_op(opts, ReduceScatterOptions)
    other = group.torch_group(inputTensors)
    if other is not None:
        return _work(
            other.reduce_scatter_single_coalesced(outputTensors, inputTensors, opts)
        )
    transfers = [
        calls.reduce_scatter(group.place, out, [given], opts.reduceOp)
        for out, given in zip(outputTensors, inputTensors, strict=True)
    ]
    what = (*_likeness(outputTensors), reduction_of(opts.reduceOp)[0])
    kind, is_async = "reduce_scatter_single", opts.asyncOp
    return group.start(Request(kind, what, transfers, outputTensors, is_async=is_async))


def gather(
    group: Caller,
    output_tensors: list[list[Tensor]],
    input_tensors: list[Tensor],
    opts: Any = None,
) -> Work:
    """The root gets all members' tensors."""
    opts = opts or GatherOptions()
    other = group.torch_group(input_tensors)
    if other is not None:
        return _work(other.gather(output_tensors, input_tensors, opts))
    outputs, root = output_tensors[0] if output_tensors else [], opts.rootRank
    transfer = calls.gather(group.place, outputs, input_tensors[0], root)
    what = (*_likeness(input_tensors), f"to {root}")
    return group.start(
        Request("gather", what, [transfer], outputs, False, opts.asyncOp)
    )


def scatter(
    group: Caller,
    output_tensors: list[Tensor],
    input_tensors: list[list[Tensor]],
    opts: Any = None,
) -> Work:
    """Member i gets the root's i-th tensor."""
    opts = opts or ScatterOptions()
    other = group.torch_group(output_tensors)
    if other is not None:
        return _work(other.scatter(output_tensors, input_tensors, opts))
    inputs, root = input_tensors[0] if input_tensors else [], opts.rootRank
    transfer = calls.scatter(group.place, output_tensors[0], inputs, root)
    what = (*_likeness(output_tensors), f"from {root}")
    return group.start(
        Request("scatter", what, [transfer], output_tensors, False, opts.asyncOp)
    )


def alltoall(
    group: Caller,
    output_tensor: list[Tensor],
    input_tensor: list[Tensor],
    opts: Any = None,
) -> Work:
    """Member j gets the j-th tensor of all."""
    opts = opts or AllToAllOptions()
    other = group.torch_group(input_tensor)
    if other is not None:
        return _work(other.alltoall(output_tensor, input_tensor, opts))
    transfers = calls.all_to_all(group.place, output_tensor, input_tensor)
    # Sizes differ between ranks, so they cannot be in the key.
    what, is_async = (output_tensor[0].dtype,), opts.asyncOp
    return group.start(
        Request("all_to_all", what, transfers, output_tensor, is_async=is_async)
    )


def all_to_all_single(
    group: Caller,
    output_tensor: Tensor,
    input_tensor: Tensor,
    output_split_sizes: list[int],
    input_split_sizes: list[int],
    opts: Any = None,
) -> Work:
    """Member j gets the j-th rows of all members' tensors."""
    opts = opts or AllToAllOptions()
    splits = (output_split_sizes, input_split_sizes)
    other = group.torch_group([input_tensor])
    if other is not None:
        return _work(
            other.all_to_all_single(output_tensor, input_tensor, *splits, opts)
        )
    transfers, finish = calls.all_to_all_single(
        group.place, output_tensor, input_tensor, *splits
    )
    kind, what = "all_to_all_single", (output_tensor.dtype,)
    return group.start(
        Request(
            kind,
            what,
            transfers,
            [output_tensor],
            is_async=opts.asyncOp,
            finish=finish,
        )
    )


def barrier(group: Caller, opts: Any = None, timeout: Any = None) -> Work:
    """Wait until all members have come."""
    if not isinstance(opts, BarrierOptions):
        opts = BarrierOptions()
    device = opts.device
    if device is not None and device.type != "cpu":
        on_device = torch.empty(0, device=device)
        return _work(group.torch_group([on_device]).barrier(opts))
    transfers = [calls.barrier(group.place)]
    return group.start(Request("barrier", (), transfers, [], False, opts.asyncOp))


def _likeness(tensors: Sequence[Tensor]) -> tuple[Hashable, ...]:
    """What equal calls have in common: dtypes and shapes."""
    if len(tensors) == 1:
        return tensors[0].dtype, tensors[0].shape
    found: list[Hashable] = []
    for each in tensors:
        found += (each.dtype, each.shape)
    return tuple(found)


def _listed(tensors: list[Tensor] | Tensor) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _with_op(opts: Any, kind: type[T]) -> Any:
    """Options, where a program may give a reduction or nothing in their place."""
    if hasattr(opts, "reduceOp"):
        return opts
    made: Any = kind()
    if opts is not None:
        made.reduceOp = opts
    return made


def _work(work: Any) -> Work:
    assert isinstance(work, Work)
    return work
