"""What a forward leaves behind besides its result: kept, undone, or refused.

    self.average = 0.9 * self.average + ...  a buffer that is set anew  -> Effects.news
    self.scores = scores.detach()            a tensor for others to look at   undone
    self.mask = torch.ones(8, 8).triu()      made of numbers alone: a cache   undone
    self.calls += 1;  self.seen.append(n)    Python values                    refused

A captured step runs Python once, so what a forward counts or collects would stay as it
was then. Every call of the forward begins with the module as it was given. torch calls
it at least twice; whatever tensor the first call leaves behind has a stand-in in the
second (`Effects.left`), so that reading it can be refused.
"""

import dataclasses
import reprlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from placet.errors import CaptureError
from placet.torch_private.aot import without_tracing

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_ADVICE = (
    "a captured step would do so once and never again: compute it from the batch, or "
    "do it in a callback of the job"
)


@dataclasses.dataclass(frozen=True)
class Held:
    """A module's own state at one moment.

    Args:
        attributes: what is not a parameter, buffer or submodule.
        contents: a description of each that is equal while nothing in it changes.
        containers: what can change in place, with a copy of it.
    """

    path: str
    module: nn.Module
    parameters: dict[str, Any]
    buffers: dict[str, Any]
    children: dict[str, Any]
    attributes: dict[str, Any]
    contents: dict[str, Any]
    containers: tuple[tuple[Any, Any], ...]

    @property
    def name(self) -> str:
        """The module, for people."""
        return repr(self.path) if self.path else "the model"

    def restore(self) -> None:
        """Put all of it back."""
        own = vars(self.module)
        kept = (("parameters", "_parameters"), ("buffers", "_buffers"))
        for field, place in (*kept, ("children", "_modules")):
            own[place].clear()
            own[place].update(getattr(self, field))
        for name in own.keys() - _OF_EVERY_MODULE - self.attributes.keys():
            del own[name]
        own.update(self.attributes)
        for container, was in self.containers:
            _refill(container, was)


def hold(model: nn.Module) -> tuple[Held, ...]:
    """Note the state of a model and its submodules."""
    return tuple(_held(path, module) for path, module in model.named_modules())


@contextmanager
def undone(model: nn.Module) -> Iterator[None]:
    """The model is afterwards as it was before, whatever happens."""
    before = hold(model)
    try:
        yield
    finally:
        for held in before:
            held.restore()


