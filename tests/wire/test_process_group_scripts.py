"""Unmodified scripts for torch.distributed: the numbers are gloo's."""

import os
from datetime import timedelta

import pytest
import torch.distributed as dist

import placet.wire.backend  # noqa: F401 (registers it)
from placet.torch_private.c10d import PrefixStore, TCPStore
from testing.failures import raise_first
from testing.processes import collect, start_rank
from tests.wire.process_group_checks import beside_gloo, end_of
from tests.wire.scripts.training import SCRIPTS


def run_on_both(rank: int, num_ranks: int, port: int, steps: int):
    """Each script's numbers, on gloo and then, in the same process, on the wire."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    limit = timedelta(seconds=60)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
    found: dict[str, dict[str, list[float]]] = {}
    for backend in ("gloo", "placet"):
        dist.init_process_group(
            backend,
            store=PrefixStore(backend, store),
            rank=rank,
            world_size=num_ranks,
            timeout=limit,
        )
        found[backend] = {each.__name__: list(each(steps)) for each in SCRIPTS}
        if backend == "gloo":
            beside_gloo()
        dist.barrier()
        shared = getattr(dist.group.WORLD, "shared", None)
        dist.destroy_process_group()
        if shared is not None:
            end_of(shared)
    return found


def run_all(num_ranks: int, steps: int, timeout: float) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        start_rank(rank, run_on_both, rank, num_ranks, store.port, steps)
        for rank in range(num_ranks)
    ]
    outcomes = collect(ranks, timeout)
    raise_first([o.failure for o in outcomes.values() if o.failure], num_ranks)
    for outcome in outcomes.values():
        gloo, mine = outcome.result.values()
        for name, wanted in gloo.items():
            assert wanted, name
            assert mine[name] == pytest.approx(wanted, rel=1e-6, abs=1e-6), name


@pytest.mark.procs
def test_scripts_give_gloos_losses():
    run_all(2, steps=3, timeout=60)


@pytest.mark.procs
@pytest.mark.prove
def test_scripts_give_gloos_losses_on_four_ranks():
    run_all(4, steps=40, timeout=500)
