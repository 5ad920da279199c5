"""Long lists that repeat, in short: a model of 48 equal blocks is written once.

    a b c  x y  x y  x y  d   ->   a b c {"times": 3, "of": [x y]} d

Names count up, so they are written as steps from the last name of their kind:

    mm, mm_1, mm_2, add, mm_3   ->   mm mm_#|1 mm_#|1 add mm_#|1
"""

import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

MAX_PERIOD = 1024
"""Longer repeats are not looked for."""

MOST_ITEMS = 1_000_000
"""That a list may have."""


def fold(items: Sequence[Hashable]) -> list[Any]:
    """A list with its adjacent repeats written once."""
    number: dict[Hashable, int] = {}
    codes = np.array([number.setdefault(x, len(number)) for x in items], dtype=np.int64)
    equal_for = _runs(codes)
    folded: list[Any] = []
    at = 0
    while at < len(items):
        period, times = _best(equal_for, at)
        if times < 2:
            folded.append(items[at])
            at += 1
            continue
        folded.append({"times": times, "of": list(items[at : at + period])})
        at += period * times
    return folded


def unfold(folded: Iterable[Any]) -> list[Any]:
    """The list that `fold` has folded.

    Raises:
        ValueError: a repeat that is none, or of more items than any list has.
    """
    items: list[Any] = []
    for item in folded:
        if not isinstance(item, dict):
            items.append(item)
            continue
        part, times = item.get("of"), item.get("times")
        if not isinstance(part, list) or type(times) is not int or times < 1:
            raise ValueError(
                f"{str(item)[:60]} is no repeat, such as {{'times': 3, 'of': [...]}}"
            )
        if len(items) + len(part) * times > MOST_ITEMS:
            raise ValueError(f"{times} repeats make more than {MOST_ITEMS} items")
        items += part * times
    return items


def _runs(codes: np.ndarray) -> np.ndarray:
    """[period - 1, i]: for how many items from i on items[j] == items[j + period]."""
    size = len(codes)
    periods = min(MAX_PERIOD, size // 2)
    runs = np.zeros((periods, size), dtype=np.int32)
    for period in range(1, periods + 1):
        same = codes[:-period] == codes[period:]
        ends = np.where(same, size, np.arange(len(same)))
        last = np.minimum.accumulate(ends[::-1])[::-1]
        last = np.minimum(last, len(same))
        runs[period - 1, : len(same)] = last - np.arange(len(same))
    return runs


def _best(runs: np.ndarray, at: int) -> tuple[int, int]:
    """The period that covers most from here on, and how often it is there."""
    if not len(runs):
        return 1, 1
    periods = np.arange(1, len(runs) + 1)
    times = 1 + runs[:, at] // periods
    saved = (times - 1) * periods
    best = int(saved.argmax())
    return int(periods[best]), int(times[best])


class Namer:
    """Writes names as steps, and reads them back, in the same order."""

    def __init__(self) -> None:
        self.last: dict[str, list[int]] = {}

    def step(self, name: str) -> str:
        """A name with its numbers taken out, and their steps from the last ones."""
        stem = _NUMBER.sub("#", name)
        numbers = [int(n) for n in _NUMBER.findall(name)]
        if stem.count("#") != len(numbers) or "|" in stem:
            raise ValueError(f"{name!r} cannot be written as a step: it has a # or |")
        before = self.last.get(stem, [0] * len(numbers))
        self.last[stem] = numbers
        steps = [b - a for a, b in zip(before, numbers, strict=True)]
        return f"{stem}|{','.join(map(str, steps))}" if numbers else stem

    def name(self, step: str) -> str:
        """The name that a step stands for."""
        stem, _, text = step.partition("|")
        steps = [int(n) for n in text.split(",")] if text else []
        before = self.last.get(stem, [0] * len(steps))
        numbers = [a + b for a, b in zip(before, steps, strict=True)]
        self.last[stem] = numbers
        left = iter(numbers)
        return re.sub("#", lambda _: str(next(left)), stem)


_NUMBER = re.compile(r"(?<!\d)(?:0|[1-9]\d{0,8})(?!\d)")