class Effects:
    """Watches the calls of one model's forward; see the module.

    Args:
        news: buffer -> the value that the last call set it to.
        left: id of a stand-in -> it, and what it stands for.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.news: dict[str, Tensor] = {}
        self.left: dict[int, tuple[Tensor, str]] = {}
        self._written: set[tuple[str, str]] = set()

    def begin(self) -> tuple[Held, ...]:
        """A call begins; gives what `end` asks for."""
        self.news = {}
        before = hold(self.model)
        for held in before:
            for path, name in self._written:
                if path == held.path:
                    with without_tracing():
                        stand_in = torch.empty(0)
                    self.left[id(stand_in)] = stand_in, f"{name!r} of {held.name}"
                    setattr(held.module, name, stand_in)
        return before

    def end(self, before: tuple[Held, ...], is_known: Callable[[Tensor], bool]) -> None:
        """A call has ended: undo what it left behind.

        Args:
            is_known: whether a tensor is made of numbers alone.

        Raises:
            CaptureError: names the module and what it changes.
        """
        for held in before:
            self._check_buffers(held, is_known)
            _check_members(held)
            self._check_attributes(held, is_known)
        for held in before:
            held.restore()

    def _check_buffers(self, held: Held, is_known: Callable[[Tensor], bool]) -> None:
        for name, new in vars(held.module)["_buffers"].items():
            old = held.buffers.get(name)
            if new is old or (old is None and is_known(new)):
                continue
            if _kind(new) != _kind(old) or not isinstance(new, Tensor):
                raise CaptureError(
                    f"the forward of {held.name} replaces its buffer {name!r}, "
                    f"{_kind(old)}, by {_kind(new)}; a plan keeps a buffer's shape and "
                    "dtype: register it with those that it will have"
                )
            self.news[f"{held.path}.{name}".removeprefix(".")] = new.detach()

    def _check_attributes(self, held: Held, is_known: Callable[[Tensor], bool]) -> None:
        own = vars(held.module)
        for name in dict.fromkeys([*held.attributes, *own]):
            old, value = held.contents.get(name), own.get(name)
            if name in _OF_EVERY_MODULE or old == _contents(value, [], set()):
                continue
            if isinstance(held.module, nn.RNNBase) and name.startswith("_flat_weight"):
                continue  # torch's own list of its parameters
            if isinstance(value, Tensor):
                if not is_known(value):
                    self._written.add((held.path, name))
            elif not _is_cache(old, value, is_known):
                was, now = _difference(held, name, value)
                raise CaptureError(
                    f"the forward of {held.name} changes its attribute {name!r} "
                    f"({reprlib.repr(was)} -> {reprlib.repr(now)}); {_ADVICE}; a "
                    "number that steps count on can be a buffer"
                )


def _check_members(held: Held) -> None:
    """Parameters and submodules must be those that there were."""
    own = vars(held.module)
    kinds = (
        ("parameter", held.parameters, own["_parameters"]),
        ("submodule", held.children, own["_modules"]),
    )
    for kind, old, new in kinds:
        changed = [n for n in {**old, **new} if old.get(n) is not new.get(n)]
        if changed:
            raise CaptureError(
                f"the forward of {held.name} makes or replaces its {kind} "
                f"{changed[0]!r}; {_ADVICE}"
            )


def _held(path: str, module: nn.Module) -> Held:
    own = vars(module)
    attributes = {n: v for n, v in own.items() if n not in _OF_EVERY_MODULE}
    found: list[tuple[Any, Any]] = []
    contents = {n: _contents(v, found, set()) for n, v in attributes.items()}
    return Held(
        path,
        module,
        dict(own["_parameters"]),
        dict(own["_buffers"]),
        dict(own["_modules"]),
        attributes,
        contents,
        tuple(found),
    )


def _contents(value: Any, found: list[tuple[Any, Any]], inside: set[int]) -> Any:
    """What a value is now; objects that are no plain data by who they are.

    Args:
        found: gets each container that can change, with a copy.
        inside: ids of the containers that this value is in.
    """
    if isinstance(value, int | float | complex | str | bytes | None):
        return type(value), value
    items = _items(value)
    if items is None or id(value) in inside:
        return type(value), id(value)
    if not isinstance(value, tuple | frozenset):
        found.append((value, items))
    inside = inside | {id(value)}
    parts = items.items() if isinstance(items, dict) else enumerate(items)
    return type(value), id(value), [(k, _contents(v, found, inside)) for k, v in parts]


def _items(value: Any) -> Any:
    """A copy of what is in a container, as a dict or list; None for other values."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list | tuple | set | frozenset | deque):
        return list(value)
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
    if (is_record and hasattr(value, "__dict__")) or isinstance(value, SimpleNamespace):
        return dict(vars(value))
    return None


def _refill(container: Any, was: Any) -> None:
    """Put a copy back, if anything has changed since."""
    if _members(_items(container)) == _members(was):
        return
    if isinstance(container, list | deque):
        container.clear()
        container.extend(was)
        return
    inner = container if isinstance(container, dict | set) else vars(container)
    inner.clear()
    inner.update(was)


def _members(items: Any) -> list[Any]:
    if isinstance(items, dict):
        return [(key, id(value)) for key, value in items.items()]
    return [id(value) for value in items]


def _is_cache(old: Any, value: Any, is_known: Callable[[Tensor], bool]) -> bool:
    """Whether a dict has got entries that are tensors made of numbers alone."""
    if not isinstance(value, dict) or old is None:
        return False
    before = old[2]
    now = _contents(value, [], set())[2]
    added = list(value.values())[len(before) :]
    return now[: len(before)] == before and all(
        isinstance(v, Tensor) and is_known(v) for v in added
    )


def _difference(held: Held, name: str, value: Any) -> tuple[Any, Any]:
    """An attribute before and after; or a container inside of it that has changed."""
    old = held.attributes.get(name)
    if old is value:
        for container, was in held.containers:
            now = _items(container)
            if _members(now) != _members(was):
                return was, now
    return old, value


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{list(value.shape)} {value.dtype}"
