"""Checkpoints: written beside the training, complete or not there at all.

A save copies the local state at once (training may go on), and a thread writes it:

    step-00000100.partial/      all ranks write their parts          -> Saver.save
    step-00000100/              rank 0 syncs, then renames           -> _publish

A rename is atomic, so a folder named `step-N` is complete, whenever a process is
killed; the newest is found by listing. Re-saving a step first renames the old one to
`step-N.old`, which counts as `step-N` until the new one stands.

Loading reshards: each rank reads the parts it needs, whatever the number of ranks that
wrote them, and replicated or split (uneven too) on either side.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from placet.errors import CheckpointError
from placet.job.checkpoint_folder import (
    NAME,
    drop_old,
    newest,
    remove,
    sync_folder,
    tidy,
)
from placet.job.checkpoint_format import (
    MANIFEST_FILE,
    Manifest,
    TensorEntry,
    check_files,
    check_keys,
    decode,
    encode,
    leaves,
    read_manifest,
    write_manifest,
)
from placet.torch_private.checkpoint import (
    METADATA_FILE,
    load_tensors,
    save_tensors,
    staged,
    tensor_shapes,
)

_MESSAGE_BYTES = 4096
"""Lengths, headers and the group's own set-up, with one peer in one save, at most."""


@dataclass(frozen=True)
class Checkpoints:
    """Where and how often a job saves.

    Args:
        folder: holds one folder per checkpoint; on a file system all ranks share.
        every_steps: save after each so many steps; None: only when asked.
        keep: how many complete checkpoints stay, the newest ones.

    Raises:
        ValueError: a number below 1.
    """

    folder: Path | str
    every_steps: int | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        if self.keep < 1 or (self.every_steps is not None and self.every_steps < 1):
            raise ValueError(
                f"Checkpoints(every_steps={self.every_steps}, keep={self.keep}): both "
                "must be at least 1"
            )

    def is_due(self, step: int) -> bool:
        """Whether to save after this step."""
        return self.every_steps is not None and step % self.every_steps == 0

    @staticmethod
    def of_run(run_dir: Path | None, every_steps: int | None) -> "Checkpoints | None":
        """Those in a run's own folder; None where there is no run."""
        if run_dir is None:
            return None
        return Checkpoints(run_dir / "checkpoints", every_steps or None)


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint: its bytes over all ranks, and the seconds it took.

    `message_bytes` is a bound on what this rank sent and received to agree on it: plans
    and results go to rank 0, plans and the metadata come back, and none of these is
    longer than the metadata. `seconds` runs from the call of `save` to the rename;
    `blocked_seconds` is the part of it in which the training stood still.
    """

    step: int
    path: Path
    num_bytes: int
    message_bytes: int
    seconds: float
    blocked_seconds: float


class Saver:
    """Saves a job's state; every rank makes one and calls it at the same steps.

    Args:
        checkpoints: where, and how many stay.
        rank: this rank.
        num_ranks: ranks of the job.
        new_group: makes a group of all ranks for this saver alone, so that its messages
            never meet the training's; None makes one with gloo where num_ranks > 1.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        *,
        rank: int = 0,
        num_ranks: int = 1,
        new_group: Callable[[], ProcessGroup] | None = None,
    ) -> None:
        self._checkpoints = checkpoints
        self._folder = Path(checkpoints.folder)
        self._rank = rank
        self._num_ranks = num_ranks
        if rank == 0:  # before the group is made: nobody writes yet
            self._folder.mkdir(parents=True, exist_ok=True)
            tidy(self._folder)
        self._group: ProcessGroup | None = None
        if num_ranks > 1:
            self._group = (new_group or _gloo_group)()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="placet-save")
        self._pending: Future[Saved] | None = None

    def save(
        self, step: int, state: dict[str, Any], *, blocking: bool = False
    ) -> Saved | None:
        """Save a state; waits for the save before it, if that one still runs.

        Args:
            step: names the checkpoint.
            state: nested dicts and lists of tensors (equal on all ranks), DTensors
                (each rank its part), and plain values, of which rank 0's are kept.
            blocking: return only when it is complete.

        Returns:
            What was saved, if `blocking`; else what the save before it wrote, if that
            was not told yet.

        Raises:
            CheckpointError: this save (if blocking), or the one before it, failed.
            ValueError: the state holds what no checkpoint can.
        """
        start = time.monotonic()
        before = self.wait()
        tensors: dict[str, Tensor] = {}
        values: dict[str, Any] = {}
        for leaf in leaves(state):
            if isinstance(leaf.value, Tensor):
                tensors[leaf.key] = staged(leaf.value)
            else:
                values[leaf.key] = decode(encode(leaf.value, leaf.key))  # a copy
        blocked_seconds = time.monotonic() - start
        save = _Save(step, tensors, values, start, blocked_seconds)
        self._pending = self._thread.submit(self._write, save)
        return self.wait() if blocking else before

    def wait(self) -> Saved | None:
        """Wait for the save that runs, if any.

        Raises:
            CheckpointError: it failed; the checkpoints before it are still there.
        """
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def finished(self) -> Saved | None:
        """The save that ran, once it is done and not told yet; never waits.

        Raises:
            CheckpointError: it failed; the checkpoints before it are still there.
        """
        if self._pending is None or not self._pending.done():
            return None
        return self.wait()

    def close(self) -> Saved | None:
        """Wait for the save that runs, and let go of the thread and the group.

        Raises:
            CheckpointError: it failed; the checkpoints before it are still there.
        """
        try:
            return self.wait()
        finally:
            self._thread.shutdown()
            if self._group is not None and dist.is_initialized():
                dist.destroy_process_group(self._group)
            self._group = None

    def _write(self, save: "_Save") -> Saved:
        """Runs in the thread, on every rank at once."""
        folder = self._folder / f"step-{save.step:08d}"
        partial = folder.with_name(folder.name + ".partial")
        try:
            save_tensors(save.tensors, partial, self._group)
            num_bytes, num_metadata_bytes, failure = 0, 0, None
            if self._rank == 0:
                try:
                    num_metadata_bytes = (partial / METADATA_FILE).stat().st_size
                    num_bytes = _publish(save, partial, folder, self._num_ranks)
                    drop_old(self._folder, self._checkpoints.keep, save.step)
                except Exception as error:  # told to all ranks, which wait for it
                    failure = f"{type(error).__name__}: {error}"
            num_bytes, num_metadata_bytes, failure = _from_rank_0(
                self._group, (num_bytes, num_metadata_bytes, failure)
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(_failed(save.step, partial, str(error))) from error
        if failure is not None:
            raise CheckpointError(_failed(save.step, partial, f"rank 0: {failure}"))
        seconds = time.monotonic() - save.start_seconds
        peers = min(1, self._num_ranks - 1) if self._rank else self._num_ranks - 1
        message_bytes = peers * (4 * num_metadata_bytes + _MESSAGE_BYTES)
        return Saved(
            save.step, folder, num_bytes, message_bytes, seconds, save.blocked_seconds
        )


@dataclass(frozen=True)
class _Save:
    """What the thread is to write."""

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]
    start_seconds: float
    blocked_seconds: float


