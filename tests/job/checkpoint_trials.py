"""Trials of checkpoints that need processes: `python checkpoint_trials.py NAME FOLDER`.

One process imports torch and forks the ranks of each trial, so that a trial costs
milliseconds. Ranks meet through a file, not a port; each one ends by an alarm.
"""

import os
import random
import resource
import select
import signal
import sys
import traceback
import uuid
from itertools import product
from pathlib import Path

import pytest
import torch
import torch._dynamo  # DTensor imports it at first use: once here, not in each rank
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from placet.errors import CheckpointError
from placet.job.checkpoint import Checkpoints, Saver, load
from placet.job.checkpoint_folder import newest, tidy
from placet.job.data import Data
from placet.job.loader import Position, part_loader
from placet.placement.layout import chunk

SEED = 11
SHAPES = ((5, 3), (2, 4), (1,), (), (0, 2), (9,))


# --- ranks ---------------------------------------------------------------------------


def start_ranks(num_ranks, folder, fn, *args):
    """Fork the ranks of one trial; returns their process ids."""
    store = folder / f"store-{uuid.uuid4().hex}"
    pids = []
    for rank in range(num_ranks):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(60)
                if num_ranks > 1:
                    dist.init_process_group(
                        "gloo",
                        init_method=f"file://{store}",
                        rank=rank,
                        world_size=num_ranks,
                    )
                fn(rank, num_ranks, *args)
                if num_ranks > 1:
                    dist.barrier()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    return pids


def run_ranks(num_ranks, folder, fn, *args):
    pids = start_ranks(num_ranks, folder, fn, *args)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0] * num_ranks, (
        f"{fn.__name__}{args} on {num_ranks} ranks: {codes}"
    )


# --- resharding ----------------------------------------------------------------------


def make_state(num_ranks, placement, *, fill=True):
    """Tensors whose contents say where they belong, in one placement."""
    generator = torch.Generator().manual_seed(SEED)
    mesh = init_device_mesh("cpu", (num_ranks,)) if num_ranks > 1 else None
    tensors = {}
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        for shape in SHAPES:
            full = (torch.rand(shape, generator=generator) * 1e6).to(dtype)
            if not fill:
                full = torch.zeros_like(full)
            if mesh is not None and placement == "S(0)" and shape:
                full = distribute_tensor(full, mesh, [Shard(0)])
            elif mesh is not None and placement == "B as DTensor":
                full = distribute_tensor(full, mesh, [Replicate()])
            tensors[f"{dtype}.{'x'.join(map(str, shape))}"] = full
    return {
        "model": tensors,
        "optimizer": {"state": {0: {"step": torch.tensor(7.0)}}, "betas": (0.9, 0.99)},
        "data": {"epoch": 3, "index": 4} if fill else None,
    }


def same_part(a, b):
    if isinstance(a, DTensor):
        a, b = a.to_local(), b.to_local()
    return torch.equal(a, b)


def save_once(rank, num_ranks, folder, placement):
    saver = Saver(Checkpoints(folder), rank=rank, num_ranks=num_ranks)
    state = make_state(num_ranks, placement)
    assert saver.save(5, state) is None
    for tensor in state["model"].values():
        (tensor.to_local() if isinstance(tensor, DTensor) else tensor).fill_(1)
    saved = saver.close()
    assert saved.num_bytes == sum(f.stat().st_size for f in saved.path.iterdir())
    assert saved.step == 5
    assert 0 < saved.blocked_seconds < saved.seconds


def load_once(rank, num_ranks, folder, placement):
    expected = make_state(num_ranks, placement)
    state = make_state(num_ranks, placement, fill=False)
    state["optimizer"]["state"][0]["step"] = torch.zeros(())
    state["optimizer"]["betas"] = None
    assert load(folder, state) == 5
    assert all(same_part(state["model"][k], v) for k, v in expected["model"].items())
    assert state["optimizer"] == expected["optimizer"]
    assert state["data"] == {"epoch": 3, "index": 4}


QUICK = (
    ((1, "B"), (3, "S(0)")),
    ((2, "B"), (4, "S(0)")),
    ((3, "S(0)"), (2, "S(0)")),
    ((4, "S(0)"), (3, "S(0)")),
    ((4, "S(0)"), (1, "B")),
    ((2, "B as DTensor"), (2, "B")),
)


