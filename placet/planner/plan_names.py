"""Many names as few patterns, and the name that was meant by another one.

h.0.up, h.1.up, ..., h.47.up   <->   h.{0-47}.up     -> ranges, expand
"""

import difflib
import re
from collections.abc import Iterable, Sequence

MOST_NAMES = 1_000_000
"""That a pattern may stand for."""


def ranges(names: Sequence[str]) -> list[str]:
    """Names that differ in their first number only, as one: h.{0-47}.mlp.weight."""
    groups: dict[tuple[str, str] | str, list[int]] = {}
    for name in names:
        match = re.match(r"(\D*\b)(0|[1-9]\d*)(?=\.|$)(.*)", name, re.DOTALL)
        if match is None or "{" in name:
            groups[name] = []
        else:
            groups.setdefault((match[1], match[3]), []).append(int(match[2]))
    texts = []
    for key, numbers in groups.items():
        if isinstance(key, str):
            texts.append(key)
        else:
            spans = _spans(numbers)
            found = spans if spans.isdigit() else f"{{{spans}}}"
            texts.append(f"{key[0]}{found}{key[1]}")
    return texts


def expand(pattern: str) -> list[str]:
    """The names that a pattern of `ranges` stands for.

    Raises:
        ValueError: more names than any model has.
    """
    found = re.fullmatch(
        r"([^{]*)\{(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\}(.*)", pattern, re.S
    )
    if found is None:
        return [pattern]
    names: list[str] = []
    for span in found[2].split(","):
        first, _, last = span.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if len(names) + len(numbers) > MOST_NAMES:
            raise ValueError(f"{pattern!r} stands for more than {MOST_NAMES} names")
        names += [f"{found[1]}{number}{found[3]}" for number in numbers]
    return names


def nearest(given: str, known: Iterable[str]) -> str:
    """The known name that was most likely meant, as an end of a sentence; or some."""
    names = list(dict.fromkeys(known))
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    if close:
        return f"the nearest is {close[0]!r}"
    few = ", ".join(names[:6])
    return f"there are {few}{' ...' if len(names) > 6 else ''}" if names else "none are"


def _spans(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in spans)
