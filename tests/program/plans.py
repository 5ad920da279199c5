"""The programs that are kept in tests/plans, to be seen in review when they change.

python -m tests.program.plans        write them anew
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from placet.job.data import Data
from placet.job.job import Job
from placet.wire.interface import Wire
from recipes.char_gpt import GPT
from testing.ranks import run_threads
from tests.job.models import ConvNet
from tests.program.planned_programs import data_parallel, grid, states_at_home
from tests.program.planned_programs import printed as of_plan

FOLDER = Path(__file__).parents[1] / "plans"


def printed(model: Callable[[], nn.Module], **options: Any) -> str:
    """A job's program on two ranks."""

    def make(wire: Wire) -> str:
        rows = Data(TensorDataset(torch.zeros(16)), 8)
        source = model()
        with torch.no_grad():  # threads share the generator, and ranks must agree
            for parameter in source.parameters():
                parameter.zero_()
        return str(
            Job(source, None, torch.optim.AdamW, rows, wire=wire, **options).program
        )

    return run_threads(2, make)[0] + "\n"


def char_gpt(**options: Any) -> str:
    """The model of `placet train char_gpt`, clipped as there."""
    return printed(
        lambda: GPT(width=128, depth=4, num_heads=4),
        clip_norm=1.0,
        name="char_gpt",
        **options,
    )


PLANS: dict[str, Callable[[], str]] = {
    **{f"char_gpt_zero{z}": partial(char_gpt, zero=z) for z in range(4)},
    "batch_norm_accumulate": partial(printed, ConvNet, accumulate=2, zero=2),
    "planned_data_parallel": lambda: of_plan(data_parallel()),
    "planned_states_at_home": lambda: of_plan(states_at_home()),
    "planned_grid": lambda: of_plan(grid()),
}


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, made in PLANS.items():
        (FOLDER / f"{name}.txt").write_text(made())


if __name__ == "__main__":
    main()
