"""What must hold of every schedule, checked on one rank's alone.

    local     whole elements, inside their buffers; only OUT and SCRATCH are written
    receives  follow nothing (see NOTE [Receives wait for nothing] in schedule.py)
    follows   of other instructions of the list, inside their bytes, without a cycle;
              a lane's order counts too
    OUT       every byte is written
    races     a local step that writes bytes which another one or a send touches comes
              before or after it; in place, OUT lies where PAYLOAD does

What a *receive* may write over cannot be seen on one rank: that it comes late enough is
argued where it is used (NOTE [What comes back was sent] in ring.py), and tested by
running all ranks with sends as late as can be.
"""

from collections.abc import Sequence

from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place, Schedule

_RECEIVES = (Kind.RECEIVE, Kind.RECEIVE_REDUCE)
_READS_SRC = (Kind.SEND, Kind.RECEIVE_REDUCE, Kind.REDUCE, Kind.COPY)


def verify(
    schedule: Schedule, *, payload_bytes: int, out_bytes: int, in_place: bool = True
) -> None:
    """Check a schedule.

    Args:
        schedule: of one rank.
        payload_bytes: length of the payload.
        out_bytes: length of the result.
        in_place: whether the result may lie where the payload does.

    Raises:
        ValueError: it breaks a rule; says which instruction does.
    """
    sizes = {
        Buffer.PAYLOAD: payload_bytes,
        Buffer.OUT: out_bytes,
        Buffer.SCRATCH: schedule.scratch_bytes,
    }
    program = schedule.instructions
    for i, instruction in enumerate(program):
        problem = _local_problem(instruction, schedule.itemsize, sizes)
        problem = problem or _follows_problem(i, program, schedule.itemsize)
        if problem is not None:
            raise ValueError(f"instruction {i}, {instruction}: {problem}")
    before = _all_before(program)
    _check_out(program, out_bytes)
    _check_races(program, before, in_place)


def _reads(instruction: Instruction) -> list[Place]:
    found = [instruction.src] if instruction.kind in _READS_SRC else []
    return [*found, instruction.other] if instruction.kind is Kind.REDUCE else found


def _local_problem(
    instruction: Instruction, itemsize: int, sizes: dict[Buffer, int]
) -> str | None:
    length, writes = instruction.num_bytes, instruction.kind is not Kind.SEND
    transfer = instruction.kind in (Kind.SEND, *_RECEIVES)
    if length <= 0 or length % itemsize:
        return f"{length} bytes; need whole elements of {itemsize}, one at least"
    if transfer != (instruction.peer >= 0):
        return f"peer {instruction.peer}; transfers have one, local steps have none"
    if writes and instruction.dst.buffer is Buffer.PAYLOAD:
        return "the payload is not to be written"
    places = _reads(instruction) + ([instruction.dst] if writes else [])
    for place in places:
        if place.start % itemsize:
            return f"{place} is no multiple of the element's {itemsize} bytes"
        if not 0 <= place.start <= sizes[place.buffer] - length:
            return f"{place} is outside of the {sizes[place.buffer]} bytes there"
    return None


def _follows_problem(
    index: int, program: Sequence[Instruction], itemsize: int
) -> str | None:
    instruction = program[index]
    if instruction.kind in _RECEIVES and instruction.follows:
        return "a receive follows nothing; receive into scratch memory and reduce then"
    for other, start in instruction.follows:
        if other == index or not 0 <= other < len(program):
            return f"follows {other}, which is no other instruction"
        room = program[other].num_bytes - instruction.num_bytes
        if start % itemsize or not 0 <= start <= room:
            return f"follows {other} from byte {start}, which never gets so far"
    return None


def _all_before(program: Sequence[Instruction]) -> list[int]:
    """For each instruction a set, as bits, of those that begin before it.

    Raises:
        ValueError: some wait for each other.
    """
    waits: list[list[int]] = []
    last: dict[tuple[bool, int], int] = {}
    for i, instruction in enumerate(program):
        direct = [other for other, _ in instruction.follows]
        if instruction.peer >= 0:
            lane = (instruction.kind is Kind.SEND, instruction.peer)
            if lane in last:
                direct.append(last[lane])
            last[lane] = i
        waits.append(direct)
    before = [-1] * len(program)
    # Nearly always all waits go backwards; otherwise a few passes more are needed.
    left = list(range(len(program)))
    while left:
        still = []
        for i in left:
            if any(before[other] < 0 for other in waits[i]):
                still.append(i)
                continue
            bits = 0
            for other in waits[i]:
                bits |= before[other] | 1 << other
            before[i] = bits
        if len(still) == len(left):
            raise ValueError(f"instructions {left} wait for each other")
        left = still
    return before


def _check_out(program: Sequence[Instruction], out_bytes: int) -> None:
    ranges = sorted(
        (i.dst.start, i.dst.start + i.num_bytes)
        for i in program
        if i.kind is not Kind.SEND and i.dst.buffer is Buffer.OUT
    )
    reached = 0
    for start, end in ranges:
        if start > reached:
            break
        reached = max(reached, end)
    if reached < out_bytes:
        raise ValueError(f"nothing writes byte {reached} of the result's {out_bytes}")


def _check_races(
    program: Sequence[Instruction], before: list[int], in_place: bool
) -> None:
    for w, writer in enumerate(program):
        if writer.kind not in (Kind.REDUCE, Kind.COPY):
            continue
        if in_place and writer.kind is Kind.COPY:
            # It writes what is there already, if it does anything.
            if writer.src.start != writer.dst.start:
                raise ValueError(f"instruction {w}, {writer}: a copy moves bytes")
            continue
        # A receive over what was written here comes later, so does what follows it.
        later = 1 << w
        for i, other in enumerate(program):
            if other.kind is Kind.RECEIVE and not before[w] >> i & 1:
                later |= _meet(writer, other, other.dst, in_place) << i
        for i, other in enumerate(program):
            if i == w or before[w] >> i & 1 or before[i] & later:
                continue
            touched = _reads(other)
            if other.kind in (Kind.REDUCE, Kind.COPY):
                touched.append(other.dst)
            if any(_meet(writer, other, place, in_place) for place in touched):
                raise ValueError(
                    f"instructions {w} and {i} touch the same bytes in no order: "
                    f"{writer}; {other}; let the one that writes follow"
                )


def _meet(
    writer: Instruction, other: Instruction, place: Place, in_place: bool
) -> bool:
    """Whether an instruction that touches `place` touches what `writer` writes."""
    buffers = {place.buffer, writer.dst.buffer}
    if len(buffers) > 1 and not (in_place and Buffer.SCRATCH not in buffers):
        return False
    start, end = writer.dst.start, writer.dst.start + writer.num_bytes
    return place.start < end and start < place.start + other.num_bytes
