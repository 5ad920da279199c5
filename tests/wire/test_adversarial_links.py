"""Random programs where else they may break: over sockets, and around re-forming."""

import random
import socket

import pytest

from placet.errors import WireError
from placet.wire.engine.core import Link
from placet.wire.engine.native.core import NativeCore
from placet.wire.engine.plain.core import PlainCore
from placet.wire.engine.wire import EngineWire
from testing.engine_ranks import Joined, run_engine
from testing.random_programs import acts_of, payload_for, random_program
from testing.ranks import run_ranks
from tests.wire.program_player import Played, play, play_all

MOST_BYTES = 1 << 18


def join_by(num_ranks: int, num_sockets: int) -> Joined:
    """So many sockets between each two ranks."""
    joined = Joined([[] for _ in range(num_ranks)], [])
    for a in range(num_ranks):
        for b in range(a):
            pairs = [socket.socketpair() for _ in range(num_sockets)]
            joined.links[a].append(Link(b, tuple(pair[0] for pair in pairs)))
            joined.links[b].append(Link(a, tuple(pair[1] for pair in pairs)))
    return joined


class Mixed:
    """A native core and plain ones, as where only some hosts have a compiler."""

    def __call__(self, number, links):
        return (PlainCore if number else NativeCore)(number, links)


def play_seeds(wire: EngineWire, seeds: range) -> Played:
    """Play the programs of some seeds."""
    return play_all(wire, (random_program(seed, wire.num_ranks) for seed in seeds))


def played_over_sockets(
    num_ranks: int, num_sockets: int, seeds: range, make_core=NativeCore
) -> None:
    """Each program ends on each rank, a thread here, with what its definition says."""
    results = run_engine(
        num_ranks,
        play_seeds,
        seeds,
        joined=join_by(num_ranks, num_sockets),
        make_core=make_core,
        timeout=600.0,
        timeout_seconds=30.0,
    )
    for played in results:
        assert isinstance(played, Played), played
        assert not played.hung, played.hung[0]
        assert not played.wrong, played.wrong[0]
        assert played.num_programs == len(seeds)
    print(f"{len(seeds)} programs over {num_sockets} sockets: hangs 0, wrong 0")


@pytest.mark.parametrize("num_sockets", [1, 3])
def test_random_orders_over_sockets_sample(num_sockets):
    played_over_sockets(3, num_sockets, range(num_sockets, num_sockets + 4))


@pytest.mark.prove
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("num_sockets", [1, 3])
def test_random_orders_over_sockets(num_ranks, num_sockets):
    played_over_sockets(num_ranks, num_sockets, range(200))


@pytest.mark.prove
def test_random_orders_between_native_and_plain_cores():
    played_over_sockets(3, 1, range(300, 340), Mixed())


def play_and_reform(wire: EngineWire, seeds: range) -> tuple[int, list[str]]:
    """Leave moves in flight, re-form, play on; programs played, and what was wrong."""
    wrong: list[str] = []
    for seed in seeds:
        program = random_program(seed, wire.num_ranks, most_bytes=MOST_BYTES)
        # All are through with the last program: re-forming would end it.
        wire.exchange(b"", key="begin")
        submit_some(wire, seed)
        wire.reform(10.0)
        found, _ = play(wire, program)
        wrong += found
    return len(seeds), wrong


def submit_some(wire: EngineWire, seed: int) -> None:
    """Submit a part of a program, of each rank's own length, and wait for nothing."""
    program = random_program(seed, wire.num_ranks, most_bytes=MOST_BYTES)
    acts = [act for act in acts_of(program, wire.rank) if act.kind == "submit"]
    num = random.Random(f"{seed}, {wire.rank}").randint(0, len(acts))
    for act in acts[:num]:
        assert act.call is not None
        payload = payload_for(act.call)(act.call.move, wire.rank, "cpu").clone()
        try:
            wire.submit(act.call.move, payload, key=act.call.key)
        except WireError:  # another rank re-forms already
            return


@pytest.mark.prove
@pytest.mark.procs
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("carrier", ["native", "plain"])
def test_random_orders_around_reforming(num_ranks, carrier):
    seeds = range(200 if carrier == "native" else 40)
    for found in run_ranks(
        num_ranks, play_and_reform, seeds, carrier=carrier, timeout=300, wire_timeout=20
    ):
        assert found == (len(seeds), [])
    print(f"{carrier}, {num_ranks} ranks: re-formed {len(seeds)} times, wrong 0")
