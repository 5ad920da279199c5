"""Keys of a program's calls, which say what was called with what, and where.

    world/all_reduce/float32[4] SUM/train.py:17~0badcafe
    group/kind      /what          /place

The adapter for torch.distributed writes such keys; when a collective does not end,
they tell that two keys are one call, made with other tensors or from another line.
"""

import re
from dataclasses import dataclass

_DTYPE = r"(?:bool|float|bfloat|complex|u?int)\d*\w*"
_KEY = re.compile(
    rf"(?P<group>world|group [^/]+)/(?P<kind>[a-z_]+)"
    rf"(?:/(?P<what>{_DTYPE}(?:[\[ ][^/]*)?))?(?:/(?P<place>.+))?",
    re.DOTALL,
)
_HASH = re.compile(r"~[0-9a-f]{8}")


@dataclass(frozen=True)
class Call:
    """A call of a program.

    Args:
        group: the group's name, "world" or "group NAME".
        kind: of collective, such as "all_reduce".
        what: dtype, shape, reduction, root; may be empty.
        place: the call site, or the name that the program gave; may be empty.
    """

    group: str
    kind: str
    what: str = ""
    place: str = ""

    @property
    def key(self) -> str:
        """As it is a key on the wire; `call_of` reads it."""
        return "/".join(p for p in (self.group, self.kind, self.what, self.place) if p)

    @property
    def at(self) -> str:
        """`train.py:17`: the place for people."""
        return _HASH.sub("", self.place)

    @property
    def name(self) -> str:
        """`all_reduce at train.py:17`."""
        return f"{self.kind} at {self.at}" if self.place else self.kind


def call_of(key: str) -> Call | None:
    """The call that a key stands for; None for keys that others made up."""
    match = _KEY.fullmatch(key)
    return Call(**match.groupdict(default="")) if match else None


def differ_in_what(one: str, other: str) -> bool:
    """Whether two keys are one call, from one place, with other tensors."""
    pair = _pair(one, other)
    if pair is None or pair[0].place != pair[1].place or pair[0].what == pair[1].what:
        return False
    # A transfer is its pair of ranks and its tag: another pair is another transfer.
    ends = [call.what.partition(" ")[2] for call in pair]
    return pair[0].kind != "send" or ends[0] == ends[1]


def differ_in_place(one: str, other: str) -> bool:
    """Whether two keys are one call with tensors alike, from two places."""
    pair = _pair(one, other)
    if pair is None or not (pair[0].place and pair[1].place):
        return False
    return pair[0].place != pair[1].place and pair[0].what == pair[1].what


def _pair(one: str, other: str) -> tuple[Call, Call] | None:
    first, second = call_of(one), call_of(other)
    if first is None or second is None:
        return None
    is_alike = (first.group, first.kind) == (second.group, second.kind)
    return (first, second) if is_alike else None
