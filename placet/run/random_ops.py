"""Every random operation of torch, keyed by global index.

All of torch's randomness (dropout in its many forms, attention, distributions, initial
values) is made of a few operators, so those alone are replaced: `KeyedRandomOps` sees
operators as torch runs them and gives the random ones keyed numbers of the same
distribution. What this table lacks warns each time it is first met, and falls back to a
generator seeded by (key, part): reproducible, equal on replicas, different on parts,
but other numbers on another number of ranks.

A call with a generator of the user's own is the user's business and runs untouched.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from placet.run import keyed_random
from placet.torch_private.random_operators import (
    OperatorMode,
    is_random,
    with_generator,
)

Fill = Callable[[Tensor, int, int], None]
"""(flat tensor, op key, global index of its first element) -> fills the tensor."""

aten = torch.ops.aten


@dataclass(frozen=True)
class Part:
    """Which rows of the global batch a tensor of the batch holds.

    Args:
        first_row: global index of the first row.
        num_rows: how many rows; 0 says that no tensor is of the batch.
        dim: where the rows stand (1 inside recurrent layers).
    """

    first_row: int
    num_rows: int
    dim: int = 0

    def holds(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape is taken for a part of the batch.

        See NOTE [What is taken for a part of the batch] in `placet.run.global_batch`.
        """
        if self.num_rows == 0 or len(shape) <= self.dim:
            return False
        size = shape[self.dim]
        return size > 0 and size % self.num_rows == 0


class KeyedRandomOps(OperatorMode):  # type: ignore[no-untyped-call]
    """While active, random operators take keyed numbers; others run untouched."""

    def __init__(self, part: Part, generator: torch.Generator | None) -> None:
        OperatorMode.__init__(self)  # type: ignore[no-untyped-call]
        self.part = part
        self.generator = generator

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one operator."""
        kwargs = kwargs or {}
        if not is_random(func):
            return func(*args, **kwargs)
        if any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        kwargs = {k: v for k, v in kwargs.items() if k != "generator"}
        key = keyed_random.op_key(self.generator)
        keyed = KEYED.get(func)
        result = keyed(Draw(self.part, key), *args, **kwargs) if keyed else None
        if result is None:
            return _unkeyed(self.part, key, func, args, kwargs)
        return result


@dataclass(frozen=True)
class Draw:
    """One random operation on this rank: the part it holds, and the operation's key."""

    part: Part
    key: int

    def fill(self, out: Tensor, fill: Fill) -> Tensor:
        """Fill a tensor of any strides by its elements' global indices."""
        dim = self.part.dim if self.part.holds(out.shape) else 0
        start = 0
        if out.numel() and self.part.holds(out.shape):
            per_row = out.numel() // self.part.num_rows
            start = self.part.first_row * per_row
        if dim == 0 and out.is_contiguous():
            fill(out.view(-1), self.key, start)
            return out
        rows_first = torch.empty(
            out.movedim(dim, 0).shape, dtype=out.dtype, device=out.device
        )
        fill(rows_first.view(-1), self.key, start)
        return out.copy_(rows_first.movedim(0, dim))

    def rows_first(self, values: Tensor) -> Tensor:
        """Values that go with the elements of a tensor, in the order of `fill`."""
        dim = self.part.dim if self.part.holds(values.shape) else 0
        return values.movedim(dim, 0).reshape(-1)


