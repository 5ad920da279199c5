"""Keys for the calls of programs that know nothing of keys.

The wire matches moves by key, so calls may come in another order on each rank. A
program written for torch.distributed gives none; its calls get

    group / kind / dtype[shape] op / where         and, from the wire: how often so far

*Where* tells calls apart that do the same to tensors of one shape: the call site (up to
four frames outside torch and the standard library), the module whose parameters FSDP2
moves, the bucket that a DDP communication hook got, and what `named` says.

# NOTE [What has no call site]
Ranks play different roles in broadcast, reduce, gather, scatter, send and receive, and
often call them, or a barrier, from different lines (`if rank == 0: ... else: ...`). So
these have no site. Two of one kind, root and shape keep the program's order, as in all
of torch.distributed. For sends and receives the shape is left out, too: torch promises
their order by pair and tag, and so a wrong size is an error at once.

# NOTE [Callbacks]
What a program attaches to a future of ours (`then`) always runs in a helper's thread,
whether the future is done already or not: ranks differ in that, and the call site must
not. A call made there has the key of the future's own call in its key, as callbacks run
in another order on each rank. With futures of others a site ends where theirs begins.

# NOTE [What nothing can tell apart]
The same line run twice, for tensors of one shape, in an order that differs between
ranks (a loop over a set, or threads): the calls match in the order in which each rank
makes them, as on gloo, and no key can know better. `named` tells them apart, and
`debug` refuses to have two of them in flight.

# NOTE [Module names]
The names of all modules would need a hook on each module's call, at about a microsecond
each: too dear for what the call site mostly tells already. FSDP2 knows the name.
"""

import sys
import sysconfig
import zlib
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import CodeType, FrameType

import torch

from placet.torch_private.c10d import (
    bucket_index,
    fsdp_module_name,
    has_bucket,
    is_fsdp_code,
)
from placet.wire.engine.calls import Call

_MOST_FRAMES = 4
_MOST_WALKED = 100


@dataclass(frozen=True)
class Name:
    """What `named` says of the calls inside it."""

    text: str
    priority: int


@dataclass(frozen=True)
class Key:
    """A call's name on the wire, which counts how often it was used.

    Args:
        text: what tells the call from others, readable.
        priority: larger goes first.
    """

    text: str
    priority: int = 0


_NAME: ContextVar[Name | None] = ContextVar("placet_name", default=None)


@contextmanager
def named(name: str, *, priority: int = 0) -> Iterator[None]:
    """Give the collectives inside a name, which becomes part of their keys.

        with named(f"expert {i}", priority=1):
            dist.all_reduce(gradient)

    The call site is then left out: a name says which call it is.

    Args:
        name: equal on all members of the group.
        priority: larger goes first; a call without it has 0.

    Raises:
        ValueError: the name is empty.
    """
    if not name:
        raise ValueError(f"named({name!r}): a name needs at least one character")
    token = _NAME.set(Name(name, priority))
    try:
        yield
    finally:
        _NAME.reset(token)


_ORIGIN: ContextVar[str] = ContextVar("placet_origin", default="")


@contextmanager
def in_callback_of(key: str) -> Iterator[None]:
    """Say that the calls inside are made by a callback; see NOTE [Callbacks].

    Args:
        key: of the call whose future calls back.
    """
    token = _ORIGIN.set(f"{zlib.crc32(key.encode()):08x}")
    try:
        yield
    finally:
        _ORIGIN.reset(token)


class KeyBook:
    """Names the calls of one group.

    Args:
        group: the group's name.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self._known: dict[tuple[Hashable, ...], Key] = {}

    def key(self, kind: str, what: tuple[Hashable, ...], *, has_site: bool) -> Key:
        """The key of a call that is made now.

        Args:
            kind: of collective.
            what: dtype, shape, reduction, root: what tells the call from others.
            has_site: whether all members call from the same place.
        """
        name = _NAME.get()
        where: Where | None = None
        if name is None and has_site:
            where = call_site(sys._getframe(1))
        origin = _ORIGIN.get()
        entry = (kind, what, name, where, origin)
        known = self._known.get(entry)
        if known is None:
            text = _text(self.group, kind, what, name, where, origin)
            known = self._known[entry] = Key(text, name.priority if name else 0)
        return known


Where = tuple[int, str]
"""A call site: the number of its frames, and a module's name or bucket's number."""


def call_site(frame: FrameType | None) -> Where:
    """Where the program is, seen from `frame`; `describe_site` makes it readable."""
    places: list[int] = []
    extra = ""
    for _ in range(_MOST_WALKED):
        if frame is None:
            break
        code = frame.f_code
        known = _CODES.get(id(code)) or _learn(code)
        kind = known[1]
        if kind == 1:  # _Code.PLACE, by its number: this loop runs for every call
            places += (id(code), frame.f_lasti)
        elif kind:
            if kind is _Code.CALLBACK or (kind is _Code.SCRIPT and places):
                break
            if kind is _Code.MODULE_NAME:
                extra = fsdp_module_name(frame) or extra
            if kind is _Code.HOOK:
                bucket = bucket_index(frame)
                extra = extra if bucket is None else f"bucket {bucket}"
            if kind is not _Code.MODULE_NAME:
                places += (id(code), frame.f_lasti)
        if len(places) == 2 * _MOST_FRAMES:
            break
        frame = frame.f_back
    site = tuple(places)
    number = _SITES.get(site)
    if number is None:
        number = _remember(site)
    return number, extra


class _Code(IntEnum):
    """What a frame is to a call site."""

    SKIPPED = 0
    """Of torch, the standard library, or of ours."""
    PLACE = 1
    """The program's."""
    SCRIPT = 2
    """The program's outermost: in a process started otherwise it may be missing, so
    it counts only where it makes the call itself."""
    HOOK = 3
    """May be a DDP communication hook."""
    MODULE_NAME = 4
    """FSDP2's, which knows a module's name."""
    CALLBACK = 5
    """Of torch's futures: what it calls is a callback, see NOTE [Callbacks]."""


