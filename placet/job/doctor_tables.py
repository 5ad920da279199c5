"""A run's story on the terminal: one sentence, then who and which moves."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from placet.job.doctor_run import PendingRow, RankStory, Story
from placet.wire.engine.diagnose import seconds_text

MOST_ROWS = 20


def show(story: Story, console: Console) -> None:
    """Print a story. What the run wrote is shown as it is, never as markup."""
    console.print(Text(_capital(story.sentence) + ".", "bold" if story.fix else ""))
    if story.fix:
        console.print(Text(f"{_capital(story.fix)}.", "green"))
    console.print()
    console.print(ranks_table(story))
    if story.pending:
        console.print()
        console.print(pending_table(story.pending))
    said = next((r.failure for r in story.ranks if r.rank == story.first), None)
    if said is not None and not _is_told(story, said.text):
        console.print()
        console.print(Text(f"rank {said.rank} raised {said.error}:", "dim"))
        console.print(Text(said.text))
    words = [(r.rank, r.last_words) for r in story.ranks if r.last_words]
    if words:
        console.print()
    for rank, line in words[:MOST_ROWS]:
        console.print(Text.assemble((f"rank{rank}.log ends: ", "dim"), line))
    for problem in story.problems:
        console.print(Text(f"not read: {problem}", "yellow"))


def _is_told(story: Story, text: str) -> bool:
    """Whether an error's message says no more than what is shown anyway."""
    cause = story.explanation.sentence if story.explanation else None
    return text in story.sentence or (cause is not None and cause in text)


def ranks_table(story: Story) -> Table:
    """Each rank's end, and what it did when the first one failed."""
    table = _table("rank", "end", "step", "wire failed", "did", "finished last")
    failed = [r.failure.seconds for r in story.ranks if r.failure]
    for rank in _chosen(story):
        report = rank.report
        table.add_row(
            Text(str(rank.rank), "bold red" if rank.rank == story.first else ""),
            _end(rank),
            "" if rank.step is None else str(rank.step),
            _failed(rank, min(failed, default=0.0)),
            _did(rank),
            Text(repr(report.finished[-1]) if report and report.finished else ""),
        )
    _say_more(table, len(story.ranks))
    return table


def _chosen(story: Story) -> list[RankStory]:
    """The ranks to show: of too many those that tell most, in order."""
    guilty = story.explanation.ranks if story.explanation else ()
    missing = {rank for row in story.pending for rank in row.missing}

    def dull(rank: RankStory) -> int:
        is_guilty = rank.rank == story.first or rank.rank in guilty
        return 0 if is_guilty else 1 if rank.rank in missing else 2

    chosen = sorted(story.ranks, key=dull)[:MOST_ROWS]
    return sorted(chosen, key=lambda rank: rank.rank)


def pending_table(rows: Sequence[PendingRow]) -> Table:
    """Each collective that was not done, and who had not submitted it."""
    table = _table("pending move", "submitted by", "not by", "awaited by", "for")
    for row in rows[:MOST_ROWS]:
        key, group = row.called
        texts = [f"rank {r}: {text}" for r, text in row.texts.items()]
        if len(set(row.texts.values())) == 1:
            texts = list(row.texts.values())[:1]
        move = Text(f"{key!r} over {_ranks(group)}", "bold")
        move.append("".join(f"\n{text}" for text in texts[:4]), "not bold dim")
        table.add_row(
            move,
            Text(_ranks(row.submitted)),
            Text(_ranks(row.missing), "red"),
            Text(_ranks(row.waiting)),
            Text(seconds_text(row.seconds)),
        )
    _say_more(table, len(rows))
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in names:
        is_number = name in ("rank", "step")
        table.add_column(
            name, overflow="fold", justify="right" if is_number else "left"
        )
    return table


def _say_more(table: Table, num_rows: int) -> None:
    if num_rows > MOST_ROWS:
        table.add_row(Text("..."), Text(f"{num_rows - MOST_ROWS} more"))


def _end(rank: RankStory) -> Text:
    if rank.status:
        return Text(rank.status, "red" if rank.status == "failed" else "")
    return Text("unknown" if rank.has_record else "no record", "yellow")


def _failed(rank: RankStory, first_seconds: float) -> Text:
    if rank.failure is None:
        return Text("")
    error = rank.failure.error or "error"
    return Text(f"{error} +{rank.failure.seconds - first_seconds:.3f} s")


def _did(rank: RankStory) -> Text:
    report = rank.report
    if rank.status == "done" and rank.failure is None:
        return Text("finished")
    if report is None:
        return Text("not known", "yellow")
    if report.waiting is None:
        return Text("computed")
    since = report.waiting_seconds
    seconds = "" if since is None else f" for {seconds_text(since)}"
    return Text(f"waited for {report.waiting[0]!r}{seconds}")


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
