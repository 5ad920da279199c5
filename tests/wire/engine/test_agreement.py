"""Survivors agree who is left, whatever the order of messages and of deaths."""

import random
from collections import deque

import pytest

from placet.wire.engine.agreement import (
    Advance,
    Agreement,
    Excluded,
    Finish,
    Instruction,
    Phase,
    Proposal,
    Propose,
)


class World:
    """Peers with a first-in-first-out channel between each two; deaths cut channels.

    A peer begins anew as a program does: when it learns of a death, or that another
    re-forms, after it had finished.
    """

    def __init__(self, num_peers, seed):
        everyone = frozenset(range(num_peers))
        self.random = random.Random(seed)
        self.peers = {p: Agreement(p, everyone) for p in everyone}
        self.channels = {(a, b): deque() for a in everyone for b in everyone if a != b}
        self.alive = set(everyone)
        self.mourned = {p: set() for p in everyone}
        self.epochs = {p: [] for p in everyone}

    def kill(self, peer):
        self.alive.discard(peer)
        for other in self.alive:
            channel = self.channels[peer, other]
            # What the dead one had sent last may be lost with it.
            for _ in range(self.random.randint(0, len(channel))):
                channel.pop()
            channel.append(("lost", None))

    def begin(self, peer):
        if self.peers[peer].phase is Phase.IDLE:
            self.carry_out(peer, self.peers[peer].begin())

    def carry_out(self, peer, instructions: list[Instruction]):
        for instruction in instructions:
            match instruction:
                case Propose(proposal):
                    self.say(peer, proposal, ("propose", proposal))
                case Advance(proposal):
                    self.epochs[peer].append(proposal)
                    self.say(peer, proposal, ("advanced", proposal.epoch))
                case Excluded(by):
                    raise AssertionError(f"{peer} is excluded by {by}")
                case Finish():
                    pass

    def say(self, peer, proposal, message):
        for other in self.peers[peer].members - proposal.lost - {peer}:
            if other in self.alive:
                self.channels[peer, other].append(message)

    def step(self):
        full = [channel for channel, queue in self.channels.items() if queue]
        ready = [channel for channel in full if channel[1] in self.alive]
        if not ready:
            return False
        src, dst = self.random.choice(sorted(ready))
        kind, value = self.channels[src, dst].popleft()
        agreement = self.peers[dst]
        match kind:
            case "propose":
                self.carry_out(dst, agreement.on_proposal(src, value))
            case "advanced":
                self.carry_out(dst, agreement.on_advanced(src, value))
            case "lost":
                self.carry_out(dst, agreement.on_lost(src))
                self.mourned[dst].add(src)
        if self.mourned[dst] & agreement.members or agreement.ahead:
            self.begin(dst)
        return True


@pytest.mark.parametrize("num_peers", [1, 2, 3, 4])
def test_everyone_begins_a_fresh_epoch_when_nobody_died(num_peers):
    world = World(num_peers, seed=0)
    for _ in range(2):
        for peer in world.alive:
            world.begin(peer)
        while world.step():
            pass
    ends = [Proposal(1, frozenset()), Proposal(2, frozenset())]
    assert all(world.epochs[p] == ends for p in world.alive)


def test_any_order_of_messages_and_deaths_ends_in_one_epoch():
    for seed in range(1000):
        world = World(num_peers := 2 + seed % 4, seed)
        num_deaths = world.random.randint(0, num_peers - 1)
        deaths = world.random.sample(range(num_peers), num_deaths)
        unbegun = sorted(world.alive)
        world.random.shuffle(unbegun)
        patience = world.random.randint(0, 2)
        while True:
            moves = ["step"] * 8 + ["begin"] * 2 * bool(unbegun)
            moves += ["kill"] * 2 * bool(deaths) + ["give up"] * bool(patience)
            move = world.random.choice(moves)
            if move == "kill":
                world.kill(deaths.pop())
            elif move == "begin":
                peer = unbegun.pop()
                if peer in world.alive:
                    world.begin(peer)
            elif move == "give up":
                patience -= 1
                peer = world.random.choice(sorted(world.alive))
                if world.peers[peer].phase is not Phase.IDLE:
                    world.peers[peer].give_up()
                    unbegun.append(peer)
            elif not world.step() and not unbegun and not deaths:
                break
        alive = [world.peers[p] for p in sorted(world.alive)]
        where = f"seed {seed}"
        assert {a.phase for a in alive} == {Phase.IDLE}, where
        assert {a.members for a in alive} == {frozenset(world.alive)}, where
        assert len({a.epoch for a in alive}) == 1, where
        for agreed in zip(*(world.epochs[p][-1:] for p in world.alive), strict=True):
            assert len(set(agreed)) == 1, where


def test_members_of_an_epoch_are_the_same_wherever_it_was_finished():
    for seed in range(300):
        world = World(4, seed)
        for peer in sorted(world.alive):
            world.begin(peer)
        for _ in range(world.random.randint(0, 30)):
            world.step()
        world.kill(3)
        while world.step():
            pass
        finished = {p.epoch: p for peer in world.alive for p in world.epochs[peer]}
        for peer in world.alive:
            for proposal in world.epochs[peer]:
                assert finished[proposal.epoch] == proposal, f"seed {seed}"


def test_a_rank_held_for_lost_is_told():
    agreement = Agreement(1, frozenset({0, 1, 2}))
    agreement.begin()
    assert agreement.on_proposal(0, Proposal(1, frozenset({1}))) == [Excluded(0)]


def test_who_is_waited_for_is_named():
    agreement = Agreement(0, frozenset({0, 1, 2}))
    agreement.begin()
    agreement.on_proposal(2, Proposal(1, frozenset()))
    assert agreement.missing == {1}
    agreement.on_lost(1)
    agreement.on_proposal(2, Proposal(1, frozenset({1})))
    assert agreement.phase is Phase.ADVANCED
    assert agreement.missing == {2}