def save_all(rank, num_ranks, folder, ends):
    for _, src in ends:
        save_once(rank, num_ranks, folder / f"{num_ranks} {src}", src)


def load_all(rank, num_ranks, folder, pairs):
    for (n, src), (_, dst) in pairs:
        load_once(rank, num_ranks, folder / f"{n} {src}", dst)


def reshard(folder, full):
    """Save on n ranks in one placement, load on m in another."""
    ends = [*product((1, 2, 3, 4), ("B", "S(0)")), (2, "B as DTensor")]
    pairs = list(product(ends, ends)) if full else QUICK
    written = {src for src, _ in pairs}
    for n in (1, 2, 3, 4):
        here = sorted(src for src in written if src[0] == n)
        run_ranks(n, folder, save_all, folder, here)
    for m in (1, 2, 3, 4):
        run_ranks(m, folder, load_all, folder, [p for p in pairs if p[1][0] == m])


# --- kill -9 -------------------------------------------------------------------------


def numbered_state(step, rank, num_ranks):
    if num_ranks == 1:
        return {"w": torch.full((1000,), float(step)), "step": step}
    mesh = init_device_mesh("cpu", (num_ranks,))
    start, stop = chunk(0, 1001, num_ranks, rank)
    local = torch.full((stop - start,), float(step))
    part = DTensor.from_local(local, mesh, [Shard(0)], shape=(1001,), stride=(1,))
    return {"w": part, "step": step}


def check_numbered(folder, at_least, size):
    """The newest checkpoint is whole, and not older than one known to be complete."""
    state = {"w": torch.zeros(size), "step": None}
    step = load(folder, state)
    assert step >= at_least, f"lost step {at_least}, newest is {step}"
    assert state["step"] == step
    assert torch.equal(state["w"], torch.full((size,), float(step)))
    return step


def save_and_die(rank, num_ranks, folder, at_event, resave):
    """Save two steps; from the second on, die at the n-th call on the file system."""
    saver = Saver(Checkpoints(folder, keep=1))
    saver.save(1, numbered_state(1, 0, 1), blocking=True)
    seen = 0

    def hook(event, args):
        nonlocal seen
        touches = event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
        if touches and ("step-" in str(args[0]) or str(args[0]) == str(folder)):
            seen += 1
            if seen == at_event:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    saver.save(1 if resave else 2, numbered_state(2, 0, 1), blocking=True)
    saver.close()


def kill_at_every_event(folder):
    """Die before each call on the file system that a save makes."""
    for resave in (False, True):
        num_events = 0
        for at_event in range(1, 200):
            here = folder / f"{resave}-{at_event}"
            (pid,) = start_ranks(1, folder, save_and_die, here, at_event, resave)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            state = {"w": torch.zeros(1000), "step": None}
            for tidied in (False, True):
                if tidied:
                    tidy(here)
                step = load(here, state)
                w = float(state["w"][0])
                assert torch.equal(state["w"], torch.full((1000,), w))
                assert state["step"] == w
                assert w in (1, 2)
                assert step == (1 if resave else w)
            left = [p.name for p in here.iterdir()]
            assert all(name[5:].isdigit() for name in left), left
            if code == 0:
                num_events = at_event - 1
                break
            assert code == -signal.SIGKILL, code
        assert num_events > 10, num_events
        print(f"resave={resave}: killed at each of {num_events} events")


def save_for_ever(rank, num_ranks, folder, pipe):
    saver = Saver(Checkpoints(folder, keep=2), rank=rank, num_ranks=num_ranks)
    step = (
        0
        if newest(folder) is None
        else load(folder, numbered_state(0, rank, num_ranks))
    )
    while True:
        step += 1
        saver.save(step, numbered_state(step, rank, num_ranks), blocking=step % 2 == 0)
        if rank == 0 and step % 2 == 0:
            os.write(pipe, step.to_bytes(4, "little"))


