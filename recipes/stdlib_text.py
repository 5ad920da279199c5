"""Real text on every machine: the source of Python's own standard library, as bytes.

The text is split into training and validation *by file*, by a hash of the file's
path inside the library, so no file lies in both parts, and the parts depend neither
on the order in which a machine lists its files nor on the other files it has.
"""

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

FILE_END = b"\0"
"""One byte after each file; it starts a new file when text is generated."""

# Packages that not every installation has (tests), or that are tables, not prose.
SKIPPED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"}
    | {"idlelib", "lib2to3", "pydoc_data", "__pycache__", "__phello__"}
)


@dataclass(frozen=True)
class TextSplit:
    """A text in two parts that share no file.

    Args:
        train: training bytes, uint8.
        validation: validation bytes, uint8.
        train_files: names of the files in `train`, in order.
        validation_files: names of the files in `validation`, in order.
    """

    train: np.ndarray
    validation: np.ndarray
    train_files: tuple[str, ...]
    validation_files: tuple[str, ...]

    def __repr__(self) -> str:
        return (
            f"TextSplit({len(self.train_files)} files, {len(self.train):,} bytes to "
            f"train; {len(self.validation_files)} files, "
            f"{len(self.validation):,} bytes to validate)"
        )


def is_validation(name: str, validation_share: float) -> bool:
    """Whether the file of this name is held out: a hash of its name, nothing else."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "big") < validation_share * 2**32


def source_files(root: Path, max_file_bytes: int) -> Iterator[tuple[str, bytes]]:
    """The library's files in the order of their names: (name, content)."""
    seen: set[bytes] = set()
    named = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    for name in sorted(named):
        if SKIPPED & set(name.split("/")):
            continue
        if not 0 < named[name].stat().st_size <= max_file_bytes:
            continue
        content = named[name].read_bytes()
        digest = hashlib.sha256(content).digest()
        if digest not in seen:  # a copy could lie in both parts
            seen.add(digest)
            yield name, content


def read_stdlib(
    *,
    root: Path | None = None,
    validation_share: float = 0.04,
    max_file_bytes: int = 256_000,
    max_train_bytes: int = 32_000_000,
) -> TextSplit:
    """Read the standard library's source (about 9 MB, under a second).

    Args:
        root: folder to read instead; default: this Python's standard library.
        validation_share: share of the files held out, between 0 and 1.
        max_file_bytes: longer files are skipped; they are tables.
        max_train_bytes: training text stops before the file that would exceed it.

    Raises:
        ValueError: the folder has no Python source for one of the parts.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    parts: dict[bool, list[tuple[str, bytes]]] = {False: [], True: []}
    train_bytes = 0
    for name, content in source_files(root, max_file_bytes):
        held_out = is_validation(name, validation_share)
        if not held_out:
            train_bytes += len(content) + 1
            if train_bytes > max_train_bytes:
                break
        parts[held_out].append((name, content))
    if not parts[False] or not parts[True]:
        raise ValueError(
            f"{root} holds {len(parts[False])} Python source files to train and "
            f"{len(parts[True])} to validate on; both parts need one at least. "
            "Does this Python keep its standard library as source (not in a zip)?"
        )
    texts = {
        held_out: np.frombuffer(
            b"".join(content + FILE_END for _, content in files), dtype=np.uint8
        )
        for held_out, files in parts.items()
    }
    names = {held_out: tuple(n for n, _ in files) for held_out, files in parts.items()}
    return TextSplit(texts[False], texts[True], names[False], names[True])


class Windows(Dataset[torch.Tensor]):
    """Consecutive windows of a text: item i predicts bytes i*context+1 ... +context.

    Each byte but the first is a target exactly once; a rest shorter than a window is
    left out.

    Args:
        text: bytes, uint8.
        context: bytes a window predicts; an item has context + 1, as int64.
    """

    def __init__(self, text: np.ndarray, context: int) -> None:
        if len(text) <= context:
            raise ValueError(
                f"a window needs {context + 1} bytes, the text has {len(text)}; "
                f"lower context to {max(1, len(text) - 1)}"
            )
        self.text = text
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        start = index * self.context
        part = self.text[start : start + self.context + 1]
        return torch.from_numpy(part.astype(np.int64))
