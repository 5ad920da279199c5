"""A job's plan for people: where its tensors live, and which bytes a step moves."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from placet.boxing.moves import algorithm_of
from placet.boxing.plan import BoxingPlan
from placet.job.view import JobView
from placet.program.node import Boxing
from placet.program.program import Program, bytes_text, change
from placet.run.optimizers import verdict
from placet.run.planned_training import PlannedTraining


@dataclass(frozen=True)
class Row:
    """One line: tensors that are alike.

    Args:
        what: their name, or the first and last of their names.
        tensors: how many.
        placement: where they live, or how that changes.
        num_bytes: bytes of the global tensors.
        sent_bytes, received_bytes: by one rank in a step; None where nothing moves.
        moves: the algorithms of its moves, such as "ring".
    """

    what: str
    tensors: int
    placement: str
    num_bytes: int
    sent_bytes: int | None = None
    received_bytes: int | None = None
    moves: str = ""


def plan_title(job: JobView) -> str:
    """Name, ranks, mesh and size of a job in one line."""
    ranks = f"{job.num_ranks} rank{'s' if job.num_ranks > 1 else ''}"
    return (
        f"{job.name}: {ranks}, {job.mesh!r}, {job.program.num_parameters:,} parameters"
    )


def plan_notes(job: JobView) -> list[str]:
    """What the job does otherwise than its settings say, and why; mostly nothing."""
    if isinstance(job.training, PlannedTraining):
        return []
    options = job.training.options
    if not options.whole_updates:
        return []
    reason = verdict(job.optimizer).reason
    return [
        f"zero={options.level} splits nothing here, every tensor is whole: {reason}"
    ]


def placements_table(program: Program, rank: int) -> Table:
    """The plan, with the bytes that `rank` sends and receives in a step."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("tensors", no_wrap=True)
    table.add_column("placement", style="cyan", no_wrap=True)
    for name in ("size", "sent", "received"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("by", style="dim", no_wrap=True)
    rows = [*_stored(program), *moved_rows(program, rank)]
    for row in rows:
        table.add_row(
            f"{row.tensors} {row.what}",
            row.placement,
            bytes_text(row.num_bytes),
            *(
                "" if count is None else bytes_text(count)
                for count in (row.sent_bytes, row.received_bytes)
            ),
            row.moves,
        )
    sent, received = program.sent_bytes(rank), program.received_bytes(rank)
    table.add_section()
    table.add_row(
        "a step", "", "", bytes_text(sent), bytes_text(received), style="bold"
    )
    return table


def _stored(program: Program) -> list[Row]:
    """The tensors that exist before the first step, by placement."""
    by_placement: dict[str, list[str]] = {}
    for name in program.state:
        placements = program.tensors[name].layout.placements
        by_placement.setdefault(" ".join(map(repr, placements)), []).append(name)
    return [
        Row("parameters", len(names), placement, _size(program, names))
        for placement, names in by_placement.items()
    ]


def moved_rows(program: Program, rank: int) -> list[Row]:
    """The boxings of a step; those with the same change and name stem are one row."""
    groups: dict[tuple[str, str], list[Boxing]] = {}
    for boxing in program.boxings():
        key = (stem(boxing.name), change(boxing.src, boxing.dst))
        groups.setdefault(key, []).append(boxing)
    rows = []
    for (what, changed), boxings in groups.items():
        plans = [(boxing, program.boxing_plan(boxing)) for boxing in boxings]
        names = [name for boxing in boxings for name in boxing.inputs]
        rows.append(
            Row(
                what,
                len(names),
                changed,
                _size(program, names),
                sum(b.times * plan.sent_bytes(rank) for b, plan in plans),
                sum(b.times * plan.received_bytes(rank) for b, plan in plans),
                _algorithms([plan for _, plan in plans], rank),
            )
        )
    return rows


def _algorithms(plans: Sequence[BoxingPlan], rank: int) -> str:
    moves = (move for plan in plans for move in plan.moves(rank))
    return ", ".join(dict.fromkeys(map(algorithm_of, moves)))


def stem(name: str) -> str:
    """A boxing's name without its numbers: grads.0 -> grads."""
    return ".".join(part for part in name.split(".") if not part.isdigit())


def _size(program: Program, names: Sequence[str]) -> int:
    return sum(program.tensors[name].num_bytes for name in names)
