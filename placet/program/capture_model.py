"""The module that is traced: model and loss in one, and a watch on side effects."""

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from placet.errors import CaptureError, PlacetError
from placet.program.capture_constants import KnownValues
from placet.program.capture_effects import Effects
from placet.torch_private.aot import (
    DATA_DEPENDENT,
    DISTRIBUTED,
    NotCaptured,
    add_hook,
    fake_mode,
    gradient_hooks,
    hooks_after,
)
from placet.torch_private.pytree import flatten, unflatten

FOREIGN = "foreign_"
"""Begins the names of foreign tensors that are no attributes."""


class ForeignTensors(Exception):
    """A forward uses tensors that are none of the model's or the batch's."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        super().__init__(f"{len(tensors)} foreign tensors")
        self.tensors = tensors


class Step(nn.Module):
    """loss(model, batch) as the forward of a module, over the batch's tensors.

    The model stands under the name "model", so its parameters are "model.<name>"; the
    foreign tensors are buffers "foreign_<number>".

    Args:
        asked: what is called: (model, batch) -> result.
        leaves, structure: the batch.
        named: id of a tensor that people know -> its name in the model.
        foreign: tensors that the forward reads besides.
        trains: the result is a loss, or (loss, number of targets); or else anything.
    """

    def __init__(
        self,
        model: nn.Module,
        asked: Callable[[nn.Module, Any], Any],
        leaves: list[Any],
        structure: Any,
        *,
        named: Mapping[int, str],
        foreign: Sequence[Tensor] = (),
        trains: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        for i, tensor in enumerate(foreign):
            self.register_buffer(f"{FOREIGN}{i}", tensor.detach())
        self.results: Results | None = None
        self._foreign = [id(tensor) for tensor in foreign]
        self._asked, self._named, self._trains = asked, named, trains
        self._leaves, self._structure = leaves, structure
        self._effects = Effects(model)
        parameters = model.named_parameters()
        self._hooks = {n: found for n, p in parameters if (found := gradient_hooks(p))}

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors of the results; what they are is in `results`."""
        given = iter(tensors)
        leaves = [
            next(given) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves
        ]
        batch = unflatten(leaves, self._structure)
        before = self._effects.begin()
        with KnownValues(self._now(), self._effects.left) as watch:
            result = self._asked(self.model, batch)
        self._effects.end(before, watch.knows)
        if watch.foreign:
            raise ForeignTensors(tuple(t for t, _ in watch.foreign.values()))
        news = self._effects.news
        self.results = results_of(result, tuple(news), trains=self._trains)
        made = self.results.tensors
        if not self._trains:
            made = tuple(tensor.clone() for tensor in made)  # they may be inputs
        return (*made, *(tensor.clone() for tensor in news.values()))

    def _now(self) -> dict[int, Tensor]:
        """Tensors as the loss function may hold them -> what they are in the trace."""
        names = dict(self.model.named_parameters(remove_duplicate=False))
        for name, hooks in self._hooks.items():
            for hook in hooks if names[name].requires_grad else ():
                add_hook(names[name], hook)
        now: dict[str, Tensor] = {**names}
        now |= dict(self.model.named_buffers(remove_duplicate=False))
        found = {key: now[name] for key, name in self._named.items()}
        for i, key in enumerate(self._foreign):
            found[key] = getattr(self, f"{FOREIGN}{i}")
        return found


@dataclass(frozen=True)
class Place:
    """The place of a tensor in a result: its number among the tensors."""

    number: int


@dataclass(frozen=True)
class Results:
    """What a step's forward returns.

    Args:
        tensors: all tensors of the result, in order.
        has_loss, has_count: whether they begin with a loss and a number of targets.
        leaves, structure: the whole result, with a `Place` for each tensor.
        news: the buffers whose new values follow.
    """

    tensors: tuple[Tensor, ...]
    has_loss: bool
    has_count: bool
    leaves: tuple[Any, ...]
    structure: Any
    news: tuple[str, ...]


