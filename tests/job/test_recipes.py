import sys
from pathlib import Path
from typing import Any, Literal

import pytest

from placet.job.recipes import (
    absolute_target,
    find_recipe,
    known_recipes,
    read_settings,
    read_value,
    type_name,
)

SOURCE = '''
"""A file of a user's."""
from pathlib import Path
from typing import Literal


def mine(
    *,
    lr: float = 1e-3,
    steps: int = 100,
    fast: bool = False,
    mode: Literal["small", "large"] = "small",
    rates: tuple[float, ...] = (),
    folder: Path | None = None,
    untyped=3,
):
    """Trains mine."""
    return lr, steps, fast, mode, rates, folder, untyped


def needs(*, width: int):
    return width


def _hidden():
    return None
'''


@pytest.fixture
def target(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    # A file imported twice under one name must be the same file: a name per test.
    path = tmp_path / f"recipe_{abs(hash(request.node.name))}.py"
    path.write_text(SOURCE)
    return f"{path}:mine"


def test_recipe_known_are_those_with_a_function_of_their_name():
    assert known_recipes() == ("char_gpt", "digits")


def test_recipe_found_by_name_has_typed_parameters():
    recipe = find_recipe("digits")
    types = {p.name: p.annotation for p in recipe.parameters}
    assert types["lr"] is float
    assert types["epochs"] is int
    assert not any(p.is_required for p in recipe.parameters)
    assert "97%" in recipe.summary


def test_recipe_found_in_file(target: str):
    recipe = find_recipe(target)
    settings = read_settings(
        recipe,
        ["lr=3e-4", "steps=1e3", "fast=yes", "mode=large", "rates=1,2.5", "folder=a/b"],
    )
    assert recipe.function(**settings) == (
        3e-4,
        1000,
        True,
        "large",
        (1.0, 2.5),
        Path("a/b"),
        3,
    )
    assert recipe.summary == "Trains mine."


def test_recipe_setting_is_read_by_type_of_default_and_last_wins(target: str):
    recipe = find_recipe(target)
    settings = read_settings(recipe, ["untyped=4", "untyped=5", "folder=none"])
    assert settings == {"untyped": 5, "folder": None}


def test_recipe_unknown_lists_known_and_nearest():
    with pytest.raises(
        ValueError, match=r"the nearest is 'char_gpt'.*char_gpt, digits"
    ):
        find_recipe("chargpt")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("ltr=1", r"no parameter 'ltr'; the nearest is 'lr'.*\n  lr: float = 0.001\n"),
        ("lr", "write --set name=value"),
        ("lr=fast", r"'fast' is not a number \(mine declares lr: float = 0.001\)"),
        ("steps=1.5", "not a whole number"),
        ("fast=perhaps", "neither true nor false"),
        ("mode=medium", "none of: small, large"),
    ],
)
def test_recipe_setting_wrong_says_what_there_is(
    target: str, assignment: str, message: str
):
    recipe = find_recipe(target)
    recipe = type(recipe)("mine", recipe.function, recipe.parameters)
    with pytest.raises(ValueError, match=message):
        read_settings(recipe, [assignment])


def test_recipe_setting_missing_is_named(target: str):
    recipe = find_recipe(target.replace(":mine", ":needs"))
    with pytest.raises(ValueError, match=r"needs --set width=.*\(int\)"):
        read_settings(recipe, [])


def test_recipe_in_file_errors_name_what_is_there(target: str, tmp_path: Path):
    with pytest.raises(ValueError, match=r"no function 'mime'; the nearest is 'mine'"):
        find_recipe(target.replace(":mine", ":mime"))
    with pytest.raises(ValueError, match=r"add the recipe's name: .*:needs"):
        find_recipe(target.removesuffix(":mine"))
    with pytest.raises(ValueError, match="there is no file"):
        find_recipe(f"{tmp_path}/absent.py:mine")


def test_recipe_file_may_not_hide_an_imported_module(tmp_path: Path):
    (tmp_path / "pytest.py").write_text("def job():\n    return None\n")
    with pytest.raises(ValueError, match="rename the file"):
        find_recipe(f"{tmp_path}/pytest.py:job")
    assert str(tmp_path) not in sys.path  # or other processes would import this pytest


def test_recipe_target_made_absolute():
    assert absolute_target("digits") == "digits"
    assert absolute_target("a/b.py:f") == f"{Path.cwd()}/a/b.py:f"


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("1_000", int, 1000),
        ("-1e2", int, -100),
        ("inf", float, float("inf")),
        ("Off", bool, False),
        ("2", Literal[0, 1, 2], 2),
        ("none", int | None, None),
        ("7", int | None, 7),
        ("a, b", list[str], ["a", "b"]),
        ("(0.9, 0.95)", tuple[float, float], (0.9, 0.95)),
        ("0.5", int | float, 0.5),
    ],
)
def test_recipe_value_read(text: str, annotation: Any, value: Any):
    read = read_value(text, annotation)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "annotation"),
    [("1", tuple[int, int]), ("x", dict[str, int]), ("3", Literal[0, 1, 2])],
)
def test_recipe_value_refused(text: str, annotation: Any):
    with pytest.raises(ValueError, match=r"needs 2|cannot be written|none of"):
        read_value(text, annotation)


def test_recipe_type_names():
    assert type_name(int) == "int"
    assert type_name(int | None) == "int | None"
    assert type_name(Literal[0, 1]) == "Literal[0, 1]"
    assert type_name(Path | None) == "Path | None"
