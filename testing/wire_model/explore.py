"""Search all interleavings of a model for states in which nothing can happen.

# NOTE [Steps that lose nothing]
Call a step *safe* if, once possible, it stays possible whatever else happens, and if it
leads to the same state before or after any other. A run to its end has to contain it
(else it would still be possible at the end), and it can be moved to the front. So
following a safe step alone reaches every end that following all steps reaches.

Under the protocol (not its mutants) these are safe:
1. Receiving, taking from aside, reducing, ending a wait: each is one rank's own matter.
   (Setting a slice aside and submitting its collective end alike once it is taken.)
2. As 1 goes first, channels are empty whenever a rank may send, and what it sends is
   received at once. Seen as one step, a READY is safe then: it only ever allows more.
   So is a slice whose receiver has submitted: no bound applies to it.

What is left, and searched in all orders, is what interleavings can really differ in:
when ranks submit, and which slices go before their receivers have submitted.
`explore` can use all of this, 1 alone, or nothing of it, and tests compare them.

Source: persistent sets of one transition, as in Godefroid, Partial-Order Methods for
the Verification of Concurrent Systems (LNCS 1032), ch. 4.
"""

from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal, TypeAlias

from testing.wire_model.primitives import PROTOCOL, Model, State, Step

Safe: TypeAlias = Literal["nothing", "receives", "all"]
"""Which steps count as safe: none, those of 1 in the note, those of 1 and 2."""

MOST_STATES = 1_000_000


@dataclass(frozen=True)
class Explored:
    """What a search found.

    Args:
        num_states: how many states it saw.
        ends: states in which nothing can happen.
        deadlocks: those of them in which work is undone.
        trace: the steps that lead to the first deadlock.
    """

    num_states: int
    ends: frozenset[State]
    deadlocks: tuple[State, ...]
    trace: tuple[str, ...]


def explore(
    model: Model, *, safe: Safe = "nothing", stop_at_first: bool = False
) -> Explored:
    """Visit every state that can be reached.

    Args:
        model: what to search.
        safe: which steps of the note to follow alone: those of 1, those of 1 and 2.
        stop_at_first: a single deadlock is enough.

    Raises:
        ValueError: a mutant has no safe steps; or there are too many states.
    """
    rules = model.protocol
    if safe != "nothing" and rules != PROTOCOL:
        raise ValueError(f"safe steps are those of PROTOCOL alone, got {rules}")
    start = model.start()
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    todo = [start]
    ends: set[State] = set()
    deadlocks: list[State] = []
    while todo:
        state = todo.pop()
        steps = _safe_steps(model, state, safe) or list(model.steps(state))
        for what, after in steps:
            if after not in came_from:
                came_from[after] = state, what
                todo.append(after)
        if not steps:
            ends.add(state)
            if not model.complete(state):
                deadlocks.append(state)
                if stop_at_first:
                    break
        if len(came_from) > MOST_STATES:
            raise ValueError(f"more than {MOST_STATES} states: make the case smaller")
    trace = _trace(came_from, deadlocks[0]) if deadlocks else ()
    return Explored(len(came_from), frozenset(ends), tuple(deadlocks), trace)


def _safe_steps(model: Model, state: State, safe: Safe) -> list[Step]:
    """One safe step, if there is any."""
    if safe == "nothing":
        return []
    kinds = [model.certain(state)]
    if safe == "all":
        kinds += [model.ready_sends(state), model.slice_sends(state, heard=True)]
    return list(islice(chain.from_iterable(kinds), 1))


def _trace(
    came_from: dict[State, tuple[State, str] | None], state: State
) -> tuple[str, ...]:
    steps = []
    while (before := came_from[state]) is not None:
        state, what = before
        steps.append(what)
    return tuple(reversed(steps))
