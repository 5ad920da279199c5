"""`placet lab`: a command on an emulated cluster, and what its cards carried."""

import sys
from collections.abc import Sequence

from placet.job.lab import Lab, LabResult, run_in_lab


def run_command(
    command: Sequence[str],
    *,
    hosts: int,
    ranks_per_host: int,
    rate: str,
    groups: str | None,
    group_rate: str | None,
    timeout_seconds: float,
) -> int:
    """Run the command on every rank; the exit code for the shell.

    Raises:
        ValueError: the numbers, rates and groups do not make a lab.
        LabError: there can be no lab here, or the command ran too long.
    """
    wanted = Lab(
        hosts=hosts,
        ranks_per_host=ranks_per_host,
        rate=rate,
        groups=groups,
        group_rate=group_rate,
    )
    result = run_in_lab(wanted, command, timeout_seconds=timeout_seconds)
    print(summary(wanted, result), file=sys.stderr, flush=True)
    return 0 if result.ok else 1


def summary(wanted: Lab, result: LabResult) -> str:
    """What happened, in a line per host."""
    lines = []
    if result.first_failed is not None:
        code = result.exit_codes[result.first_failed]
        lines.append(
            f"rank {result.first_failed} failed first, with exit code {code}; its "
            "output is above"
        )
    lines.append(
        f"{wanted.num_ranks} ranks, {result.seconds:.1f} s, links {wanted.rate}"
    )
    for host, (sent, received) in enumerate(result.card_bytes):
        lines.append(f"  host {host}: sent {_mib(sent)}, received {_mib(received)}")
    for group, (sent, received) in enumerate(result.uplink_bytes):
        lines.append(
            f"  uplink {group} ({wanted.group_rate}): sent {_mib(sent)}, received "
            f"{_mib(received)}"
        )
    return "\n".join(lines)


def _mib(count: int) -> str:
    return f"{count / 2**20:.2f} MiB"
