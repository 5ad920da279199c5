"""Samples read under randomness keyed by (seed, epoch, sample).

A sample's own code draws from torch's, Python's and numpy's generators. They are seeded
before each sample by a key of what is read, so augmentation changes neither with the
number of ranks nor with the number of loading workers, nor after a resume.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


def key_of(*parts: int | str) -> int:
    """A 63-bit key of values, the same in every process and release."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_all(key: int) -> None:
    """Seed the generators that a sample's code draws from."""
    torch.default_generator.manual_seed(key)
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)


@contextmanager
def keeping_rng() -> Iterator[None]:
    """Leave the process's generators as they were: loading is not part of the model."""
    kept = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        random.setstate(kept[1])
        np.random.set_state(kept[2])


class KeyedDataset(Dataset[Any]):
    """Samples read under randomness keyed by (seed, epoch, sample index)."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, sample: tuple[int, int]) -> tuple[tuple[int, int], Any]:
        seed_all(key_of(self._seed, "sample", *sample))
        return sample, self._dataset[sample[1]]


class KeyedCollate:
    """A collate function under randomness keyed by its first sample."""

    def __init__(self, collate: Callable[[list[Any]], Any], seed: int) -> None:
        self._collate = collate
        self._seed = seed

    def __call__(self, keyed: list[tuple[tuple[int, int], Any]]) -> Any:
        seed_all(key_of(self._seed, "collate", *keyed[0][0]))
        return self._collate([sample for _, sample in keyed])


class KeyedStream(IterableDataset[Any]):
    """A stream read under randomness keyed by (seed, epoch, worker, position)."""

    def __init__(self, dataset: Any, seed: int, epoch: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        seed_all(key_of(self._seed, "stream", self._epoch, worker))
        samples = iter(self._dataset)
        for i in count():
            seed_all(key_of(self._seed, "stream", self._epoch, worker, i))
            try:
                sample = next(samples)
            except StopIteration:
                return
            yield sample


def same(sample: Any) -> Any:
    """The sample itself: what a loader that does not collate calls."""
    return sample
