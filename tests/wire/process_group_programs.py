"""Programs for torch.distributed, each run on a group of gloo's and on one of ours.

Every function takes a group and gives tensors, which must be equal on both.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

OPS = dist.ReduceOp
REDUCED = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)
CARRIED = (torch.bool, torch.complex64, torch.uint8, torch.float32)


def numbers(*shape: int, dtype: torch.dtype = torch.float32, salt: int = 0) -> Tensor:
    """Small whole numbers that tell their rank."""
    count = int(torch.Size(shape).numel())
    index = torch.arange(count).reshape(shape)
    return ((index * 7 + 5 * dist.get_rank() + salt) % 11).to(dtype)


def reductions(group: dist.ProcessGroup) -> Iterator[Tensor]:
    for dtype in REDUCED:
        for op in (OPS.SUM, OPS.MIN, OPS.MAX, OPS.PRODUCT):
            mine = numbers(5, 3, dtype=dtype)
            dist.all_reduce(mine, op, group=group)
            yield mine
    for op in (OPS.BAND, OPS.BOR, OPS.BXOR):
        mine = numbers(9, dtype=torch.int32)
        dist.all_reduce(mine, op, group=group)
        yield mine
    for op in (OPS.MIN, OPS.MAX, OPS.BAND, OPS.BOR, OPS.BXOR, OPS.PRODUCT):
        mine = numbers(9) > 4
        dist.all_reduce(mine, op, group=group)
        yield mine
    for mine in (numbers(7) / 3, numbers(7, dtype=torch.complex64)):
        dist.all_reduce(mine, OPS.AVG, group=group)
        yield mine
    for root in range(dist.get_world_size(group)):
        mine = numbers(4)
        dist.reduce(mine, root, group=group)
        if dist.get_rank(group) == root:  # gloo uses the others' as scratch memory
            yield mine


def layouts(group: dist.ProcessGroup) -> Iterator[Tensor]:
    base = numbers(4, 6)
    for mine in (base.t(), base[:, ::2], base[1], base.new_full((), 3.0), base[:0]):
        mine = mine.clone(memory_format=torch.preserve_format)
        dist.all_reduce(mine, group=group)
        yield mine
    strided = numbers(4, 6)[:, 1::2]
    yield_from = strided.clone()
    dist.broadcast(yield_from, 0, group=group)
    yield yield_from
    parameter = torch.nn.Parameter(numbers(3))
    dist.all_reduce(parameter.data, group=group)
    yield parameter.data


def in_place_layouts(group: dist.ProcessGroup) -> Iterator[Tensor]:
    """What gloo refuses: strided memory; checked against contiguous gloo."""
    whole = numbers(4, 6)
    view = whole[:, ::2]
    wanted = view.contiguous()
    dist.all_reduce(wanted, group=group)
    if group is dist.group.WORLD:
        dist.all_reduce(view, group=group)
        yield view.clone()
        yield whole[:, 1::2].clone()
    else:
        yield wanted
        yield whole[:, 1::2].clone()


def broadcasts(group: dist.ProcessGroup) -> Iterator[Tensor]:
    for dtype in CARRIED:
        for root in range(dist.get_world_size(group)):
            mine = numbers(2, 3, dtype=dtype)
            dist.broadcast(mine, root, group=group)
            yield mine
    # Two roles, two lines: no call site may stand in the key.
    mine = numbers(5)
    if dist.get_rank(group) == 0:
        dist.broadcast(mine, 0, group=group)
    else:
        dist.broadcast(mine, 0, group=group)
    yield mine


def gathers(group: dist.ProcessGroup) -> Iterator[Tensor]:
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    for dtype in CARRIED:
        mine = numbers(2, 3, dtype=dtype)
        found = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(found, mine, group=group)
        yield from found
        whole = mine.new_empty(2 * size, 3)
        dist.all_gather_single(whole, mine, group=group)
        yield whole
        if dtype.is_complex:
            continue  # gloo's gather has none
        for root in range(size):
            wanted = [torch.empty_like(mine) for _ in range(size)]
            dist.gather(mine, wanted if rank == root else None, root, group=group)
            yield from wanted if rank == root else ()
            given = [mine + i if dtype != torch.bool else mine for i in range(size)]
            part = torch.empty_like(mine)
            dist.scatter(part, given if rank == root else None, root, group=group)
            yield part
    in_place = numbers(2 * size, 3)
    own = in_place[2 * rank : 2 * rank + 2]
    dist.all_gather_single(in_place, own, group=group)
    yield in_place
    objects = [None] * size
    dist.all_gather_object(objects, {"tensor": numbers(3)}, group=group)
    yield from (each["tensor"] for each in objects)
    several = [rank, "text"] if rank == 0 else [None, None]
    dist.broadcast_object_list(several, 0, group=group)
    yield torch.tensor(several[0])


def scatters(group: dist.ProcessGroup) -> Iterator[Tensor]:
    size = dist.get_world_size(group)
    for op in (OPS.SUM, OPS.AVG, OPS.MAX):
        out = torch.empty(2, 3)
        dist.reduce_scatter_single(out, numbers(2 * size, 3), op, group=group)
        yield out
    out = torch.empty(4)
    dist.reduce_scatter(out, [numbers(4, salt=i) for i in range(size)], group=group)
    yield out


def exchanges(group: dist.ProcessGroup) -> Iterator[Tensor]:
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    even = torch.empty(2 * size, 3)
    dist.all_to_all_single(even, numbers(2 * size, 3), group=group)
    yield even
    sends = [(rank + 2 * j) % 4 for j in range(size)]
    takes = [(i + 2 * rank) % 4 for i in range(size)]
    out = torch.full((sum(takes), 2), -1.0)
    given = numbers(sum(sends), 2)
    dist.all_to_all_single(out, given, takes, sends, group=group)
    yield out


def list_exchange(group: dist.ProcessGroup) -> Iterator[Tensor]:
    """gloo has no all_to_all of lists: there each tensor is sent."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    given = [numbers(1 + (rank + j) % 3) for j in range(size)]
    found = [torch.empty(1 + (i + rank) % 3) for i in range(size)]
    if group is dist.group.WORLD:
        dist.all_to_all(found, given, group=group)
    else:
        found[rank].copy_(given[rank])
        ops = []
        for peer in set(range(size)) - {rank}:
            ops.append(
                dist.P2POp(dist.isend, given[peer], group=group, group_peer=peer)
            )
            ops.append(
                dist.P2POp(dist.irecv, found[peer], group=group, group_peer=peer)
            )
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    yield from found