def _failed(step: int, folder: Path, why: str) -> str:
    return (
        f"the checkpoint of step {step} could not be written to {folder}: {why}; "
        "complete ones before it are still there"
    )


def _gloo_group() -> ProcessGroup:
    group: ProcessGroup = dist.new_group(backend="gloo")
    return group


def _from_rank_0(
    group: ProcessGroup | None, value: tuple[int, int, str | None]
) -> tuple[int, int, str | None]:
    if group is None:
        return value
    box = [value]
    dist.broadcast_object_list(box, group=group, group_src=0)
    return box[0]


def _publish(save: _Save, partial: Path, folder: Path, num_ranks: int) -> int:
    """Make a written checkpoint durable and visible; returns its bytes."""
    shapes = tensor_shapes(partial)
    assert shapes.keys() == save.tensors.keys()
    written = {f"__{rank}_0.distcp" for rank in range(num_ranks)}
    sizes = {p.name: p.stat().st_size for p in sorted(partial.iterdir())}
    if unseen := sorted(written - sizes.keys()):
        raise FileNotFoundError(
            f"rank 0 does not see {unseen[0]}; the folder must be on a file system "
            "that all ranks share"
        )
    files = {n: s for n, s in sizes.items() if n in written or n == ".metadata"}
    entries = {key: TensorEntry.of(t) for key, t in save.tensors.items()}
    manifest = Manifest(save.step, num_ranks, entries, save.values, files)
    content = write_manifest(manifest)
    with (partial / MANIFEST_FILE).open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(partial)
    replaced = folder.with_name(folder.name + ".old")
    if folder.exists():
        remove(replaced)
        folder.rename(replaced)
    partial.rename(folder)
    sync_folder(folder.parent)
    remove(replaced)
    return sum(files.values()) + len(content)


