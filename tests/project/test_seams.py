"""Outside things have one door each: private torch, collectives, the environment."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PRIVATE_TORCH = ("placet/torch_private/",)
ENVIRONMENT = {  # who may touch the environment, and why
    "placet/settings.py": "reads it for all others",
    "placet/job/launch.py": "hands each worker its variables",
    "placet/job/worker.py": "hands each worker its variables",
    "placet/job/forkserver.py": "hands each worker its variables",
}
DISTRIBUTED = {  # who may import torch.distributed, and why
    "placet/torch_private/": "every private name",
    "placet/wire/": "carries the bytes of moves",
    "placet/job/launch.py": "torch elastic's launcher",
    "placet/job/elastic.py": "torch elastic's launcher",
    "placet/job/forkserver_preload.py": "loads torch once for all workers",
    "placet/job/checkpoint": "torch.distributed.checkpoint",
    "placet/job/state.py": "DTensors, as which the checkpoint sees parts",
    "placet/job/doctor.py": "tries whether gloo works on this machine",
}


def torch_aliases(tree: ast.AST) -> dict[str, str]:
    """What each name that an import binds stands for, where that is part of torch."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                bound[name] = alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return {name: full for name, full in bound.items() if is_in(full, "torch")}


def torch_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every dotted torch name that a file uses or imports, with its line."""
    bound = torch_aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute):
            full = dotted(node)
            first, _, rest = full.partition(".")
            if first in bound:
                yield node.lineno, f"{bound[first]}.{rest}"


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def is_private(name: str) -> bool:
    return any(p.startswith("_") and not p.startswith("__") for p in name.split("."))


def violations(path: str, source: str) -> list[str]:
    """What one file takes past the doors."""
    tree = ast.parse(source)
    wrong = set()
    for line, name in torch_names(tree):
        if not is_in(name, "torch"):
            continue
        if is_private(name) and not path.startswith(PRIVATE_TORCH):
            wrong.add(
                f"{path}:{line}: {name} is private; give it a name in torch_private"
            )
        elif (
            is_in(name, "torch.distributed")
            and path.startswith(("placet/", "recipes/"))
            and not path.startswith(tuple(DISTRIBUTED))
        ):
            wrong.add(f"{path}:{line}: {name}: only {', '.join(DISTRIBUTED)} use it")
    if path.startswith(("placet/", "recipes/")) and not path.startswith(
        tuple(ENVIRONMENT)
    ):
        for node in ast.walk(tree):
            name = dotted(node) if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                name = next((f"os.{a.name}" for a in node.names), "")
            if name in ("os.environ", "os.environb", "os.getenv", "os.putenv"):
                wrong.add(f"{path}:{node.lineno}: {name}: ask placet/settings.py")
    return sorted(wrong)


def test_outside_things_come_through_one_door():
    folders = ("placet", "recipes", "testing", "bench")
    files = sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))
    assert len(files) > 30
    wrong = [
        line
        for path in files
        for line in violations(path.relative_to(ROOT).as_posix(), path.read_text())
    ]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        (
            "placet/run/x.py",
            "import torch\ntorch._foreach_add(a)",
            "torch._foreach_add",
        ),
        ("recipes/x.py", "import torch as t\nt._C._x()", "torch._C is private"),
        ("bench/x.py", "from torch.utils import _pytree", "torch.utils._pytree"),
        ("testing/x.py", "import torch._dynamo", "torch._dynamo is private"),
        (
            "placet/job/x.py",
            "import torch\ntorch.distributed.barrier()",
            "only placet/t",
        ),
        ("placet/job/x.py", "import torch.distributed as dist", "only placet/torch"),
        ("placet/job/x.py", "from torch import distributed as d", "only placet/torch"),
        ("recipes/x.py", "import torch.distributed.tensor", "only placet/torch_priv"),
        ("placet/wire/x.py", "import torch.distributed as d\nd._x()", "distributed._x"),
        ("placet/job/x.py", "import os\nos.environ['X']", "ask placet/settings.py"),
        ("placet/job/x.py", "from os import environ", "ask placet/settings.py"),
        ("recipes/x.py", "import os\nos.getenv('X')", "ask placet/settings.py"),
    ],
)
def test_seam_rules_catch(path: str, source: str, message: str):
    found = violations(path, source)
    assert found
    assert all(message in line for line in found[:1]), found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("placet/torch_private/x.py", "import torch\ntorch._foreach_add(a)"),
        ("placet/torch_private/x.py", "from torch.distributed import _x"),
        ("placet/wire/c10d.py", "import torch.distributed as dist\ndist.barrier()"),
        ("placet/job/launch.py", "from torch.distributed.launcher.api import x"),
        ("placet/job/checkpoint_store.py", "import torch.distributed.checkpoint"),
        ("placet/settings.py", "import os\nos.environ['X']"),
        ("bench/x.py", "import torch.distributed as d\nimport os\nos.environ"),
        ("placet/run/x.py", "import torch\ntorch.__version__\nself._x.y"),
        ("placet/run/x.py", "import collections as torch_like\ntorch_like._x"),
    ],
)
def test_seam_rules_allow_what_is_right(path: str, source: str):
    assert violations(path, source) == []