def pairs(group: dist.ProcessGroup) -> Iterator[Tensor]:
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    after, before = (rank + 1) % size, (rank - 1) % size
    found = [torch.empty(4) for _ in range(3)]
    works = []
    for tag, each in enumerate(found):  # tags in opposite orders
        works.append(dist.irecv(each, group_src=before, group=group, tag=tag))
    for tag in (2, 0, 1):
        mine = numbers(4, salt=tag)
        works.append(dist.isend(mine, group_dst=after, group=group, tag=tag))
    for work in works:
        work.wait()
    yield from found
    theirs = torch.empty(2, 2)
    if rank == 0:
        dist.send(numbers(2, 2), group_dst=1, group=group)
    elif rank == 1:
        assert dist.recv(theirs, group_src=0, group=group) == 0
        yield theirs
    if rank == 0:
        dist.send_object_list([{"a": 1}], 1, group=group)
    elif rank == 1:
        objects = [None]
        dist.recv_object_list(objects, 0, group=group)
        yield torch.tensor(objects[0]["a"])
    dist.barrier(group=group)


def asynchronous(group: dist.ProcessGroup) -> Iterator[Tensor]:
    mine = [numbers(3, salt=i) / 3 for i in range(4)]
    works = [dist.all_reduce(t, OPS.AVG, group=group, async_op=True) for t in mine]
    for work in reversed(works):
        work.wait()
        assert work.is_completed()
    yield from mine
    future = dist.all_reduce(mine[0], group=group, async_op=True).get_future()
    doubled = future.then(lambda done: 2 * done.value()[0])
    yield doubled.wait()
    work = dist.all_reduce(mine[1], group=group, async_op=True)
    # As PowerSGD's hook does: a collective inside what a future calls.
    inner = work.get_future().then(lambda _: nested(mine[2], group))
    yield inner.wait()


def nested(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    work = dist.all_reduce(tensor, group=group, async_op=True)
    return work.get_future().wait()[0]


def coalesced(group: dist.ProcessGroup) -> Iterator[Tensor]:
    mine = [numbers(3), numbers(2, 2, salt=1)]
    with dist.distributed_c10d._coalescing_manager(group):
        for each in mine:
            dist.all_reduce(each, group=group)
    yield from mine
    size = dist.get_world_size(group)
    wholes = [torch.empty(3 * size), torch.empty(4 * size)]
    with dist.distributed_c10d._coalescing_manager(group):
        for whole, each in zip(wholes, mine, strict=True):
            dist.all_gather_single(whole, each.view(-1), group=group)
    yield from wholes


PROGRAMS = (
    reductions,
    layouts,
    in_place_layouts,
    broadcasts,
    gathers,
    scatters,
    exchanges,
    list_exchange,
    pairs,
    asynchronous,
    coalesced,
)
