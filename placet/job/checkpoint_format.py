"""What a checkpoint's folder holds, and the state as a flat list of leaves.

    .metadata, __<rank>_0.distcp    the tensors, by torch.distributed.checkpoint
    placet.json                     written last: step, plain values, names, shapes,
                                    dtypes, and the size of every file

Plain values are JSON, tensors are read with `weights_only`, and `.metadata` through a
list of allowed names, so that loading a checkpoint runs no code from it.
"""

import base64
import difflib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from placet.errors import CheckpointError

MANIFEST_FILE = "placet.json"
_FORMAT = 1


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a checkpoint: its global shape, and its dtype as torch prints it."""

    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(tensor: Tensor) -> "TensorEntry":
        """The entry of a tensor; of a DTensor, of the whole it is a part of."""
        return TensorEntry(tuple(tensor.shape), str(tensor.dtype))

    def __repr__(self) -> str:
        return f"{self.dtype.removeprefix('torch.')} {self.shape}"


@dataclass(frozen=True)
class Manifest:
    """All of a checkpoint but its tensors' contents.

    Args:
        step: the step after which it was written.
        num_ranks: how many ranks wrote it.
        tensors: by key.
        values: plain values by key.
        files: sizes in bytes by name.
    """

    step: int
    num_ranks: int
    tensors: dict[str, TensorEntry]
    values: dict[str, Any]
    files: dict[str, int]


@dataclass(frozen=True)
class Leaf:
    """One tensor or plain value of a nested state, and where it stands."""

    key: str
    container: Any
    place: Any

    @property
    def value(self) -> Any:
        """What stands there."""
        return self.container[self.place]

    def put(self, value: Any) -> None:
        """Put something else there."""
        self.container[self.place] = value


def leaves(state: dict[str, Any]) -> Iterator[Leaf]:
    """The leaves of a state: its tensors, and its largest parts without tensors.

    Dicts and lists are entered as long as they hold tensors; keys are joined by "/".

    Raises:
        ValueError: a tensor inside a tuple, which cannot be filled in place.
    """
    yield from _walk(state, "")


def _walk(container: Any, path: str) -> Iterator[Leaf]:
    items = container.items() if isinstance(container, dict) else enumerate(container)
    for place, value in items:
        key = f"{path}{place}"
        if isinstance(value, dict | list) and _holds_tensor(value):
            yield from _walk(value, f"{key}/")
        elif isinstance(value, tuple) and _holds_tensor(value):
            raise ValueError(
                f"the state has a tensor inside a tuple at {key!r}; make it a list"
            )
        else:
            yield Leaf(key, container, place)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, Tensor)


def encode(value: Any, key: str) -> Any:
    """A plain value as JSON that keeps tuples, bytes and any keys apart.

    Raises:
        ValueError: a value of another type; names the key.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [encode(item, key) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(item, key) for item in value]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, Counter) else "dict"
        return {kind: [[encode(k, key), encode(v, key)] for k, v in value.items()]}
    raise ValueError(
        f"cannot save a {type(value).__name__} at {key!r}: a checkpoint holds tensors, "
        "None, bool, int, float, str, bytes, and lists, tuples and dicts of them"
    )


def decode(value: Any) -> Any:
    """The plain value that `encode` was given.

    Raises:
        ValueError, TypeError: it is no such JSON.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(decode(item) for item in content)
    if kind == "bytes":
        return base64.b64decode(content)
    pairs = {decode(k): decode(v) for k, v in content}
    return {"dict": dict, "counter": Counter}[kind](pairs)


def write_manifest(manifest: Manifest) -> bytes:
    """A manifest as bytes."""
    content = {
        "placet_checkpoint": _FORMAT,
        "step": manifest.step,
        "num_ranks": manifest.num_ranks,
        "tensors": {k: [list(e.shape), e.dtype] for k, e in manifest.tensors.items()},
        "values": {k: encode(v, k) for k, v in manifest.values.items()},
        "files": manifest.files,
    }
    return json.dumps(content).encode()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        CheckpointError: it is missing, torn, or of another program or format.
    """
    path = folder / MANIFEST_FILE
    try:
        content = json.loads(path.read_bytes())
        if content["placet_checkpoint"] != _FORMAT:
            raise CheckpointError(
                f"{path} has format {content['placet_checkpoint']!r}; this placet "
                f"reads format {_FORMAT}"
            )
        tensors = content["tensors"].items()
        values = content["values"].items()
        return Manifest(
            step=int(content["step"]),
            num_ranks=int(content["num_ranks"]),
            tensors={k: TensorEntry(tuple(s), d) for k, (s, d) in tensors},
            values={k: decode(v) for k, v in values},
            files={k: int(size) for k, size in content["files"].items()},
        )
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} is no checkpoint of placet: it has no {MANIFEST_FILE} "
            f"(found: {_listing(folder)})"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise CheckpointError(
            f"{path} is torn or foreign ({type(error).__name__}: {error}); needed the "
            "JSON that placet writes: take an older checkpoint"
        ) from error


def check_files(folder: Path, manifest: Manifest) -> None:
    """Check that every file is there in full.

    Raises:
        CheckpointError: names the file, the bytes found and the bytes needed.
    """
    for name, needed in manifest.files.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else None
        if found != needed:
            is_there = "is missing" if found is None else f"has {found} bytes"
            raise CheckpointError(
                f"{path} {is_there}, needed {needed} bytes: the checkpoint is "
                "truncated; take an older one"
            )


def check_keys(
    folder: Path, manifest: Manifest, found: list[Leaf], *, partial: bool
) -> None:
    """Check that a checkpoint and a state have the same keys, shapes and dtypes.

    Raises:
        CheckpointError: names the first keys that differ, found and needed.
    """
    tensors = {x.key: TensorEntry.of(x.value) for x in found if _is_tensor(x)}
    values = {leaf.key for leaf in found if not _is_tensor(leaf)}
    needed = tensors.keys() | values
    has = manifest.tensors.keys() | manifest.values.keys()
    if missing := sorted(needed - has):
        near = difflib.get_close_matches(missing[0], has, n=1)
        raise CheckpointError(
            f"{folder} lacks {_some(missing)}, which the job needs"
            + (f"; nearest there: {near[0]!r}" if near else "")
            + "; it belongs to another model, optimizer or version"
        )
    if not partial and (extra := sorted(has - needed)):
        raise CheckpointError(
            f"{folder} has {_some(extra)}, which the job has not; it belongs to "
            "another model or optimizer (partial=True loads only what is asked for)"
        )
    for key, entry in tensors.items():
        there = manifest.tensors.get(key, "a plain value")
        if there != entry:
            raise CheckpointError(
                f"{folder} has {there} for {key!r}, the job needs {entry}; it belongs "
                "to another model or precision"
            )
    if swapped := sorted(values & manifest.tensors.keys()):
        key = swapped[0]
        raise CheckpointError(
            f"{folder} has {manifest.tensors[key]} for {key!r}, the job needs a value"
        )


def _is_tensor(leaf: Leaf) -> bool:
    return isinstance(leaf.value, torch.Tensor)


def _some(keys: list[str]) -> str:
    shown = ", ".join(map(repr, keys[:3]))
    return shown if len(keys) <= 3 else f"{shown} and {len(keys) - 3} more keys"


def _listing(folder: Path) -> str:
    if not folder.is_dir():
        return "no such folder"
    names = sorted(p.name for p in folder.iterdir())
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") or "nothing"
