"""Reading data: the same global batches in the same order on any number of ranks.

One epoch is an order of sample indices that depends on (seed, epoch) alone. Global
batch b is order[b * G : (b + 1) * G], cut into micro-batches by torch.chunk's rule, so
that these too are the same on any number of ranks (BatchNorm normalises over one); each
rank reads its `S(0)` part of every micro-batch:

    order       = randperm(n) of a generator keyed by (seed, epoch)    -> _epoch_order
    micro-batch = chunk(0, rows, accumulate, m)                        -> _plan_batch
    rank's part = chunk(start, stop, num_ranks, rank)                  -> _plan_batch

What a sample's own code draws (augmentation) is keyed by (seed, epoch, sample index),
so it changes neither with the ranks nor with the number of loading workers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice, tee
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from placet.job.data import Data
from placet.job.keyed_data import (
    KeyedCollate,
    KeyedDataset,
    KeyedStream,
    keeping_rng,
    key_of,
    same,
)
from placet.placement.layout import chunk


@dataclass(frozen=True)
class Position:
    """Where in the data a job stands: the next global batch to read."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class MicroBatch:
    """A rank's rows of one micro-batch.

    Args:
        batch: the collated rows.
        first_row: index of its first row within the global batch.
        num_rows: how many rows count; 0 for a dummy.
    """

    batch: Any
    first_row: int
    num_rows: int

    @property
    def is_dummy(self) -> bool:
        """Whether `batch` is the global batch's row 0, there only to be run along."""
        return self.num_rows == 0


@dataclass(frozen=True)
class BatchPart:
    """One rank's part of one global batch, in as many micro-batches on every rank.

    Args:
        micro_batches: `accumulate` of them.
        global_rows: rows of the global batch, over all ranks.
        position: which batch this is.
        following: the position to resume from once this batch is done.
    """

    micro_batches: tuple[MicroBatch, ...]
    global_rows: int
    position: Position
    following: Position

    @property
    def epoch(self) -> int:
        """The epoch it belongs to."""
        return self.position.epoch

    @property
    def index(self) -> int:
        """Its index in the epoch."""
        return self.position.index

    @property
    def num_rows(self) -> int:
        """Rows that count on this rank."""
        return sum(m.num_rows for m in self.micro_batches)


def part_loader(
    data: Data,
    rank: int,
    num_ranks: int,
    seed: int = 0,
    accumulate: int = 1,
    position: Position = Position(),
    num_epochs: int | None = None,
) -> Iterator[BatchPart]:
    """A rank's parts of the global batches, from a position on.

    Args:
        data: what to read.
        rank: this rank.
        num_ranks: ranks that share each global batch.
        seed: keys the order and the samples' randomness; the job's seed.
        accumulate: micro-batches per rank and step.
        position: where to begin; any position of any earlier run with this seed.
        num_epochs: stop after so many epochs; go on for ever when None.

    Raises:
        ValueError: more ranks x micro-batches than rows of a global batch.
    """
    _check_enough_rows(data, num_ranks, accumulate)
    share = _Share(rank, num_ranks, accumulate)
    if isinstance(data.dataset, IterableDataset):
        return _stream_parts(data, share, seed, position, num_epochs)
    plans = _plans(data, share, seed, position, num_epochs)
    return _mapped_parts(data, plans, seed)


def _check_enough_rows(data: Data, num_ranks: int, accumulate: int) -> None:
    rows, what = data.batch_size, "batch_size"
    if not isinstance(data.dataset, IterableDataset):
        if data.num_batches == 0:
            raise ValueError(
                f"drop_last leaves no batch: the data set has {len(data.dataset)} "
                f"samples, a global batch {rows}; lower batch_size or drop_last=False"
            )
        if len(data.dataset) < rows:
            rows, what = len(data.dataset), "number of samples"
    if rows < num_ranks * accumulate:
        raise ValueError(
            f"a global batch of {rows} rows ({what}) cannot give {num_ranks} ranks x "
            f"{accumulate} micro-batches a row each; use at most -n "
            f"{max(1, rows // accumulate)}"
            + (f" or accumulate={max(1, rows // num_ranks)}" if accumulate > 1 else "")
            + f", or a {what} of at least {num_ranks * accumulate}"
        )


@dataclass(frozen=True)
class _Share:
    """Whose rows of a global batch are read, and in how many micro-batches."""

    rank: int
    num_ranks: int
    accumulate: int


@dataclass(frozen=True)
class _MicroPlan:
    """The samples of one micro-batch, as (epoch, sample index)."""

    samples: tuple[tuple[int, int], ...]
    first_row: int
    num_rows: int


@dataclass(frozen=True)
class _PartPlan:
    """A `BatchPart` before its samples are read."""

    micro_batches: tuple[_MicroPlan, ...]
    global_rows: int
    position: Position
    following: Position


