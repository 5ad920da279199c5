"""Programs are what they were: a changed plan is a visible difference in review."""

import difflib

import pytest

from tests.program.plans import FOLDER, PLANS


@pytest.mark.parametrize("name", PLANS)
def test_program_is_as_kept(name: str) -> None:
    kept = (FOLDER / f"{name}.txt").read_text()
    found = PLANS[name]()
    changes = difflib.unified_diff(kept.splitlines(), found.splitlines(), lineterm="")
    assert found == kept, (
        f"the program of {name} changed; if that is meant, write it anew by "
        "`python -m tests.program.plans`\n" + "\n".join(changes)
    )


def test_no_plan_is_kept_in_vain() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(PLANS)
