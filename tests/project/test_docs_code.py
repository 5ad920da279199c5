"""The code in README.md and docs/ runs: what a reader copies works.

Each page's `python` blocks run in order in one namespace, in an empty folder. A fence's
first line may say more:

    ```python raises=LabError    this block must raise that error (or a subclass)
    ```bash run                  this block is run by bash; others of bash are not
    ```text                      never run; the only way out for Python

The scripts docs/*.py run too.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LANGUAGES = ("python", "bash", "text", "toml", "json", "html", "mermaid")
TIMEOUT_SECONDS = 300
_FENCE = re.compile(r"^ {0,3}(```+|~~~+)\s*(.*)$")


@dataclass(frozen=True)
class Block:
    """One fenced block: the line its code starts on, what its fence says, its code."""

    line: int
    language: str
    option: str
    code: str


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    fence, start, info, code = "", 0, "", list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        found = _FENCE.match(line)
        if not fence and found:
            fence, start, info, code = found[1], number + 1, found[2], []
        elif fence and found and found[1].startswith(fence) and not found[2]:
            language, _, option = info.partition(" ")
            yield Block(start, language, option.strip(), "\n".join(code) + "\n")
            fence = ""
        elif fence:
            code.append(line)
    if fence:
        raise ValueError(f"line {start - 1}: the fence is never closed")


def mistakes(text: str) -> list[str]:
    """Fences that are neither run nor plainly meant not to be."""
    wrong = []
    for block in blocks(text):
        known = {
            "python": r"(raises=(?!(Base)?Exception$)\w+)?",
            "bash": r"(run)?",
        }.get(block.language, "")
        if block.language not in LANGUAGES:
            wrong.append(f"line {block.line}: language {block.language!r} is not known")
        elif not re.fullmatch(known, block.option):
            wrong.append(f"line {block.line}: cannot read {block.option!r}")
    return wrong


def run_page(path: Path) -> None:
    """Run a page's blocks in this process; errors name the page's lines."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(path.read_text()):
        if block.language == "bash" and block.option == "run":
            subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], check=True)
        elif block.language == "python":
            run_block(block, path, namespace)


def run_block(block: Block, path: Path, namespace: dict[str, object]) -> None:
    code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
    wanted = block.option.removeprefix("raises=")
    try:
        exec(code, namespace)
    except Exception as error:
        if wanted not in [kind.__name__ for kind in type(error).__mro__]:
            raise
        print(f"{path.name}:{block.line} raises, as it says:\n{error}\n")
    else:
        if wanted:
            raise AssertionError(f"{path}:{block.line} did not raise {wanted}")


def run_alone(arguments: list[str], folder: Path) -> str:
    """Run Python in `folder` within the time; returns what it printed."""
    tools = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"\n{done.stdout}"
    return done.stdout


def pages() -> list[str]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def scripts() -> list[str]:
    return [
        p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "docs").glob("*.py"))
    ]


@pytest.mark.procs
@pytest.mark.parametrize("page", pages())
def test_docs_code_runs(page: str, tmp_path: Path):
    text = (ROOT / page).read_text()
    assert mistakes(text) == []
    if any(b.language == "python" or b.option == "run" for b in blocks(text)):
        run_alone([__file__, str(ROOT / page)], tmp_path)


@pytest.mark.procs
@pytest.mark.parametrize("script", scripts())
def test_docs_scripts_run(script: str, tmp_path: Path):
    run_alone([str(ROOT / script)], tmp_path)


def test_readme_shows_python_that_runs():
    shown = list(blocks((ROOT / "README.md").read_text()))
    assert any(b.language == "python" and not b.option for b in shown)


PAGE = """
```python
x = 1
```
```text
not python
```
```python raises=LookupError
assert x == 1
{}[x]
```
```bash run
echo "shell runs" > out.txt
```
```bash
exit 1
```
```python
assert open("out.txt").read() == "shell runs\\n"
{last}
```
"""


@pytest.mark.parametrize(
    ("last", "fails"),
    [("", None), ("1 / 0", 'page.md", line 20'), ("import sys; sys.exit('no')", "no")],
)
def test_docs_runner(tmp_path: Path, last: str, fails: str | None):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("{last}", last))
    if fails is None:
        assert "raises, as it says" in run_alone([__file__, str(page)], tmp_path)
        return
    with pytest.raises(AssertionError, match=re.escape(fails)):
        run_alone([__file__, str(page)], tmp_path)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("```python raises=KeyError\nx = 1\n```\n", AssertionError),
        ("```python raises=KeyError\n1 / 0\n```\n", ZeroDivisionError),
        ("```python\nx = 1\n", ValueError),
    ],
)
def test_docs_runner_catches(tmp_path: Path, code: str, error: type[Exception]):
    (tmp_path / "page.md").write_text(code)
    with pytest.raises(error):
        run_page(tmp_path / "page.md")


@pytest.mark.parametrize(
    "fence",
    [
        "",
        "py",
        "python3",
        "python no-run",
        "python raises=Exception",
        "bash later",
        "text run",
    ],
)
def test_docs_fences_have_one_way_out(fence: str):
    assert mistakes(f"```{fence}\nx\n```\n")


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
