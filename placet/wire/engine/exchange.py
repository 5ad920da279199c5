"""An all-reduce in one round: everyone gives all it has to everyone.

For small payloads: p - 1 times the bytes, but one latency. Each member reduces by
itself, in group order, so all get the same bits. What arrives waits in scratch memory.
"""

from placet.boxing.algorithms import EXCHANGE_SCRATCH_BYTES
from placet.boxing.moves import AllReduce
from placet.wire.engine.pieces import Follows, append, gather_and_reduce, schedule_of
from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place, Schedule


def all_reduce(move: AllReduce, rank: int) -> Schedule:
    """Send to all, receive from all, then ((x[0] + x[1]) + x[2]) + ...

    The last step follows the sends: it may write over the payload.

    Raises:
        ValueError: it would need more than 1 MiB of scratch memory.
    """
    group = move.group
    size, me = len(group), group.index(rank)
    num_bytes = move.num_elements * move.dtype.itemsize
    scratch_bytes = (size - 1) * num_bytes
    if scratch_bytes > EXCHANGE_SCRATCH_BYTES:
        raise ValueError(
            f"an exchange of {num_bytes} bytes over {size} members needs "
            f"{scratch_bytes} bytes of memory, at most {EXCHANGE_SCRATCH_BYTES} are "
            "allowed; use a ring"
        )
    program: list[Instruction] = []
    own = Place(Buffer.PAYLOAD, 0)
    sends: Follows = ()
    for distance in range(1, size):
        dst = group[(me + distance) % size]
        sends += append(program, Instruction(Kind.SEND, num_bytes, dst, own))
    gather_and_reduce(program, group, me, own, num_bytes, sends)
    return schedule_of(move, program, scratch_bytes)
