"""The engine as a wire: moves in any order, with priorities, none of which can hang.

    wire = start_wire(core, rank=0, num_ranks=2, hosts=hosts, timeout_seconds=300)
    future = wire.submit(move, payload, key="grads.0", priority=1)
    result = future.wait()

Members find each other's moves by key (`keys`), a core moves the bytes, an attendant
hears what goes wrong (`attendant`), and every wait ends: with the result, or with an
error that says who is missing (`deadlines`), who differs (`mismatches`) or who is gone.
`reform` goes on without the lost (`membership`).
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from placet.boxing.moves import AllGather, Move
from placet.errors import WireError
from placet.placement.cluster import Cluster
from placet.wire.check import check_submission
from placet.wire.daemons import GATE
from placet.wire.engine.attendant import Attendant
from placet.wire.engine.core import Core, Counters
from placet.wire.engine.deadlines import Asker, Waiting
from placet.wire.engine.frames import MESSAGE_BYTES
from placet.wire.engine.futures import FinishedFuture
from placet.wire.engine.inflight import FORKED, InFlight
from placet.wire.engine.membership import Membership
from placet.wire.engine.messages import OWN_TOPICS, pack_message
from placet.wire.engine.prepared import Prepared, buffer_problem, fits, prepare_move
from placet.wire.interface import Capabilities, Future, Wire

CLOSED = "the wire is closed; submit before close()"

KEPT_MOVES = 8192
"""So many moves are kept worked out; then all are worked out again."""

Listener = Callable[[int, bytes], None]


class EngineWire(Wire):
    """Carries moves by a core; `start_wire` makes one.

    Keys should be few and static: each distinct key of a group is remembered, at about
    100 bytes. A payload must not be touched until its future is done.

    Args:
        core: moves the bytes; the wire owns it.
        inflight, waiting, membership, attendant: the wire's parts.
        hosts: the name of each rank's host.
        timeout_seconds: from a move's submission until it counts as failed.
        cluster: what links join the ranks; see `Wire`.
        start_bytes: what it took to meet, for the control account.
    """

    def __init__(
        self,
        core: Core,
        inflight: InFlight,
        waiting: Waiting,
        membership: Membership,
        attendant: Attendant,
        *,
        hosts: tuple[str, ...],
        timeout_seconds: float,
        cluster: Cluster | None,
        start_bytes: int,
    ) -> None:
        self.rank = inflight.rank
        self.num_ranks = len(inflight.peers)
        self.capabilities = Capabilities(order_free=True, priorities=True)
        self.timeout_seconds = timeout_seconds
        self.hosts = hosts
        self._first_hosts = hosts
        self._core = core
        self._inflight = inflight
        self._waiting = waiting
        self._membership = membership
        self._attendant = attendant
        self.cluster = cluster
        self._known: dict[Move, Prepared] = {}
        self._own_bytes = start_bytes

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
        """Start a move; see `Wire.submit`.

        Args:
            move, payload, key, priority, out: as for any wire. Buffers are on the CPU.
            notify: wake the wire's thread at once for the future's `on_done` calls.

        Raises:
            ValueError: a buffer does not fit the move, or is not on the CPU.
            TypeError: the dtype cannot be reduced on a wire.
            WireError: a member of the group is gone, a collective of this group failed
                before (`reform` makes it whole again), or the wire is closed.
        """
        prepared = self._known.get(move)
        if prepared is None or not fits(prepared, payload, out):
            check_submission(
                move,
                payload,
                out,
                key=key,
                rank=self.rank,
                num_ranks=self.num_ranks,
            )
            prepared = self._prepare(move)
        return self._start(prepared, payload, key, priority, out, notify)

    def prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        """Nothing: members meet by key, whatever their group."""

    def exchange(self, value: bytes, *, key: str) -> list[bytes]:
        """See `Wire.exchange`; it works on, though a move over all ranks has failed.

        Raises:
            WireError: a rank is gone or did not come in time.
        """
        self._inflight.check_usable(f"exchange {key!r}")
        everyone = tuple(range(self.num_ranks))
        length = torch.tensor([len(value)])
        lengths_move = AllGather(everyone, (1,) * self.num_ranks, torch.int64)
        found = self._control(lengths_move, length, f"exchange {key}: lengths")
        lengths = tuple(int(n) for n in found.tolist())
        bytes_move = AllGather(everyone, lengths, torch.uint8)
        given = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else None
        payload = torch.empty(0, dtype=torch.uint8) if given is None else given
        joined = bytes(self._control(bytes_move, payload, f"exchange {key}").numpy())
        starts = [sum(lengths[:rank]) for rank in everyone]
        return [joined[s : s + n] for s, n in zip(starts, lengths, strict=True)]

    def control_bytes(self) -> int:
        return self._core.counters().control_bytes + self._own_bytes

    def gone(self) -> dict[int, str]:
        """Ranks that take no part any more, and why: dead, closed or re-forming."""
        with self._inflight.lock:
            return {**self._inflight.doubted, **self._inflight.lost}

    def counters(self) -> Counters:
        """What the core has done so far."""
        return self._core.counters()

    def reform(self, timeout_seconds: float) -> None:
        """Go on with the ranks that are left; every survivor calls it.

        Survivors keep their order and are numbered anew: `rank` and `num_ranks` of this
        same object change. All that was in flight fails, broken groups are whole again,
        keys count from the start. It may be called when nobody died, too.

        Args:
            timeout_seconds: how long to wait for a survivor that does not call it.

        Raises:
            WireTimeout: one did not; names it.
            PeerLost: the others hold this rank for lost.
            WireError: the wire is closed.
        """
        self._membership.reform(timeout_seconds)

    def tell(self, rank: int, topic: str, data: bytes) -> None:
        """Send another rank a message; in order for each rank, dropped if it is gone.

        Raises:
            ValueError: there is no such other rank, the topic is the wire's own, or the
                message is too long.
        """
        if not 0 <= rank < self.num_ranks or rank == self.rank:
            raise ValueError(
                f"tell(rank {rank}): this is rank {self.rank} of {self.num_ranks}; "
                "name another one"
            )
        _check_topic(topic)
        message = pack_message(topic, data)
        if len(message) > MESSAGE_BYTES:
            raise ValueError(
                f"a message of {len(message)} bytes on {topic!r}, at most "
                f"{MESSAGE_BYTES}; exchange() takes more"
            )
        self._inflight.check_usable(f"tell({topic!r})")
        self._inflight.send(rank, message)

    def listen(self, topic: str, callback: Listener) -> None:
        """Call `callback(rank, data)` for each message on a topic.

        In the wire's own thread: it must be short and wait for nothing. What it raises
        ends the wire. Messages that came before are given to it now.

        Raises:
            ValueError: the topic is the wire's own.
        """
        _check_topic(topic)
        self._attendant.listen(topic, callback)

    def close(self) -> None:
        """Finish what is in flight, say good-bye, let go of all resources.

        Raises:
            WireError: what was in flight failed, and no error was raised before.
        """
        inflight = self._inflight
        if inflight.refusal in (CLOSED, FORKED) or GATE.is_closed:
            return
        failed: list[WireError] = []
        seen = inflight.raised
        for future in inflight.alive():
            try:
                future.wait()
            except WireError as error:
                failed.append(error)
        inflight.refuse(CLOSED)
        self._attendant.stop()
        self._attendant.join()
        self._core.close()
        if failed and not seen:
            raise failed[0]

    def renumber(self) -> None:
        """Take the numbers of a new epoch."""
        num_left = len(self._inflight.peers)
        if num_left < self.num_ranks:
            self.cluster = None  # its ranks are not these any more
        self.hosts = tuple(self._first_hosts[peer] for peer in self._inflight.peers)
        self._known.clear()
        self.rank = self._inflight.rank
        self.num_ranks = num_left

    def _prepare(self, move: Move) -> Prepared:
        if len(self._known) >= KEPT_MOVES:
            self._known.clear()
        prepared = prepare_move(move, self.rank, self._inflight.peers)
        self._known[move] = prepared
        return prepared

    def _control(self, move: Move, payload: Tensor, key: str) -> Tensor:
        """A move of the wire's own, on the control account."""
        prepared = prepare_move(move, self.rank, self._inflight.peers, control=True)
        future = self._start(prepared, payload, key, 0, None, False)
        result = future.wait()
        traffic = future.traffic()
        self._own_bytes += traffic.sent_bytes + traffic.received_bytes
        return result

    def _start(
        self,
        prepared: Prepared,
        payload: Tensor,
        key: str,
        priority: int,
        out: Tensor | None,
        notify: bool,
    ) -> Future:
        inflight = self._inflight
        problem = buffer_problem(prepared, payload, out)
        if problem:
            raise ValueError(f"{prepared.what(key)}: {problem}")
        if inflight.refusal:
            inflight.check_usable(prepared.what(key))
        if payload.requires_grad:
            payload = payload.detach()
        if out is None:
            out = torch.empty(prepared.num_result, dtype=payload.dtype)
        elif out.requires_grad:
            out = out.detach()
        if prepared.idle:
            inflight.pass_by(prepared, key)
            if prepared.alone and out.data_ptr() != payload.data_ptr():
                out.copy_(payload)
            return FinishedFuture(out)
        return inflight.start(
            self._waiting,
            prepared,
            payload,
            out,
            key=key,
            priority=priority,
            notify=notify,
            timeout_seconds=self.timeout_seconds,
        )


