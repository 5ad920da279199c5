"""The wire as a process group of torch.distributed, for programs that know no placet.

    import placet.wire.backend                      # registers the backend
    dist.init_process_group("placet")               # or "cpu:placet,cuda:nccl"

Each call becomes moves (`process_group_calls`) under a key (`process_group_keys`), so
calls of one group may come in another order on each rank. A group is a tuple of ranks
on one wire, which all groups of the process share: making one connects nothing.

torch takes a Python group for the whole of it, and makes no other backend beside it. So
CUDA tensors go to a group of torch's own, on NCCL, made when the first comes; so do
sparse CPU tensors, on gloo. All else that lies on a CPU the wire carries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from placet.boxing.algorithms import choose
from placet.boxing.moves import Move
from placet.placement.cluster import Cluster
from placet.torch_private.c10d import (
    GroupBase,
    PrefixStore,
    Store,
    Work,
    c10d_group,
    configuration_of,
)
from placet.wire import process_group_calls as calls
from placet.wire import process_group_collectives as collectives
from placet.wire.interface import Future
from placet.wire.process_group_calls import Place, Transfer
from placet.wire.process_group_collectives import Caller, Request
from placet.wire.process_group_keys import KeyBook
from placet.wire.process_group_work import MoveFuture, WireWork


class GroupWire(Protocol):
    """The wire that a group needs; see `placet.wire.interface.Wire`."""

    rank: int
    num_ranks: int
    cluster: Cluster | None

    def submit(
        self,
        move: Move,
        payload: Tensor,
        *,
        key: str,
        priority: int = 0,
        out: Tensor | None = None,
        notify: bool = False,
    ) -> Future:
        """Start a move; `notify`: someone may ask to be called back."""

    def close(self) -> None:
        """Finish what is in flight and let go of all resources."""


class SharedWire:
    """One wire for all groups of a process; closed by the last of them.

    Args:
        wire: connects the ranks of the first group.
    """

    def __init__(self, wire: GroupWire) -> None:
        self.wire = wire
        self._num_users = 0
        self._lock = Lock()

    def take(self) -> None:
        """One group more."""
        with self._lock:
            self._num_users += 1

    def leave(self) -> None:
        """One group less; the last one closes the wire."""
        with self._lock:
            self._num_users -= 1
            is_last = self._num_users == 0
        if is_last:
            self.wire.close()


@dataclass(frozen=True)
class Options:
    """What `init_process_group(pg_options=...)` may say.

    Args:
        debug: refuse a call that nothing tells apart from one still in flight, and
            find tensors that are changed or freed while they are (copies each).
        report_folder: where each rank writes a flight record when something fails, for
            `placet doctor`; of the first group, as all share its wire.
    """

    debug: bool = False
    report_folder: Path | None = None


class PlacetProcessGroup(GroupBase):  # type: ignore[misc]
    """A process group on a wire.

    torch decides the names and arguments of the methods: those of `dist.ProcessGroup`.

    Args:
        shared: the process's wire.
        members: the group's ranks on the wire, in the group's order.
        store: the group's own.
        name: equal on all members.
        timeout: of groups of torch's own that this one may make; the wire has its own.
        options: see `Options`.
    """

    def __init__(
        self,
        shared: SharedWire,
        members: tuple[int, ...],
        store: Store,
        *,
        name: str,
        timeout: timedelta,
        options: Options,
    ) -> None:
        place = Place(members, members.index(shared.wire.rank))
        GroupBase.__init__(self, place.me, place.size)
        shared.take()
        self.shared = shared
        self.place = place
        self.options = options
        self._store = store
        self._timeout = timeout
        self._name = name
        self._description = ""
        self._keys = KeyBook("world" if name == "0" else f"group {name}")
        self._torch_groups: dict[str, Any] = {}
        self._in_flight: WeakValueDictionary[str, WireWork] = WeakValueDictionary()
        self._is_open = True

    # --- collectives; torch still looks some of them up by their old names

    allreduce = collectives.allreduce
    allreduce_coalesced = collectives.allreduce_coalesced
    broadcast = collectives.broadcast
    reduce = collectives.reduce
    allgather = allgather_coalesced = collectives.allgather
    all_gather_single = _allgather_base = collectives.all_gather_single
    all_gather_single_coalesced = collectives.all_gather_single_coalesced
    allgather_into_tensor_coalesced = collectives.all_gather_single_coalesced
    reduce_scatter = collectives.reduce_scatter
    reduce_scatter_single = collectives.reduce_scatter_single
    _reduce_scatter_base = collectives.reduce_scatter_single
    reduce_scatter_single_coalesced = collectives.reduce_scatter_single_coalesced
    reduce_scatter_tensor_coalesced = collectives.reduce_scatter_single_coalesced
    gather = collectives.gather
    scatter = collectives.scatter
    alltoall = collectives.alltoall
    all_to_all_single = alltoall_base = collectives.all_to_all_single
    barrier = collectives.barrier

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier; its error names who is missing, as each of the wire's does."""
        self.barrier().wait(timeout or timedelta(0))

    # --- point to point

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> Any:
        """Give a tensor to one other member."""
        other = self.torch_group(tensors)
        if other is not None:
            return other.send(tensors, dstRank, tag)
        transfer = calls.send(self.place, self._one(tensors, dstRank), dstRank)
        return self._start_pair(transfer, self.place.me, dstRank, tag, tensors)

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> Any:
        """Take a tensor from one other member."""
        other = self.torch_group(tensors)
        if other is not None:
            return other.recv(tensors, srcRank, tag)
        transfer = calls.receive(self.place, self._one(tensors, srcRank), srcRank)
        return self._start_pair(transfer, srcRank, self.place.me, tag, tensors)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Any:
        """Not possible: a key names the sender.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "recv without src: this backend matches transfers by key, which names the "
            'sender; pass src, or use a group of new_group(backend="gloo")'
        )

    def _start_pair(
        self, transfer: Transfer, src: int, dst: int, tag: int, tensors: list[Tensor]
    ) -> Work:
        what = (tensors[0].dtype, f"{src}->{dst} tag {tag}")
        pair = replace(transfer, part="")
        return self.start(Request("send", what, [pair], tensors, False, source=src))

    def _one(self, tensors: list[Tensor], peer: int) -> Tensor:
        if len(tensors) != 1:
            raise ValueError(f"{len(tensors)} tensors in one transfer, needs one")
        if peer == self.place.me:
            raise ValueError(f"rank {peer} cannot send to itself; copy the tensor")
        return tensors[0]

    # --- names, and what else torch asks of a group

    def getBackendName(self) -> str:
        """The backend's name, as C++ asks for it."""
        return "placet"

    def getGroupName(self) -> str:
        """The group's name, as C++ asks for it."""
        return self._name

    def setGroupName(self, group_name: str) -> None:
        """Rename the group; keys keep the first name."""
        self._name = group_name

    def getGroupDesc(self) -> str:
        """What the group is for."""
        return self._description

    def setGroupDesc(self, group_desc: str) -> None:
        """Say what the group is for."""
        self._description = group_desc

    name = _get_backend_name = getBackendName
    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName, setGroupName)
    group_desc = property(getGroupDesc, setGroupDesc)
    supports_splitting = supports_coalescing = False

    @property
    def _device_types(self) -> list[torch.device]:
        has_cuda = "cuda:" in configuration_of(self)
        return [torch.device(each) for each in ("cpu", "cuda")[: 1 + has_cuda]]

    def _get_backend(self, device: torch.device | str) -> Any:
        device = torch.device(device)
        if device.type == "cpu":
            return self
        return self._torch_group(device.type)._get_backend(device)

    def get_group_store(self) -> Store:
        """The group's own store."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """For groups of torch's own made later; the wire keeps its deadline."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Nothing to do: calls are matched by key."""

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def shutdown(self) -> None:
        """Leave; the process's last group closes the wire."""
        if self._is_open:
            self._is_open = False
            for other in self._torch_groups.values():
                other.shutdown()
            self.shared.leave()

    abort = shutdown

    # --- how calls start

    def start(self, request: Request) -> Work:
        """Submit a call's moves.

        Raises:
            ValueError: the group was destroyed; or, in debug mode, an equal call is in
                flight.
        """
        key = self._keys.key(request.kind, request.what, has_site=request.has_site)
        if not self._is_open:
            raise ValueError(f"{key.text}: the process group was destroyed")
        if self.options.debug:
            self._refuse_twin(key.text)
        futures: list[MoveFuture] = []
        wire = self.shared.wire
        for i, each in enumerate(request.transfers):
            part = each.part or (str(i) if len(request.transfers) > 1 else "")
            future = wire.submit(
                choose(each.move, wire.cluster),
                each.payload,
                key=f"{key.text}/{part}" if part else key.text,
                priority=key.priority,
                out=each.out,
                notify=request.is_async,
            )
            futures.append(cast(MoveFuture, future))  # the engine's call back
        finish = _ending(request)
        work = WireWork(
            futures, finish, request.outputs, what=key.text, source=request.source
        )
        if request.is_async and finish is not None:
            work.finish_by_itself()
        if self.options.debug:
            self._in_flight[key.text] = work
        return work

    def _refuse_twin(self, text: str) -> None:
        twin = self._in_flight.get(text)
        if twin is not None and not twin.is_completed():
            raise ValueError(
                f"{text}: an equal call is still in flight, and only their order "
                "tells them apart; wait for the first, or name them with "
                "placet.wire.process_group_keys.named(...)"
            )

    # --- groups of torch's own

    def torch_group(self, tensors: Sequence[Tensor]) -> Any:
        """The group for tensors that the wire cannot carry; None where it can."""
        for tensor in tensors:
            if tensor.device.type != "cpu":
                return self._torch_group(tensor.device.type)
            if tensor.layout != torch.strided:
                return self._torch_group("cpu")
        return None

    def _torch_group(self, device: str) -> Any:
        """Made when first used; all members come to make it."""
        found = self._torch_groups.get(device)
        if found is None:
            backend = {"cpu": "gloo", "cuda": "nccl"}.get(device)
            if backend is None:
                raise ValueError(f"tensors on {device}: placet carries cpu, NCCL cuda")
            store = PrefixStore(f"placet/{backend}", self._store)
            me, size = self.place.me, self.place.size
            found = c10d_group(backend, device, store, me, size, self._timeout)
            self._torch_groups[device] = found
        return found


Caller.register(PlacetProcessGroup)


def _ending(request: Request) -> Callable[[Sequence[Tensor]], None] | None:
    """What is left to do with the results of all transfers, if anything."""
    finishes = [each.finish for each in request.transfers]
    last = request.finish
    if last is None and not any(finishes):
        return None

    def end(results: Sequence[Tensor]) -> None:
        for finish, result in zip(finishes, results, strict=True):
            if finish is not None:
                finish(result)
        if last is not None:
            last()

    return end
