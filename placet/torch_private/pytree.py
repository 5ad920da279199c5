"""Nested containers of tensors: torch's pytree."""

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree


def leaves(tree: Any) -> list[Any]:
    """What stands in nested lists, tuples, dicts and other containers, in order."""
    return list(_pytree.tree_leaves(tree))


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same containers with `function` applied to what stands in them."""
    return _pytree.tree_map(function, tree)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """What stands in nested containers, and their structure."""
    found, structure = _pytree.tree_flatten(tree)
    return list(found), structure


def unflatten(found: list[Any], structure: Any) -> Any:
    """The containers of `flatten`, with other contents."""
    return _pytree.tree_unflatten(found, structure)
