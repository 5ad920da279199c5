"""The ledger beside the network cards' own counters, in the lab.

`placet train char_gpt` with one rank a host, by ZeRO level and number of hosts. The
card's bytes are taken without headers: 66 a packet (14 Ethernet, 20 IP, 32 TCP with
timestamps); a virtual card takes up to 64 KiB behind one header, a real one pays them
for each segment of 1448 bytes. The ledger's are all its accounts that are messages:
boxings, exactly, and the bounds for control and foreign. Both must be within 2%.
"""

import json
import sys
import tempfile
from pathlib import Path

from bench.harness import Options, Outcome, run_bench
from bench.ratios import Row, exact_row
from placet.job.lab import Lab, lab_missing, run_in_lab

QUESTION = "Do network cards carry what the ledger says?"
HEADER_BYTES = 14 + 20 + 32
SEGMENT_BYTES = 1448
MOST = 1.02
STEPS = 20
QUICK = ((2, "200mbit", 0),)
FULL = tuple(
    (hosts, rate, zero)
    for hosts in (2, 4)
    for rate in ("200mbit", "100gbit")
    for zero in (0, 1, 2, 3)
)


def collect(options: Options) -> Outcome:
    """One run in each lab; the host that strays most makes the row."""
    missing = lab_missing()
    if missing is not None:
        return Outcome((), (f"skipped, no lab here: {missing}",))
    rows: list[Row] = []
    notes = ["100gbit stands for a link that is not slowed down"]
    for hosts, rate, zero in QUICK if options.quick else FULL:
        found, note = compare(hosts, rate, zero)
        rows += found
        notes.append(note)
    return Outcome(tuple(rows), tuple(notes))


def compare(hosts: int, rate: str, zero: int) -> tuple[list[Row], str]:
    """Rows of one run, and what headers would come to on a real card."""
    settings = (f"zero={zero}", f"steps={STEPS}", "sample_bytes=0")
    command = [sys.executable, "-m", "placet", "train", "char_gpt"]
    for setting in settings:
        command += ["--set", setting]
    with tempfile.TemporaryDirectory(prefix="placet-bench-") as folder:
        result = run_in_lab(
            Lab(hosts=hosts, rate=rate),
            [*command, "--run-dir", folder],
            timeout_seconds=300,
            on_line=lambda rank, line: None,
        )
        if not result.ok:
            raise RuntimeError("\n".join(result.output))
        ledgers = [_ledger(Path(folder), rank) for rank in range(hosts)]
    cards = [
        sum(carried) - HEADER_BYTES * sum(packets)
        for carried, packets in zip(result.card_bytes, result.card_packets, strict=True)
    ]
    boxings = [ledger["boxings"] for ledger in ledgers]
    accounts = [x["boxings"] + x["control"] + x["foreign"] for x in ledgers]
    worst = max(range(hosts), key=lambda host: abs(accounts[host] / cards[host] - 1))
    what = f"{hosts} hosts, {rate}, ZeRO {zero}"
    rows = [
        exact_row(f"{what}: {name}", of[worst], cards[worst], unit="bytes", most=most)
        for name, of, most in (
            ("boxings to card", boxings, 1.0),
            ("all accounts to card", accounts, MOST),
        )
    ]
    rows.append(
        exact_row(
            f"{what}: card to boxings",
            cards[worst],
            boxings[worst],
            unit="bytes",
            most=MOST,
        )
    )
    headers = HEADER_BYTES / SEGMENT_BYTES
    seen = sum(map(sum, result.card_bytes)) / sum(cards) - 1
    return rows, f"{what}: headers {seen:.2%} here, {headers:.2%} on a real card"


def _ledger(folder: Path, rank: int) -> dict[str, int]:
    lines = (folder / f"events-rank{rank}.jsonl").read_text().splitlines()
    ends = [event for event in map(json.loads, lines) if event["kind"] == "end"]
    ledger: dict[str, int] = ends[-1]["ledger"]
    return ledger


if __name__ == "__main__":
    sys.exit(run_bench("lab_bytes", QUESTION, collect))
