"""Jobs for the virtual clock: moves of every kind, compiled as the engine does."""

import random
from functools import lru_cache

import torch

from placet.boxing.moves import (
    AllGather,
    AllReduce,
    AllToAll,
    BroadcastFrom,
    Move,
    ReduceScatter,
)
from placet.wire.engine.compile import compile_move
from testing.wire_model.cases import Case
from testing.wire_model.clock import Job
from testing.wire_model.tables import Table, table_of

NUM_ELEMENTS = (1, 7, 1000, 20_000, 70_000)
"""From 4 bytes to several slices' worth."""

KINDS = (
    "all-reduce ring",
    "all-reduce exchange",
    "all-reduce doubling",
    "all-reduce hierarchical",
    "all-gather ring",
    "all-gather direct",
    "reduce-scatter ring",
    "reduce-scatter direct",
    "all-to-all",
    "broadcast",
)


def random_job(rng: random.Random, case: Case) -> Job:
    """A move of a random kind and size for each collective of a case."""
    tables = {}
    for c, group in enumerate(case.groups):
        kind, num_elements = rng.choice(KINDS), rng.choice(NUM_ELEMENTS)
        for rank, table in zip(
            group, tables_of(kind, len(group), num_elements), strict=True
        ):
            tables[rank, c] = table.between(group)
    pauses = {
        (rank, c): rng.choice((0.0, 0.0, 0.05 * rng.random())) for rank, c in tables
    }
    priority = {c: rng.randrange(3) for c in range(len(case.groups))}
    return Job(case, tables, priority, pauses)


@lru_cache(maxsize=4096)
def tables_of(kind: str, size: int, num_elements: int) -> tuple[Table, ...]:
    """Every member's table of a move between ranks 0 .. size - 1."""
    move = move_of(kind, size, num_elements)
    return tuple(
        table_of(compile_move(move, rank).instructions) for rank in range(size)
    )


def move_of(kind: str, size: int, num_elements: int) -> Move:
    """A move of about so many elements between ranks 0 .. size - 1.

    Where a kind cannot be (blocks of one rank, a large exchange), it is a ring.
    """
    group = tuple(range(size))
    f32 = torch.float32
    equal = (-(-num_elements // size),) * size
    uneven = tuple(i * num_elements // (size * size) for i in group)
    match kind:
        case "all-reduce exchange" if num_elements <= 1000:
            return AllReduce(group, num_elements, f32, algorithm="exchange")
        case "all-reduce doubling":
            return AllReduce(group, num_elements, f32, algorithm="doubling")
        case "all-reduce hierarchical" if size % 2 == 0 and size >= 4:
            blocks = group[: size // 2], group[size // 2 :]
            return AllReduce(
                group, num_elements, f32, algorithm="hierarchical", blocks=blocks
            )
        case "all-gather ring":
            return AllGather(group, equal, f32)
        case "all-gather direct":
            return AllGather(group, uneven, f32)
        case "reduce-scatter ring":
            return ReduceScatter(group, equal, f32, algorithm="ring")
        case "reduce-scatter direct":
            return ReduceScatter(group, uneven, f32)
        case "all-to-all":
            counts = tuple(
                tuple((i * 7 + j * 3) % 5 * num_elements // size for j in group)
                for i in group
            )
            return AllToAll(group, counts, f32)
        case "broadcast":
            return BroadcastFrom(group, size - 1, num_elements, f32)
        case _:
            return AllReduce(group, num_elements, f32)
