"""The ledger against the network cards: what a job says it moved is what was moved.

In the lab each host has a card of its own and one rank. Three counts are compared, each
way and on each host:

    card       bytes by the kernel's counter, less 66 a packet: 14 Ethernet, 20 IP, 20
               TCP and 12 for its timestamps. A virtual card takes up to 64 KiB behind
               one header. A real one pays 66 bytes a segment of 1448, 4.6%; both are
               printed
    boxings    the moves' formulas, predicted before they ran and recorded after
    others     the control and foreign accounts, both ways together, which are bounds

So boxings <= card <= boxings + others, and all accounts are within 2% of the card.
"""

import sys
from pathlib import Path

import pytest

from placet.job.lab import Lab, lab_missing, run_in_lab
from tests.job.processes import RECIPES, events

HEADER_BYTES = 14 + 20 + 20 + 12
SEGMENT_BYTES = 1448
CLOSE = 0.02
MIB = 2**20
MISSING = lab_missing()

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(MISSING is not None, reason=f"no lab here: {MISSING}"),
]


def quiet(rank: int, line: str) -> None:
    pass


@pytest.mark.parametrize(
    ("hosts", "rate", "zero"),
    [
        (2, "200mbit", 0),
        (4, "100gbit", 3),
        *(
            pytest.param(hosts, rate, zero, marks=pytest.mark.prove)
            for hosts in (2, 3, 4)
            for rate in ("200mbit", "100gbit")
            for zero in (0, 1, 2, 3)
        ),
    ],
)
def test_cards_carry_what_the_ledger_says(
    tmp_path: Path, hosts: int, rate: str, zero: int
):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "placet", "train", f"{RECIPES}:wide"]
    command += ["--set", f"zero={zero}", "--run-dir", str(folder)]
    result = run_in_lab(
        Lab(hosts=hosts, rate=rate), command, timeout_seconds=150, on_line=quiet
    )
    assert result.ok, "\n".join(result.output)
    for host in range(hosts):
        check_host(folder, host, result.card_bytes[host], result.card_packets[host])


def check_host(
    folder: Path, host: int, on_card: tuple[int, int], packets: tuple[int, int]
) -> None:
    steps = events(folder, "step", host)
    assert len(steps) == 12
    moved = [sum(s[f"{way}_bytes"] for s in steps) for way in ("sent", "received")]
    assert min(moved) > len(steps) * MIB
    for boxing in events(folder, "boxing", host):
        for way in ("sent", "received"):
            assert boxing[f"{way}_bytes"] == boxing[f"predicted_{way}_bytes"], boxing
    (end,) = events(folder, "end", host)
    ledger = end["ledger"]
    # At ZeRO 1 and 2 the last update's gathers end after the last step, each way alike.
    after = ledger["boxings"] - sum(moved)
    assert 0 <= after < sum(moved) / len(steps)
    moved = [count + after // 2 for count in moved]
    assert ledger["files"] > 0
    others = ledger["control"] + ledger["foreign"]
    carried = []
    for way, boxings, card, count in zip(
        ("sent", "received"), moved, on_card, packets, strict=True
    ):
        payload = card - count * HEADER_BYTES
        carried.append(payload)
        framing = -(-payload // SEGMENT_BYTES) * HEADER_BYTES
        print(
            f"host {host} {way}: boxings {boxings:,}, card {card:,} in {count:,} "
            f"packets, {payload:,} without headers ({payload / boxings - 1:+.3%}); "
            f"in segments of {SEGMENT_BYTES} headers are {framing:,}"
        )
        assert boxings <= payload <= boxings + others, way
        assert payload == pytest.approx(boxings, rel=CLOSE)
    accounts = ledger["boxings"] + others
    print(
        f"host {host}: accounts {accounts:,} (control {ledger['control']:,}, foreign "
        f"{ledger['foreign']:,}), card {sum(carried):,} without headers"
    )
    assert accounts == pytest.approx(sum(carried), rel=CLOSE)