def _plans(
    data: Data,
    share: _Share,
    seed: int,
    position: Position,
    num_epochs: int | None,
) -> Iterator[_PartPlan]:
    num_batches = data.num_batches
    assert num_batches is not None
    if not 0 <= position.index <= num_batches or position.epoch < 0:
        raise ValueError(
            f"{position} is outside the data: an epoch of {len(data.dataset)} samples "
            f"has {num_batches} global batches of {data.batch_size}"
        )
    first = position.index
    for epoch in _epochs(position.epoch, num_epochs):
        order = _epoch_order(data, seed, epoch)
        for index in range(first, num_batches):
            batch = order[index * data.batch_size : (index + 1) * data.batch_size]
            here = Position(epoch, index)
            last = index + 1 == num_batches
            following = Position(epoch + 1) if last else Position(epoch, index + 1)
            micros = _plan_batch([(epoch, int(i)) for i in batch], share)
            yield _PartPlan(micros, len(batch), here, following)
        first = 0


def _epochs(first: int, num_epochs: int | None) -> Iterable[int]:
    return count(first) if num_epochs is None else range(first, first + num_epochs)


def _epoch_order(data: Data, seed: int, epoch: int) -> Tensor:
    if not data.shuffle:
        return torch.arange(len(data.dataset))
    generator = torch.Generator().manual_seed(key_of(seed, "order", epoch))
    return torch.randperm(len(data.dataset), generator=generator)


def _plan_batch(
    samples: list[tuple[int, int]], share: _Share
) -> tuple[_MicroPlan, ...]:
    plans = []
    for m in range(share.accumulate):
        start, stop = chunk(0, len(samples), share.accumulate, m)
        first, end = chunk(start, stop, share.num_ranks, share.rank)
        rows = samples[first:end] or samples[:1]
        plans.append(_MicroPlan(tuple(rows), first, end - first))
    return tuple(plans)


def _mapped_parts(
    data: Data, plans: Iterator[_PartPlan], seed: int
) -> Iterator[BatchPart]:
    asked, given = tee(plans)
    loader: DataLoader[Any] = DataLoader(
        KeyedDataset(data.dataset, seed),
        batch_sampler=_Samples(asked),
        num_workers=data.num_workers,
        collate_fn=KeyedCollate(data.collate or default_collate, seed),
        worker_init_fn=data.worker_init,
        generator=torch.Generator().manual_seed(key_of(seed, "workers")),
    )
    batches = iter(loader)
    for plan in given:
        micros = []
        for micro in plan.micro_batches:
            with keeping_rng():
                batch = next(batches)
            micros.append(MicroBatch(batch, micro.first_row, micro.num_rows))
        yield BatchPart(tuple(micros), plan.global_rows, plan.position, plan.following)


class _Samples:
    """The samples of each micro-batch in turn, as a DataLoader's batch sampler."""

    def __init__(self, plans: Iterator[_PartPlan]) -> None:
        self._plans = plans

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for plan in self._plans:
            yield from (list(micro.samples) for micro in plan.micro_batches)


def _stream_parts(
    data: Data,
    share: _Share,
    seed: int,
    position: Position,
    num_epochs: int | None,
) -> Iterator[BatchPart]:
    collate = KeyedCollate(data.collate or default_collate, seed)
    first = position.index
    for epoch in _epochs(position.epoch, num_epochs):
        batches = _stream_batches(data, seed, epoch)
        # One batch ahead, to know which is the last of the epoch.
        coming = next(batches, None)
        if coming is None:
            raise ValueError(
                f"the stream gave no global batch in epoch {epoch}: it needs at least "
                f"1 sample (drop_last={data.drop_last}, batch_size={data.batch_size})"
            )
        for index in count():
            batch, coming = coming, next(batches, None)
            if batch is None:
                break
            if index < first:
                continue
            following = (
                Position(epoch + 1) if coming is None else Position(epoch, index + 1)
            )
            micros = []
            for micro in _plan_batch([(epoch, i) for i in range(len(batch))], share):
                rows = [
                    ((e, index * data.batch_size + i), batch[i])
                    for e, i in micro.samples
                ]
                with keeping_rng():
                    collated = collate(rows)
                micros.append(MicroBatch(collated, micro.first_row, micro.num_rows))
            here = Position(epoch, index)
            yield BatchPart(tuple(micros), len(batch), here, following)
        first = 0


def _stream_batches(data: Data, seed: int, epoch: int) -> Iterator[list[Any]]:
    """Global batches as lists of samples."""
    set_epoch = getattr(data.dataset, "set_epoch", None)
    if set_epoch is not None:
        set_epoch(epoch)
    loader: DataLoader[Any] = DataLoader(
        KeyedStream(data.dataset, seed, epoch),
        batch_size=None,
        num_workers=data.num_workers,
        collate_fn=same,
        worker_init_fn=data.worker_init,
        generator=torch.Generator().manual_seed(key_of(seed, "workers", epoch)),
    )
    samples = iter(loader)
    while True:
        with keeping_rng():
            batch = list(islice(samples, data.batch_size))
        if not batch:
            return
        if len(batch) == data.batch_size or not data.drop_last:
            yield batch
