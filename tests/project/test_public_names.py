"""The public names and the knobs are few, and each new one is a visible change."""

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import placet
import placet.settings

ROOT = Path(__file__).parents[2]
KNOBS = Path(__file__).with_name("knobs.txt")
MOST_NAMES = 20
MOST_VARIABLES = 3
GIVEN_BY_TYPER = ("--help", "--install-completion", "--show-completion")


def visible(module: ModuleType) -> list[str]:
    """The names that a reader of the module takes for public, loaded late or not."""
    return sorted(
        name
        for name in {*vars(module), *dir(module)}
        if not name.startswith("_") and f"placet.{name}" not in sys.modules
    )


def test_public_names_are_what_is_visible():
    assert sorted(placet.__all__) == visible(placet)
    assert len(placet.__all__) <= MOST_NAMES
    assert len(set(placet.__all__)) == len(placet.__all__)


def test_public_names_are_not_packages():
    # `import placet.plan.x` would replace a function `placet.plan` by a module.
    packages = {p.stem for p in (ROOT / "placet").iterdir()} - {
        "__init__",
        "__pycache__",
    }
    assert packages.isdisjoint(set(placet.__all__) - {"errors"})


def test_public_names_are_documented():
    silent = [
        name
        for name in placet.__all__
        if callable(getattr(placet, name)) and not inspect.getdoc(getattr(placet, name))
    ]
    assert not silent


def flags(command: Any, path: str) -> list[str]:
    """Each argument and option of a command and its subcommands, one a line."""
    found = []
    for parameter in command.params:
        name = max(parameter.opts, key=len)
        if name not in GIVEN_BY_TYPER:
            found.append(f"{path} {name}")
    for name, child in sorted(getattr(command, "commands", {}).items()):
        found += flags(child, f"{path} {name}")
    return found


def test_command_line_has_the_listed_knobs_and_no_others():
    cli = importlib.import_module("placet.job.cli")
    there = flags(typer.main.get_command(cli.app), "placet")
    listed = [
        line for line in KNOBS.read_text().splitlines() if not line.startswith("#")
    ]
    assert len(there) > 5
    assert there == listed, f"{KNOBS.name} should hold:\n" + "\n".join(there)


def test_flags_are_found_in_subcommands():
    app = typer.Typer()

    @app.command()
    def train(recipe: str, ranks: int = typer.Option(2, "-n", "--ranks")) -> None: ...

    @app.command()
    def doctor() -> None: ...

    found = flags(typer.main.get_command(app), "placet")
    assert found == ["placet train recipe", "placet train --ranks"]


def test_environment_variables_are_at_most_three():
    source = (ROOT / "placet/settings.py").read_text()
    written = set(re.findall(r"\bPLACET_\w+", source))
    assert written == set(placet.settings.NAMES)
    assert len(written) <= MOST_VARIABLES
