"""Where the native core is kept, and what a build that was killed leaves."""

import shutil
from pathlib import Path

import pytest

from placet.wire.engine.native import build
from placet.wire.engine.native.build import CannotBuild, library


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A compiler that takes no time."""
    path = tmp_path / "compiler"
    path.write_text('#!/bin/sh\nfor last; do :; done\necho made > "$last"\n')
    path.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(path))


def test_a_folder_that_cannot_be_written_is_said(compiler, tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CannotBuild, match=r"cannot keep it .*set XDG_CACHE_HOME"):
        library(file / "folder")


def test_what_a_killed_build_left_is_cleared(compiler, tmp_path):
    kept = tmp_path / "kept"
    left = kept / f"{build._BUILDING}killed"
    left.mkdir(parents=True)
    (left / "half.so").touch()
    made = library(kept)
    assert Path(made).read_text() == "made\n"
    assert sorted(kept.iterdir()) == sorted([made, kept / "lock"])
