"""A broadcast by a binomial tree: who has the elements passes them on.

A member sends what it has received byte by byte, so the tree is a pipeline. In place
there is nothing to fear: only the root reads its payload, and it writes the same bytes
to the same place.
"""

from placet.boxing.moves import BroadcastFrom
from placet.wire.engine.pieces import Follows, append, schedule_of
from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place, Schedule


def broadcast(move: BroadcastFrom, rank: int) -> Schedule:
    """Receive from the parent, send to `move.targets`."""
    num_bytes = move.num_elements * move.dtype.itemsize
    program: list[Instruction] = []
    own, result = Place(Buffer.PAYLOAD, 0), Place(Buffer.OUT, 0)
    ready: Follows = ()
    if rank == move.root:
        append(program, Instruction(Kind.COPY, num_bytes, src=own, dst=result))
    else:
        receive = Instruction(Kind.RECEIVE, num_bytes, _parent(move, rank), dst=result)
        ready = append(program, receive)
    held = own if rank == move.root else result
    for dst in move.targets(rank):
        append(program, Instruction(Kind.SEND, num_bytes, dst, held, follows=ready))
    return schedule_of(move, program)


def _parent(move: BroadcastFrom, rank: int) -> int:
    # `move.targets` serves distance d from distance d without its highest power of two.
    size, root = len(move.group), move.group.index(move.root)
    distance = (move.group.index(rank) - root) % size
    return move.group[(root + distance - (1 << distance.bit_length() - 1)) % size]
