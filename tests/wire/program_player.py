"""Plays random programs on a wire, and compares each result with its definition."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from placet.errors import WireError
from placet.wire.interface import Future, Wire
from testing.random_programs import Call, Program, acts_of, payload_for
from tests.wire.conformance import expected


@dataclass(frozen=True)
class Played:
    """What came of some programs on one rank.

    Args:
        num_programs, num_moves: played to the end, and the moves in them.
        wrong: what differed from its definition, in words.
        hung: what did not end in time, in words; playing stops at the first.
    """

    num_programs: int
    num_moves: int
    wrong: tuple[str, ...]
    hung: tuple[str, ...]


def play_all(wire: Wire, programs: Iterable[Program]) -> Played:
    """Play programs one after another; ranks need not keep in step."""
    wrong: list[str] = []
    num_moves = num_programs = 0
    for program in programs:
        try:
            found, num = play(wire, program)
        except WireError as error:
            hung = f"seed {program.seed}, rank {wire.rank}: {error}"
            return Played(num_programs, num_moves, tuple(wrong), (hung,))
        wrong += found
        num_programs += 1
        num_moves += num
    return Played(num_programs, num_moves, tuple(wrong), ())


def play(
    wire: Wire,
    program: Program,
    *,
    waits: bool = True,
    disorder: float | None = None,
) -> tuple[list[str], int]:
    """Play one program; what was wrong, and how many moves this rank was in.

    See `acts_of` for `waits` and `disorder`.
    """
    flying: dict[int, tuple[Future, Tensor]] = {}
    wrong: list[str] = []
    num_moves = 0
    for act in acts_of(program, wire.rank, waits=waits, disorder=disorder):
        call = act.call
        if call is None:
            time.sleep(act.seconds)
        elif act.kind == "submit":
            flying[call.number] = _submit(wire, call, act.priority)
        else:
            future, payload = flying.pop(call.number)
            problem = _problem(call, future.wait(), payload, wire.rank)
            if problem:
                wrong.append(f"seed {program.seed}, rank {wire.rank}: {problem}")
            num_moves += 1
    return wrong, num_moves


def _submit(wire: Wire, call: Call, priority: int) -> tuple[Future, Tensor]:
    payload = payload_for(call)(call.move, wire.rank, "cpu").clone()
    out = payload if call.in_place else None
    future = wire.submit(call.move, payload, key=call.key, priority=priority, out=out)
    return future, payload


def _problem(call: Call, found: Tensor, payload: Tensor, rank: int) -> str:
    give = payload_for(call)
    wanted = expected(call.move, rank, "cpu", give)
    if found.dtype != wanted.dtype or not _equal(found, wanted):
        return f"{call}: its result is not that of its definition"
    if not call.in_place and not _equal(payload, give(call.move, rank, "cpu")):
        return f"{call}: its payload has changed"
    return ""


def _equal(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
