"""How long a search takes, how far its plan can be from the best, and its memory.

    cold     capture, problem and search, in a process of its own      seconds
    gap      (cost - bound) / bound, in bytes, without memory limit    least 0
    memory   the most that the process held                            bytes

Models have their real sizes and live on the meta device. A row's peer is its target.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from bench.harness import ROOT, Options, Outcome, run_bench
from bench.ratios import Ratio, Row
from placet.placement.cluster import Cluster
from placet.placement.mesh import Mesh
from placet.planner.planning import plan
from testing.models.zoo import REAL

QUESTION = "How fast does the planner find plans, and how good are they?"
MARK = "SEARCHED "
MOST_GAP = 0.01
MOST_BYTES = 8 * 2**30


@dataclass(frozen=True)
class Case:
    """A model on a mesh.

    Args:
        most_seconds: the target; None: as long as `limit_seconds`, only shown.
        has_gap: MOST_GAP is a target.
        limit_seconds: for the search.
    """

    model: str
    mesh: str
    most_seconds: float | None = None
    has_gap: bool = True
    limit_seconds: float = 60.0


@dataclass(frozen=True)
class Searched:
    """What a search found: its cost and bound in bytes, and what it took."""

    seconds: float
    capture_seconds: float
    build_seconds: float
    solve_seconds: float
    cost: float
    bound: float
    peak_bytes: int
    num_operators: int


GRID = "a=4, b=4"
QUICK = (Case("MLP", GRID), Case("VGG-11", GRID))
CASES = (
    *(
        Case(model, GRID)
        for model in (
            "MLP",
            "VGG-11",
            "VGG-16",
            "ViT-B/16",
            "DLRM",
            "LLaMA, grouped heads",
            "GPT-2",
            "GPT-2 medium",
            "GPT-2 large",
        )
    ),
    Case("ResNet-50", GRID, limit_seconds=120.0),
    Case("GPT-2 XL", GRID, most_seconds=30.0, limit_seconds=25.0),
    Case(
        "GPT-3",
        "a=16, b=8, c=8",
        most_seconds=60.0,
        has_gap=False,
        limit_seconds=45.0,
    ),
)


def search_here(case: Case) -> Searched:
    """Plan in this process."""
    example = REAL[case.model]
    began = time.monotonic()
    with torch.device("meta"):
        model, batch = example.model_fn(), example.batch_fn()
    mesh = Mesh(case.mesh)
    found = plan(
        model,
        batch,
        example.loss,
        cluster=Cluster.here(mesh.num_ranks),
        mesh=mesh,
        objective="bytes",
        time_limit_seconds=case.limit_seconds,
    )
    return Searched(
        time.monotonic() - began,
        found.search_seconds["capture"],
        found.search_seconds["build"],
        found.search_seconds["solve"],
        found.cost,
        found.bound,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        len(found.division.signatures),
    )


def search_cold(case: Case) -> Searched:
    """Plan in a process of its own, so that nothing is known before.

    Raises:
        RuntimeError: the process failed; with what it printed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "bench.plan_search", "--one", json.dumps(asdict(case))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    lines = [x for x in done.stdout.splitlines() if x.startswith(MARK)]
    if done.returncode or not lines:
        raise RuntimeError(f"{case.model}: {done.stderr[-2000:]}")
    return Searched(**json.loads(lines[-1].removeprefix(MARK)))


def rows_of_case(case: Case, found: Searched) -> list[Row]:
    """Time, gap and memory beside their targets."""
    title = f"{case.model} on {case.mesh}"
    wanted = case.most_seconds or case.limit_seconds
    gap = max(0.0, found.cost / found.bound - 1) if found.bound > 0 else 1e9
    if found.cost <= found.bound + 1:
        gap = 0.0  # within a byte: what is left is ties
    return [
        _row(
            f"{title}: cold search",
            "s",
            found.seconds,
            wanted,
            has_target=case.most_seconds is not None,
        ),
        _row(f"{title}: gap", "", gap, MOST_GAP, has_target=case.has_gap),
        _row(f"{title}: peak memory", "bytes", found.peak_bytes, MOST_BYTES),
    ]


def _row(
    name: str, unit: str, ours: float, wanted: float, *, has_target: bool = True
) -> Row:
    value = ours / wanted
    most = 1.0 if has_target else None
    return Row(name, unit, ours, wanted, Ratio(value, value, value), most)


def collect(options: Options) -> Outcome:
    """All cases, one after another."""
    rows: list[Row] = []
    notes = ["the peer of each row is its target; ratios <= 1 meet it"]
    for case in QUICK if options.quick else CASES:
        found = search_cold(case)
        rows += rows_of_case(case, found)
        notes.append(
            f"{case.model} on {case.mesh}: {found.num_operators} operators, capture "
            f"{found.capture_seconds:.1f} s, problem {found.build_seconds:.1f} s, "
            f"search {found.solve_seconds:.1f} s, {found.cost:.6g} bytes, bound "
            f"{found.bound:.6g}"
        )
    return Outcome(tuple(rows), tuple(notes))


def main(arguments: Sequence[str]) -> int:
    """Run the bench, or one case as its process."""
    if arguments[:1] == ["--one"]:
        found = search_here(Case(**json.loads(arguments[1])))
        print(MARK + json.dumps(asdict(found)), flush=True)
        return 0
    return run_bench("plan_search", QUESTION, collect, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
