"""How sample calls of operators are written, for checking their rules.

sample(aten.mm.default, T(7, 4), T(4, 6))
sample(aten.gather.default, T(5, 6), 1, index(6, 5, 4))
sample(aten.cat.default, (T(3, 4), T(2, 4)), 0)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Kind = Literal["normal", "positive", "unit", "index", "bool", "given"]


@dataclass(frozen=True, init=False)
class T:
    """A tensor argument, of random values.

    Args:
        shape: of the whole.
        kind: normal; positive (0.5 to 2); unit (between -0.9 and 0.9); index (whole
            numbers from 0 to `high` - 1); bool; given (`values` in row-major order).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    kind: Kind
    high: int
    values: tuple[Any, ...]

    def __init__(
        self,
        *shape: int,
        dtype: torch.dtype = torch.float64,
        kind: Kind = "normal",
        high: int = 0,
        values: tuple[Any, ...] = (),
    ) -> None:
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "high", high)
        object.__setattr__(self, "values", values)

    def make(self, generator: torch.Generator) -> Tensor:
        """The tensor."""
        uniform = torch.rand(self.shape, generator=generator, dtype=torch.float64)
        match self.kind:
            case "normal":
                made = torch.randn(self.shape, generator=generator, dtype=torch.float64)
                made = made if self.dtype.is_floating_point else (3 * made).round()
            case "positive":
                made = 0.5 + 1.5 * uniform
            case "unit":
                made = 1.8 * uniform - 0.9
            case "index":
                made = (uniform * self.high).floor()
            case "bool":
                made = uniform < 0.5
            case "given":
                made = torch.tensor(self.values).reshape(self.shape)
        return made.to(self.dtype)


def index(high: int, *shape: int) -> T:
    """Indices from 0 to `high` - 1."""
    return T(*shape, dtype=torch.int64, kind="index", high=high)


def mask(*shape: int) -> T:
    """Truth values."""
    return T(*shape, dtype=torch.bool, kind="bool")


def given(values: tuple[Any, ...], *shape: int, dtype: torch.dtype = torch.int64) -> T:
    """The given values."""
    return T(*(shape or (len(values),)), dtype=dtype, kind="given", values=values)


@dataclass(frozen=True)
class Sample:
    """One call of an operator.

    Args:
        target, args, kwargs: with `T` for tensors.
        has_values: compare values; False for results that are random or not set, of
            which only shapes and dtypes are compared.
        prepare: changes the tensors after they are made, to fit one another (a saved
            result of the forward, say).
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    has_values: bool = True
    prepare: Callable[[list[Tensor]], list[Tensor]] | None = None


def sample(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Sample:
    """A call whose values are compared."""
    return Sample(target, args, tuple(kwargs.items()))
