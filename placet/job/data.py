"""A data set and how it becomes global batches; `placet.job.loader` reads them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)


@dataclass(frozen=True)
class Data:
    """A data set and how it becomes global batches.

    >>> Data(digits, batch_size=64)

    Args:
        dataset: a map-style data set (`len` and `[i]`), or an `IterableDataset`. Of the
            latter every rank reads the whole stream and keeps its own rows, so reading
            costs each rank the whole stream and memory for one global batch.
        batch_size: rows of a *global* batch, whatever the number of ranks.
        shuffle: a new order each epoch; False for an `IterableDataset`, whose order is
            its own (it is told the epoch through `set_epoch`, if it has one).
        num_workers: loading processes per rank; 0 loads in the training process.
        collate: list of samples -> batch; torch's default when None.
        drop_last: leave out the last global batch of an epoch if it is short.
        worker_init: called with the worker's id in each loading process.

    Raises:
        ValueError: a size below 1, an empty data set, or `shuffle` on a stream.
        TypeError: `dataset` has neither `len` and `[i]` nor is an `IterableDataset`.
    """

    dataset: Any
    batch_size: int
    shuffle: bool = True
    num_workers: int = 0
    collate: Callable[[list[Any]], Any] | None = None
    drop_last: bool = False
    worker_init: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        sizes = self.batch_size, self.num_workers
        whole = all(isinstance(size, int) for size in sizes)
        if not whole or self.batch_size < 1 or self.num_workers < 0:
            raise ValueError(
                f"batch_size={self.batch_size!r} and num_workers={self.num_workers!r}: "
                "a global batch needs at least 1 row, and num_workers is 0 or more, "
                "in whole numbers"
            )
        if isinstance(self.dataset, IterableDataset):
            if self.shuffle:
                raise ValueError(
                    "an IterableDataset comes in its own order: pass shuffle=False and "
                    "shuffle inside the data set"
                )
            return
        if not (
            hasattr(self.dataset, "__len__") and hasattr(self.dataset, "__getitem__")
        ):
            raise TypeError(
                f"{type(self.dataset).__name__} is no data set: it needs __len__ and "
                "__getitem__, or to be a torch.utils.data.IterableDataset"
            )
        if len(self.dataset) == 0:
            raise ValueError("the data set is empty: it needs at least 1 sample")

    @staticmethod
    def of(
        source: "Data | DataLoader[Any] | Dataset[Any]", batch_size: int | None = None
    ) -> "Data":
        """Adopt a user's loader, or a data set with a batch size.

        A loader's data set, batch size (now the global one), shuffling, workers,
        collate function and drop_last are kept; its generator is not, since placet keys
        the order by the job's seed.

        Raises:
            ValueError: the loader has a sampler of its own, or no batch size is known.
        """
        if isinstance(source, Data):
            return source
        if isinstance(source, DataLoader):
            return _adopt(source)
        if batch_size is None:
            raise ValueError(
                f"a {type(source).__name__} alone has no batch size: write "
                "placet.Data(dataset, batch_size=...)"
            )
        stream = isinstance(source, IterableDataset)
        return Data(source, batch_size, shuffle=not stream)

    @property
    def num_batches(self) -> int | None:
        """Global batches in an epoch; None for a stream, whose length is unknown."""
        if isinstance(self.dataset, IterableDataset):
            return None
        rows = len(self.dataset)
        return (
            rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)
        )


def _adopt(loader: DataLoader[Any]) -> Data:
    stream = isinstance(loader.dataset, IterableDataset)
    if loader.batch_size is None:
        raise ValueError(
            "cannot adopt a DataLoader with a batch_sampler of its own or without "
            "batches: which rows form a global batch is placet's to know; write "
            "placet.Data(dataset, batch_size=...)"
        )
    if not stream and type(loader.batch_sampler) is not BatchSampler:
        raise ValueError(
            f"cannot adopt a DataLoader with a {type(loader.batch_sampler).__name__}; "
            "write placet.Data(dataset, batch_size=...)"
        )
    return Data(
        loader.dataset,
        loader.batch_size,
        shuffle=not stream and _shuffles(loader),
        num_workers=loader.num_workers,
        collate=None if loader.collate_fn is default_collate else loader.collate_fn,
        drop_last=loader.drop_last,
        worker_init=loader.worker_init_fn,
    )


def _shuffles(loader: DataLoader[Any]) -> bool:
    sampler = loader.sampler
    if type(sampler) is SequentialSampler:
        return False
    if (
        type(sampler) is RandomSampler
        and not sampler.replacement
        and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    ):
        return True
    raise ValueError(
        f"cannot adopt a DataLoader with a {type(sampler).__name__}: placet shuffles "
        "or not, and shares rows among ranks by itself; write placet.Data(dataset, "
        "batch_size=...), with torch.utils.data.Subset for a part of the samples"
    )
