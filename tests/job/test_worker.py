"""How a rank's failure is written down, and told to people."""

from pathlib import Path

import pytest

from placet.errors import CaptureError, PlanError, RankFailed
from placet.job.elastic import describe
from placet.job.worker import read_failures, write_failure


def failed(folder: Path, errors: list[Exception]) -> str:
    """What is told of ranks that raised these errors."""
    for rank, error in enumerate(errors):
        try:
            raise error
        except Exception as raised:
            write_failure(str(folder), rank, raised)
    exits = dict.fromkeys(range(len(errors)), 1)
    return describe(read_failures(str(folder)), exits, len(errors), None)


@pytest.mark.parametrize("kind", [PlanError, CaptureError])
def test_errors_about_what_was_given_need_no_traceback(
    kind: type[Exception], tmp_path: Path
) -> None:
    text = failed(tmp_path, [kind("the plan is for others")] * 2)
    page = f"see docs/errors.md#{kind.__name__.lower()}"
    assert text == f"the plan is for others\n  {page}"
    assert str(RankFailed(text)) == text  # which says where to read on


def test_errors_in_code_are_told_with_their_traceback(tmp_path: Path) -> None:
    text = failed(tmp_path, [KeyError("x"), KeyError("x")])
    assert text.startswith("rank 0 of 2 failed first\n\nTraceback")
    assert "KeyError: 'x'" in text
    assert text.endswith("rank 1 failed alike")


def test_what_other_ranks_met_besides_is_told_in_short(tmp_path: Path) -> None:
    text = failed(tmp_path, [PlanError("no plan"), KeyError("x")])
    assert text.startswith("no plan\n")
    assert text.endswith("rank 1 failed after it: KeyError: 'x'")