def results_of(result: Any, news: tuple[str, ...], *, trains: bool) -> Results:
    """Take a result apart.

    Raises:
        CaptureError: a step that trains has no loss.
    """
    if trains:
        _check_loss(result)
    leaves, structure = flatten(result)
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    numbers = iter(range(len(tensors)))
    kept = tuple(
        Place(next(numbers)) if isinstance(leaf, Tensor) else leaf for leaf in leaves
    )
    is_pair = isinstance(result, tuple) and len(result) == 2
    loss, count = result if is_pair else (result, None)
    has_loss = isinstance(loss, Tensor) and not loss.dim() and len(tensors) < 3
    has_count = has_loss and isinstance(count, Tensor)
    return Results(tensors, has_loss, has_count, kept, structure, news)


def called(model: nn.Module, batch: Any) -> Any:
    """A model called with a batch: by name, with several arguments, or with one."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, tuple | list):
        return model(*batch)
    return model(batch)


def loss_of(model: nn.Module, batch: Any) -> Any:
    """The loss of a model that computes it itself: `.loss`, or its first result."""
    result = called(model, batch)
    found = getattr(result, "loss", None)
    if isinstance(found, Tensor):
        return found
    return result[0] if isinstance(result, tuple | list) else result


def _check_loss(result: Any) -> None:
    if isinstance(result, tuple) and len(result) != 2:
        raise CaptureError(
            f"the loss is a tuple of {len(result)}; give the loss, or (loss, number of "
            "targets)"
        )
    loss = result[0] if isinstance(result, tuple) else result
    if not isinstance(loss, Tensor) or loss.dim():
        kind = (
            f"shape {list(loss.shape)}"
            if isinstance(loss, Tensor)
            else type(loss).__name__
        )
        raise CaptureError(
            f"the loss is of {kind}; a plan needs a loss of no dims, the mean over the "
            "batch: give loss=lambda model, batch: ..."
        )


def _is_ours(hook: Callable[..., Any]) -> bool:
    """Whether a hook is of a job without a plan, which a plan replaces."""
    return str(getattr(hook, "__module__", "")).startswith("placet.")


def check_traceable(model: nn.Module, leaves: Sequence[Any]) -> None:
    """Refuse what torch cannot trace, before it tries.

    Raises:
        CaptureError: lazy, scripted or distributed modules; an empty batch; a batch on
            meta only; hooks that no step would call.
        ValueError: no module.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model is a {type(model).__name__}: give an nn.Module")
    for path, module in model.named_modules():
        where = repr(path) if path else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"{where} is compiled by torch.jit, which no graph can be captured "
                "from: give the plain module"
            )
        if isinstance(module, DISTRIBUTED):
            raise CaptureError(
                f"{where} is a {type(module).__name__}, which divides the work itself: "
                "give the plain module, which it has as .module"
            )
    for name, parameter in model.named_parameters():
        if type(parameter.data) is not Tensor:
            raise CaptureError(
                f"{name!r} is a {type(parameter.data).__name__}, which is divided or "
                "packed already: give the plain module"
            )
        if any(not _is_ours(hook) for hook in hooks_after(parameter)):
            raise CaptureError(
                f"{name!r} has a hook for when its gradient is accumulated, which a "
                "plan would not call: do its work in a callback of the job"
            )
    for leaf in leaves:
        if any(isinstance(v, Tensor) for v in getattr(leaf, "__dict__", {}).values()):
            raise CaptureError(
                f"the batch has tensors inside of a {type(leaf).__name__}, where they "
                "are not seen: give a tuple or a dict, or tell torch about the class "
                "by torch.export.register_dataclass"
            )
    tensors = [*model.named_parameters(), *model.named_buffers()]
    lazy = [name for name, t in tensors if is_lazy(t)]
    if lazy:
        raise CaptureError(
            f"{lazy[0]!r} has no shape yet: call the lazy module with a batch first"
        )
    given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    empty = [i for i, t in enumerate(given) if t.dim() and not t.shape[0]]
    if empty:
        raise CaptureError(
            f"tensor {empty[0]} of the batch has no rows, shape "
            f"{list(given[empty[0]].shape)}: give a batch as large as in training"
        )
    is_meta = all(t.device.type == "meta" for _, t in tensors)
    if tensors and not is_meta and any(t.device.type == "meta" for t in given):
        raise CaptureError(
            "the batch is on the meta device and the model is not: make the batch by "
            "torch.zeros, or move the model by .to('meta') as well"
        )