_LIBRARIES = tuple(
    f"{Path(found).resolve()}/"
    for found in (Path(torch.__file__).parent, Path(__file__).parents[1])
)
_FUTURES = str(Path(torch.futures.__file__).resolve())
_STANDARD = f"{Path(sysconfig.get_path('stdlib')).resolve()}/"
_CODES: dict[int, tuple[CodeType, _Code]] = {}
# By identity, as the hash of a code object is slow; the value keeps it alive.
_SITES: dict[tuple[int, ...], int] = {}
_SITE_TEXTS: dict[int, str] = {}


def _learn(code: CodeType) -> tuple[CodeType, _Code]:
    known = (code, _classify(code))
    _CODES[id(code)] = known
    return known


def _classify(code: CodeType) -> _Code:
    if is_fsdp_code(code):
        return _Code.MODULE_NAME
    file = code.co_filename
    if not file.startswith("<"):
        file = str(Path(file).resolve())
    if file == _FUTURES:
        return _Code.CALLBACK
    in_standard = file.startswith(_STANDARD) and "site-packages" not in file
    # Compiled code: "<eval_with_key>.3", or a file whose name is a hash.
    typed = file in ("<stdin>", "<string>")
    made = (file.startswith("<") and not typed) or "torchinductor" in file
    if in_standard or made or file.startswith(_LIBRARIES):
        # torch's own hooks, as default_hooks.py, get a bucket, too.
        return _Code.HOOK if has_bucket(code) and not in_standard else _Code.SKIPPED
    if code.co_name == "<module>":
        return _Code.SCRIPT
    return _Code.HOOK if has_bucket(code) else _Code.PLACE


def _remember(site: tuple[int, ...]) -> int:
    """Number a new site by what all ranks see alike: no paths, no addresses."""
    parts = []
    for code_id, position in zip(site[::2], site[1::2], strict=True):
        code = _CODES[code_id][0]
        parts.append((Path(code.co_filename).name, code.co_qualname, position))
    number = zlib.crc32(repr(parts).encode())
    if number not in _SITE_TEXTS:
        _SITE_TEXTS[number] = f"{_first_line(site)}~{number:08x}"
    _SITES[site] = number
    return number


def _first_line(site: tuple[int, ...]) -> str:
    if not site:
        return "nowhere"
    code, position = _CODES[site[0]][0], site[1]
    line = code.co_firstlineno
    for start, end, found in code.co_lines():
        if start <= position < end and found is not None:
            line = found
    return f"{Path(code.co_filename).name}:{line}"


def describe_site(where: Where) -> str:
    """A call site as file:line and a hash of all its frames, and the module's name."""
    number, extra = where
    return f"{_SITE_TEXTS[number]} {extra}".rstrip()


def _text(
    group: str,
    kind: str,
    what: tuple[Hashable, ...],
    name: Name | None,
    where: Where | None,
    origin: str,
) -> str:
    place = []
    if name is not None:
        place.append(f"'{name.text}'")
    elif where is not None:
        place.append(describe_site(where))
    if origin and name is None:
        place.append(f"after {origin}")
    return Call(group, kind, _describe(what), "/".join(place)).key


def _describe(what: tuple[Hashable, ...]) -> str:
    words = []
    for item in what:
        if isinstance(item, torch.dtype):
            words.append(str(item).removeprefix("torch."))
        elif isinstance(item, tuple):
            words.append(f"[{','.join(map(str, item))}]")
        else:
            words.append(str(item))
    return " ".join(words).replace(" [", "[")
