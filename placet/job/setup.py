"""From a job's settings to its running training, and the check that ranks agree."""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from placet.errors import RanksDiffer
from placet.job.large import Deferred, outline
from placet.placement.layout import along
from placet.placement.mesh import Mesh
from placet.placement.placement import S
from placet.program.data_parallel import DataParallel, ZeroLevel
from placet.run.loss_scale import LossScale
from placet.run.optimizers import is_elementwise
from placet.run.precision import Precision
from placet.run.training import Training, start_training
from placet.settings import worker
from placet.wire.interface import Wire

MakesOptimizer: TypeAlias = Callable[[Iterable[nn.Parameter]], Optimizer]


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
    evaluates: bool
    saves: bool
    plan: str = ""

    def __post_init__(self) -> None:
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"zero={self.zero!r}: the ZeRO level is 0, 1, 2 or 3")
        if not (isinstance(self.accumulate, int) and self.accumulate >= 1):
            raise ValueError(
                f"accumulate={self.accumulate!r}: needs at least 1, a whole number"
            )
        if self.precision not in ("fp32", "bf16", "fp16"):
            raise ValueError(
                f"precision={self.precision!r}: choose 'fp32', 'bf16' or 'fp16'"
            )
        norm = self.clip_norm
        if norm is not None and not (isinstance(norm, int | float) and norm > 0):
            raise ValueError(f"clip_norm={norm!r}: needs a number above 0, or None")


def build_training(
    name: str,
    source: nn.Module | Deferred,
    optimizer: Optimizer | MakesOptimizer | None,
    settings: Settings,
    wire: Wire,
) -> Training:
    """Place the model on all ranks by the job's settings.

    Args:
        source: a model, or how to build one part by part.
        optimizer: made over the model's parameters, or a function that makes it.

    Raises:
        ValueError: an optimizer that does not fit.
        RanksDiffer: see `check_same_everywhere`.
    """
    shapes = None
    mesh = Mesh(f"data={wire.num_ranks}")
    if isinstance(source, Deferred):
        if optimizer is None or isinstance(optimizer, Optimizer):
            raise ValueError(
                "a Deferred model has no parameters yet: give the optimizer as a "
                "function, such as lambda params: torch.optim.AdamW(params, lr=3e-4)"
            )
        outlined = outline(source)
        model = outlined.model
        options = _options(model, made(optimizer, model), settings, wire)
        layout = None
        if options.splits_parameters:
            layout, shapes = along(mesh, options.axis, S(0)), outlined.shapes
        outlined.fill(layout, wire.rank)
        model.to(home())
    elif isinstance(source, nn.Module):
        model = source.to(home())
    else:
        raise TypeError(
            f"the model is of type {type(source).__name__}; Job needs a "
            "torch.nn.Module, or a placet.Deferred"
        )
    used = made(optimizer, model)
    check_same_everywhere(model, used, settings, wire, are_parts=shapes is not None)
    return start_training(
        name,
        model,
        used,
        wire,
        mesh,
        options=_options(model, used, settings, wire),
        clip_norm=settings.clip_norm,
        scale=LossScale() if settings.precision == "fp16" else None,
        shapes=shapes,
    )


def home() -> torch.device:
    """Where this rank computes: its own GPU, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    place = worker()
    return torch.device("cuda", place.local_rank if place else 0)


def made(optimizer: Optimizer | MakesOptimizer | None, model: nn.Module) -> Optimizer:
    """The optimizer, made over the model's parameters if it is not yet.

    Raises:
        ValueError: there is none, or it has parameters that are not the model's.
        TypeError: the function made something else.
    """
    if optimizer is None:
        raise ValueError(
            "Job needs an optimizer: one made over model.parameters(), or a function "
            "such as lambda params: torch.optim.AdamW(params, lr=3e-4)"
        )
    if not isinstance(optimizer, Optimizer):
        optimizer = optimizer(model.parameters())
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer gave a {type(optimizer).__name__}, no Optimizer")
    own = {id(p) for p in model.parameters()}
    given = [p for group in optimizer.param_groups for p in group["params"]]
    strangers = sum(id(p) not in own for p in given)
    if strangers:
        raise ValueError(
            f"{strangers} of the optimizer's {len(given)} parameters are not the "
            "model's; make it over model.parameters() of the very model given to Job"
        )
    return optimizer


def _options(
    model: nn.Module, optimizer: Optimizer, settings: Settings, wire: Wire
) -> DataParallel:
    counts_globally = wire.num_ranks > 1 and not settings.local_batch_norm
    return DataParallel(
        level=settings.zero,
        whole_updates=settings.zero > 0 and not is_elementwise(optimizer),
        batch_rows=max(settings.batch_rows, wire.num_ranks),
        accumulate=settings.accumulate,
        batch_norms=_batch_norms(model) if counts_globally else (),
        evaluates=settings.evaluates,
        saves=settings.saves,
        needs_norm=settings.precision == "fp16" or settings.clip_norm is not None,
    )


def _batch_norms(model: nn.Module) -> tuple[int, ...]:
    """Features of the BatchNorm layers, in definition order."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return tuple(m.num_features for m in model.modules() if isinstance(m, kinds))


def check_same_everywhere(
    model: nn.Module,
    optimizer: Optimizer,
    settings: Settings,
    wire: Wire,
    *,
    are_parts: bool = False,
) -> None:
    """Compare fingerprints of all ranks before the first step.

    Args:
        are_parts: each rank has its own part of the parameters, so values differ.

    Raises:
        RanksDiffer: names what differs, on which ranks, and the usual reason.
    """
    if wire.num_ranks == 1:
        return
    fingerprint = _fingerprint(model, optimizer, settings)
    if are_parts:
        fingerprint |= {"names": [n for n, _ in model.named_parameters()], "values": []}
    mine = json.dumps(fingerprint).encode()
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
        "values": [checksum(t) for t in tensors.values()],
    }


def _optimizer_text(optimizer: Optimizer) -> str:
    groups = [
        {k: repr(v) for k, v in g.items() if k != "params"} | {"n": len(g["params"])}
        for g in optimizer.param_groups
    ]
    text = json.dumps([type(optimizer).__name__, groups], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def checksum(tensor: torch.Tensor) -> int:
    """Of a tensor's values."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data: Any = flat.view(torch.uint8).numpy()
    return zlib.crc32(data)


def made_scheduler(scheduler: Any, optimizer: Optimizer) -> LRScheduler | None:
    """The scheduler, made over the optimizer if it is not yet.

    Raises:
        TypeError: the function made something else.
        ValueError: a scheduler that steps by a metric.
    """
    if scheduler is None:
        return None
    made = scheduler if isinstance(scheduler, LRScheduler) else scheduler(optimizer)
    if not isinstance(made, LRScheduler):
        raise TypeError(f"scheduler gave a {type(made).__name__}, not an LRScheduler")
    if isinstance(made, ReduceLROnPlateau):
        raise ValueError(
            "ReduceLROnPlateau steps by a metric, not once a step: step it in a "
            "callback instead, on Evaluated, by event.metrics['loss']"
        )
    return made


def last_step(steps: int | None, loss: object, data: object) -> int:
    """The step that `Job.fit` ends with.

    Raises:
        ValueError: the job lacks what training needs.
    """
    needed = {"loss": loss, "data": data, "steps": steps}
    missing = [name for name, value in needed.items() if value is None]
    if missing or steps is None:
        raise ValueError(f"Job.fit needs {', '.join(missing)}: give it to Job(...)")
    return steps
