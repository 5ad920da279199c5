"""What the process group does beyond gloo: orders, keys, dtypes, refusals, endings."""

import re
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from placet.boxing.moves import AllReduce
from placet.errors import MoveMismatch, WireError, WireTimeout
from placet.wire.process_group import Options
from placet.wire.process_group_keys import named
from tests.wire.process_group_programs import numbers

SIZE = 2


def any_order():
    """Calls from two lines, in opposite orders on the two ranks, each several times."""

    def first(tensor):
        return dist.all_reduce(tensor, async_op=True)

    def second(tensor):
        return dist.all_reduce(tensor, async_op=True)

    one, two = torch.full((1000,), 1.0), torch.full((1000,), 10.0)
    for _ in range(3):
        calls = [(first, one), (second, two)]
        works = [call(t) for call, t in calls[:: 1 if dist.get_rank() == 0 else -1]]
        for work in works:
            work.wait()
    assert one.unique().item() == SIZE**3
    assert two.unique().item() == 10.0 * SIZE**3
    # Two sub-groups of the same ranks, too, and one line where names tell them apart.
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    order = range(2) if dist.get_rank() == 0 else range(1, -1, -1)
    tensors = [torch.full((10,), float(i)) for i in range(4)]
    works = [dist.all_reduce(tensors[i], group=groups[i], async_op=True) for i in order]
    for i in order:
        with named(f"part {i}", priority=i):
            works.append(dist.all_reduce(tensors[2 + i], async_op=True))
    for work in works:
        work.wait()
    assert [each.unique().item() for each in tensors] == [0.0, 2.0, 4.0, 6.0]


def keys_are_readable():
    wire = dist.group.WORLD.shared.wire
    seen = []
    submit = wire.submit

    def spy(move, payload, *, key, **rest):
        seen.append((key, rest["priority"]))
        return submit(move, payload, key=key, **rest)

    wire.submit = spy
    try:
        for _ in range(2):
            dist.all_reduce(torch.ones(2, 3))
        dist.broadcast(torch.ones(4, dtype=torch.int32), 1)
        with named("gate", priority=7):
            dist.all_reduce(torch.ones(()))
        dist.barrier()
    finally:
        del wire.submit
    (first, _), again, (cast, _), gate, (barrier, _) = seen
    assert again == (first, 0)
    assert first.startswith(
        "world/all_reduce/float32[2,3] SUM/process_group_checks.py:"
    )
    assert cast == "world/broadcast/int32[4] from 1"
    assert gate == ("world/all_reduce/float32[] SUM/'gate'", 7)
    assert barrier == "world/barrier"


def more_dtypes():
    """What gloo cannot reduce."""
    size, others = dist.get_world_size(), [numbers(6)]
    dist.all_gather(found := [torch.empty(6) for _ in range(size)], others[0])
    total = sum(found)
    for dtype in (torch.int16, torch.uint16, torch.uint32, torch.float8_e4m3fn):
        mine = numbers(6, dtype=dtype)
        dist.all_reduce(mine)
        assert torch.equal(mine.float(), total.to(dtype).float()), dtype
    part = torch.empty(3, dtype=torch.complex64)
    dist.reduce_scatter_single(part, numbers(6, dtype=torch.complex64))
    start = 3 * dist.get_rank()
    assert torch.equal(part, total[start : start + 3].to(torch.complex64))
    halved = dist.ReduceOp.PREMUL_SUM(0.5)
    mine = numbers(6)
    dist.all_reduce(mine, halved)
    assert torch.equal(mine, total / 2)
    raw = numbers(6, dtype=torch.float8_e5m2)
    dist.broadcast(raw, 0)
    flags = torch.tensor([dist.get_rank() == 0, False])
    dist.all_reduce(flags)  # the sum of truth values is "any"
    assert flags.tolist() == [True, False]
    sparse = torch.sparse_coo_tensor(
        [[dist.get_rank()]], [1.0], (SIZE,), check_invariants=True
    )
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0] * SIZE
    uneven = [torch.empty(1), torch.empty(3)]
    dist.all_gather(uneven, torch.full((1 + 2 * dist.get_rank(),), 5.0))
    assert torch.cat(uneven).tolist() == [5.0] * 4


