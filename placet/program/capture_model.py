"""The module that is traced: model and loss in one, and a watch on side effects."""

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from placet.errors import CaptureError
from placet.program.capture_constants import KnownValues
from placet.torch_private.aot import DATA_DEPENDENT, NotCaptured, fake_mode
from placet.torch_private.pytree import unflatten


class Step(nn.Module):
    """loss(model, batch) as the forward of a module, over the batch's tensors.

    The model stands under the name "model", so its parameters are "model.<name>".
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Any] | None,
        leaves: list[Any],
        structure: Any,
    ) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self._loss = loss
        self._leaves = leaves
        self._structure = structure

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The loss, and the count of targets if it is a tensor."""
        given = iter(tensors)
        leaves = [
            next(given) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves
        ]
        batch = unflatten(leaves, self._structure)
        with KnownValues():
            if self._loss is None:
                result = _called(self.model, batch)
            else:
                result = self._loss(self.model, batch)
        return _loss_and_count(result)


def _called(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        result = model(**batch)
    elif isinstance(batch, tuple | list):
        result = model(*batch)
    else:
        result = model(batch)
    found = getattr(result, "loss", None)
    if isinstance(found, Tensor):
        return found
    return result[0] if isinstance(result, tuple | list) else result


def _loss_and_count(result: Any) -> tuple[Tensor, ...]:
    if isinstance(result, tuple) and len(result) != 2:
        raise CaptureError(
            f"the loss is a tuple of {len(result)}; give the loss, or (loss, number of "
            "targets)"
        )
    loss, count = result if isinstance(result, tuple) else (result, None)
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
    return (loss, count) if isinstance(count, Tensor) else (loss,)


def check_traceable(model: nn.Module, leaves: Sequence[Any]) -> None:
    """Refuse what torch cannot trace, before it tries.

    Raises:
        CaptureError: lazy or scripted modules; an empty batch; a batch on meta only.
        ValueError: no module.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model is a {type(model).__name__}: give an nn.Module")
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"{path or 'the model'!r} is compiled by torch.jit, which no graph can "
                "be captured from: give the plain module"
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
def frozen_attributes(model: nn.Module) -> Iterator[None]:
    """Refuse a forward that changes plain attributes: a capture would freeze them.

    Raises:
        CaptureError: names the module and the attribute.
    """
    before = {path: _plain(module) for path, module in model.named_modules()}
    yield
    for path, module in model.named_modules():
        after, old = _plain(module), before.get(path, {})
        changed = [n for n in after if n not in old or after[n] != old[n]]
        if changed:
            name = changed[0]
            for item, value in old.items():
                setattr(module, item, value)
            raise CaptureError(
                f"the forward of {path or 'the model'!r} changes its attribute "
                f"{name!r} ({old.get(name)!r} -> {after[name]!r}); a captured step "
                "would do so once and never again: make it a buffer, or compute it "
                "from the batch"
            )


def _plain(module: nn.Module) -> dict[str, Any]:
    kinds = (int, float, str, bool, type(None))
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, kinds) and name != "training"
    }


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
def explained(model: nn.Module) -> Iterator[None]:
    """Say where in the model a step cannot be captured.

    Raises:
        CaptureError: values of tensors decide which operators run, or their sizes; the
            forward changes tensors that are no buffers.
    """
    try:
        yield
    except NotCaptured as error:
        raise CaptureError(str(error)) from error
    except DATA_DEPENDENT as error:
        module, line = place_of(error, model)
        raise CaptureError(
            f"{line}, in module {module or 'the model itself'!r}: what runs next, or a "
            "size, depends on the values of a tensor. A plan needs one graph for all "
            "batches: choose by torch.where, or pad to a fixed size "
            f"({str(error).splitlines()[0][:200]})"
        ) from None


def place_of(error: BaseException, model: nn.Module) -> tuple[str, str]:
    """The module and the line of the user's code at which an error was raised."""
    paths = {id(module): path for path, module in model.named_modules()}
    module, line = "", "an unknown line"
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    for frame, number in traceback.walk_tb(error.__traceback__):
        found = paths.get(id(frame.f_locals.get("self")))
        file = frame.f_code.co_filename
        if found is not None:
            module = found
        if not file.startswith((*ours, "<")):
            line = f"{Path(file).name}:{number}"
    return module, line
