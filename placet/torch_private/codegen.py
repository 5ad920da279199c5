"""How fx graphs become Python functions."""

from torch.fx.graph import _BoxedCodeGen

__all__ = ["BoxedCodeGen"]

BoxedCodeGen = _BoxedCodeGen
"""Makes a function of one list, which it empties: arguments are freed as it goes."""
