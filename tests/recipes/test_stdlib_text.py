from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.stdlib_text import (
    FILE_END,
    Windows,
    is_validation,
    read_stdlib,
    source_files,
)


def test_text_no_file_lies_in_both_parts():
    text = read_stdlib()
    assert set(text.train_files).isdisjoint(text.validation_files)
    assert len(text.train_files) > 100
    assert len(text.validation_files) >= 5
    assert len(text.train) > 20 * len(text.validation) > 1_000_000


def test_text_parts_are_the_files_named():
    text = read_stdlib()
    for part, names in (
        (text.train, text.train_files),
        (text.validation, text.validation_files),
    ):
        assert bytes(part).count(FILE_END) >= len(names)
        assert list(names) == sorted(names)


def test_text_is_deterministic():
    first, second = read_stdlib(), read_stdlib()
    assert np.array_equal(first.train, second.train)
    assert np.array_equal(first.validation, second.validation)


def test_text_split_depends_on_the_name_alone(tmp_path: Path):
    names = [f"m{i}.py" for i in range(200)]
    for name in names:
        (tmp_path / name).write_text(f"x = {name!r}\n")
    whole = read_stdlib(root=tmp_path, validation_share=0.2)
    for name in whole.train_files[::2]:
        (tmp_path / name).unlink()
    fewer = read_stdlib(root=tmp_path, validation_share=0.2)
    assert fewer.validation_files == whole.validation_files
    assert set(fewer.train_files) < set(whole.train_files)
    assert whole.validation_files == tuple(
        sorted(n for n in names if is_validation(n, 0.2))
    )


def test_text_copies_and_tables_are_left_out(tmp_path: Path):
    for name, content in {
        "a.py": "import a\n",
        "copy_of_a.py": "import a\n",
        "empty.py": "",
        "huge.py": "x" * 1001,
        "test/test_a.py": "assert a\n",
        "pkg/b.py": "import b\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    found = [name for name, _ in source_files(tmp_path, max_file_bytes=1000)]
    assert found == ["a.py", "pkg/b.py"]


def test_text_training_part_is_capped(tmp_path: Path):
    for i in range(60):
        (tmp_path / f"m{i:02}.py").write_text(f"{i:02}" * 50)
    text = read_stdlib(root=tmp_path, validation_share=0.3, max_train_bytes=1000)
    assert 0 < len(text.train) <= 1000


def test_text_without_source_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="0 Python source files to train"):
        read_stdlib(root=tmp_path)


def test_windows_predict_each_byte_but_the_first_once():
    text = np.arange(24, dtype=np.uint8)
    windows = Windows(text, context=5)
    assert len(windows) == 4
    targets = torch.cat([windows[i][1:] for i in range(len(windows))])
    assert targets.tolist() == list(range(1, 21))
    assert all(windows[i].dtype == torch.int64 for i in range(len(windows)))
    with pytest.raises(IndexError):
        windows[4]


def test_windows_refuse_a_text_shorter_than_one():
    with pytest.raises(ValueError, match="needs 6 bytes, the text has 5"):
        Windows(np.zeros(5, dtype=np.uint8), context=5)
