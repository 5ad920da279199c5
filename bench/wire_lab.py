"""The engine on slow links: beside gloo, by hosts, and with something urgent.

    beside gloo  all-reduces over links of 1 Gbit/s and 100 Mbit/s, one rank a host
    hierarchy    beside the ring in the order of ranks; 2 hosts x 2 ranks, whose ranks
                 share a link: at best 1.5 times as fast. Groups of 2 hosts, each host
                 with a slow uplink of its own: at best 3 times
    priority     an urgent all-reduce behind bulk, beside the same without a priority

The lab is Linux network namespaces behind shaped links on one machine. All ranks begin
a step behind a barrier; a step takes as long as its slowest rank. The share of a step
that links take is that of the busiest card, from its own counter.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import cast

from bench.harness import (
    ROOT,
    Measured,
    Options,
    Outcome,
    of_ranks,
    rows_of,
    run_bench,
    show,
)
from bench.ratios import Row, timed_row
from bench.wire_lab_rank import MARK, URGENT_BYTES, Found, Spec, parse
from bench.wires import KINDS, WireKind
from placet.job.lab import Lab, lab_missing, run_in_lab

QUESTION = "What does the engine make of slow links?"
MIB = 2**20
MOST_OF_GLOO = 1 / 0.99
MOST_SHARED, MOST_APART = 1 / 1.35, 1 / 2.5
MOST_URGENT, MOST_TOTAL = 0.1, 1.05
LEAST_SHARE = 0.7
"""More ranks than cores: times mean something where links take so much of a step."""

CARD_RATES = {"mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True)
class Run:
    """One lab and what is measured in it, one size after another.

    Args:
        name: what the rows call it.
        lab: the cluster.
        what: see `bench.wire_lab_rank.Spec`.
        sizes: bytes of the all-reduce, or of all bulk.
        most: the target of the step time.
        num_pairs: rounds wanted; None: as many as the command line says.
        num_warm_up: rounds before.
    """

    name: str
    lab: Lab
    what: str
    sizes: tuple[int, ...]
    most: float
    num_pairs: int | None = None
    num_warm_up: int = 1


def runs(*, quick: bool) -> tuple[Run, ...]:
    """Everything that is measured."""
    sizes = (16 * MIB,) if quick else (4 * MIB, 16 * MIB)
    beside = [
        Run(
            f"{hosts} hosts, {rate}", Lab(hosts, rate=rate), "gloo", sizes, MOST_OF_GLOO
        )
        for hosts in (2, 4)
        for rate in ("1gbit", "100mbit")
    ]
    shared = Run(
        "2 hosts x 2 ranks, 200mbit, hierarchy",
        Lab(2, ranks_per_host=2, rate="200mbit"),
        "hierarchy",
        (8 * MIB,) if quick else (16 * MIB,),
        MOST_SHARED,
        num_pairs=4 if quick else 24,
    )
    apart = Run(
        "2 groups x 2 hosts, 2gbit, uplinks 100mbit, hierarchy",
        Lab(4, rate="2gbit", groups="2x2", group_rate="100mbit", uplink_per_host=True),
        "hierarchy",
        (16 * MIB,),
        MOST_APART,
        num_pairs=24,
    )
    urgent = Run(
        "2 hosts, 100mbit, priority",
        Lab(2, rate="100mbit"),
        "priority",
        (32 * MIB if quick else 64 * MIB,),
        MOST_TOTAL,
        num_pairs=2 if quick else 12,
        num_warm_up=0,
    )
    return (beside[0], shared, urgent) if quick else (*beside, shared, apart, urgent)


def collect(options: Options) -> Outcome:
    """Rows of each lab."""
    missing = lab_missing()
    if missing is not None:
        return Outcome((), (f"skipped, no lab here: {missing}",))
    rows: list[Row] = []
    notes = ["share: of a step, what its bytes take on the busiest card at its rate"]
    wanted = runs(quick=options.quick)
    if options.wire == "gloo":
        notes.append("hierarchy left out: gloo runs the ring only")
        wanted = tuple(run for run in wanted if run.what != "hierarchy")
    num_cases = sum(len(run.sizes) for run in wanted)
    for run in wanted:
        specs = [
            Spec(
                what=run.what,
                wire=cast(WireKind, options.wire),
                num_bytes=size,
                num_pairs=run.num_pairs or options.num_pairs,
                budget_seconds=options.budget_seconds / num_cases,
                num_warm_up=run.num_warm_up,
            )
            for size in run.sizes
        ]
        for spec, found in zip(specs, measure_in_lab(run.lab, specs), strict=True):
            rows += rows_of_run(run, spec, found)
            notes += notes_of_run(run, spec, found)
    return Outcome(tuple(rows), tuple(notes))


def measure_in_lab(lab: Lab, specs: Sequence[Spec]) -> list[list[Found]]:
    """What each rank found, for each spec."""
    given = json.dumps([asdict(spec) for spec in specs])
    result = run_in_lab(
        lab,
        [sys.executable, "-m", "bench.wire_lab_rank", given],
        timeout_seconds=900,
        environment={"PYTHONPATH": str(ROOT)},
        on_line=lambda rank, line: None,
    )
    if not result.ok:
        raise RuntimeError("\n".join(result.output))
    by_rank = [
        [
            parse(line.removeprefix(MARK))
            for line in output.splitlines()
            if line.startswith(MARK)
        ]
        for output in result.output
    ]
    return [list(ranks) for ranks in zip(*by_rank, strict=True)]


def rows_of_run(run: Run, spec: Spec, found: Sequence[Found]) -> list[Row]:
    """Step times, or for priority those of all moves and of the urgent one."""
    title = f"{run.name}, {spec.num_bytes // MIB} MiB"
    measured = of_ranks([rank.measured for rank in found])
    if run.what != "priority":
        return list(rows_of(measured, title, most=run.most))
    urgent = of_ranks([rank.urgent for rank in found])
    size = f"{URGENT_BYTES // 1024} KiB urgent"
    return [
        _row(f"{title}: {size}", urgent, most=MOST_URGENT),
        *rows_of(measured, f"{title}: all moves", most=run.most),
    ]


def _row(name: str, measured: Measured, *, most: float) -> Row:
    return timed_row(name, measured.ours.seconds, measured.peer.seconds, most=most)


def notes_of_run(run: Run, spec: Spec, found: Sequence[Found]) -> list[str]:
    """What the busiest card sent in a step, and how much of the step that takes."""
    measured = of_ranks([rank.measured for rank in found])
    notes = [f"{run.name}, {spec.num_bytes // MIB} MiB, {measured.num_pairs} pairs:"]
    for place, name, samples in (
        (0, "ours", measured.ours),
        (1, "peer", measured.peer),
    ):
        seconds = statistics.median(samples.seconds)
        cards = {
            card: max(statistics.median(rank.card_bytes[card][place]) for rank in found)
            for card in found[0].card_bytes
        }
        card = max(cards, key=lambda c: cards[c] / bytes_per_s(run.lab, c))
        share = cards[card] / bytes_per_s(run.lab, card) / seconds
        low = "" if share >= LEAST_SHARE else f", under {LEAST_SHARE:.0%}: a busy CPU?"
        notes.append(
            f"  {name}: {show(cards[card], 'bytes')} by {card} in "
            f"{show(seconds, 's')}, share {share:.0%}{low}"
        )
    return notes


def bytes_per_s(lab: Lab, card: str) -> float:
    """What a card of the lab carries."""
    rate = lab.rate
    if card == "eth1":
        assert lab.group_rate is not None
        rate = lab.group_rate
    return float(rate[:-4]) * CARD_RATES[rate[-4:]] / 8


if __name__ == "__main__":
    sys.exit(run_bench("wire_lab", QUESTION, collect, wires=KINDS))
