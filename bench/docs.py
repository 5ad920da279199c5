"""docs/benchmarks.md, made from the newest result of each bench in bench/results/.

python -m bench.docs            writes the page
python -m bench.docs --check    exits with 1 where the page is not what it would write
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, ROOT, show
from bench.ratios import Ratio

PAGE = ROOT / "docs" / "benchmarks.md"

_HEAD = """\
# Benchmarks

Made from `bench/results/` by `python -m bench.docs`; not written by hand. Both sides of
a comparison run in turn, step by step, in one process group; "peer against itself" is
the control, and shows what the machine's noise is worth. The interval is 95%, by a
block bootstrap of the median ratio. *met*: the whole interval is within the target;
*allowed*: part of it is. Ratios are the claim; absolute times are context.
"""


def newest(folder: Path) -> list[dict[str, Any]]:
    """The newest result of each bench, by name."""
    results: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        older = results.get(result["name"])
        if older is None or older["date"] <= result["date"]:
            results[result["name"]] = result
    return [results[name] for name in sorted(results)]


def render(results: Iterable[dict[str, Any]]) -> str:
    """The whole page."""
    parts = [_HEAD]
    for result in results:
        parts.append(_suites(result) if "suites" in result else _bench(result))
    return "\n".join(parts)


def _bench(result: dict[str, Any]) -> str:
    lines = [f"## {result['name']}", "", result["question"], ""]
    lines += ["| | ours | peer | ratio [95%] | target | |", "|---|---|---|---|---|---|"]
    for row in result["rows"]:
        target = "" if row["most"] is None else f"<= {row['most']:g}"
        cells = (
            row["name"],
            show(row["ours"], row["unit"]),
            show(row["peer"], row["unit"]),
            str(Ratio(**row["ratio"])),
            target,
            "" if row["verdict"] == "shown" else row["verdict"],
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"{note}\n" for note in result["notes"]), _where(result), ""]
    return "\n".join(lines)


def _suites(result: dict[str, Any]) -> str:
    lines = ["## The long suites", "", "| suite | result | passed | failed | minutes |"]
    lines += ["|---|---|---|---|---|"]
    for suite in result["suites"]:
        verdict = "ok" if suite["ok"] else f"exit code {suite['exit_code']}"
        counts = suite["counts"]
        cells = (
            suite["name"],
            verdict,
            str(counts.get("passed", "")),
            str(counts.get("failed", "")),
            f"{suite['seconds'] / 60:.1f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", _where(result), ""]
    return "\n".join(lines)


def _where(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"`{result['command']}`, {result['date']}, {result['seconds'] / 60:.1f} min, "
        f"commit {result['commit'] or 'unknown'}, {machine['cores']} cores "
        f"({machine['cpu']}), {machine['memory_gib']} GiB, load {machine['load']}, "
        f"Python {machine['python']}, torch {machine['torch']}."
    )


def main(arguments: Sequence[str]) -> int:
    """Write or check the page; returns the exit code."""
    if set(arguments) - {"--check"}:
        print(__doc__)
        return 2
    page = render(newest(RESULTS))
    if "--check" not in arguments:
        PAGE.write_text(page)
        print(f"written to {PAGE.relative_to(ROOT)}")
        return 0
    if PAGE.exists() and PAGE.read_text() == page:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is out of date: run python -m bench.docs")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
