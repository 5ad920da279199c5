"""A schedule that breaks a rule is refused, and says which."""

import pytest

from placet.wire.engine.schedule import Buffer, Instruction, Kind, Place, Schedule
from placet.wire.engine.verify import verify

GIVEN, OUT = Place(Buffer.PAYLOAD, 0), Place(Buffer.OUT, 0)
SCRATCH = Place(Buffer.SCRATCH, 0)
SEND = Instruction(Kind.SEND, 8, 1, GIVEN)
GET = Instruction(Kind.RECEIVE, 8, 1, dst=SCRATCH)
ADD = Instruction(Kind.REDUCE, 8, -1, GIVEN, OUT, SCRATCH, ((0, 0), (1, 0)))


def check(*program: Instruction, out_bytes: int = 8, in_place: bool = True) -> None:
    schedule = Schedule(program, 8, 4, "torch.float32")
    verify(schedule, payload_bytes=8, out_bytes=out_bytes, in_place=in_place)


def test_a_good_one_is_accepted():
    check(SEND, GET, ADD)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ((Instruction(Kind.SEND, 6, 1, GIVEN),), "6 bytes; need whole elements of 4"),
        ((Instruction(Kind.SEND, 0, 1, GIVEN),), "0 bytes; need whole"),
        ((Instruction(Kind.SEND, 4, 1, Place(Buffer.PAYLOAD, 2)),), "no multiple"),
        ((Instruction(Kind.SEND, 8, 1, Place(Buffer.PAYLOAD, 4)),), "outside of the 8"),
        ((Instruction(Kind.SEND, 8, -1, GIVEN),), "transfers have one"),
        ((Instruction(Kind.COPY, 8, 1, GIVEN, OUT),), "local steps have none"),
        ((Instruction(Kind.RECEIVE, 8, 1, dst=GIVEN),), "not to be written"),
        (
            (SEND, Instruction(Kind.RECEIVE, 8, 1, dst=OUT, follows=((0, 0),))),
            "a receive follows nothing",
        ),
        (
            (Instruction(Kind.COPY, 8, -1, GIVEN, OUT, follows=((0, 0),)),),
            "follows 0, which is no other",
        ),
        (
            (SEND, Instruction(Kind.COPY, 8, -1, GIVEN, OUT, follows=((0, 4),))),
            "follows 0 from byte 4, which never gets so far",
        ),
        (
            # The lane's order counts: the second send waits for the first.
            (
                Instruction(Kind.SEND, 8, 1, OUT, follows=((1, 0),)),
                Instruction(Kind.COPY, 8, -1, GIVEN, OUT, follows=((2, 0),)),
                SEND,
            ),
            r"instructions \[0, 1, 2\] wait for each other",
        ),
        ((SEND, GET), "nothing writes byte 0 of the result's 8"),
        (
            (SEND, GET, Instruction(Kind.REDUCE, 8, -1, GIVEN, OUT, SCRATCH)),
            "instructions 2 and 0 touch the same bytes in no order",
        ),
    ],
)
def test_a_broken_rule_is_named(program, message):
    with pytest.raises(ValueError, match=message):
        check(*program)


def test_the_whole_result_must_be_written():
    with pytest.raises(ValueError, match="nothing writes byte 8 of the result's 12"):
        check(SEND, GET, ADD, out_bytes=12)


def test_apart_from_the_payload_the_result_needs_no_wait():
    check(
        SEND, GET, Instruction(Kind.REDUCE, 8, -1, GIVEN, OUT, SCRATCH), in_place=False
    )
