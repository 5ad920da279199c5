"""A guided tour of placet in one file: read it from top to bottom, it runs in seconds.

Ranks are threads here, on a wire that moves real bytes within one process. Nothing
below would change with processes on many machines.
"""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from placet.boxing.box import box
from placet.boxing.plan import plan_boxing
from placet.job.data import Data
from placet.job.job import Job
from placet.placement.layout import Layout, local_shape
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S
from placet.wire.interface import Wire
from testing.ranks import run_threads

MESH = Mesh("data=2")


def test_1_a_placement_says_which_part_a_rank_holds() -> None:
    rows = Layout(MESH, [S(0)])
    assert repr(rows) == "Layout(S(0) @data)"
    # Five rows on two ranks: three and two, by torch.chunk's rule.
    assert [local_shape((5, 4), rows, rank) for rank in MESH.ranks] == [(3, 4), (2, 4)]
    # B: every rank has all of it. P(sum): the tensor is the sum of the ranks' terms.
    assert local_shape((5, 4), Layout(MESH, [B]), 0) == (5, 4)
    assert repr(P()) == "P(sum)"


def test_2_a_boxing_changes_the_placement_and_that_alone_moves_bytes() -> None:
    src, dst = Layout(MESH, [P()]), Layout(MESH, [B])

    def add_up(wire: Wire) -> Tensor:
        term = torch.full((4,), wire.rank + 1.0)
        return box(term, src, dst, wire, shape=(4,), key="tour")

    assert [x.tolist() for x in run_threads(2, add_up)] == [[3.0] * 4] * 2
    # What it moves is known before anything runs.
    plan = plan_boxing(((4,),), torch.float32, src, dst)
    assert plan.received_bytes(0) == 16
    assert plan_boxing(((4,),), torch.float32, dst, src).received_bytes(0) == 0


def net() -> nn.Module:
    """A plain module, written for one device."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.Linear(16, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4, generator=generator)
    return model


def data() -> Data:
    """50 rows; the last global batch of an epoch has 2 only."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, 6, dtype=torch.float64, generator=generator)
    return Data(TensorDataset(x, x[:, :3].argmax(1)), batch_size=16)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def trained(wire: Wire, zero: int) -> tuple[float, Job]:
    """A job: model, loss, optimizer and data. Nothing in them knows of ranks."""
    losses: list[float] = []
    job = Job(
        net(),
        loss,
        lambda params: torch.optim.AdamW(params, lr=0.02),
        data(),
        steps=20,
        zero=zero,  # type: ignore[arg-type]
        callbacks=[lambda job, event: losses.append(getattr(event, "loss", 0.0))],
        wire=wire,
    )
    job.fit()
    return losses[-2], job  # the last event is Finished


def test_3_a_job_trains_on_ranks_as_on_one_device() -> None:
    ((alone, job),) = run_threads(1, trained, 0)
    assert alone < 0.7
    assert job.program.received_bytes(0) == 0
    for num_ranks, zero in ((2, 0), (3, 1), (4, 3)):
        for found, _ in run_threads(num_ranks, trained, zero):
            assert abs(found - alone) < 1e-6


def test_4_a_program_is_the_job_as_data() -> None:
    (_, job), _ = run_threads(2, trained, 3)
    gathers = [b.name for b in job.program.boxings() if b.queue == "params"]
    assert gathers == [
        "0.gather.forward.0",
        "2.gather.forward.0",
        "0.gather.backward.0",
    ]
    text = str(job.program)
    assert "boxing   2.grads                      P(sum) -> S(0) @data" in text
    # ZeRO 3 stores parts: a rank has half of each parameter.
    assert [p.numel() for p in job.training.parts.values()] == [48, 8, 32, 2]


def test_5_every_byte_is_in_the_ledger_as_predicted() -> None:
    for zero in range(4):
        for _, job in run_threads(2, trained, zero):
            ledger = job.training.ledger
            assert ledger.sent_bytes == 20 * job.program.sent_bytes(job.rank)
            assert ledger.received_bytes == 20 * job.program.received_bytes(job.rank)
            assert not ledger.mismatched
