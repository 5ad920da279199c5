"""How likely ranks hang that submit 100 collectives in slightly different orders.

Exact figures of a model, no timing: of so many drawn rounds, the percentage that hangs
on an in-order queue (or on streams with device syncs), and on our engine's discipline.
See testing/wire_model/disorder.py. Targets: ours is 0 in every cell; and the queue's
figure is where the formula says, within 4 standard errors, or the model is wrong.

An earlier count for the queue, with all ranks in one group: 0.7, 8.2, 52.8, 100% on 8
ranks, 7.7, 46.7, 99.7, 100% on 64.
"""

import sys

from bench.harness import Options, Outcome, run_bench
from bench.ratios import Ratio, Row, exact_row
from testing.wire_model.disorder import (
    SYNC_CHANCE,
    Cell,
    Counted,
    count,
    expected,
    grid,
    one_group,
)

QUESTION = "How often do ranks hang that submit in slightly different orders?"
NUM_COLLECTIVES = 100
DISORDERS = (1e-5, 1e-4, 1e-3, 1e-2)
RANKS = ((8, 2), (64, 8))
"""Ranks, and how many of them make a row of the grid."""

MOST_ERRORS = 4.0


def collect(options: Options) -> Outcome:
    """A row a cell, and one where the formula is known."""
    rows: list[Row] = []
    total = 0
    for num_ranks, row in RANKS:
        num_rounds = (8_000 if options.quick else 80_000) // num_ranks
        for kind, groups in (
            ("one group", one_group(num_ranks, NUM_COLLECTIVES)),
            ("rows and columns", grid(num_ranks, row, NUM_COLLECTIVES)),
        ):
            for disorder in DISORDERS:
                name = f"{num_ranks} ranks, {kind}, {disorder:g}"
                queue = count(
                    Cell("one queue", groups, num_ranks, disorder), num_rounds
                )
                streams = count(
                    Cell("streams with syncs", groups, num_ranks, disorder), num_rounds
                )
                total += 2 * num_rounds
                rows.append(hung_row(f"{name}: one queue", queue))
                if kind == "one group":
                    share = expected(num_ranks, NUM_COLLECTIVES, disorder)
                    rows.append(formula_row(f"{name}: off the formula", queue, share))
                rows.append(hung_row(f"{name}: streams with syncs", streams))
    return Outcome(
        tuple(rows),
        (
            f"{NUM_COLLECTIVES} collectives a rank; {total:,} rounds drawn;"
            f" a device syncs after {SYNC_CHANCE:.0%} of submissions",
            "peer: the named wire; ours: collectives that need no order",
            "off the formula: in standard errors, beside what is allowed",
        ),
    )


def hung_row(name: str, counted: Counted) -> Row:
    """Hung rounds in percent, ours beside the other wire's."""
    ours = 100 * counted.ours_hung / counted.num_rounds
    peer = 100 * counted.hung / counted.num_rounds
    # A ratio to 0 says nothing; ours itself stands in for it, and must be 0 as well.
    value = ours / peer if peer else ours
    return Row(name, "%", ours, peer, Ratio(value, value, value), most=0.0)


def formula_row(name: str, counted: Counted, share: float) -> Row:
    """How far the queue's figure is from the formula's."""
    deviation = (share * (1 - share) / counted.num_rounds) ** 0.5
    off = abs(counted.hung / counted.num_rounds - share)
    # Where nearly all hang the deviation is about 0; one round is no error either.
    errors = off / max(deviation, 1 / counted.num_rounds)
    return exact_row(name, errors, MOST_ERRORS, unit="errors", most=1.0)


if __name__ == "__main__":
    sys.exit(run_bench("disorder", QUESTION, collect))
