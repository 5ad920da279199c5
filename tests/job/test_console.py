"""What the terminal shows, on a real program and a recorded console."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from placet.job.console import (
    Terminal,
    clock,
    finished_text,
    going_on_text,
    short_count,
)
from placet.job.events import (
    Evaluated,
    Event,
    Finished,
    Result,
    Saved,
    Started,
    StepDone,
)
from placet.job.plan_table import (
    moved_rows,
    placements_table,
    plan_notes,
    plan_title,
    stem,
)
from placet.placement.mesh import Mesh
from placet.program.blocks import find_blocks
from placet.program.data_parallel import DataParallel, ParameterSpec, build_program
from placet.program.program import bytes_text


def fake_job(
    num_ranks: int = 2, level: Any = 0, accumulate: int = 1
) -> SimpleNamespace:
    """As much of a job as the terminal looks at."""
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    specs = [
        ParameterSpec(name, tuple(p.shape), p.dtype)
        for name, p in model.named_parameters()
    ]
    mesh = Mesh(f"data={num_ranks}")
    options = DataParallel(level=level, batch_rows=16, accumulate=accumulate)
    program = build_program("toy", mesh, specs, find_blocks(model), options=options)
    return SimpleNamespace(
        name="toy",
        model=model,
        mesh=mesh,
        rank=0,
        num_ranks=num_ranks,
        program=program,
        training=SimpleNamespace(options=options),
        settings=SimpleNamespace(batch_rows=16),
    )


def events(num_steps: int = 30) -> list[Event]:
    found: list[Event] = [Started(1, num_steps, "")]
    for step in range(1, num_steps + 1):
        found.append(StepDone(step, 5 / step, 2048, 1e-3, 1.0, 0.25, 2**20, 2**20))
    found.append(Evaluated(num_steps, {"loss": 1.25, "bits_per_byte": 1.803}))
    found.append(Saved(num_steps, "runs/toy/checkpoints/step-30", 0.1))
    ledger = {"boxings": 60 * 2**20, "control": 1000, "foreign": 0, "files": 2**20}
    found.append(Finished("done", num_steps, 125.0, ledger))
    rows = (("toy", 1.803), ("order-2 bytes", 2.6))
    found.append(Result("Validation bits per byte", rows, "def main([x]):\n    pass"))
    return found


def shown(job: Any, width: int, *, is_terminal: bool, is_shown: bool = True) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=is_terminal, color_system=None
    )
    with Terminal(is_shown=is_shown, console=console) as terminal:
        for event in events():
            terminal(job, event)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_console_shows_plan_progress_and_results(width: int, is_terminal: bool):
    text = shown(fake_job(), width, is_terminal=is_terminal)
    for part in (
        "toy: 2 ranks, Mesh('data=2'), 136,714 parameters",
        "P(sum) -> B @data",
        "sent",
        "8.2k tokens/s",
        "1.0 MiB sent/step",
        "ETA 0:00",
        "validation loss 1.25  bits_per_byte 1.803",
        "done after step 30, 2:05\n",
        "moved by rank 0: boxings 60.0 MiB, control 1000 B, foreign 0 B\n"
        "written to files: 1.0 MiB\n",
        "Validation bits per byte",
        "order-2 bytes",
        "def main([x]):",  # square brackets are text, not markup
    ):
        assert part in text, part


def test_console_lines_fit_the_width():
    text = shown(fake_job(), 80, is_terminal=False)
    assert max(len(line) for line in text.splitlines()) <= 80


def test_console_plain_is_a_line_at_the_end_and_none_between():
    # The steps come at once: less than one line's interval passes before the last.
    text = shown(fake_job(), 80, is_terminal=False)
    assert [line.split()[1] for line in text.splitlines() if "tokens/s" in line] == [
        "30/30"
    ]
    assert "\x1b" not in text


def test_console_speed_leaves_out_evaluations():
    out = io.StringIO()
    with Terminal(console=Console(file=out, width=80)) as terminal:
        for event in (
            *events(10)[:10],
            Evaluated(9, {"loss": 1.0}),
            StepDone(10, 0.5, 2048, 1e-3, 1.0, 60.0, 2**20, 2**20),
        ):
            terminal(fake_job(), event)
    assert "10/10  loss" in out.getvalue()
    assert "8.2k tokens/s" in out.getvalue()


def test_console_other_ranks_show_nothing():
    assert shown(fake_job(), 80, is_terminal=True, is_shown=False) == ""


def test_console_cursor_is_back_after_an_error():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True)

    def fails_at_step_1() -> None:
        with Terminal(console=console) as terminal:
            for event in events()[:2]:
                terminal(fake_job(), event)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails_at_step_1()
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_plan_table_counts_the_programs_bytes():
    job = fake_job(level=3)
    out = io.StringIO()
    console = Console(file=out, width=100)
    console.print(placements_table(job.program, 0))
    total = out.getvalue().splitlines()[-1]
    sent = job.program.sent_bytes(0)
    assert sent > 0
    assert bytes_text(sent) in total
    assert "S(0)" in out.getvalue()


def test_plan_table_counts_every_firing_of_a_boxing():
    def sent_by_row(accumulate: int) -> list[int]:
        program = fake_job(level=2, accumulate=accumulate).program
        return [row.sent_bytes or 0 for row in moved_rows(program, 0)]

    once, thrice = sent_by_row(1), sent_by_row(3)
    # Gradients are boxed after every micro-batch, parameters and totals once a step.
    assert {b / a for a, b in zip(once, thrice, strict=True)} == {1, 3}
    program = fake_job(level=2, accumulate=3).program
    assert sum(thrice) == program.sent_bytes(0)


def test_plan_says_why_an_optimizer_keeps_tensors_whole():
    job = fake_job(level=2)
    assert plan_notes(job) == []
    job.training.options = DataParallel(level=2, whole_updates=True)
    job.optimizer = torch.optim.Muon([nn.Parameter(torch.ones(2, 2))])
    (note,) = plan_notes(job)
    assert "zero=2 splits nothing" in note
    assert "Muon: it orthogonalises whole matrices" in note
    assert note in shown(job, 120, is_terminal=False)


def test_plan_title_counts_whole_parameters():
    job = fake_job(level=3)
    job.model = nn.Linear(1, 1)  # at level 3 the module itself holds parts only
    assert "136,714 parameters" in plan_title(job)


def test_plan_title_of_one_rank():
    assert plan_title(fake_job(num_ranks=1)).startswith("toy: 1 rank, ")


def test_short_texts():
    assert stem("blocks.3.forward") == "blocks.forward"
    assert [short_count(n) for n in (999, 41_234, 1.3e6)] == ["999", "41.2k", "1.3M"]
    assert [bytes_text(n) for n in (0, 1023, 3.2 * 2**20)] == [
        "0 B",
        "1023 B",
        "3.2 MiB",
    ]
    assert [clock(s) for s in (59.6, 125, 3609)] == ["1:00", "2:05", "1:00:09"]
    assert finished_text(Finished("stopped", 7, 61.0)) == (
        "stopped, as asked after step 7, 1:01"
    )


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        (11, 30, "going on from step 10"),
        (
            31,
            30,
            "going on from step 30, the last one; to train on, ask for more steps",
        ),
    ],
)
def test_console_says_where_a_resumed_training_stands(first: int, last: int, text: str):
    assert going_on_text(Started(first, last, "")) == text
