"""A plan from its JSON, which people may have edited; see `placet.planner.plan_json`.

Every field is checked by itself here: its kind, its numbers of layouts and signatures,
its texts. Whether all of it goes together, and with a model, says
`placet.planner.plan_check`, which sees the model's graph.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar, get_args

import torch

from placet.cost.machine import Machine
from placet.cost.objective import Unit
from placet.errors import PlanError
from placet.placement.cluster import Cluster, parse
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, Placement, Reduction, Split
from placet.planner.folding import Namer, unfold
from placet.planner.plan_data import MeshTried, Overlapped, PlanData
from placet.planner.plan_fields import NUMBER, Reader, at, short, text_of
from placet.planner.plan_json import FORMAT
from placet.planner.plan_names import expand, nearest
from placet.planner.storage import Storage
from placet.program.capture import Precision
from placet.program.division import Division
from placet.program.graph import TensorMeta
from placet.program.signature import Signature

T = TypeVar("T")
Steps = dict[str, tuple[tuple[Layout, Layout], ...]]


def data_of(text: str) -> dict[str, Any]:
    """The fields of the plan that `placet.planner.plan_json.to_json` has written.

    Raises:
        PlanError: no plan, one of another version, or one edited to what makes no
            sense; says where, what stands there and what could.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__}, not an object")
        if found.get("format") != FORMAT:
            raise ValueError(f"its format is {found.get('format')!r}, not {FORMAT!r}")
        data = _plan(Reader(found))
    except (ValueError, TypeError, RecursionError) as error:
        raise PlanError(
            f"this is no plan that can be read ({error}); make it with `placet plan "
            "... --out plan.json`"
        ) from error
    return {item.name: getattr(data, item.name) for item in fields(data)}


def _plan(found: Reader) -> PlanData:
    mesh = at("mesh", _mesh, found.field("mesh", dict))
    layouts = found.each("layouts", lambda text: _layout(text_of(text), mesh))
    picked = found.each("signatures", lambda text: _signatures(text_of(text)))
    cluster = found.field("cluster", str, none=True)
    states = _by_name(found.field("states", dict), "states", _meta)

    def home(number: str) -> Layout:
        return _numbered(number, layouts, "layout")

    division = Division(
        mesh,
        _operators(found.field("operators", list), picked),
        _by_name(found.field("homes", dict), "homes", home),
        _steps("boxings", found.field("boxings", list), layouts),
        _steps("again", found.field("again", list), layouts),
    )
    _check_states(division.homes, states)
    storage, machine = found.whole("storage"), found.whole("machine")
    overlapped = found.whole("overlapped")
    return PlanData(
        division=division,
        unit=found.choice("unit", Unit),
        cost=found.number("cost"),
        bound=found.number("bound"),
        is_complete=found.field("is_complete", bool),
        solver=found.field("solver", str),
        search_seconds=_numbers("search_seconds", found.field("search_seconds", dict)),
        memory_limit_bytes=found.number("memory_limit_bytes", none=True),
        memory_bytes=found.number("memory_bytes"),
        memory_at=found.field("memory_at", str),
        memory_use=_numbers("memory_use", found.field("memory_use", dict)),
        fingerprint=found.field("fingerprint", str),
        states=states,
        batch=tuple(found.each("batch", _meta)),
        precision=found.choice("precision", Precision),
        torch_version=found.field("torch_version", str),
        storage=Storage() if storage is None else _storage(storage),
        cluster=None if cluster is None else at("cluster", _cluster, cluster),
        machine=None if machine is None else at("machine", _machine, machine.found),
        overlapped=None if overlapped is None else _overlapped(overlapped),
        matmul_ratio=found.number("matmul_ratio", none=True),
        meshes=tuple(found.each("meshes", _tried)),
        notes=tuple(found.each("notes", text_of)),
        work=tuple(found.each("work", _work)),
        moves=tuple(found.each("moves", _move)),
    )


def _operators(
    folded: list[Any], picked: Sequence[tuple[Signature, ...]]
) -> dict[str, tuple[Signature, ...]]:
    namer, found = Namer(), {}
    for step, number in _items("operators", folded, 2):
        found[namer.name(step)] = at(
            f"operators, {step!r}", lambda n: _numbered(n, picked, "signature"), number
        )
    return found


def _steps(where: str, folded: list[Any], layouts: Sequence[Layout]) -> Steps:
    namer = Namer()
    found: Steps = {}

    def pair(text: str) -> tuple[Layout, Layout]:
        src, arrow, dst = text.partition(">")
        if not arrow:
            raise ValueError(f"{text!r} is no pair of layouts, such as 0>1")
        return _numbered(src, layouts, "layout"), _numbered(dst, layouts, "layout")

    for step, *pairs in _items(where, folded, 2):
        made = [at(f"{where}, {step!r}", pair, text) for text in pairs]
        found[namer.name(step)] = tuple(made)
    return found


def _items(where: str, folded: list[Any], least: int) -> Iterator[list[str]]:
    """The words of each line of a folded list."""
    for item in at(where, unfold, folded):
        words = at(where, text_of, item).split(" ")
        if len(words) < least:
            raise ValueError(f"{where}: {item!r} has {len(words)} words, not {least}")
        yield words


