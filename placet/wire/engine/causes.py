"""The likely cause of a wait, and its fix, in words; see `diagnose`."""

from collections.abc import Sequence
from itertools import pairwise

from placet.wire.engine.calls import call_of
from placet.wire.engine.keys import short_texts
from placet.wire.engine.waits import IN_TWO_WAYS, Called, Cause, Found, Situation

SHOWN = 8
"""At most so many ranks are listed one by one."""


def sentence_of(situation: Situation, found: Found) -> str:
    """The cause, without how it was reached."""
    key, group = found.called
    who, name = ranks_text(found.ranks), repr(key)
    if found.cause is Cause.CYCLE:
        return _cycle_text(situation, found.ranks)
    if found.cause is Cause.HELD:
        return _held_text(situation, found.ranks)
    if found.cause in IN_TWO_WAYS:
        return _two_ways_text(situation, found)
    if found.cause is Cause.OTHER_MOVE:
        texts = situation.texts[found.called]
        usual = [rank for rank in sorted(texts) if rank not in found.ranks]
        odd, other = short_texts([texts[found.ranks[0]], texts[usual[0]]])
        return f"under {name} {who} submitted {odd}, {ranks_text(usual)} {other}"
    if found.cause is Cause.OTHER_GROUP:
        other_group = situation.other_group(found.called, found.ranks[0])
        over = "" if other_group is None else f" over {ranks_text(other_group[1])}"
        return f"{who} submitted {name}{over}, others over {ranks_text(group)}"
    has, it_computes = "has", "it computes or sleeps"
    if len(found.ranks) > 1:
        has, it_computes = "have", "they compute or sleep"
    return {
        Cause.SILENT: f"{who} did not submit {name} and gave no answer",
        Cause.NEVER: f"{who} did not submit {name} and went on to other moves",
        Cause.LATE: f"{who} {has} not submitted {name} yet; {it_computes}",
        Cause.UNKNOWN: f"{who} did not submit {name}, for reasons not known here",
    }.get(found.cause, f"all members submitted {name}: its bytes are under way")


def chain_of(situation: Situation, found: Found) -> str:
    """How the rank that asks comes to wait for the cause: nothing where it is near."""
    steps = [
        f"rank {rank} waits for rank {after} to submit {situation.waits[rank][0]!r}"
        if rank in situation.waits
        else f"rank {rank} {pending_text(situation, situation.held[rank])}"
        for rank, after in pairwise(found.path)
    ]
    if len(steps) > SHOWN:
        steps[SHOWN // 2 : -SHOWN // 2] = ["..."]
    return "".join(f"{step}; " for step in steps)


def fix_of(situation: Situation, found: Found) -> str:
    """The nearest fix of a cause."""
    if found.cause is Cause.CYCLE:
        return (
            "submit all of these moves on every rank before the first wait, or wait "
            f"for them in the same order{_skipped_text(situation, found)}"
        )
    who = ranks_text(found.ranks)
    return {
        Cause.OTHER_MOVE: "submit the same move on all members; pad what has another "
        "size, or give different moves different keys",
        Cause.OTHER_GROUP: "name the same ranks in the same order on all members, or "
        "give each group a key of its own",
        Cause.OTHER_TENSOR: "give it tensors of one dtype and shape on all ranks (pad "
        "the smaller); if these are different calls, start all of them on every rank "
        "before the first wait",
        Cause.OTHER_PLACE: "calls from different places never match: make it from one "
        "line on all ranks, or name both with "
        "placet.wire.process_group_keys.named(...); if these are different calls, "
        "start all of them on every rank before the first wait",
        Cause.SILENT: f"see the output of {who}; a debugger or SIGSTOP "
        "pauses a process, and dmesg shows one killed for memory",
        Cause.HELD: "look for a move that only some ranks make: data that ends earlier "
        "on one, or a branch such as `if rank == 0:`. backward() waits for its moves "
        "itself",
        Cause.NEVER: f"look for a branch that {who} did not take (`if rank == 0:`), or "
        "data that ended earlier there",
        Cause.LATE: f"see what {who} does (py-spy dump --pid PID); if it is only slow, "
        "give the wire more time",
        Cause.UNKNOWN: f"see the output of {who}",
    }.get(found.cause, "if the link is only slow, give the wire more time")


def _cycle_text(situation: Situation, ranks: Sequence[int]) -> str:
    """`rank 0 waits for 'a' before it submits 'b'; rank 1 waits for 'b' before ...`"""
    names = [repr(situation.waits[rank][0]) for rank in ranks]
    if len(set(names)) < len(names):
        names = [name_of(situation.waits[rank]) for rank in ranks]
    parts = [
        f"rank {rank} waits for {names[i]} before it submits {names[i - 1]}"
        for i, rank in enumerate(ranks[:SHOWN])
    ]
    more = len(ranks) - len(parts)
    return "; ".join(parts) + (f"; and {more} ranks more" if more else "")


def _skipped_text(situation: Situation, found: Found) -> str:
    """Of a cycle: a rank that skipped a move looks as one that makes it later."""
    awaited = [situation.waits[rank] for rank in found.ranks]
    skipped = [
        f"rank {found.ranks[(i + 1) % len(awaited)]} skipped {_short_name(called)}"
        for i, called in enumerate(awaited[:2])
    ]
    branch = "a branch such as `if rank == 0:`"
    return f"; or, if {' or '.join(skipped)} ({branch}), make it there, too"


def _held_text(situation: Situation, ranks: Sequence[int]) -> str:
    """`rank 0 has 'a' pending, which rank 1 did not submit; rank 1 waits for ...`"""
    parts = []
    for rank in ranks[:SHOWN]:
        called = situation.stands[rank]
        if rank in situation.waits:
            lacking = ranks_text(situation.missing(called))
            parts.append(
                f"rank {rank} waits for {called[0]!r}, which {lacking} did not submit"
            )
        else:
            parts.append(f"rank {rank} {pending_text(situation, called)}")
    more = len(ranks) - len(parts)
    return "; ".join(parts) + (f"; and {more} ranks more" if more else "")


def _two_ways_text(situation: Situation, found: Found) -> str:
    """`ranks call all_reduce at a.py:1 with float32[4] (rank 0) and ... (rank 1)`"""
    asks, who = found.path[-1], ranks_text(found.ranks)
    mine, told = call_of(found.called[0]), situation.stands.get(found.ranks[0])
    theirs = call_of(told[0]) if told else None
    if mine is None or theirs is None:
        return f"rank {asks} and {who} make {found.called[0]!r} in two ways"
    if found.cause is Cause.OTHER_TENSOR:
        return (
            f"ranks call {mine.name} with {mine.what} (rank {asks}) and "
            f"{theirs.what} ({who})"
        )
    return (
        f"the same call was made from {mine.at} (rank {asks}) and from {theirs.at} "
        f"({who}): {mine.kind} of {mine.what}"
    )


def pending_text(situation: Situation, called: Called) -> str:
    """`has 'a' pending, which rank 1 did not submit`"""
    lacking = ranks_text(situation.missing(called))
    return f"has {called[0]!r} pending, which {lacking} did not submit"


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0, 2`, or the first few and how many more."""
    if not ranks:
        return "no rank"
    shown = ", ".join(map(str, ranks[:SHOWN]))
    more = len(ranks) - SHOWN
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}" + (
        f" and {more} more" if more > 0 else ""
    )


def name_of(called: Called) -> str:
    """`'a' over ranks 0, 1`."""
    return f"{called[0]!r} over {ranks_text(called[1])}"


def _short_name(called: Called) -> str:
    call = call_of(called[0])
    return repr(called[0]) if call is None else call.name