def load(path: Path | str, state: dict[str, Any], *, partial: bool = False) -> int:
    """Fill a state from a checkpoint, on any number of ranks.

    Tensors and the local parts of DTensors are filled in place; plain values are put
    into the state's own dicts and lists. Nothing is changed when a check fails.

    Args:
        path: a checkpoint, or a folder of them, of which the newest is taken.
        state: as for `Saver.save`; says which keys, shapes and dtypes are needed.
        partial: allow the checkpoint to hold more than `state` asks for.

    Returns:
        The step after which the checkpoint was written.

    Raises:
        CheckpointError: none is there, or it is truncated, foreign, or of another
            model; names the file or key, what was found and what was needed.
    """
    folder = _find(Path(path))
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    found = list(leaves(state))
    check_keys(folder, manifest, found, partial=partial)
    _check_metadata(folder, manifest)
    tensors = {x.key: x.value.detach() for x in found if isinstance(x.value, Tensor)}
    try:
        load_tensors(tensors, folder)
    except (RuntimeError, ValueError, OSError) as error:
        raise CheckpointError(
            f"{folder} cannot be read ({error}); the state is now filled in part: take "
            "an older checkpoint"
        ) from error
    for leaf in found:
        if not isinstance(leaf.value, Tensor):
            leaf.put(manifest.values[leaf.key])
    return manifest.step


def manifest_of(path: Path | str) -> Manifest:
    """What a checkpoint holds: step, plain values, and tensors' shapes and dtypes.

    Raises:
        CheckpointError: there is none, or it is torn or foreign.
    """
    return read_manifest(_find(Path(path)))


def _find(path: Path) -> Path:
    if (path / MANIFEST_FILE).is_file():
        return path
    if NAME.fullmatch(path.name) or (path / ".metadata").exists():
        return path  # a checkpoint by name: reading says what is wrong with it
    found = newest(path)
    if found is None:
        raise CheckpointError(
            f"{path} holds no complete checkpoint: needed a folder step-<number>"
            + ("" if path.is_dir() else "; there is no such folder")
        )
    return found


def _check_metadata(folder: Path, manifest: Manifest) -> None:
    try:
        shapes = tensor_shapes(folder)
    except Exception as error:  # a torn pickle raises whatever its opcodes lead to
        raise CheckpointError(
            f"{folder / '.metadata'} is torn or foreign ({error}); needed what "
            "torch.distributed.checkpoint writes: take an older checkpoint"
        ) from error
    if shapes != {key: entry.shape for key, entry in manifest.tensors.items()}:
        raise CheckpointError(
            f"{folder / '.metadata'} does not belong to {MANIFEST_FILE}: they name "
            "different tensors"
        )
