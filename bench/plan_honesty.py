"""What a plan says of its step's time beside what the step takes, on 4 slow links.

    predicted   from links and machine as measured at the run's start
    measured    the slowest rank's time of each step; the median of its steps
    error       |predicted / measured - 1|

Plans are experts', the planner's, and ones drawn at random, near good ones and near
none. What matters to a planner is which of two plans is faster: that predictions and
times have one order (Spearman's correlation of ranks), for each model by itself.

Hosts are emulated on few cores, so times mean something where links take most of a
step; their share is what the busiest card has sent, over what it could send.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from scipy.stats import spearmanr

from bench.harness import ROOT, Options, Outcome, run_bench, show
from bench.plan_honesty_plans import MODELS
from bench.plan_honesty_rank import Found, Ran, Spec, Work
from bench.ratios import Row, exact_row, timed_row
from bench.wire_lab_rank import MARK
from placet.job.lab import Lab, lab_missing, run_in_lab

QUESTION = "Does a plan's step take as long as the plan says?"
NUM_HOSTS = 4
RATE, BYTES_PER_S = "200mbit", 2.5e7

LEAST_CORRELATION = 0.9
MOST_ERROR = 0.2
LEAST_SHARE = 0.7
"""The targets, and the links' share of a step from which on they are meant."""

MACHINE_SECONDS, QUICK_MACHINE_SECONDS = 6.0, 1.5


@dataclass(frozen=True)
class Compared:
    """A plan's step, predicted and measured.

    Args:
        model, name: of the plan.
        is_drawn: at random.
        predicted: seconds.
        seconds: of each step.
        sent_bytes: by the busiest card in a step.
        computing: seconds of a step in which the busiest rank computes.
    """

    model: str
    name: str
    is_drawn: bool
    predicted: float
    seconds: tuple[float, ...]
    sent_bytes: float
    computing: float

    @property
    def measured(self) -> float:
        """The median step."""
        return statistics.median(self.seconds)

    @property
    def error(self) -> float:
        """Relative; positive where too much was predicted."""
        return self.predicted / self.measured - 1

    @property
    def share(self) -> float:
        """Of the step in which the busiest card sends."""
        return self.sent_bytes / BYTES_PER_S / self.measured


def collect(options: Options) -> Outcome:
    """A row for each plan, then those that have targets."""
    missing = lab_missing()
    if missing is not None:
        return Outcome((), (f"skipped, no lab here: {missing}",))
    models = ("MLP",) if options.quick else tuple(MODELS)
    work = Work(
        specs=tuple(
            Spec(
                model,
                num_drawn=4 if options.quick else 12,
                num_steps=3 if options.quick else 7,
                seed=17 * number,
                plans=not options.quick,
            )
            for number, model in enumerate(models)
        ),
        machine_seconds=QUICK_MACHINE_SECONDS if options.quick else MACHINE_SECONDS,
    )
    by_rank = measure(work)
    found = [
        compared(spec.model, [rank[number] for rank in by_rank])
        for number, spec in enumerate(work.specs)
    ]
    rows = [row_of(one) for plans in found for one in plans]
    rows += [row for plans in found for row in target_rows(plans[0].model, plans)]
    rows += target_rows("all", [one for plans in found for one in plans])
    return Outcome(tuple(rows), tuple(_notes(found, by_rank[0][0])))


def measure(work: Work) -> list[list[Found]]:
    """What each rank found, for each spec."""
    result = run_in_lab(
        Lab(NUM_HOSTS, rate=RATE),
        [sys.executable, "-m", "bench.plan_honesty_rank", json.dumps(asdict(work))],
        timeout_seconds=1800,
        environment={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        on_line=lambda rank, line: None,
    )
    if not result.ok:
        raise RuntimeError("\n".join(result.output))
    return [
        [
            Found.from_json(line.removeprefix(MARK))
            for line in output.splitlines()
            if line.startswith(MARK)
        ]
        for output in result.output
    ]


def compared(model: str, ranks: Sequence[Found]) -> list[Compared]:
    """Each plan of a model, from what all ranks found."""

    def of_plan(ran: Sequence[Ran]) -> Compared:
        return Compared(
            model,
            ran[0].name,
            ran[0].is_drawn,
            ran[0].predicted,
            tuple(map(max, zip(*(one.seconds for one in ran), strict=True))),
            max(statistics.median(one.sent_bytes) for one in ran),
            max(statistics.median(one.computing) for one in ran),
        )

    return [of_plan(ran) for ran in zip(*(found.ran for found in ranks), strict=True)]


def row_of(one: Compared) -> Row:
    """A plan's predicted time beside its measured ones."""
    predicted = (one.predicted,) * len(one.seconds)
    return timed_row(
        f"{one.model}, {one.name}: predicted beside measured", predicted, one.seconds
    )


def target_rows(name: str, plans: Sequence[Compared]) -> tuple[Row, Row]:
    """Correlation and error of some plans against the targets."""
    predicted = [one.predicted for one in plans]
    correlation = spearmanr(predicted, [one.measured for one in plans]).statistic
    error = statistics.median(abs(one.error) for one in plans)
    return (
        exact_row(
            f"{name}: 1 - Spearman's correlation, beside {1 - LEAST_CORRELATION:.2f}",
            1 - float(correlation),
            1 - LEAST_CORRELATION,
            unit="",
            most=1.0,
        ),
        exact_row(
            f"{name}: median error, beside {MOST_ERROR:.2f}",
            error,
            MOST_ERROR,
            unit="",
            most=1.0,
        ),
    )


def _notes(found: Sequence[Sequence[Compared]], first: Found) -> list[str]:
    plans = [one for of_model in found for one in of_model]
    shares = sorted(one.share for one in plans)
    links = "; ".join(
        f"{name} {latency * 1e6:.0f} us, {rate / 1e6:.1f} MB/s"
        for name, latency, rate in first.links
    )
    drawn = [one for one in plans if one.is_drawn]
    most = sum(one.share >= LEAST_SHARE for one in plans)
    most_drawn = sum(one.share >= LEAST_SHARE for one in drawn)
    notes = [
        f"links as measured: {links}; machine: {first.machine}",
        f"{len(plans)} plans, {len(drawn)} of them drawn at random; links' share of a "
        f"step: median {statistics.median(shares):.0%}, least {shares[0]:.0%}, at "
        f"least {LEAST_SHARE:.0%} in {most} plans, {most_drawn} of those drawn",
    ]
    for one in plans:
        notes.append(
            f"  {one.model}, {one.name}: {show(one.sent_bytes, 'bytes')} by the "
            f"busiest card, predicted {show(one.predicted, 's')}, measured "
            f"{show(one.measured, 's')}, error {one.error:+.0%}, links {one.share:.0%} "
            f"of the step, computing {one.computing / one.measured:.0%}"
        )
    return notes


if __name__ == "__main__":
    sys.exit(run_bench("plan_honesty", QUESTION, collect))
