"""Files stay under 500 lines and functions under 80; the exceptions may only shrink."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE_LINES = 500
FUNCTION_LINES = 80

EXCEPTIONS: dict[str, tuple[int, str]] = {}
"""`path` or `path:function` -> (its lines, why). Lower a number when it shrinks."""


def sizes(path: str, source: str) -> dict[str, int]:
    """Lines of the file and of each function and method in it, by name."""
    found = {path: len(source.splitlines())}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{path}:{node.name}"
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found[name] = max(lines, found.get(name, 0))
    return found


def too_large(found: dict[str, int], excused: dict[str, tuple[int, str]]) -> list[str]:
    """What is larger than allowed, and what is excused but need not be."""
    wrong = []
    for name, lines in found.items():
        limit = FUNCTION_LINES if ":" in name else FILE_LINES
        allowed = excused[name][0] if name in excused else limit
        if lines > allowed:
            wrong.append(f"{name} has {lines} lines, at most {allowed} are allowed")
        elif name in excused and lines < allowed:
            wrong.append(f"{name} shrank to {lines} lines: lower or drop its exception")
    wrong += [f"{name} is excused but gone" for name in excused if name not in found]
    return wrong


def test_sizes_stay_small():
    folders = ("placet", "recipes", "testing", "bench", "tests", "docs")
    found: dict[str, int] = {}
    for path in sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py")):
        found |= sizes(path.relative_to(ROOT).as_posix(), path.read_text())
    assert len(found) > 100
    wrong = too_large(found, EXCEPTIONS)
    assert not wrong, "\n" + "\n".join(wrong)


def test_size_rules_catch():
    long = "def f():\n" + "    x = 1\n" * 80 + "\n" * 420
    found = sizes("a.py", long)
    assert found == {"a.py": 501, "a.py:f": 81}
    assert len(too_large(found, {})) == 2
    excused = {"a.py": (501, "why"), "a.py:f": (81, "why")}
    assert too_large(found, excused) == []
    assert "shrank" in too_large({"a.py": 500}, {"a.py": (501, "why")})[0]
    assert too_large({"a.py": 502}, {"a.py": (501, "why")}) != []
    assert "gone" in too_large({}, {"a.py": (501, "why")})[0]