def refusals():
    whole = torch.ones(4, dtype=torch.int32)
    with pytest.raises(TypeError, match=r"AVG of torch\.int32 would round"):
        dist.all_reduce(whole, dist.ReduceOp.AVG)
    with pytest.raises(TypeError, match="AVG of bool"):
        dist.all_reduce(whole > 0, dist.ReduceOp.AVG)
    with pytest.raises(TypeError, match=r"BAND of torch\.float32"):
        dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND)
    with pytest.raises(ValueError, match="names the sender; pass src"):
        dist.recv(torch.ones(1))
    with pytest.raises(ValueError, match="cannot send to itself"):
        dist.isend(torch.ones(1), dist.get_rank())
    with pytest.raises(ValueError, match="rows in input splits: 4 given, needs 3"):
        dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 2], [2, 2])
    with pytest.raises(ValueError, match="the output: 5 given, needs 4 elements"):
        dist.all_gather_single(torch.ones(5), torch.ones(2))
    with pytest.raises(ValueError, match="at least one character"), named(""):
        pass


def equal_calls_in_debug_mode():
    group = dist.new_group()
    group.options = Options(debug=True)
    tensors, works, error = [torch.ones(4), torch.ones(4)], [], None
    is_late = dist.get_rank() == 1
    if is_late:
        dist.barrier()
    try:
        for each in tensors[: 1 if is_late else 2]:
            works.append(dist.all_reduce(each, group=group, async_op=True))
    except ValueError as found:
        error = found
    if not is_late:
        dist.barrier()
    works[0].wait()
    assert is_late or "an equal call is still in flight" in str(error)


def other_lines_never_match():
    """The same call from different lines: an error that shows both, not a hang."""
    wire = dist.group.WORLD.shared.wire
    dist.barrier()  # so that the deadlines of both pass at about one time
    usual, wire.timeout_seconds = wire.timeout_seconds, 0.8
    mine = torch.ones(3)
    try:
        if dist.get_rank() == 0:
            work = dist.all_reduce(mine, group=dist.new_group(), async_op=True)
        else:
            work = dist.all_reduce(mine, group=dist.new_group(), async_op=True)
        with pytest.raises(WireTimeout, match="the same call was made from") as caught:
            work.wait()
    finally:
        wire.timeout_seconds = usual
    text = str(caught.value).split("the same call was made from")[1]
    assert text.count("process_group_checks.py:") == 2, text


def other_shapes_are_a_mismatch():
    """The same line with another shape: an error that shows both shapes."""
    wire = dist.group.WORLD.shared.wire
    group = dist.new_group([1, 0], sort_ranks=False)  # not one that failed before
    dist.barrier(group)
    usual, wire.timeout_seconds = wire.timeout_seconds, 0.8
    try:
        with pytest.raises(
            MoveMismatch, match=r"one call with other tensors"
        ) as caught:
            dist.all_reduce(torch.ones(3 + dist.get_rank()), group=group)
    finally:
        wire.timeout_seconds = usual
    text = str(caught.value)
    assert re.search(r"with float32\[[34]\] SUM .* and float32\[[34]\] SUM", text), text


def waits_end():
    """A wait with a time of its own ends, and the call may still succeed."""
    is_late = dist.get_rank() == 1
    if is_late:
        dist.barrier()
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    if not is_late:
        assert not work.is_completed()
        with pytest.raises(WireTimeout, match=r"not done after 0.05 s of waiting"):
            work.wait(timedelta(seconds=0.05))
        dist.barrier()
    assert work.wait()
    assert work.is_success()
    assert tensor.tolist() == [2.0] * 3


def beside_gloo():
    """A group of ours in a world of gloo's: a wire of its own."""
    group = dist.new_group(backend="placet")
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [dist.get_world_size()] * 2
    shared = group.shared
    dist.destroy_process_group(group)
    end_of(shared)


def end_of(shared):
    """What the last group leaves behind: nothing."""
    move = AllReduce(tuple(range(shared.wire.num_ranks)), 1, torch.float32)
    with pytest.raises(WireError, match="closed"):
        shared.wire.submit(move, torch.ones(1), key="late")


def subgroups():
    world = dist.group.WORLD
    alone = [dist.new_group([rank]) for rank in range(SIZE)][dist.get_rank()]
    backwards = dist.new_group([1, 0], sort_ranks=False)
    tensor = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(tensor, group=alone)
    found = [torch.empty(1), torch.empty(1)]
    dist.all_gather(found, tensor, group=backwards)
    assert torch.cat(found).tolist() == [2.0, 1.0]
    assert alone.shared is backwards.shared is world.shared
    dist.destroy_process_group(backwards)
    with pytest.raises(ValueError, match="the process group was destroyed"):
        backwards.barrier()
    dist.barrier()  # the others go on


CHECKS = (
    subgroups,
    any_order,
    keys_are_readable,
    more_dtypes,
    refusals,
    equal_calls_in_debug_mode,
    waits_end,
    other_lines_never_match,
    other_shapes_are_a_mismatch,
)
