"""Hooks that belong to one model: copies and pickles of the model are plain again."""

from collections.abc import Callable
from typing import Any


class OwnHook:
    """Calls a function as a module's hook; copied or pickled, it does nothing.

    A copy (of an averaged model, say) is no part of the job: were it hooked, its
    forwards would wait for other ranks.

    Args:
        function: takes what torch gives to hooks of its kind.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __call__(self, *given: Any) -> None:
        """Call the function."""
        self.function(*given)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        """What stands for it in copies."""
        return _idle_hook, ()


def _idle_hook() -> Callable[..., None]:
    return _do_nothing


def _do_nothing(*_: Any) -> None:
    return None