def _unkeyed(
    part: Part, key: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    warnings.warn(
        f"{func} draws random numbers that placet cannot key by global index: results "
        "will depend on the number of ranks; pass a generator of your own, or build it "
        "from torch.rand, randn, randint or bernoulli",
        stacklevel=4,
    )
    seeded = with_generator(func)
    if seeded is None:
        return func(*args, **kwargs)
    shapes = [a.shape for a in args if isinstance(a, Tensor)]
    if func is aten.randperm.default:
        shapes = [torch.Size([args[0]])]
    is_part = any(part.holds(shape) for shape in shapes)
    devices = [a.device for a in args if isinstance(a, Tensor)]
    device = devices[0] if devices else kwargs.get("device") or torch.device("cpu")
    generator = torch.Generator(device)
    generator.manual_seed(keyed_random.mix64(key ^ is_part * (part.first_row + 1)) >> 1)
    return seeded(*args, **kwargs, generator=generator)


def _bernoulli_(draw: Draw, out: Tensor, p: float | Tensor = 0.5) -> Tensor:
    if isinstance(p, Tensor):
        p = draw.rows_first(p.to(torch.float64).expand(out.shape))
    return draw.fill(out, lambda flat, key, i: keyed_random.bernoulli_(flat, p, key, i))


def _bernoulli(draw: Draw, like: Tensor, p: float | None = None) -> Tensor:
    out = torch.empty_like(like, memory_format=torch.contiguous_format)
    return _bernoulli_(draw, out, like if p is None else p)


def _uniform_(draw: Draw, out: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    return draw.fill(
        out, lambda flat, key, i: keyed_random.uniform_(flat, low, high, key, i)
    )


def _normal_(draw: Draw, out: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return draw.fill(
        out, lambda flat, key, i: keyed_random.normal_(flat, mean, std, key, i)
    )


def _exponential_(draw: Draw, out: Tensor, rate: float = 1.0) -> Tensor:
    return draw.fill(
        out, lambda flat, key, i: keyed_random.exponential_(flat, rate, key, i)
    )


def _random_(draw: Draw, out: Tensor, low: int = 0, high: int | None = None) -> Tensor:
    if high is None and out.dtype.is_floating_point:
        high = 1 + round(2 / torch.finfo(out.dtype).eps)
    elif high is None:
        high = 2 if out.dtype == torch.bool else torch.iinfo(out.dtype).max
    upper = high
    return draw.fill(
        out, lambda flat, key, i: keyed_random.randint_(flat, low, upper, key, i)
    )


def _random_to_(draw: Draw, out: Tensor, high: int) -> Tensor:
    return _random_(draw, out, 0, high)


def _normal_tensor(
    draw: Draw, mean: Tensor | float, std: Tensor | float = 1.0
) -> Tensor:
    mean, std = torch.as_tensor(mean), torch.as_tensor(std)
    like = mean + std
    out = _normal_(draw, torch.empty_like(like, memory_format=torch.contiguous_format))
    return out.mul_(std).add_(mean)


def _normal_size(
    draw: Draw, mean: float, std: float, size: Sequence[int], **options: Any
) -> Tensor:
    return _normal_(draw, torch.empty(size, **options), mean, std)


def _multinomial(
    draw: Draw, weights: Tensor, num_samples: int, replacement: bool = False
) -> Tensor | None:
    # The largest of weight / exponential is a draw by weight, and so on without
    # replacement: the form torch itself uses.
    if replacement and num_samples > 1:
        return None
    totals = weights.sum(-1)
    valid = (weights >= 0).all() & torch.isfinite(totals).all() & (totals > 0).all()
    if not valid or num_samples > weights.shape[-1]:
        raise RuntimeError(
            f"torch.multinomial of {num_samples} from {tuple(weights.shape)}: needs "
            "finite weights >= 0 with a positive sum, and as many categories as samples"
        )
    race = _exponential_(
        draw, torch.empty(weights.shape, dtype=torch.float64).to(weights.device)
    )
    return torch.topk(weights.double() / race, num_samples, dim=-1).indices


def _native_dropout(
    draw: Draw, input: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    if train is False:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    keep = _bernoulli_(draw, torch.empty_like(input, dtype=torch.bool), 1.0 - p)
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    return input * keep * scale, keep


def _rrelu(
    draw: Draw,
    input: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
) -> Tensor:
    if not training:
        return torch.where(input > 0, input, input * ((lower + upper) / 2))
    _uniform_(draw, noise, lower, upper).masked_fill_(input > 0, 1.0)
    return input * noise


def _rrelu_(draw: Draw, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return input.copy_(_rrelu(draw, input, *args, **kwargs))


def _sized(fill: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def factory(draw: Draw, size: Sequence[int], **options: Any) -> Tensor:
        return fill(draw, torch.empty(size, **options))

    return factory


def _like(fill: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def factory(draw: Draw, like: Tensor, **options: Any) -> Tensor:
        return fill(draw, torch.empty_like(like, **options))

    return factory


def _randint(
    draw: Draw, low: int, high: int, size: Sequence[int], **options: Any
) -> Tensor:
    options["dtype"] = options.get("dtype") or torch.int64
    return _random_(draw, torch.empty(size, **options), low, high)


def _randint_to(draw: Draw, high: int, size: Sequence[int], **options: Any) -> Tensor:
    return _randint(draw, 0, high, size, **options)


def _randint_like(
    draw: Draw, like: Tensor, low: int, high: int, **options: Any
) -> Tensor:
    return _random_(draw, torch.empty_like(like, **options), low, high)


def _randint_like_to(draw: Draw, like: Tensor, high: int, **options: Any) -> Tensor:
    return _randint_like(draw, like, 0, high, **options)


KEYED: dict[Any, Callable[..., Any]] = {
    aten.bernoulli_.float: _bernoulli_,
    aten.bernoulli_.Tensor: _bernoulli_,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.uniform_.default: _uniform_,
    aten.normal_.default: _normal_,
    aten.normal.Tensor_float: _normal_tensor,
    aten.normal.float_Tensor: _normal_tensor,
    aten.normal.Tensor_Tensor: _normal_tensor,
    aten.normal.float_float: _normal_size,
    aten.exponential_.default: _exponential_,
    aten.random_.default: _random_,
    getattr(aten.random_, "from"): _random_,
    aten.random_.to: _random_to_,
    aten.rand.default: _sized(_uniform_),
    aten.randn.default: _sized(_normal_),
    aten.rand.generator: _sized(_uniform_),
    aten.randn.generator: _sized(_normal_),
    aten.rand_like.default: _like(_uniform_),
    aten.randn_like.default: _like(_normal_),
    aten.randint.default: _randint_to,
    aten.randint.low: _randint,
    aten.randint_like.default: _randint_like_to,
    aten.randint_like.low_dtype: _randint_like,
    aten.multinomial.default: _multinomial,
    aten.native_dropout.default: _native_dropout,
    aten.rrelu_with_noise.default: _rrelu,
    aten.rrelu_with_noise_.default: _rrelu_,
}
