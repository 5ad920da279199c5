"""Random orders for long, ranks paused and one killed: no hang, no leak, no wrong bit.

What a survivor takes to notice is the wire's (50 ms). On a machine with fewer cores
than ranks its threads may have to wait for a core as well: SLACK_SECONDS.
"""

import statistics

import pytest

from tests.wire.soak_ranks import NUM_AFTER, Soaked, Survived, soak

pytestmark = pytest.mark.procs

NUM_RANKS = 3
NOTICE_SECONDS = 0.05
REFORM_SECONDS = 0.02
SLACK_SECONDS = 0.1
GROWTH = 0.05


def report(found: Soaked) -> None:
    """Print what was measured."""
    began = max(s.reform_began_at for s in found.survivors)
    ended = max(s.reform_ended_at for s in found.survivors)
    noticed = [f"{1e3 * (s.noticed_at - found.killed_at):.1f}" for s in found.survivors]
    raised = [f"{1e3 * (s.raised_at - found.killed_at):.1f}" for s in found.survivors]
    growth = [f"{100 * growth_of(s):.2f} %" for s in found.survivors]
    print(
        f"{[s.num_programs for s in found.survivors]} programs, "
        f"{[s.num_moves for s in found.survivors]} moves, {found.num_pauses} pauses; "
        f"kill noticed after {noticed} ms, raised after {raised} ms, "
        f"re-formed within {1e3 * (ended - began):.1f} ms; memory grew by {growth}"
    )


def growth_of(survived: Survived) -> float:
    """How much the memory of the last fifth exceeds that of the second fifth."""
    sizes = [size for _, size in survived.samples]
    fifth = len(sizes) // 5
    if not fifth:
        return 0.0
    early = statistics.median(sizes[fifth : 2 * fifth])
    return max(sizes[-fifth:]) / early - 1


def check(found: Soaked) -> None:
    """No wrong bit; the error names the rank; the group goes on without it."""
    lost = len(found.survivors)
    for rank, survived in enumerate(found.survivors):
        assert not survived.wrong, survived.wrong[0]
        assert not survived.wrong_after, survived.wrong_after[0]
        assert f"rank {lost}" in survived.error
        assert (survived.rank, survived.num_ranks) == (rank, lost)
        assert survived.num_after == NUM_AFTER


def test_killed_rank_is_noticed_and_the_group_goes_on():
    found = soak(NUM_RANKS, seconds=0.3, seed=5, pauses=False)
    report(found)
    check(found)
    for survived in found.survivors:
        # Generous: the machine may be loaded.
        assert survived.noticed_at - found.killed_at < 1.0
        assert survived.reform_ended_at - survived.reform_began_at < 2.0


@pytest.mark.prove
@pytest.mark.parametrize("seconds", [20, 1200])
def test_soak(seconds):
    found = soak(NUM_RANKS, seconds=seconds, seed=seconds)
    report(found)
    check(found)
    for survived in found.survivors:
        assert survived.noticed_at - found.killed_at < NOTICE_SECONDS + SLACK_SECONDS
        assert growth_of(survived) < GROWTH
    began = max(s.reform_began_at for s in found.survivors)
    ended = max(s.reform_ended_at for s in found.survivors)
    assert ended - began < REFORM_SECONDS + SLACK_SECONDS