def start_wire(
    core: Core,
    *,
    rank: int,
    num_ranks: int,
    hosts: Sequence[str],
    timeout_seconds: float,
    debug: bool = False,
    report_folder: Path | None = None,
    can_reform: bool = True,
    cluster: Cluster | None = None,
    watch: Callable[[], object] = tuple,
    start_bytes: int = 0,
) -> EngineWire:
    """A wire over a core with links to all other ranks.

    Args:
        core: its peers' numbers are the ranks of the others.
        rank, num_ranks: this rank, and how many there are.
        hosts: the name of each rank's host.
        timeout_seconds: from a move's submission until it counts as failed.
        debug: find payloads that are changed or freed in flight (copies each).
        report_folder: where a flight record is written when something fails.
        can_reform: whether the program can call `reform`; errors then name it.
        cluster: what links join the ranks; see `Wire`.
        watch: called ten times a second, such as to end links whose host is silent.
        start_bytes: what it took to meet, for the control account.

    Raises:
        ValueError: ranks, hosts or time do not fit.
    """
    if not 0 <= rank < num_ranks or len(hosts) != num_ranks:
        raise ValueError(f"rank {rank} of {num_ranks} with {len(hosts)} hosts' names")
    if timeout_seconds <= 0:
        raise ValueError(f"timeout_seconds={timeout_seconds}; it must be above 0")
    inflight = InFlight(
        core,
        rank,
        tuple(range(num_ranks)),
        debug=debug,
        report_folder=report_folder,
        can_reform=can_reform,
    )
    asker = Asker(inflight)
    waiting = Waiting(inflight, asker)
    membership = Membership(inflight)
    attendant = Attendant(inflight, waiting, asker, membership, watch)
    wire = EngineWire(
        core,
        inflight,
        waiting,
        membership,
        attendant,
        hosts=tuple(hosts),
        timeout_seconds=timeout_seconds,
        cluster=cluster,
        start_bytes=start_bytes,
    )
    membership.on_renewed(wire.renumber)
    attendant.start()
    return wire


def _check_topic(topic: str) -> None:
    if topic in OWN_TOPICS:
        raise ValueError(f"topic {topic!r} is the wire's own; take another name")
