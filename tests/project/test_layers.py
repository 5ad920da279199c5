"""Imports only go down, and always name the defining module, never a package.

A module may be named in either form, `import placet.wire.check` or `from placet.wire
import check`: inner `__init__.py` files are empty, so neither can hide a re-export.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LAYERS = [  # bottom first; siblings on a line never import one another
    ("placement",),
    ("boxing",),
    ("codec", "wire", "program"),
    ("cost",),
    ("exchange", "planner", "remat"),
    ("run",),
    ("recover",),
    ("graph", "topics"),
    ("job",),
]
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer}
BOTTOM = ("errors", "settings", "torch_private")  # all may import these
TOP = ("__init__", "__main__")  # these may import all
DOORS = {("placet/job/recipes.py", "recipes"): "finds a recipe by its name"}
BESIDE = ("recipes", "testing", "bench", "tests")  # they use placet, it not them


def imported(tree: ast.AST) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Each import of this repository's code: line, module, names taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield node.lineno, module, tuple(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            given = node.args[0] if node.args else None
            if name in ("import_module", "__import__") and isinstance(
                given, ast.Constant
            ):
                yield node.lineno, f"dynamic {given.value}", ()


def is_ours(module: str) -> bool:
    name = module.removeprefix("dynamic ")
    return name.startswith(".") or name.split(".")[0] in ("placet", *BESIDE)


def lines_in_functions(tree: ast.AST) -> set[int]:
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for line in range(node.lineno + 1, (node.end_lineno or 0) + 1)
    }


def wrong_form(module: str, names: tuple[str, ...], root: Path) -> str | None:
    """What is wrong with how an import is written, wherever it stands."""
    if module.startswith("."):
        return f"write {module!r} as an absolute import"
    if module.startswith("dynamic "):
        return f"import {module.split()[1]!r} at the top, not while running"
    if hidden := [n for n in names if n.startswith("_") and not n.startswith("__")]:
        return f"{hidden[0]!r} is private to {module!r}"
    folder = root / module.replace(".", "/")
    if folder.is_dir() and (module == "placet" or not are_modules(folder, names)):
        return f"import the defining module, not the package {module!r}"
    return None


def are_modules(folder: Path, names: tuple[str, ...]) -> bool:
    return names != () and all((folder / f"{name}.py").is_file() for name in names)


def wrong_direction(here: str, module: str) -> str | None:
    """What is wrong with importing `module` from package or module `here` of placet."""
    parts = module.split(".")
    if parts[0] in BESIDE:
        return f"placet may not import {parts[0]!r}"
    there = parts[1] if len(parts) > 1 else "__init__"
    if here in TOP or there == here:
        return None
    if here in BOTTOM:
        allowed = here == "torch_private" and there in BOTTOM
    else:
        allowed = there in BOTTOM or RANK.get(there, len(LAYERS)) < RANK[here]
    return None if allowed else f"{here!r} may not import {there!r}"


def violations(path: Path, root: Path) -> list[str]:
    """What is wrong with one file's imports of this repository's code."""
    tree = ast.parse(path.read_text())
    inside = lines_in_functions(tree)
    relative = path.relative_to(root)
    in_placet = relative.parts[0] == "placet"
    here = relative.with_suffix("").parts[1] if in_placet else ""
    wrong = []
    if path.name == "__init__.py" and len(relative.parts) > 2 and tree.body:
        wrong.append(f"{relative}: an inner __init__.py stays empty")
    if in_placet and here not in (*RANK, *BOTTOM, *TOP):
        wrong.append(f"{relative}: {here!r} stands in no layer; add it to LAYERS")
    for line, module, names in imported(tree):
        if not is_ours(module) or (relative.as_posix(), module) in DOORS:
            continue
        found = wrong_form(module, names, root)
        if module == "placet" and (here == "__main__" or not in_placet):
            found = None  # the public door, for those outside
        if found is None and line in inside:
            found = f"import {module!r} at the top, not in a function"
        if found is None and in_placet and here in (*RANK, *BOTTOM, *TOP):
            found = wrong_direction(here, module)
        if found is not None:
            wrong.append(f"{relative}:{line}: {found}")
    return wrong


def test_imports_only_go_down():
    folders = ("placet", "recipes", "testing", "bench")
    files = sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))
    assert len(files) > 30
    wrong = [line for path in files for line in violations(path, ROOT)]
    assert not wrong, "\n" + "\n".join(wrong)


TOY = {
    "placet/__init__.py": "",
    "placet/errors.py": "",
    "placet/settings.py": "",
    "placet/placement/mesh.py": "class Mesh: ...",
    "placet/boxing/moves.py": "from placet.placement.mesh import Mesh",
    "placet/wire/interface.py": "from placet.boxing.moves import Mesh",
    "placet/wire/check.py": "",
    "placet/program/node.py": "from placet.errors import PlacetError",
    "placet/job/job.py": "import placet.wire.interface",
    "placet/job/run.py": "from placet.job import job\nfrom placet.wire import check",
    "recipes/gpt.py": "import placet\nfrom placet.job.job import Job",
}


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("placet/boxing/moves.py", "import placet.wire.interface", "may not import 'w"),
        (
            "placet/boxing/moves.py",
            "from placet.job.job import x",
            "may not import 'jo",
        ),
        ("placet/wire/interface.py", "import placet.program.node", "may not import 'p"),
        ("placet/wire/interface.py", "from ..boxing.moves import x", "absolute"),
        ("placet/wire/interface.py", "from . import twin", "absolute"),
        ("placet/wire/interface.py", "from placet.boxing import Move", "the package"),
        ("placet/wire/interface.py", "import placet.boxing", "the package"),
        ("placet/boxing/moves.py", "from placet.wire import interface", "may not imp"),
        ("placet/boxing/__init__.py", "Move = 1", "stays empty"),
        ("placet/wire/interface.py", "import placet", "the package 'placet'"),
        ("placet/wire/interface.py", "from placet import errors", "the package"),
        ("placet/job/job.py", "def f():\n import placet.wire.interface", "at the top"),
        ("placet/job/job.py", "def f():\n import recipes.gpt", "at the top"),
        ("placet/job/job.py", "import_module('placet.wire.x')", "at the top"),
        ("placet/job/job.py", "from placet.wire.interface import _x", "is private"),
        ("placet/job/job.py", "import recipes.gpt", "may not import 'recipes'"),
        ("placet/job/job.py", "import tests.conftest", "may not import 'tests'"),
        ("placet/extra/new.py", "", "'extra' stands in no layer"),
        ("placet/extra.py", "", "'extra' stands in no layer"),
        ("placet/errors.py", "import placet.placement.mesh", "may not import"),
        ("placet/errors.py", "import placet.settings", "may not import"),
        ("placet/torch_private/c10d.py", "import placet.wire.interface", "may not imp"),
        ("recipes/gpt.py", "from placet.wire import Wire", "the package"),
        ("bench/x.py", "from placet.job import _hidden", "is private"),
        ("bench/x.py", "from placet.job.job import _x", "is private"),
    ],
)
def test_layer_rules_catch(tmp_path: Path, path: str, source: str, message: str):
    write(tmp_path, TOY | {path: source})
    assert [message in line for line in violations(tmp_path / path, tmp_path)] == [True]


def test_layer_rules_allow_what_is_right(tmp_path: Path):
    write(tmp_path, TOY)
    assert [v for path in TOY for v in violations(tmp_path / path, tmp_path)] == []


def write(root: Path, files: dict[str, str]) -> None:
    for name, source in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(source)