def _by_name(
    groups: Mapping[str, Any], where: str, read: Callable[[str], T]
) -> dict[str, T]:
    """What stands as key of a group of names, by name."""
    found: dict[str, T] = {}
    for key, patterns in groups.items():
        value = at(where, read, key)
        if not isinstance(patterns, list):
            raise ValueError(
                f"{where}[{key}] is {short(patterns)}, not a list of names"
            )
        for pattern in patterns:
            for name in at(f"{where}[{key}]", lambda p: expand(text_of(p)), pattern):
                if name in found:
                    raise ValueError(f"{where} name {name!r} twice")
                found[name] = value
    return found


def _check_states(
    homes: Mapping[str, Layout], states: Mapping[str, TensorMeta]
) -> None:
    for name in homes:
        if name not in states:
            raise ValueError(
                f"homes name {name!r}, which is none of its states; "
                f"{nearest(name, states)}"
            )
    missing = [name for name in states if name not in homes]
    if missing:
        raise ValueError(
            f"homes lack {missing[0]!r}; put it under the number of one of the layouts"
        )


def _numbered(text: str, things: Sequence[T], kind: str) -> T:
    if not text.isdecimal() or int(text) >= len(things):
        raise ValueError(
            f"{kind} {text} is not there; they have numbers from 0 to {len(things) - 1}"
        )
    return things[int(text)]


def _mesh(found: Any) -> Mesh:
    reader = Reader(found, "mesh.")
    return Mesh(reader.field("axes", str), found.get("ranks"))


def _cluster(text: str) -> Cluster:
    return parse(text)


def _machine(found: Mapping[str, Any]) -> Machine:
    return Machine.from_json(json.dumps(found))


def _storage(found: Reader) -> Storage:
    return Storage(
        found.number("gradient"),
        found.number("optimizer"),
        found.field("whole", bool),
        found.number("update"),
        found.number("left"),
    )


def _overlapped(found: Reader) -> Overlapped:
    return Overlapped(found.number("seconds"), found.number("bound_seconds"))


def _tried(row: Any) -> MeshTried:
    mesh, cost, bound = _row(row, dict, (*NUMBER, type(None)), NUMBER)
    return MeshTried(_mesh(mesh), cost, bound)


def _work(row: Any) -> tuple[str, str, str]:
    module, target, signatures = _row(row, str, str, str)
    return module, target, signatures


def _move(row: Any) -> tuple[str, str, int, float]:
    module, changed, count, size = _row(row, str, str, int, NUMBER)
    return module, changed, count, size


def _row(row: Any, *kinds: Any) -> Sequence[Any]:
    fits = isinstance(row, list) and len(row) == len(kinds)
    if not fits or not all(map(isinstance, row, kinds)):
        raise ValueError(
            f"{short(row)} is no row of {len(kinds)} values of their kinds"
        )
    made: Sequence[Any] = row
    return made


def _numbers(where: str, found: Mapping[str, Any]) -> dict[str, float]:
    reader = Reader(found, f"{where}.")
    return {name: reader.number(name) for name in found}


_META = re.compile(r"\[((?:\d+(?:, )?)*)\] (\w+)")


def _meta(text: Any) -> TensorMeta:
    """A shape and dtype, as in "[16, 64] float32"."""
    found = _META.fullmatch(text_of(text))
    dtype = None if found is None else getattr(torch, found[2], None)
    if found is None or not isinstance(dtype, torch.dtype):
        raise ValueError(f"{text!r} is no shape and dtype, such as '[16, 64] float32'")
    return TensorMeta(tuple(map(int, found[1].split(", "))) if found[1] else (), dtype)


def _layout(text: str, mesh: Mesh) -> Layout:
    placements, _, order = text.partition(" by ")
    return Layout(mesh, placements_of(placements), order.split("/") if order else None)


def _signatures(text: str) -> tuple[Signature, ...]:
    found = []
    for part in text.split("; "):
        given, arrow, made = part.partition("-> ")
        if not arrow:
            raise ValueError(f"{part!r} is no signature, such as 'S(0), B -> S(0)'")
        found.append(Signature(placements_of(given), placements_of(made)))
    return tuple(found)


_PARTIALS = {reduction: P(reduction) for reduction in get_args(Reduction)}
_PLACEMENT = re.compile(
    rf"(B)|P\(({'|'.join(_PARTIALS)})\)|"
    r"S\((\d+)(?:, (adjoint )?halo=\((\d+), (\d+)\))?\)"
)


def placements_of(text: str) -> tuple[Placement, ...]:
    """Placements as they print: "S(0), B, P(sum)".

    Raises:
        ValueError: something else stands there.
    """
    found: list[Placement] = []
    rest = _PLACEMENT.sub("", text).replace(",", "").strip()
    if rest:
        raise ValueError(f"{text!r} are no placements, such as S(0), B, P(sum)")
    for match in _PLACEMENT.finditer(text):
        whole, reduction, dim, adjoint, below, above = match.groups()
        if whole:
            found.append(B)
        elif reduction:
            found.append(_PARTIALS[reduction])
        else:
            halo = (int(below or 0), int(above or 0))
            found.append(Split(int(dim), halo, bool(adjoint)))
    return tuple(found)
