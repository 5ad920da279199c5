"""Ring collectives as the engine's own instructions, small enough to search through."""

from placet.wire.engine.schedule import Instruction, Kind
from testing.wire_model.cases import Case


def ring(
    group: tuple[int, ...],
    rank: int,
    *,
    num_steps: int,
    step_bytes: int,
    reduce_apart: bool = False,
) -> tuple[Instruction, ...]:
    """What one member does: in each step it sends a chunk on and receives the next.

    With num_steps = len(group) - 1 this is a reduce-scatter (or an all-gather), with
    twice as many an all-reduce. Where the bytes lie is left out: models move none.

    Args:
        group: the members, in the ring's order.
        rank: one of them.
        num_steps: chunks that each member sends.
        step_bytes: bytes of a chunk.
        reduce_apart: receive into scratch memory and reduce in an instruction of its
            own, as programs do whose result needs several peers.
    """
    me = group.index(rank)
    after, before = group[(me + 1) % len(group)], group[me - 1]
    instructions: list[Instruction] = []
    last: tuple[tuple[int, int], ...] = ()  # what the next chunk to send follows
    for _ in range(num_steps):
        instructions.append(
            Instruction(Kind.SEND, step_bytes, peer=after, follows=last)
        )
        kind = Kind.RECEIVE if reduce_apart else Kind.RECEIVE_REDUCE
        last = ((len(instructions), 0),)
        instructions.append(Instruction(kind, step_bytes, peer=before))
        if reduce_apart:
            reduce = Instruction(Kind.REDUCE, step_bytes, follows=last)
            last = ((len(instructions), 0),)
            instructions.append(reduce)
    return tuple(instructions)


def small_rings(case: Case) -> dict[tuple[int, int], tuple[Instruction, ...]]:
    """Rings of 2 slices from each member to the next, for groups of 2 or 3.

    Between two ranks, collectives of even number move one chunk of 2 slices, the others
    2 chunks of one, the second made from what came. Those of odd number reduce apart.

    Returns:
        Of each (rank, collective), its instructions.
    """
    schedules = {}
    for c, group in enumerate(case.groups):
        num_steps = 1 if len(group) == 2 and c % 2 == 0 else 2
        for rank in group:
            schedules[rank, c] = ring(
                group,
                rank,
                num_steps=num_steps,
                step_bytes=2 // num_steps,
                reduce_apart=c % 2 == 1,
            )
    return schedules
