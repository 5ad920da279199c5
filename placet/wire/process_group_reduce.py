"""How each of torch's reductions is computed by a wire, which has sum, prod, max, min.

AVG           sum, then divide (floating point only, as gloo)
PREMUL_SUM    multiply by the factor, then sum
BAND BOR BXOR gather all, then fold in group order
bool          as bytes: or is max, and is min, xor is the sum's last bit
complex       as pairs of real numbers (sums only)
small ints    through int32, float8 through float32; uint32 through int64
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from placet.boxing.moves import MoveReduction
from placet.torch_private.c10d import ReduceOp, reduction_of
from placet.wire.check import REDUCIBLE

Fold = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Reduction:
    """What to do with a payload before, on, and after the wire.

    Args:
        on_wire: what the wire computes; None: gather all payloads and `fold` them.
        carrier: dtype on the wire. Of the same width as the tensor's it is a view.
        divisor: divides the result; 1 for none.
        factor: multiplies the payload before; None for none.
        fold: see `on_wire`.
        mask: is anded to the result; 0 for none.
    """

    on_wire: MoveReduction | None
    carrier: torch.dtype
    divisor: int = 1
    factor: float | Tensor | None = None
    fold: Fold | None = None
    mask: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether the wire's result is the result."""
        return self.divisor == 1 and self.fold is None and not self.mask


_NAMES: dict[str, MoveReduction] = {
    "SUM": "sum",
    "AVG": "sum",
    "PREMUL_SUM": "sum",
    "PRODUCT": "prod",
    "MIN": "min",
    "MAX": "max",
}
_FOLDS: dict[str, Fold] = {
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_BOOLEAN: dict[str, MoveReduction] = {
    "SUM": "max",
    "MAX": "max",
    "BOR": "max",
    "PRODUCT": "min",
    "MIN": "min",
    "BAND": "min",
    "BXOR": "sum",
}
_CARRIERS = {
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
}


def reduction_for(op: ReduceOp, dtype: torch.dtype, size: int) -> Reduction:
    """How to reduce elements of a dtype over so many ranks.

    Raises:
        TypeError: the reduction has no meaning for the dtype.
    """
    name, factor = reduction_of(op)
    if dtype == torch.bool:
        if name not in _BOOLEAN:
            raise TypeError(f"{name} of bool tensors; convert them to float32 first")
        return Reduction(_BOOLEAN[name], torch.uint8, mask=int(name == "BXOR"))
    is_exact = not (dtype.is_floating_point or dtype.is_complex)
    if name in _FOLDS:
        if not is_exact:
            raise TypeError(f"{name} of {dtype}; it needs whole numbers or bool")
        return Reduction(None, dtype, fold=_FOLDS[name])
    if name == "AVG" and is_exact:
        raise TypeError(f"AVG of {dtype} would round; use SUM and divide, or floats")
    if dtype.is_complex and name not in ("SUM", "AVG", "PREMUL_SUM"):
        raise TypeError(f"{name} of {dtype}; complex numbers have SUM and AVG only")
    carrier = _CARRIERS.get(dtype, dtype)
    if name not in _NAMES or carrier not in REDUCIBLE:
        raise TypeError(f"{name} of {dtype} is not supported; convert to float32 first")
    divisor = size if name == "AVG" else 1
    return Reduction(_NAMES[name], carrier, divisor=divisor, factor=factor)


def to_wire(flat: Tensor, reduction: Reduction) -> Tensor:
    """A flat payload in the carrier's dtype; the same memory where that can be."""
    if reduction.factor is not None:
        flat = flat * reduction.factor
    if flat.dtype == reduction.carrier:
        return flat
    if flat.is_complex():
        return torch.view_as_real(flat).view(-1)
    if flat.dtype == torch.bool:
        return flat.view(torch.uint8)
    return flat.to(reduction.carrier)


def from_wire(flat: Tensor, dtype: torch.dtype, reduction: Reduction) -> Tensor:
    """The reverse, of a result; changes `flat` where it has to be divided."""
    if reduction.divisor != 1:
        flat.div_(reduction.divisor)
    if reduction.mask:
        flat.bitwise_and_(reduction.mask)
    if flat.dtype == dtype:
        return flat
    if dtype.is_complex:
        return torch.view_as_complex(flat.view(-1, 2))
    if dtype == torch.bool:
        return flat.view(torch.bool)
    return flat.to(dtype)


def fold_all(gathered: Tensor, size: int, fold: Fold) -> Tensor:
    """Join the payloads of `size` members, which lie one after the other."""
    total, *others = gathered.view(size, -1).unbind()
    for other in others:
        total = fold(total, other)
    return total
