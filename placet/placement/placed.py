"""A placed tensor: one rank's part, the global shape, and where the parts are."""

from dataclasses import dataclass

from torch import Tensor

from placet.placement.layout import Layout, Shape, check_fits, local_shape


@dataclass(frozen=True, eq=False)
class Placed:
    """One rank's view of a tensor that a mesh holds.

    >>> Placed(part, (5, 3), Layout(Mesh("data=2"), [S(0)]))
    Placed((5, 3) float32, Layout(S(0) @data))

    Args:
        local: this rank's part.
        shape: the global shape.
        layout: which part each rank holds.

    Raises:
        ValueError: the layout splits a dim that the shape does not have, or no rank
            has a part of the local tensor's shape.
    """

    local: Tensor
    shape: Shape
    layout: Layout

    def __post_init__(self) -> None:
        check_fits(self.shape, self.layout)
        ranks = self.layout.mesh.ranks
        shapes = dict.fromkeys(local_shape(self.shape, self.layout, r) for r in ranks)
        if tuple(self.local.shape) not in shapes:
            raise ValueError(
                f"a local tensor of shape {tuple(self.local.shape)} is no part of "
                f"{self.shape} in {self.layout!r}; its parts are {list(shapes)}"
            )

    def __repr__(self) -> str:
        dtype = str(self.local.dtype).removeprefix("torch.")
        return f"Placed({self.shape} {dtype}, {self.layout!r})"
