"""A plan as JSON: small enough to mail, plain enough to read and to edit.

    layouts      every layout that occurs, by number            "S(0), B"
    signatures   every operator in order: its name as a step, and its signatures by
                 number                                         "mm_#|1 4"
    homes        layout -> states, numbers as ranges            "h.{0-47}.mlp.up.weight"
    states       shape and dtype -> states, likewise            "[16, 64] float32"
    boxings      tensor as a step, and pairs of layouts         "mm_#|2 0>3 3>5"

Blocks that repeat are written once -> placet.planner.folding. What reads it again, and
says what is wrong with it, is placet.planner.plan_read.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from placet.placement.cluster import render
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.planner.folding import Namer, fold
from placet.planner.plan_data import PlanData
from placet.planner.plan_names import ranges
from placet.program.division import Division
from placet.program.graph import TensorMeta

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
        "memory_at": plan.memory_at,
        "memory_use": dict(plan.memory_use),
        "fingerprint": plan.fingerprint,
        "states": _states(plan.states),
        "batch": [meta_text(meta) for meta in plan.batch],
        "precision": plan.precision,
        "torch_version": plan.torch_version,
        "storage": asdict(plan.storage),
        "cluster": None if plan.cluster is None else render(plan.cluster),
        "machine": None if plan.machine is None else asdict(plan.machine),
        "overlapped": None if plan.overlapped is None else asdict(plan.overlapped),
        "matmul_ratio": plan.matmul_ratio,
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


def _homes(homes: Mapping[str, Layout], table: _Table) -> dict[str, list[str]]:
    by_layout: dict[int, list[str]] = {}
    for name, layout in homes.items():
        by_layout.setdefault(table.number(_layout_text(layout)), []).append(name)
    return {str(n): ranges(names) for n, names in by_layout.items()}


def _states(states: Mapping[str, TensorMeta]) -> dict[str, list[str]]:
    by_meta: dict[str, list[str]] = {}
    for name, meta in states.items():
        by_meta.setdefault(meta_text(meta), []).append(name)
    return {text: ranges(names) for text, names in by_meta.items()}


def meta_text(meta: TensorMeta) -> str:
    """A shape and dtype: [16, 64] float32."""
    return f"{list(meta.shape)} {str(meta.dtype).removeprefix('torch.')}"


def _mesh_json(mesh: Mesh) -> dict[str, Any]:
    axes = ", ".join(f"{a}={n}" for a, n in zip(mesh.axes, mesh.sizes, strict=True))
    plain = mesh.ranks == tuple(range(mesh.num_ranks))
    return {"axes": axes} if plain else {"axes": axes, "ranks": list(mesh.ranks)}


def _layout_text(layout: Layout) -> str:
    text = ", ".join(map(repr, layout.placements))
    if layout.split_order != layout.mesh.axes:
        text += f" by {'/'.join(layout.split_order)}"
    return text
