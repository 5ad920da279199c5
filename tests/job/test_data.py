"""The same global batches in the same order, however many ranks read them."""

import random
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from placet.job.data import Data
from placet.job.loader import Position, part_loader

START = Position()


class Numbers(Dataset):
    """Sample i is (i, three draws): what augmentation does."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        draws = [torch.rand(()).item(), random.random(), np.random.rand()]
        return {"i": torch.tensor(i), "draws": torch.tensor(draws)}


class Stream(IterableDataset):
    """The numbers 0..size-1, plus 1000 times the epoch, and a draw each."""

    def __init__(self, size):
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for i in range(self.size):
            yield 1000 * self.epoch + i, torch.rand(())


class Broken(Numbers):
    def __getitem__(self, i):
        if i == 7:
            raise KeyError("sample 7 is torn")
        return torch.tensor(i)


def read(data, num_ranks, steps, *, accumulate=1, position=START, seed=3):
    """Per global batch: {row index: sample}, gathered over the ranks."""
    loaders = [
        part_loader(data, r, num_ranks, seed, accumulate, position)
        for r in range(num_ranks)
    ]
    batches = []
    for parts in islice(zip(*loaders, strict=True), steps):
        rows = {}
        for part in parts:
            assert len(part.micro_batches) == accumulate
            assert part.position == parts[0].position
            for micro in part.micro_batches:
                lengths = {len(values) for values in micro.batch.values()}
                assert lengths == {max(1, micro.num_rows)}
                for k in range(micro.num_rows):
                    assert micro.first_row + k not in rows
                    rows[micro.first_row + k] = {
                        name: value[k] for name, value in micro.batch.items()
                    }
        assert sorted(rows) == list(range(parts[0].global_rows))
        batches.append([rows[i] for i in sorted(rows)])
    return batches


def same_batches(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert len(x) == len(y)
        for p, q in zip(x, y, strict=True):
            assert all(torch.equal(p[k], q[k]) for k in p)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_data_same_rows_on_any_number_of_ranks(num_ranks, accumulate):
    data = Data(Numbers(21), batch_size=8)
    one = read(data, 1, 7)
    same_batches(one, read(data, num_ranks, 7, accumulate=accumulate))
    assert [len(b) for b in one] == [8, 8, 5, 8, 8, 5, 8]
    epochs = [[int(r["i"]) for b in one[e : e + 3] for r in b] for e in (0, 3)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(21))
    assert epochs[0] != epochs[1] != list(range(21))


def test_data_uneven_last_batch_gives_dummies():
    data = Data(Numbers(9), batch_size=4, shuffle=False)
    parts = [list(part_loader(data, r, 4, num_epochs=1)) for r in range(4)]
    last = [p[-1].micro_batches[0] for p in parts]
    assert [m.num_rows for m in last] == [1, 0, 0, 0]
    assert [m.is_dummy for m in last] == [False, True, True, True]
    assert all(int(m.batch["i"][0]) == 8 for m in last)
    assert [p[-1].global_rows for p in parts] == [1] * 4
    parts = list(part_loader(data, 0, 1, accumulate=3, num_epochs=1))
    assert [m.num_rows for m in parts[-1].micro_batches] == [1, 0, 0]
    assert [m.num_rows for m in parts[0].micro_batches] == [2, 2, 0]


def test_data_parts_follow_torch_chunk():
    data = Data(Numbers(7), batch_size=7, shuffle=False)
    whole = torch.arange(7)
    for rank, expected in enumerate(whole.chunk(3)):
        (part,) = part_loader(data, rank, 3, num_epochs=1)
        assert torch.equal(part.micro_batches[0].batch["i"], expected)


@pytest.mark.parametrize("stop", [1, 3, 4, 5])
def test_data_resumes_anywhere_on_another_number_of_ranks(stop):
    data = Data(Numbers(21), batch_size=8)
    plain = read(data, 1, 8)
    *_, part = islice(part_loader(data, 1, 4, 3), stop)
    rest = read(data, 3, 8 - stop, position=part.following)
    same_batches(plain[stop:], rest)


def test_data_workers_change_nothing():
    plain = read(Data(Numbers(21), batch_size=8), 1, 4)
    same_batches(plain, read(Data(Numbers(21), 8, num_workers=2), 2, 4, accumulate=2))


def test_data_other_seed_other_order_and_draws():
    data = Data(Numbers(21), batch_size=21)
    (a,), (b,) = read(data, 1, 1), read(data, 1, 1, seed=4)
    assert [int(r["i"]) for r in a] != [int(r["i"]) for r in b]
    by_index = {int(r["i"]): r["draws"] for r in b}
    assert all((r["draws"] != by_index[int(r["i"])]).all() for r in a)


@pytest.mark.parametrize("dataset", [Numbers(9), Stream(9)])
def test_data_leaves_the_models_randomness_alone(dataset):
    def draws(read_data):
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        if read_data:
            list(part_loader(Data(dataset, 4, shuffle=False), 0, 1, num_epochs=1))
        return torch.rand(()).item(), random.random(), np.random.rand()

    assert draws(read_data=True) == draws(read_data=False)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_data_stream_same_rows_on_any_number_of_ranks(num_workers):
    def rows(num_ranks, position=START):
        data = Data(Stream(10), 4, shuffle=False, num_workers=num_workers)
        parts = [
            part_loader(data, r, num_ranks, 0, 1, position) for r in range(num_ranks)
        ]
        out = []
        for batch in islice(zip(*parts, strict=True), 6):
            got = [m for p in batch for m in p.micro_batches if not m.is_dummy]
            out.append([torch.cat([m.batch[k] for m in got]).tolist() for k in (0, 1)])
        return out

    one = rows(1)
    assert [b[0] for b in one[:4]] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
        list(range(1000, 1004)),
    ]
    assert rows(3) == one
    assert rows(2, Position(0, 2))[:4] == one[2:]
    assert rows(2, Position(1, 1))[:2] == one[4:]


def test_data_stream_position_after_the_last_batch_is_the_next_epoch():
    data = Data(Stream(10), 4, shuffle=False)
    parts = list(part_loader(data, 0, 2, num_epochs=2))
    assert [p.following for p in parts[1:4]] == [
        Position(0, 2),
        Position(1),
        Position(1, 1),
    ]
    dropped = Data(Stream(10), 4, shuffle=False, drop_last=True)
    assert [p.global_rows for p in part_loader(dropped, 0, 2, num_epochs=1)] == [4, 4]


def test_data_adopts_a_loader():
    def collate(samples):
        return torch.stack([s["i"] for s in samples]) * 2

    for shuffle in (True, False):
        loader = DataLoader(
            Numbers(10),
            batch_size=4,
            shuffle=shuffle,
            collate_fn=collate,
            drop_last=True,
        )
        data = Data.of(loader)
        assert (data.shuffle, data.batch_size, data.drop_last) == (shuffle, 4, True)
        parts = list(part_loader(data, 0, 1, num_epochs=1))
        assert len(parts) == 2 == data.num_batches
        if not shuffle:
            assert parts[1].micro_batches[0].batch.tolist() == [8, 10, 12, 14]
    assert Data.of(data) is data
    assert Data.of(TensorDataset(torch.zeros(3, 1)), 2).batch_size == 2
    assert not Data.of(DataLoader(Stream(4), batch_size=2)).shuffle


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        (lambda d: DataLoader(d, batch_size=None), "batch_size="),
        (lambda d: DataLoader(d, batch_sampler=[[0, 1]]), "batch_sampler of its own"),
        (lambda d: DataLoader(d, sampler=WeightedRandomSampler([1.0], 3)), "Weighted"),
        (lambda d: d, "no batch size"),
    ],
)
def test_data_refuses_what_it_cannot_adopt(source, needed):
    with pytest.raises(ValueError, match=needed):
        Data.of(source(Numbers(10)))


@pytest.mark.parametrize(
    ("make", "needed"),
    [
        (lambda: Data([], 2), "at least 1 sample"),
        (lambda: Data(Numbers(4), 0), "at least 1 row"),
        (lambda: Data(Stream(4), 2), "shuffle=False"),
        (lambda: part_loader(Data(Numbers(9), 3), 0, 4), "at most -n 3"),
        (lambda: part_loader(Data(Numbers(2), 8), 0, 4), "number of samples"),
        (lambda: part_loader(Data(Numbers(9), 6), 0, 2, accumulate=4), "accumulate=3"),
        (lambda: part_loader(Data(Numbers(3), 4, drop_last=True), 0, 1), "drop_last"),
        (lambda: next(part_loader(Data(Stream(0), 4, False), 0, 1)), "stream gave no"),
        (
            lambda: next(
                part_loader(Data(Numbers(9), 3), 0, 1, position=Position(0, 9))
            ),
            "outside the data",
        ),
    ],
)
def test_data_errors_say_what_to_change(make, needed):
    with pytest.raises(ValueError, match=needed):
        make()


def test_data_refuses_what_is_no_data_set():
    with pytest.raises(TypeError, match="__getitem__"):
        Data(iter([1]), 2)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_data_errors_of_samples_surface(num_workers):
    data = Data(Broken(9), 3, shuffle=False, num_workers=num_workers)
    with pytest.raises(KeyError, match="sample 7 is torn"):
        list(part_loader(data, 0, 1, num_epochs=1))


def test_data_subset_reads_its_samples():
    data = Data(Subset(Numbers(30), [20, 5, 7]), 3, shuffle=False)
    (batch,) = read(data, 1, 1)
    assert [int(r["i"]) for r in batch] == [20, 5, 7]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_data_same_micro_batches_on_any_number_of_ranks(num_ranks):
    def micro_rows(ranks):
        loaders = [
            part_loader(Data(Numbers(20), 9), r, ranks, accumulate=2, num_epochs=1)
            for r in range(ranks)
        ]
        return [
            [
                sorted(
                    m.first_row + i
                    for part in parts
                    for m in [part.micro_batches[index]]
                    for i in range(m.num_rows)
                )
                for index in range(2)
            ]
            for parts in zip(*loaders, strict=True)
        ]

    assert micro_rows(num_ranks) == micro_rows(1)
