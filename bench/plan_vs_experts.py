"""Our plans beside what experts write by hand, in the lab: 4 hosts, slow links.

    ours    plan() by seconds on the engine, as a job runs it       bench/plan_ours.py
    peers   DDP, also compiled; FSDP2; Megatron tensor parallel     bench/plan_peers.py

One model after the other, same weights and global batch, a step of each side in turn.
The targets are against the best peer, whichever that is: the one of the least median.
Our plan is there twice, as a control. A step takes as long as its slowest rank; bytes
are those of the busiest card.
"""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from bench.harness import ROOT, Options, Outcome, run_bench, show
from bench.plan_models import MODELS
from bench.plan_vs_experts_rank import Found, Spec
from bench.ratios import Row, timed_row
from bench.wire_lab_rank import MARK
from placet.job.lab import Lab, lab_missing, run_in_lab

QUESTION = "Are our plans as fast as what experts write by hand?"
NUM_HOSTS = 4
RATES: Mapping[str, float] = {"1gbit": 1.25e8, "200mbit": 2.5e7}
MOST = 1.02
MOST_OF: Mapping[str, float] = {"VGG-like": 1 / 1.3, "wide Transformer": 1 / 1.1}
"""Models with a target of their own; the others have MOST."""

PEER_SIDES = ("DDP", "DDP compiled", "FSDP2", "tensor parallel")
OURS = CONTROL = "plan"
NUM_ROUNDS, NUM_QUICK_ROUNDS = 24, 12
MOST_SECONDS = 20.0
"""Of rounds, for a model at a rate: beside that plans are made, and peers compiled."""

PAPER = (
    "AutoDDL (arXiv:2301.06813), on GPU clusters: step time beside the best expert's "
    "-17.7% and -71.5% (VGG), -31.1% and -10% (Transformer)"
)


def sides_of(*, quick: bool) -> tuple[str, ...]:
    """Who runs; in a quick run neither who compiles nor the slowest."""
    left_out = {"DDP compiled", "FSDP2"} if quick else set()
    peers = tuple(side for side in PEER_SIDES if side not in left_out)
    return (OURS, *peers, CONTROL)


def collect(options: Options) -> Outcome:
    """Rows of each model at each rate."""
    missing = lab_missing()
    if missing is not None:
        return Outcome((), (f"skipped, no lab here: {missing}",))
    rows: list[Row] = []
    notes = [f"the paper: {PAPER}"]
    models = ("wide Transformer",) if options.quick else tuple(MODELS)
    rates = ("1gbit",) if options.quick else tuple(RATES)
    sides = sides_of(quick=options.quick)
    if options.quick:
        notes.append("quick: without compiled DDP and FSDP2; one model, one rate")
    for rate in rates:
        specs = [
            Spec(
                model=model,
                sides=sides,
                num_rounds=min(
                    options.num_pairs,
                    NUM_QUICK_ROUNDS if options.quick else NUM_ROUNDS,
                ),
                budget_seconds=min(options.budget_seconds, MOST_SECONDS),
            )
            for model in models
        ]
        for spec, found in zip(specs, measure(rate, specs), strict=True):
            of_spec = rows_of_spec(rate, spec, found)
            rows += of_spec
            notes += notes_of_spec(rate, spec, found)
            notes += [
                f"  ours: {row.ratio.value - 1:+.1%}" for row in of_spec if row.most
            ]
    return Outcome(tuple(rows), tuple(notes))


def measure(rate: str, specs: Sequence[Spec]) -> list[list[Found]]:
    """What each rank found, for each spec."""
    result = run_in_lab(
        Lab(NUM_HOSTS, rate=rate),
        [
            sys.executable,
            "-m",
            "bench.plan_vs_experts_rank",
            json.dumps([asdict(spec) for spec in specs]),
        ],
        timeout_seconds=3600,
        environment={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        on_line=lambda rank, line: None,
    )
    if not result.ok:
        raise RuntimeError("\n".join(result.output))
    by_rank = [
        [
            Found(**json.loads(line.removeprefix(MARK)))
            for line in output.splitlines()
            if line.startswith(MARK)
        ]
        for output in result.output
    ]
    return [list(ranks) for ranks in zip(*by_rank, strict=True)]


def step_seconds(found: Sequence[Found], place: int) -> list[float]:
    """Of each step of a side: the slowest rank's."""
    return [max(of) for of in zip(*(f.seconds[place] for f in found), strict=True)]


def rows_of_spec(rate: str, spec: Spec, found: Sequence[Found]) -> list[Row]:
    """Ours beside each peer; the best of them has the target."""
    times = [step_seconds(found, place) for place in range(len(spec.sides))]
    ours, control = times[0], times[-1]
    peers = dict(zip(spec.sides[1:-1], times[1:-1], strict=True))
    best = min(peers, key=lambda side: statistics.median(peers[side]))
    title = f"{spec.model}, {rate}"
    rows = [
        timed_row(
            f"{title}: beside {side}{', the best' if side == best else ''}",
            ours[: len(seconds)],
            seconds,
            most=MOST_OF.get(spec.model, MOST) if side == best else None,
        )
        for side, seconds in peers.items()
    ]
    own = timed_row(f"{title}: {CONTROL} against itself", control, ours)
    return [*rows, own]


def notes_of_spec(rate: str, spec: Spec, found: Sequence[Found]) -> list[str]:
    """Bytes a step of every side, our plan, and the links' share of our step."""
    notes = [f"{spec.model}, {rate}, {len(found[0].seconds[0])} rounds:"]
    for place, side in enumerate(spec.sides[:-1]):
        sent = max(statistics.median(f.sent_bytes[place]) for f in found)
        seconds = statistics.median(step_seconds(found, place))
        share = sent / RATES[rate] / seconds
        notes.append(
            f"  {side}: {show(seconds, 's')} a step, {show(sent, 'bytes')} by the "
            f"busiest card, links {share:.0%} of the step"
        )
    notes += [f"  {side}: {text}" for side, text in found[0].plans.items()]
    return notes


if __name__ == "__main__":
    sys.exit(run_bench("plan_vs_experts", QUESTION, collect))