def kill_at_random(folder, num_trials):
    """Kill two ranks at random instants, again and again, on one folder."""
    choose = random.Random(SEED)
    here = folder / "random"
    complete, killed_at = 0, []
    for _ in range(num_trials):
        readable, writable = os.pipe()
        pids = start_ranks(2, folder, save_for_ever, here, writable)
        os.close(writable)
        for _ in range(choose.randint(1, 3)):
            step = os.read(readable, 4)
            assert step, "the ranks ended by themselves"
            complete = int.from_bytes(step, "little")
        select.select([], [], [], choose.random() * 0.03)
        for pid in choose.sample(pids, 2):
            os.kill(pid, signal.SIGKILL)
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [signal.SIGKILL] * 2
        while told := os.read(readable, 4):
            complete = int.from_bytes(told, "little")
        os.close(readable)
        newest_step = check_numbered(here, complete, 1001)
        killed_at.append(newest_step)
    tidy(here)
    assert check_numbered(here, complete, 1001) == killed_at[-1]
    print("killed after steps", killed_at)


# --- one rank fails ------------------------------------------------------------------


def save_with_a_full_disk(rank, num_ranks, folder):
    saver = Saver(Checkpoints(folder), rank=rank, num_ranks=num_ranks)
    state = numbered_state(1, rank, num_ranks)
    saver.save(1, state, blocking=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    saver.save(2, state)
    with pytest.raises(CheckpointError, match=r"step 2.*rank 1: OSError"):
        saver.save(3, state)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert newest(folder).name == "step-00000001"
    dist.barrier()
    assert saver.save(4, state, blocking=True).step == 4
    saver.close()


def full_disk(folder):
    run_ranks(2, folder, save_with_a_full_disk, folder / "full")


# --- resume on fewer ranks -----------------------------------------------------------


def train(rank, num_ranks, folder, steps, save_at):
    """A toy job whose weights depend on every row and its place in the order."""
    data = Data(torch.arange(22, dtype=torch.float64), batch_size=8)
    w = torch.zeros(7, dtype=torch.float64)
    if num_ranks > 1:
        w = distribute_tensor(w, init_device_mesh("cpu", (num_ranks,)), [Shard(0)])
    state = {"w": w, "data": {"epoch": 0, "index": 0}}
    saver = Saver(Checkpoints(folder), rank=rank, num_ranks=num_ranks)
    step = load(folder, state) if newest(folder) else 0
    local = w.to_local() if isinstance(w, DTensor) else w
    start, stop = chunk(0, 7, num_ranks, rank)
    position = Position(**state["data"])
    for part in part_loader(data, rank, num_ranks, SEED, 1, position):
        grad = torch.zeros(7, dtype=torch.float64)
        for micro in part.micro_batches:
            for k in range(micro.num_rows):
                row = micro.first_row + k
                grad[row % 7] += micro.batch[k] * (row + 1)
        if num_ranks > 1:
            dist.all_reduce(grad)
        local.mul_(2).add_(grad[start:stop]).remainder_(1000)
        step += 1
        state["data"] = vars(part.following).copy()
        if step == save_at:
            saver.save(step, state)
        if step == steps:
            break
    saver.close()
    saver = Saver(
        Checkpoints(folder.with_name(folder.name + "-end")),
        rank=rank,
        num_ranks=num_ranks,
    )
    saver.save(step, state, blocking=True)
    saver.close()


def resume(folder):
    """4 ranks to mid-epoch, then 3 ranks, then 2: the curve of one rank."""

    def end(name):
        state = {"w": torch.zeros(7, dtype=torch.float64), "data": None}
        assert load(folder / f"{name}-end", state) == 10
        return state

    run_ranks(1, folder, train, folder / "one", 10, None)
    run_ranks(4, folder, train, folder / "many", 5, 4)
    run_ranks(3, folder, train, folder / "many", 8, 7)
    run_ranks(2, folder, train, folder / "many", 10, None)
    one, many = end("one"), end("many")
    assert torch.equal(one["w"], many["w"]), (one, many)
    assert one["data"] == many["data"] == {"epoch": 3, "index": 1}
    assert one["w"].abs().min() > 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    TRIALS = (reshard, kill_at_every_event, kill_at_random, full_disk, resume)
    trial = {t.__name__: t for t in TRIALS}[sys.argv[1]]
    trial(Path(sys.argv[2]), *map(int, sys.argv[3:]))
