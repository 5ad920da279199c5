"""What every core must do; each check takes a function that makes one.

    check_sizes(PlainCore)

Nothing here knows which core it is, or whether both ends are of one kind.
"""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from placet.wire.engine.core import EventKind, State
from placet.wire.engine.frames import (
    EAGER_BYTES,
    EARLY_BYTES,
    SLICE_BYTES,
    FrameKind,
    Header,
)
from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place
from tests.wire.engine.core_rig import (
    FINGERPRINT,
    LONG,
    MakeCore,
    RawPeer,
    assert_done,
    beside_raw,
    connected,
    event_of,
    random_bytes,
    raw_bytes,
    receiving,
    schedule_of,
    sending,
    submit,
    sum_of_all,
    talk,
)

OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}
REAL = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
)
MIB = 1 << 20


def check_reductions(make_core: MakeCore) -> None:
    """RECEIVE_REDUCE, REDUCE after RECEIVE, and COPY, in every dtype."""
    pairs = [(dtype, name) for dtype in REAL for name in OPERATIONS]
    pairs += [
        (x, y) for x in (torch.complex64, torch.complex128) for y in ("sum", "prod")
    ]
    with connected(make_core, 2) as cores:
        for collective, (dtype, name) in enumerate(pairs):
            values = [(torch.arange(37) * (i + 2) % 5).to(dtype) for i in range(2)]
            num_bytes = 37 * dtype.itemsize
            results = [torch.zeros(3 * 37, dtype=dtype) for _ in range(2)]
            mine, scratch = Place(Buffer.PAYLOAD, 0), Place(Buffer.SCRATCH, 0)
            outs = [Place(Buffer.OUT, i * num_bytes) for i in range(3)]
            handles = []
            for me, core in enumerate(cores):
                you = 1 - me
                schedule = schedule_of(
                    sending(you, num_bytes),
                    sending(you, num_bytes),
                    Instruction(Kind.RECEIVE_REDUCE, num_bytes, you, mine, outs[0]),
                    Instruction(Kind.RECEIVE, num_bytes, you, dst=scratch),
                    Instruction(
                        Kind.REDUCE, num_bytes, -1, mine, outs[1], scratch, ((3, 0),)
                    ),
                    Instruction(
                        Kind.COPY, num_bytes, -1, outs[1], outs[2], follows=((4, 0),)
                    ),
                    dtype=dtype,
                    scratch_bytes=num_bytes,
                    reduction=name,
                )
                handles.append(
                    submit(core, collective, schedule, values[me], results[me])
                )
            wanted = OPERATIONS[name](*values).repeat(3)
            for core, handle, result in zip(cores, handles, results, strict=True):
                assert_done(core, handle)
                assert torch.equal(result, wanted), (dtype, name)


def check_carried(make_core: MakeCore) -> None:
    """Any dtype travels, also those that nobody adds."""
    with connected(make_core, 2) as (a, b):
        for collective, dtype in enumerate((torch.float8_e4m3fn, torch.uint16)):
            payload = random_bytes(64, collective).view(dtype)
            out = torch.zeros(64, dtype=torch.uint8).view(dtype)
            src = submit(
                a, collective, schedule_of(sending(1, 64), dtype=dtype), payload
            )
            schedule = schedule_of(receiving(0, 64), dtype=dtype)
            dst = submit(b, collective, schedule, payload, out)
            assert_done(a, src)
            assert_done(b, dst)
            assert raw_bytes(out) == raw_bytes(payload)


