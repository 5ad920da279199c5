"""The fields of a JSON object, each of the kind that is wanted; errors say where."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args

T = TypeVar("T")

NUMBER = (int, float)


class Reader:
    """The fields of a JSON object, each of the kind that is asked for."""

    def __init__(self, found: Mapping[str, Any], path: str = "") -> None:
        self.found = found
        self.path = path

    def field(self, name: str, *kinds: type, none: bool = False) -> Any:
        """A field; None only where that may be.

        Raises:
            ValueError: it is not there, or of another kind.
        """
        if name not in self.found:
            raise ValueError(f"it has no {self.path + name!r}")
        value = self.found[name]
        if value is None and none:
            return None
        is_kind = isinstance(value, kinds)
        if not is_kind or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(
                f"its {self.path + name} is {short(value)}, not {_kind_text(kinds)}"
            )
        return value

    def number(self, name: str, *, none: bool = False) -> Any:
        """A finite number that is not below 0."""
        value = self.field(name, *NUMBER, none=none)
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(
                f"its {self.path + name} is {value}, not a number from 0 on"
            )
        return value

    def whole(self, name: str) -> "Reader | None":
        """An object in a field; None where nothing is."""
        value = self.field(name, dict, none=True)
        return None if value is None else Reader(value, f"{self.path}{name}.")

    def each(self, name: str, read: Callable[[Any], T]) -> list[T]:
        """A list's items; errors say which one."""
        made = []
        for i, item in enumerate(self.field(name, list)):
            made.append(at(f"{self.path}{name}[{i}]", read, item))
        return made

    def choice(self, name: str, kind: Any) -> Any:
        """One of a Literal's texts."""
        value = self.field(name, str)
        if value not in get_args(kind):
            known = " or ".join(get_args(kind))
            raise ValueError(f"its {self.path + name} is {value!r}, not {known}")
        return value


def at(where: str, read: Callable[[Any], T], value: Any) -> T:
    try:
        return read(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error


def text_of(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{short(value)} is no text")
    return value


def _kind_text(kinds: Sequence[type]) -> str:
    if kinds == NUMBER:
        return "a number"
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return " or ".join(names.get(kind, kind.__name__) for kind in kinds)


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
