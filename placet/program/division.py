"""What a plan decides, as the program sees it.

signatures   how each operator is divided over each mesh axis
homes        where each parameter and buffer is stored
boxings      the changes of layout of each tensor, one step each
again        those that are made once more for the backward (ZeRO level 3)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.program.signature import Signature


@dataclass(frozen=True)
class Division:
    """How a graph is divided over the ranks of a mesh.

    Args:
        signatures: operator -> one signature per mesh axis.
        homes: parameter or buffer (its name in the model) -> where it is stored.
        boxings: tensor -> (src, dst) steps, each after those it goes on from. A state's
            new value or gradient ends in the state's home. What is read in the layout
            it is made in has none.
        again: tensor -> steps for its reads in the backward, from the layout it is made
            in; the results of `boxings` are then dropped after the forward. A tensor
            that is not here keeps them.
    """

    mesh: Mesh
    signatures: Mapping[str, tuple[Signature, ...]]
    homes: Mapping[str, Layout]
    boxings: Mapping[str, tuple[tuple[Layout, Layout], ...]] = field(
        default_factory=dict
    )
    again: Mapping[str, tuple[tuple[Layout, Layout], ...]] = field(default_factory=dict)
