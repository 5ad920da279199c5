"""A plan as JSON, and back: small enough to mail, plain enough to read.

    layouts      every layout that occurs, by number            "S(0), B"
    signatures   every operator in order: its name as a step, and its signatures by
                 number                                         "mm_#|1 4"
    homes        layout -> states, numbers as ranges            "h.{0-47}.mlp.up.weight"
    boxings      tensor as a step, and pairs of layouts         "mm_#|2 0>3 3>5"

Blocks that repeat are written once -> placet.planner.folding.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_args

import torch

from placet.cost.objective import Unit
from placet.errors import PlanError
from placet.placement.cluster import parse, render
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, Placement, Split
from placet.planner.folding import Namer, fold, unfold
from placet.planner.plan_data import MeshTried, PlanData
from placet.program.division import Division
from placet.program.graph import TensorMeta
from placet.program.signature import Signature

FORMAT = "placet-plan-1"


def to_json(plan: PlanData) -> str:
    """A plan as text.

    Raises:
        ValueError: a name that cannot be written.
    """
    division = plan.division
    layouts, picked = _Table(), _Table()
    found = {
        "format": FORMAT,
        "mesh": _mesh_json(plan.mesh),
        "unit": plan.unit,
        "cost": plan.cost,
        "bound": plan.bound,
        "is_complete": plan.is_complete,
        "solver": plan.solver,
        "search_seconds": {k: round(v, 3) for k, v in plan.search_seconds.items()},
        "memory_limit_bytes": plan.memory_limit_bytes,
        "memory_bytes": plan.memory_bytes,
        "fingerprint": plan.fingerprint,
        "batch": [[list(m.shape), _dtype_text(m.dtype)] for m in plan.batch],
        "precision": plan.precision,
        "cluster": None if plan.cluster is None else render(plan.cluster),
        "meshes": [[_mesh_json(m.mesh), m.cost, m.bound] for m in plan.meshes],
        "notes": list(plan.notes),
        "work": plan.work,
        "moves": plan.moves,
        "operators": _operators(division, picked),
        "homes": _homes(division.homes, layouts),
        "boxings": _steps(division.boxings, layouts),
        "again": _steps(division.again, layouts),
    }
    found["signatures"] = picked.texts
    found["layouts"] = layouts.texts
    return json.dumps(found, indent=1) + "\n"


def data_of(text: str) -> dict[str, Any]:
    """The fields of the plan that `to_json` has written.

    Raises:
        PlanError: no plan, or one of another version.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"it holds a {type(found).__name__}, not an object")
        if found.get("format") != FORMAT:
            raise ValueError(f"its format is {found.get('format')!r}, not {FORMAT!r}")
        return _plan(found)
    except KeyError as error:
        raise PlanError(
            f"this is no plan that can be read: it has no {error}; make it with "
            "`placet plan ... --out plan.json`"
        ) from error
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise PlanError(
            f"this is no plan that can be read ({error}); make it with `placet plan "
            "... --out plan.json`"
        ) from error


def _plan(found: Mapping[str, Any]) -> dict[str, Any]:
    mesh = _mesh(found["mesh"])
    if found["unit"] not in get_args(Unit):
        raise ValueError(f"its unit is {found['unit']!r}, not bytes or seconds")
    for key in ("cost", "bound", "memory_bytes"):
        if not isinstance(found[key], int | float):
            raise ValueError(f"its {key} is {found[key]!r}, not a number")
    layouts = [_layout(text, mesh) for text in found["layouts"]]
    picked = [_signatures(text) for text in found["signatures"]]
    namer = Namer()
    signatures = {}
    for item in unfold(found["operators"]):
        step, number = item.rsplit(" ", 1)
        signatures[namer.name(step)] = picked[int(number)]
    homes = {
        name: layouts[int(number)]
        for number, patterns in found["homes"].items()
        for pattern in patterns
        for name in _expand(pattern)
    }
    division = Division(
        mesh,
        signatures,
        homes,
        _read_steps(found["boxings"], layouts),
        _read_steps(found["again"], layouts),
    )
    cluster = found["cluster"]
    kept = (
        *("unit", "cost", "bound", "is_complete", "solver", "search_seconds"),
        *("memory_limit_bytes", "memory_bytes", "fingerprint", "precision"),
    )
    data = PlanData(
        division=division,
        batch=tuple(TensorMeta(tuple(s), getattr(torch, d)) for s, d in found["batch"]),
        cluster=None if cluster is None else parse(cluster),
        meshes=tuple(MeshTried(_mesh(m), cost, at) for m, cost, at in found["meshes"]),
        notes=tuple(found["notes"]),
        work=tuple(tuple(row) for row in found["work"]),
        moves=tuple(tuple(row) for row in found["moves"]),
        **{key: found[key] for key in kept},
    )
    return {item.name: getattr(data, item.name) for item in fields(data)}