def check_sizes(make_core: MakeCore) -> None:
    """Both ways at once, from nothing to several slices, over one socket and three."""
    sizes = (1, 2, 1003, SLICE_BYTES // 4 - 1, SLICE_BYTES // 4, SLICE_BYTES + 5)
    for num_sockets in (1, 3):
        with connected(make_core, 2, num_sockets) as cores:
            for collective, size in enumerate(sizes):
                payloads = [torch.arange(size, dtype=torch.int32) + i for i in range(2)]
                results = [torch.zeros_like(x) for x in payloads]
                handles = [
                    submit(core, collective, sum_of_all(i, (0, 1), x), x, out)
                    for i, (core, x, out) in enumerate(
                        zip(cores, payloads, results, strict=True)
                    )
                ]
                for i in range(2):
                    assert_done(cores[i], handles[i])
                    assert torch.equal(results[i], payloads[0] + payloads[1])


def check_nothing_to_do(make_core: MakeCore) -> None:
    """A schedule of no instructions is done at once, with tensors of no elements."""
    with connected(make_core, 2) as (a, _):
        handle = submit(a, 1, schedule_of(), torch.empty(0))
        assert a.wait(handle, LONG) is State.DONE
        assert a.state(handle) is State.DONE
        a.release(handle)


def check_in_place(make_core: MakeCore) -> None:
    """The result may lie where the payload does."""
    with connected(make_core, 3) as cores:
        payloads = [
            torch.arange(SLICE_BYTES, dtype=torch.float32) + i for i in range(3)
        ]
        wanted = payloads[0] + payloads[1] + payloads[2]
        group = (0, 1, 2)
        handles = [
            submit(core, 1, sum_of_all(i, group, x), x)
            for i, (core, x) in enumerate(zip(cores, payloads, strict=True))
        ]
        for core, handle, result in zip(cores, handles, payloads, strict=True):
            assert_done(core, handle)
            assert torch.equal(result, wanted)


def check_lanes(make_core: MakeCore) -> None:
    """Instructions to one peer are one lane; the receiver may cut it elsewhere."""
    payload, out = random_bytes(900_000), torch.zeros(900_000, dtype=torch.uint8)
    with connected(make_core, 2) as (a, b):
        src = submit(
            a,
            1,
            schedule_of(sending(1, 500_000, 400_000), sending(1, 400_000)),
            payload,
        )
        schedule = schedule_of(receiving(0, 10), receiving(0, 899_990, 10))
        dst = submit(b, 1, schedule, payload, out)
        assert_done(a, src)
        assert_done(b, dst)
    assert torch.equal(out, torch.cat((payload[400_000:], payload[:400_000])))


def check_passed_on(make_core: MakeCore) -> None:
    """A send follows the receive of what it sends, byte by byte."""
    num_bytes = 3 * SLICE_BYTES + 8
    payload = random_bytes(num_bytes)
    outs = [torch.zeros(num_bytes, dtype=torch.uint8) for _ in range(2)]
    passing = Instruction(
        Kind.SEND, num_bytes, 2, src=Place(Buffer.OUT, 0), follows=((0, 0),)
    )
    with connected(make_core, 3) as (a, b, c):
        last = submit(c, 1, schedule_of(receiving(1, num_bytes)), payload, outs[1])
        schedule = schedule_of(receiving(0, num_bytes), passing)
        middle = submit(b, 1, schedule, payload, outs[0])
        assert c.wait(last, 0.0) is State.PENDING
        first = submit(a, 1, schedule_of(sending(1, num_bytes)), payload)
        assert_done(a, first)
        assert_done(b, middle)
        assert_done(c, last)
    assert torch.equal(outs[0], payload)
    assert torch.equal(outs[1], payload)


def check_early(make_core: MakeCore) -> None:
    """Data may come before the receiver submits; a little of it, and it is kept."""
    payload = random_bytes(SLICE_BYTES)
    for num_bytes in (8, EAGER_BYTES, 2 * EAGER_BYTES):
        out = torch.zeros(num_bytes, dtype=torch.uint8)
        with connected(make_core, 2) as (a, b):
            src = submit(a, 1, schedule_of(sending(1, num_bytes)), payload)
            a.send(1, b"after")
            event_of(b, EventKind.MESSAGE)
            if num_bytes <= EAGER_BYTES:
                assert a.wait(src, LONG) is State.DONE
            else:
                assert a.wait(src, 0.0) is State.PENDING
            assert a.heard(src) == frozenset()
            dst = submit(b, 1, schedule_of(receiving(0, num_bytes)), payload, out)
            assert_done(b, dst)
            assert_done(a, src)
            assert b.counters().num_early == 1
            assert torch.equal(out, payload[:num_bytes])


def check_ready(make_core: MakeCore) -> None:
    """A receiver says READY, even if all came early; its data say the same."""
    payload = random_bytes(8)
    with beside_raw(make_core) as (core, raw):
        submit(core, 1, schedule_of(receiving(1, 8)), payload)
        raw.data(2, b"x" * 8)
        talk(core, raw)
        assert_done(core, submit(core, 2, schedule_of(receiving(1, 8)), payload))
        assert raw_bytes(payload) == b"x" * 8
        both = schedule_of(sending(1, 8), receiving(1, 8))
        submit(core, 3, both, payload, torch.empty_like(payload))
        frames = raw.read_all()
    assert [(x.kind, x.collective) for x, _ in frames] == [
        (FrameKind.READY, 1),
        (FrameKind.READY, 2),
        (FrameKind.DATA, 3),
    ]
    assert {x.fingerprint for x, _ in frames} == {FINGERPRINT}


def check_back_pressure(make_core: MakeCore) -> None:
    """A root far ahead of its receiver sends no more than it may set aside."""
    payload = random_bytes(4 * EAGER_BYTES)
    num_tasks = 3 * EARLY_BYTES // EAGER_BYTES
    with beside_raw(make_core) as (core, raw):
        handles = [submit(core, 1, schedule_of(sending(1, 4 * EAGER_BYTES)), payload)]
        for collective in range(2, num_tasks + 1):
            schedule = schedule_of(sending(1, EAGER_BYTES))
            handles.append(submit(core, collective, schedule, payload))
        sizes: dict[int, int] = {}
        _count(raw, sizes)
        assert set(sizes.values()) == {EAGER_BYTES}
        assert sum(sizes.values()) == EARLY_BYTES
        raw.ready(2)  # of one that is done long since
        _count(raw, sizes)
        assert sum(sizes.values()) == EARLY_BYTES + EAGER_BYTES
        raw.ready(1)  # of one that waits for it
        _count(raw, sizes)
        assert sizes[1] == 4 * EAGER_BYTES
        assert sum(sizes.values()) == EARLY_BYTES + 5 * EAGER_BYTES
        for collective in range(3, num_tasks + 1):
            raw.ready(collective)
        _count(raw, sizes)
        assert len(sizes) == num_tasks
        assert_done(core, *handles)


def _count(raw: RawPeer, sizes: dict[int, int]) -> None:
    for header, body in raw.read_all():
        sizes[header.collective] = sizes.get(header.collective, 0) + len(body)


def _order(frames: list[tuple[Header, bytes]]) -> list[int]:
    return [header.collective for header, _ in frames if header.kind is FrameKind.DATA]


def check_priority(make_core: MakeCore) -> None:
    """An urgent move overtakes a large one in the middle, and starves nothing."""
    payload = random_bytes(8 * MIB)
    for num_sockets in (1, 3):
        with beside_raw(make_core, num_sockets) as (core, raw):
            for collective in (1, 2):
                raw.ready(collective)
            talk(core, raw)
            bulk = submit(core, 1, schedule_of(sending(1, 8 * MIB)), payload)
            raw.has_something()
            schedule = schedule_of(sending(1, 8 * MIB))
            urgent = submit(core, 2, schedule, payload, priority=3)
            frames = raw.read_all()
            order = _order(frames)
            assert_done(core, bulk, urgent)
            assert core.counters().num_preemptions >= 1
        first, num_slices = order.index(2), order.count(2)
        assert order.count(1) == num_slices >= 8 * MIB // SLICE_BYTES
        assert first < num_slices // 2  # only what the channel held goes before it
        until = first + num_slices + num_slices // 16 + 1
        assert order[first:until].count(2) == num_slices
        assert 1 in order[first : first + 17]  # every 16th goes to the oldest
        for collective in (1, 2):
            bodies = [body for x, body in frames if x.collective == collective]
            assert b"".join(bodies) == raw_bytes(payload)


def check_stickiness(make_core: MakeCore) -> None:
    """Among equals, that of which the peer has sent data goes first."""
    payload, out = random_bytes(8 * MIB), torch.zeros(8 * MIB, dtype=torch.uint8)
    with beside_raw(make_core) as (core, raw):
        both = schedule_of(sending(1, 8 * MIB), receiving(1, 8))
        handles = [submit(core, x, both, payload, out) for x in (1, 2)]
        raw.ready(1)
        raw.data(2, b"x" * 8)
        talk(core, raw)
        order = _order(raw.read_all())
        assert order[-1] == 1
        raw.data(1, b"x" * 8)
        assert_done(core, *handles)


def check_any_order(make_core: MakeCore) -> None:
    """Many moves of overlapping groups, submitted in another order on every rank."""
    for num_cores, seed in ((2, 1), (3, 2), (4, 3)):
        rng = random.Random(seed)
        groups, sizes = {}, {}
        for collective in range(64):
            size = rng.randint(2, num_cores)
            groups[collective] = tuple(rng.sample(range(num_cores), size))
            sizes[collective] = rng.choice((1, 7, 1000, 9000, 40_000, 100_000))
        with connected(make_core, num_cores, 1 + seed % 3) as cores:
            waiting = [
                [x for x in groups if me in groups[x]] for me in range(num_cores)
            ]
            for mine in waiting:
                rng.shuffle(mine)
            running = []
            while any(waiting):
                me = rng.choice([i for i in range(num_cores) if waiting[i]])
                collective = waiting[me].pop()
                payload = torch.arange(sizes[collective], dtype=torch.int32) + me
                out = torch.zeros_like(payload)
                schedule = sum_of_all(me, groups[collective], payload)
                priority = rng.randint(0, 2)
                handle = submit(
                    cores[me], collective, schedule, payload, out, priority=priority
                )
                running.append((me, collective, handle, out))
            for me, collective, handle, out in running:
                assert_done(cores[me], handle)
                group = groups[collective]
                wanted = torch.arange(len(out), dtype=torch.int32) * len(group)
                assert torch.equal(out, wanted + sum(group)), (seed, collective)


CHECKS = (
    check_reductions,
    check_carried,
    check_sizes,
    check_nothing_to_do,
    check_in_place,
    check_lanes,
    check_passed_on,
    check_early,
    check_ready,
    check_back_pressure,
    check_priority,
    check_stickiness,
    check_any_order,
)
