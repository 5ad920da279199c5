"""Order agreement on NCCL: one rank per CUDA device of this machine, at most four."""

import random

import pytest
import torch

from placet.boxing.moves import AllReduce, BroadcastFrom
from placet.torch_private.c10d import default_store
from placet.wire.engine.connect import connect_engine
from placet.wire.ordered import OrderedWire
from placet.wire.torch_store import TorchStore
from testing.ranks import run_ranks
from tests.wire.conformance import CHECKS

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device"
)
needs_two = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs two CUDA devices: NCCL wants one each"
)
pytestmark = pytest.mark.gpu

BACKEND = "cpu:gloo,cuda:nccl"
F32 = torch.float32


def make(inner, **settings):
    control = connect_engine(
        TorchStore(default_store(), "order"),
        inner.rank,
        inner.num_ranks,
        timeout_seconds=60,
    )
    return OrderedWire(inner, control, **settings)


def conform(inner):
    wire = make(inner)
    for check in CHECKS:
        check(wire, f"cuda:{torch.cuda.current_device()}")
        check(wire, "cpu")
    wire.close()


@needs_cuda
@needs_two
def test_ordered_nccl_conforms():
    run_ranks(min(4, torch.cuda.device_count()), conform, backend=BACKEND, timeout=120)


def any_order(inner):
    """Each rank in another order, on groups that share its device."""
    wire = make(inner, chunk_bytes=1 << 18)
    everyone = tuple(range(wire.num_ranks))
    groups = [everyone, everyone[::-1], (0, wire.num_ranks - 1)]
    shared = random.Random(7)
    moves = {
        f"m{i}": AllReduce(shared.choice(groups), shared.choice([10, 300_000]), F32)
        for i in range(64)
    }
    mine = [key for key, move in moves.items() if wire.rank in move.group]
    random.Random(wire.rank).shuffle(mine)
    futures = {}
    for key in mine:
        payload = torch.full((moves[key].num_elements,), 2.0, device="cuda")
        futures[key] = wire.submit(moves[key], payload, key=key, priority=len(key))
    for key in reversed(mine):
        assert torch.all(futures[key].wait() == 2.0 * len(moves[key].group)).item()
    wire.close()


@needs_cuda
@needs_two
def test_ordered_nccl_takes_any_order():
    run_ranks(
        min(4, torch.cuda.device_count()), any_order, backend=BACKEND, timeout=120
    )


def follow_streams(inner):
    """A payload that is still being computed, a result that is used at once."""
    wire = make(inner)
    everyone = tuple(range(wire.num_ranks))
    root = everyone[-1]
    side = torch.cuda.Stream()
    for step in range(20):
        with torch.cuda.stream(side):
            payload = torch.zeros(1 << 20, device="cuda")
            torch.cuda._sleep(20_000_000)  # some 10 ms
            payload += step + wire.rank
            move = AllReduce(everyone, payload.numel(), F32)
            total = wire.submit(move, payload, key="sum").wait()
            del payload
            # Memory that is free for this stream now, if nothing keeps it.
            torch.full((1 << 20,), -1.0, device="cuda")
            doubled = total * 2
            there = BroadcastFrom(everyone, root, doubled.numel(), F32)
            found = wire.submit(there, doubled, key="there", out=doubled).wait()
            wanted = 2.0 * sum(step + rank for rank in everyone)
            assert torch.all(found == wanted).item(), (step, found[0].item(), wanted)
    wire.close()


@needs_cuda
@needs_two
def test_ordered_nccl_follows_the_callers_stream():
    run_ranks(
        min(4, torch.cuda.device_count()), follow_streams, backend=BACKEND, timeout=120
    )
