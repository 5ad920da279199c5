"""From a job's settings to its running training, and the check that ranks agree."""

import hashlib
import json
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from placet.errors import RanksDiffer
from placet.placement.mesh import Mesh
from placet.program.data_parallel import DataParallel, ZeroLevel
from placet.run.loss_scale import LossScale
from placet.run.optimizers import is_elementwise
from placet.run.precision import Precision
from placet.run.training import Training, start_training
from placet.wire.interface import Wire


@dataclass(frozen=True)
class Settings:
    """What a job was asked for; equal on every rank.

    Raises:
        ValueError: a setting outside its range.
    """

    zero: ZeroLevel
    accumulate: int
    clip_norm: float | None
    precision: Precision
    seed: int
    local_batch_norm: bool
    batch_rows: int

    def __post_init__(self) -> None:
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"zero={self.zero!r}: the ZeRO level is 0, 1, 2 or 3")
        if self.accumulate < 1:
            raise ValueError(f"accumulate={self.accumulate}: needs at least 1")
        if self.precision not in ("fp32", "bf16", "fp16"):
            raise ValueError(
                f"precision={self.precision!r}: choose 'fp32', 'bf16' or 'fp16'"
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm={self.clip_norm}: needs a number above 0")


def build_training(
    name: str, model: nn.Module, optimizer: Optimizer, settings: Settings, wire: Wire
) -> Training:
    """Place the model on all ranks by the job's settings."""
    _check_optimizer(model, optimizer)
    needs_scale = settings.precision == "fp16"
    options = DataParallel(
        level=settings.zero,
        whole_updates=settings.zero > 0 and not is_elementwise(optimizer),
        batch_rows=max(settings.batch_rows, wire.num_ranks),
        needs_norm=needs_scale or settings.clip_norm is not None,
    )
    return start_training(
        name,
        model,
        optimizer,
        wire,
        Mesh(f"data={wire.num_ranks}"),
        options=options,
        clip_norm=settings.clip_norm,
        scale=LossScale() if needs_scale else None,
    )


def _check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    own = {id(p) for p in model.parameters()}
    groups = optimizer.param_groups
    given = [p for group in groups for p in group["params"]]
    strangers = sum(id(p) not in own for p in given)
    if strangers:
        raise ValueError(
            f"{strangers} of the optimizer's {len(given)} parameters are not the "
            "model's; make it over model.parameters() of the very model given to Job"
        )


def check_same_everywhere(
    model: nn.Module, optimizer: Optimizer, settings: Settings, wire: Wire
) -> None:
    """Compare fingerprints of all ranks before the first step.

    Raises:
        RanksDiffer: names what differs, on which ranks, and the usual reason.
    """
    if wire.num_ranks == 1:
        return
    mine = json.dumps(_fingerprint(model, optimizer, settings)).encode()
    found = [json.loads(x) for x in wire.exchange(mine, key="fingerprint")]
    for field, reason in _REASONS.items():
        values = [f[field] for f in found]
        odd = [r for r, value in enumerate(values) if value != values[0]]
        if odd:
            where = next(
                (
                    f"first at parameter {a!r}"
                    for a, x, y in zip(
                        found[0]["names"], values[0], values[odd[0]], strict=False
                    )
                    if field == "values" and x != y
                ),
                f"rank 0 has {values[0]!r}, rank {odd[0]} has {values[odd[0]]!r}",
            )
            raise RanksDiffer(
                f"ranks {odd} differ from rank 0 in {field}: {where[:300]}. {reason}"
            )


_REASONS = {
    "versions": "Install the same Python, torch and placet on every machine",
    "settings": "Start every rank with the same settings",
    "names": "Build the same model on every rank, by the same code",
    "optimizer": "Make the same optimizer on every rank",
    "values": (
        "Parameters must start equal: call torch.manual_seed(...) with one number on "
        "every rank before the model is built, or load the same checkpoint"
    ),
}


def _fingerprint(
    model: nn.Module, optimizer: Optimizer, settings: Settings
) -> dict[str, Any]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "versions": [torch.__version__],
        "settings": asdict(settings),
        "names": [f"{n} {tuple(t.shape)} {t.dtype}" for n, t in tensors.items()],
        "optimizer": _optimizer_text(optimizer),
        "values": [_checksum(t) for t in tensors.values()],
    }


def _optimizer_text(optimizer: Optimizer) -> str:
    groups = [
        {k: repr(v) for k, v in g.items() if k != "params"} | {"n": len(g["params"])}
        for g in optimizer.param_groups
    ]
    text = json.dumps([type(optimizer).__name__, groups], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _checksum(tensor: torch.Tensor) -> int:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy()) if flat.numel() else 0
