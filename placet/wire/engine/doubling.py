"""An all-reduce by recursive doubling: log2(p) rounds of everything.

In round r members at distance 2**r swap the sums they have and add them, the lower
one's first; so after each round twice as many members hold the same bits.

Where p is no power of two, the first members pair up: member 2j gives its payload to
member 2j + 1, which takes part for both and gives the result back. That result holds
what member 2j gave, byte by byte; so member 2j may receive it over its payload (see
NOTE [What comes back was sent] in ring.py).

Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication
operations in MPICH", Int. J. High Perform. Comput. Appl. 19 (2005).
"""

from placet.boxing.algorithm_bytes import doubling_core
from placet.boxing.moves import AllReduce
from placet.wire.engine.pieces import Follows, append, schedule_of
from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place, Schedule

_OWN = Place(Buffer.PAYLOAD, 0)
_RESULT = Place(Buffer.OUT, 0)


def all_reduce(move: AllReduce, rank: int) -> Schedule:
    """Fold in what is over, double, and give it back."""
    group = move.group
    size, me = len(group), group.index(rank)
    num_bytes = move.num_elements * move.dtype.itemsize
    core, _ = doubling_core(size)
    num_pairs = size - core
    if me >= 2 * num_pairs:
        program, num_places = _core(move, me - num_pairs, num_pairs)
    elif me % 2:
        program, num_places = _core(move, me // 2, num_pairs)
    else:
        partner, num_places = group[me + 1], 0
        program = []
        append(program, Instruction(Kind.SEND, num_bytes, partner, _OWN))
        append(program, Instruction(Kind.RECEIVE, num_bytes, partner, dst=_RESULT))
    return schedule_of(move, program, num_places * num_bytes)


def _core(move: AllReduce, place: int, num_pairs: int) -> tuple[list[Instruction], int]:
    """The instructions of one that runs the rounds, and how many payloads wait in
    scratch memory; `place` is its position among those that run them."""
    group, num_bytes = move.group, move.num_elements * move.dtype.itemsize
    _, rounds = doubling_core(len(group))
    folds = place < num_pairs
    # A sum is kept where the term that made it arrived; so no place is written while a
    # send may still read it, but for the result: its payload may be being sent.
    total = _OWN
    ready: Follows = ()
    sends: Follows = ()
    program: list[Instruction] = []
    arrivals = []
    if folds:
        arrivals.append((group[2 * place], True))
    for r in range(rounds):
        other = place ^ (1 << r)
        member = 2 * other + 1 if other < num_pairs else other + num_pairs
        arrivals.append((group[member], other < place))
    for i, (peer, comes_first) in enumerate(arrivals):
        term = Place(Buffer.SCRATCH, i * num_bytes)
        if i or not folds:
            send = Instruction(Kind.SEND, num_bytes, peer, total, follows=ready)
            sent = append(program, send)
            sends += sent if total == _OWN else ()
        receive = Instruction(Kind.RECEIVE, num_bytes, peer, dst=term)
        ready += append(program, receive)
        last = i == len(arrivals) - 1
        first, second = (term, total) if comes_first else (total, term)
        total = _RESULT if last else term
        ready += sends if last else ()
        ready = append(
            program,
            Instruction(Kind.REDUCE, num_bytes, -1, first, total, second, ready),
        )
    if folds:
        back = Instruction(Kind.SEND, num_bytes, group[2 * place], total, follows=ready)
        append(program, back)
    return program, len(arrivals)