@contextmanager
def mode_of(model: nn.Module, *, trains: bool) -> Iterator[None]:
    """The model in the mode it is in, or in eval mode for a forward."""
    before = {module: module.training for module in model.modules()}
    if not trains:
        model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextmanager
def stand_in(
    model: nn.Module, tensors: list[Tensor]
) -> Iterator[tuple[nn.Module, list[Tensor]]]:
    """A model on the meta device, and its batch, as fake tensors of the CPU.

    On the meta device some functions (attention) take other operators than where the
    model will run.
    """
    traced = copy.deepcopy(model)
    with fake_mode():
        for module in traced.modules():
            for name, parameter in module.named_parameters(recurse=False):
                new = torch.empty_like(parameter, device="cpu")
                trains = parameter.requires_grad
                setattr(module, name, nn.Parameter(new, requires_grad=trains))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, torch.empty_like(buffer, device="cpu"))
        yield traced, [torch.empty_like(t, device="cpu") for t in tensors]


@contextmanager
def averaging_by_steps(model: nn.Module) -> Iterator[None]:
    """Batch norms with momentum=None, whose share 1/steps torch reads as a number.

    In a trace it is a tensor; the batch's own statistics are what a running average
    with momentum 1 becomes.
    """
    found = [m for m in model.modules() if isinstance(m, Norm) and m.momentum is None]
    for module in found:
        vars(module)["forward"] = partial(_averaged, module)
    try:
        yield
    finally:
        for module in found:
            del vars(module)["forward"]


Norm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def _averaged(norm: Norm, x: Tensor) -> Tensor:
    mean, var, steps = norm.running_mean, norm.running_var, norm.num_batches_tracked
    scale = norm.weight, norm.bias
    if not norm.training or mean is None or var is None or steps is None:
        use_batch = mean is None
        return F.batch_norm(x, mean, var, *scale, use_batch, 0.0, norm.eps)
    steps.add_(1)
    of_batch = torch.zeros_like(mean), torch.zeros_like(var)
    made = F.batch_norm(x, *of_batch, *scale, True, 1.0, norm.eps)
    share = steps.to(mean.dtype).reciprocal()
    for running, new in zip((mean, var), of_batch, strict=True):
        running.mul_(1 - share).add_(new * share)
    return made


@contextmanager
def explained(model: nn.Module) -> Iterator[None]:
    """Say where in the model a step cannot be captured.

    Raises:
        CaptureError: values of tensors decide which operators run, or their sizes; the
            forward changes tensors that are no buffers, or raises an error itself.
    """
    try:
        yield
    except (PlacetError, ForeignTensors):
        raise
    except NotCaptured as error:
        raise CaptureError(f"{place_of(error, model)}{error}") from error
    except DATA_DEPENDENT as error:
        raise CaptureError(
            f"{place_of(error, model)}what runs next, or a size, depends on the values "
            "of a tensor. A plan needs one graph for all batches: choose by "
            f"torch.where, or pad to a fixed size ({_first_line(error)})"
        ) from None
    except (RuntimeError, AssertionError, TypeError, AttributeError) as error:
        raise CaptureError(
            f"{place_of(error, model)}the step cannot be traced, in which tensors have "
            f"no values and no memory: {type(error).__name__}: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def place_of(error: BaseException, model: nn.Module) -> str:
    """The line of the user's code and the module in which an error was raised."""
    paths = {id(module): path for path, module in model.named_modules()}
    module, line = "", ""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    for frame, number in traceback.walk_tb(error.__traceback__):
        module = paths.get(id(frame.f_locals.get("self")), module)
        file = frame.f_code.co_filename
        if not file.startswith((*ours, "<")):
            line = f"{Path(file).name}:{number}"
    if not line and not module:
        return ""
    return f"{line or 'torch'}, in module {module or 'the model itself'!r}: "