@dataclass
class _Table:
    """Texts by number."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    @property
    def texts(self) -> list[str]:
        return list(self.numbers)


def _operators(division: Division, table: _Table) -> list[Any]:
    namer = Namer()
    return fold(
        [
            f"{namer.step(name)} {table.number('; '.join(map(repr, picked)))}"
            for name, picked in division.signatures.items()
        ]
    )


def _steps(
    boxings: Mapping[str, tuple[tuple[Layout, Layout], ...]], table: _Table
) -> list[Any]:
    namer = Namer()
    found = []
    for name, steps in boxings.items():
        pairs = [
            f"{table.number(_layout_text(a))}>{table.number(_layout_text(b))}"
            for a, b in steps
        ]
        found.append(" ".join([namer.step(name), *pairs]))
    return fold(found)


def _read_steps(
    folded: Sequence[Any], layouts: Sequence[Layout]
) -> dict[str, tuple[tuple[Layout, Layout], ...]]:
    namer = Namer()
    found = {}
    for item in unfold(folded):
        step, *pairs = item.split(" ")
        numbers = [tuple(map(int, pair.split(">"))) for pair in pairs]
        found[namer.name(step)] = tuple((layouts[a], layouts[b]) for a, b in numbers)
    return found


def _homes(homes: Mapping[str, Layout], table: _Table) -> dict[str, list[str]]:
    by_layout: dict[int, list[str]] = {}
    for name, layout in homes.items():
        by_layout.setdefault(table.number(_layout_text(layout)), []).append(name)
    return {str(n): ranges(names) for n, names in by_layout.items()}


def ranges(names: Sequence[str]) -> list[str]:
    """Names that differ in their first number only, as one: h.{0-47}.mlp.weight."""
    groups: dict[tuple[str, str] | str, list[int]] = {}
    for name in names:
        match = re.match(r"(\D*\b)(0|[1-9]\d*)(?=\.)(.*)", name, re.DOTALL)
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


def _spans(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in spans)


def _expand(pattern: str) -> list[str]:
    found = re.fullmatch(r"([^{]*)\{([\d,-]+)\}(.*)", pattern, re.DOTALL)
    if found is None:
        return [pattern]
    names = []
    for span in found[2].split(","):
        first, _, last = span.partition("-")
        for number in range(int(first), int(last or first) + 1):
            names.append(f"{found[1]}{number}{found[3]}")
    return names


def _mesh_json(mesh: Mesh) -> dict[str, Any]:
    axes = ", ".join(f"{a}={n}" for a, n in zip(mesh.axes, mesh.sizes, strict=True))
    plain = mesh.ranks == tuple(range(mesh.num_ranks))
    return {"axes": axes} if plain else {"axes": axes, "ranks": list(mesh.ranks)}


def _mesh(found: Mapping[str, Any]) -> Mesh:
    return Mesh(found["axes"], found.get("ranks"))


def _layout_text(layout: Layout) -> str:
    text = ", ".join(map(repr, layout.placements))
    if layout.split_order != layout.mesh.axes:
        text += f" by {'/'.join(layout.split_order)}"
    return text


def _layout(text: str, mesh: Mesh) -> Layout:
    placements, _, order = text.partition(" by ")
    return Layout(mesh, placements_of(placements), order.split("/") if order else None)


def _signatures(text: str) -> tuple[Signature, ...]:
    found = []
    for part in text.split("; "):
        given, made = part.split(" -> ") if " -> " in part else part.split("-> ")
        found.append(Signature(placements_of(given), placements_of(made)))
    return tuple(found)


_PLACEMENT = re.compile(
    r"(B)|P\((\w+)\)|S\((\d+)(?:, (adjoint )?halo=\((\d+), (\d+)\))?\)"
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
            found.append(P(reduction))  # type: ignore[arg-type]
        else:
            halo = (int(below or 0), int(above or 0))
            found.append(Split(int(dim), halo, bool(adjoint)))
    return tuple(found)


def _dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
