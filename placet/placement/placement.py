"""How one mesh axis holds a tensor: split, broadcast, or partial.

Placements are values: they know nothing of processes and move no bytes. A tensor on a
mesh has one placement per mesh axis (see `placet.placement.layout`).

    S(0)   each rank of the axis holds one slice of tensor dim 0
    B      each rank holds the whole tensor
    P(sum) each rank holds one term; the tensor is their element-wise sum

Source: OneFlow (arXiv:2110.15032), SBP; differs in halos on splits and in naming the
reduction of a partial value.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Reduction: TypeAlias = Literal["sum", "avg", "max", "min"]


@dataclass(frozen=True)
class Split:
    """One slice of tensor dim `dim` per rank, by torch.chunk's rule.

    Args:
        dim: the tensor dim that is cut, >= 0.
        halo: how many extra indices a part holds (below, above) its own slice, clipped
            to the tensor. An empty part has no halo.
        adjoint: the cotangent of a value with a halo: overlapping indices are *terms*
            to be summed, not copies. Only `box` makes such placements.
    """

    dim: int
    halo: tuple[int, int] = (0, 0)
    adjoint: bool = False

    def __post_init__(self) -> None:
        if type(self.dim) is not int:
            raise TypeError(f"S({self.dim!r}): dim must be a whole number")
        halo = self.halo
        if not (isinstance(halo, tuple) and [type(h) for h in halo] == [int, int]):
            raise TypeError(f"S({self.dim}, halo={halo!r}): give (below, above)")
        if self.dim < 0:
            raise ValueError(f"S({self.dim}): dim must be >= 0; count from the front")
        if min(self.halo) < 0:
            raise ValueError(
                f"S({self.dim}, halo={self.halo}): a halo is never negative"
            )

    def __repr__(self) -> str:
        if self.halo == (0, 0):
            return f"S({self.dim})"
        return f"S({self.dim}, {'adjoint ' if self.adjoint else ''}halo={self.halo})"


@dataclass(frozen=True)
class Broadcast:
    """The whole tensor on every rank of the axis."""

    def __repr__(self) -> str:
        return "B"


@dataclass(frozen=True)
class Partial:
    """One term per rank; the tensor is the element-wise `reduction` of the terms."""

    reduction: Reduction = "sum"

    def __post_init__(self) -> None:
        if self.reduction not in get_args(Reduction):
            known = ", ".join(get_args(Reduction))
            raise ValueError(
                f"P({self.reduction!r}): the reduction must be one of {known}"
            )

    def __repr__(self) -> str:
        return f"P({self.reduction})"


Placement: TypeAlias = Split | Broadcast | Partial

B = Broadcast()


def S(dim: int, halo: tuple[int, int] = (0, 0)) -> Split:
    """Split tensor dim `dim` over the ranks of an axis; see `Split`."""
    return Split(dim, halo)


def P(reduction: Reduction = "sum") -> Partial:
    """Partial: the tensor is the `reduction` of the ranks' terms; see `Partial`."""
    return Partial(reduction)
