"""docs/errors.md explains every error class: what it means, an example, the fix."""

import inspect
import re
from pathlib import Path

import pytest

import placet.errors
from placet.errors import PlacetError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / placet.errors.PAGE
CLASSES = {
    name: kind
    for name, kind in inspect.getmembers(placet.errors, inspect.isclass)
    if issubclass(kind, PlacetError)
}


def sections(text: str) -> dict[str, str]:
    """The page's second-level headings and what stands under each."""
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    return {p.partition("\n")[0].strip(): p.partition("\n")[2] for p in parts}


def test_every_error_has_a_section_and_every_section_an_error():
    assert sorted(sections(PAGE.read_text())) == sorted(CLASSES)
    assert len(CLASSES) > 5


@pytest.mark.parametrize("name", CLASSES)
def test_section_has_an_example_and_a_fix(name: str):
    text = sections(PAGE.read_text())[name]
    assert "```" in text, f"{name}: no failing example"
    assert name in "".join(text.split("```")[1::2]), (
        f"{name}: the example never says it"
    )
    assert "**Fix.**" in text, f"{name}: no fix"


@pytest.mark.parametrize("name", CLASSES)
def test_message_names_its_section(name: str):
    message = str(CLASSES[name]("rank 3", "what was given"))
    assert message.startswith("rank 3: what was given")
    address = re.search(r"(\S+)#(\w+)$", message)
    assert address
    assert (ROOT / address[1]) == PAGE
    assert address[2] in [title.lower() for title in sections(PAGE.read_text())]


@pytest.mark.parametrize("name", CLASSES)
def test_tree_at_the_top_of_errors_py_draws_every_class(name: str):
    assert placet.errors.__doc__
    drawn = [line.strip(" │├└─").split() for line in placet.errors.__doc__.splitlines()]
    assert name in [words[0] for words in drawn if words]
