"""A folder of checkpoints: which are complete, which is the newest, which must go.

step-00000100            complete
step-00000100.old        replaced by a save of the same step; counts until it stands
step-00000100.partial    being written, or being removed
"""

import os
import re
import shutil
from pathlib import Path

NAME = re.compile(r"step-(\d+)(\.old)?")
"""What a complete checkpoint is called."""


def newest(folder: Path | str) -> Path | None:
    """The newest complete checkpoint of a folder, or None."""
    found = _complete(Path(folder))
    return found[max(found)] if found else None


def tidy(folder: Path) -> None:
    """Remove what killed saves left; only where no job is saving there."""
    for path in list(folder.iterdir()):
        if path.name.startswith("step-") and path.name.endswith(".partial"):
            shutil.rmtree(path)
    for path in list(folder.iterdir()):
        if NAME.fullmatch(path.name) and path.name.endswith(".old"):
            current = path.with_name(path.name.removesuffix(".old"))
            if current.exists():
                remove(path)
            else:
                path.rename(current)


def drop_old(folder: Path, keep: int, step: int) -> None:
    """Remove all but the newest `keep`; never the one of `step`, just written."""
    found = _complete(folder)
    surplus = [s for s in sorted(found) if s != step][: max(0, len(found) - keep)]
    for old in surplus:
        remove(found[old])


def remove(folder: Path) -> None:
    """Remove a folder so that it is never there by halves under its own name."""
    if folder.exists():
        doomed = folder.with_name(folder.name + ".partial")
        if doomed.exists():
            shutil.rmtree(doomed)
        folder.rename(doomed)
        shutil.rmtree(doomed)


def _complete(folder: Path) -> dict[int, Path]:
    """The complete checkpoints by step."""
    found: dict[int, Path] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = NAME.fullmatch(path.name)
        if match and path.is_dir() and (match[2] is None or int(match[1]) not in found):
            found[int(match[1])] = path
    return found


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a rename outlasts a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
