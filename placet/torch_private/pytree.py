"""Nested containers of tensors: torch's pytree."""

from typing import Any

from torch.utils import _pytree


def leaves(tree: Any) -> list[Any]:
    """What stands in nested lists, tuples, dicts and other containers, in order."""
    return list(_pytree.tree_leaves(tree))
