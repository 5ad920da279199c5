"""Read this rank's parts of a model's tensors from safetensors files.

Only the wanted slices are read, so a model larger than the machine can be loaded. Files
may be several, or named by an index (`model.safetensors.index.json`).
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from placet.errors import CheckpointError
from placet.placement.layout import Box, Shape, box_shape, num_elements

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class Wanted:
    """The part of a tensor that this rank stores.

    Args:
        shape: the whole tensor's shape, checked against the file's.
        box: which part; as `part_box` gives it.
    """

    shape: Shape
    box: Box

    @staticmethod
    def whole(shape: Shape) -> "Wanted":
        """All of a tensor."""
        return Wanted(tuple(shape), tuple((0, size) for size in shape))


def stream_safetensors(
    paths: Path | str | Sequence[Path | str], wanted: Mapping[str, Wanted]
) -> dict[str, Tensor]:
    """Read parts of tensors, in the dtype of the file.

    >>> stream_safetensors("model.safetensors.index.json", {
    ...     "head.weight": Wanted((50257, 768), ((0, 12565), (0, 768))),
    ... })

    Args:
        paths: a file, several, an index, or a folder with either.
        wanted: the parts by name; names not wanted are not read.

    Raises:
        CheckpointError: a file or name is missing, a file is torn, or a shape differs;
            names it, with what was found and needed.
    """
    where = _locate(_files(paths), set(wanted))
    by_file: dict[Path, list[str]] = {}
    for name in wanted:
        by_file.setdefault(where[name], []).append(name)
    found: dict[str, Tensor] = {}
    for path, names in by_file.items():
        try:
            with safe_open(path, framework="pt") as file:
                for name in names:
                    found[name] = _read(path, file, name, wanted[name])
        except (SafetensorError, OSError) as error:
            raise _torn(path, error) from error
    return {name: found[name] for name in wanted}


def _read(path: Path, file: Any, name: str, wanted: Wanted) -> Tensor:
    part = file.get_slice(name)
    shape = tuple(part.get_shape())
    if shape != wanted.shape:
        raise CheckpointError(
            f"{path} has shape {shape} for {name!r}, the model needs {wanted.shape}; "
            "it belongs to another model"
        )
    if not shape:
        scalar: Tensor = file.get_tensor(name)
        return scalar.clone()
    if num_elements(wanted.box) == 0:
        dtype = _DTYPES.get(part.get_dtype())
        if dtype is None:
            raise CheckpointError(f"{path} has {name!r} as unknown {part.get_dtype()}")
        return torch.empty(box_shape(wanted.box), dtype=dtype)
    sliced: Tensor = part[tuple(slice(start, stop) for start, stop in wanted.box)]
    # A view of the mapped file: the copy touches, and then holds, only its own part.
    return sliced.clone(memory_format=torch.contiguous_format)


def _files(paths: Path | str | Sequence[Path | str]) -> list[Path]:
    """The files that a path, or several, stand for."""
    if isinstance(paths, Path | str):
        path = Path(paths)
        if path.is_dir():
            indices = sorted(path.glob("*.safetensors.index.json"))
            return indices or sorted(path.glob("*.safetensors"))
        return [path]
    return [Path(path) for path in paths]


def _locate(files: list[Path], names: set[str]) -> dict[str, Path]:
    """Which file holds each wanted name."""
    where: dict[str, Path] = {}
    for path in files:
        if path.suffix == ".json":
            where.update(_read_index(path))
            continue
        try:
            with safe_open(path, framework="pt") as file:
                where.update(dict.fromkeys(file.keys(), path))
        except (SafetensorError, OSError) as error:
            raise _torn(path, error) from error
    if missing := sorted(names - where.keys()):
        near = difflib.get_close_matches(missing[0], where, n=1)
        raise CheckpointError(
            f"{', '.join(map(str, files)) or 'no safetensors file'} lacks "
            f"{missing[0]!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + (f"; nearest there: {near[0]!r}" if near else "")
            + "; it belongs to another model"
        )
    return where


def _read_index(path: Path) -> dict[str, Path]:
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        return {name: path.parent / file for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is no safetensors index ({type(error).__name__}: {error}); needed "
            '{"weight_map": {name: file}}'
        ) from error


def _torn(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be read as safetensors ({error}); it is missing, truncated or "
        "of another format"
    )
