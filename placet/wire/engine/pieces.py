"""What all algorithms build their schedules with."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

from placet.boxing.moves import AllReduce, Move, MoveReduction, ReduceScatter
from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place, Schedule

Follows: TypeAlias = tuple[tuple[int, int], ...]
"""What a later instruction follows; see `Instruction.follows`."""

Span: TypeAlias = tuple[int, int]
"""A range of bytes: where it starts, and how many there are."""


def append(program: list[Instruction], instruction: Instruction) -> Follows:
    """Add an instruction, if it has any bytes.

    Returns:
        What another one of the same length has in `follows` to come after it.
    """
    if not instruction.num_bytes:
        return ()
    program.append(instruction)
    return ((len(program) - 1, 0),)


def spans(counts: Sequence[int], itemsize: int, start: int = 0) -> list[Span]:
    """Ranges of bytes that hold so many elements each, one behind the other."""
    ends = accumulate((count * itemsize for count in counts), initial=start)
    return [(first, last - first) for first, last in pairwise(ends)]


def gather_and_reduce(
    program: list[Instruction],
    group: tuple[int, ...],
    me: int,
    own: Place,
    num_bytes: int,
    sends: Follows = (),
    start: int = 0,
) -> Follows:
    """Receive a term from each other member, and reduce all in group order.

    The terms wait in scratch memory, as they may come in any order. The total grows
    there too, where its first term was. Only the last step writes the result, which
    may lie where the payload does.

    Args:
        program: gets the instructions.
        group: the members.
        me: which one this is.
        own: this one's term, so many bytes.
        num_bytes: of each term.
        sends: sends of what lies where the result goes; the last step follows them.
        start: where in the result.

    Returns:
        What must be done before the result may be sent on. So many terms but one take
        scratch memory.
    """
    terms: list[Place] = []
    arrivals: list[Follows] = []
    for i, peer in enumerate(group):
        term = own
        if i != me:
            term = Place(Buffer.SCRATCH, (i - (i > me)) * num_bytes)
        receive = Instruction(Kind.RECEIVE, num_bytes, peer, dst=term)
        arrivals.append(() if i == me else append(program, receive))
        terms.append(term)
    total, ready = terms[0], arrivals[0]
    for i in range(1, len(group)):
        last = i == len(group) - 1
        ready += arrivals[i] + (sends if last else ())
        dst = Place(Buffer.OUT, start) if last else terms[0 if me else 1]
        reduce = Instruction(Kind.REDUCE, num_bytes, -1, total, dst, terms[i], ready)
        total, ready = dst, append(program, reduce)
    return ready


def schedule_of(
    move: Move, program: Sequence[Instruction], scratch_bytes: int = 0
) -> Schedule:
    """The schedule of a move that has these instructions."""
    reduction: MoveReduction = "sum"
    if isinstance(move, AllReduce | ReduceScatter):
        reduction = move.reduction
    return Schedule(
        instructions=tuple(program),
        scratch_bytes=scratch_bytes,
        itemsize=move.dtype.itemsize,
        dtype_name=str(move.dtype),
        reduction=reduction,
    )
