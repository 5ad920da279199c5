"""The lab: its network, its processes, and that it leaves nothing behind."""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from placet.errors import LabError
from placet.job.lab import BuiltLab, Lab, lab, lab_missing, run_in_lab
from placet.job.lab_network import remove_stale

ROOT = Path(__file__).parents[2]
MISSING = lab_missing()


def needs_lab(test):
    return pytest.mark.lab(
        pytest.mark.skipif(MISSING is not None, reason=f"no lab here: {MISSING}")(test)
    )


ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.full((1 << 20,), float(dist.get_rank() + 1))
dist.all_reduce(x)
print("sum", x[0].item(), x[-1].item())
dist.destroy_process_group()
"""

# Rank 0 listens, the last rank sends it 2 MB and waits for the answer.
SEND = """
import os, socket
rank, last = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(address) as server:
        peer, _ = server.accept()
        got = 0
        while got < 2_000_000:
            got += len(peer.recv(1 << 16))
        peer.sendall(b"k")
elif rank == last:
    while True:
        try:
            peer = socket.create_connection(address, timeout=20)
            break
        except ConnectionRefusedError:
            pass
    peer.sendall(bytes(2_000_000))
    assert peer.recv(1) == b"k"
"""


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def quiet(rank: int, line: str) -> None:
    pass


def namespaces() -> set[str]:
    shown = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True, timeout=20
    )
    return {line.split()[0] for line in shown.stdout.splitlines()}


def of_process(pid: int) -> set[str]:
    names = namespaces() | {path.name for path in Path("/etc/netns").glob("*")}
    return {name for name in names if name.startswith(f"placet-lab-{pid}.")}


@needs_lab
def test_lab_card_counts_an_all_reduce_within_two_percent():
    result = run_in_lab(
        Lab(hosts=2, rate="200mbit"),
        python(ALL_REDUCE),
        timeout_seconds=60,
        on_line=quiet,
    )
    assert result.ok, result.output
    assert result.output == ("sum 3.0 3.0",) * 2
    num_hosts, payload_bytes = 2, 4 << 20
    expected = 2 * (num_hosts - 1) / num_hosts * payload_bytes
    for sent, received in result.card_bytes:
        assert sent == pytest.approx(expected, rel=0.02)
        assert received == pytest.approx(expected, rel=0.02)


@needs_lab
def test_lab_shapes_links_and_counts_uplinks():
    result = run_in_lab(
        Lab(hosts=4, rate="100mbit", groups="2x2", group_rate="20mbit"),
        python(SEND),
        timeout_seconds=60,
        on_line=quiet,
    )
    assert result.ok, result.output
    bits_past_the_burst = 8 * (2_000_000 - 256 * 1024)
    assert result.seconds >= bits_past_the_burst / 20e6
    payload = pytest.approx(2_000_000, rel=0.05)
    little = pytest.approx(0, abs=100_000)
    assert [sent for sent, _ in result.card_bytes] == [little, little, little, payload]
    assert [got for _, got in result.card_bytes] == [payload, little, little, little]
    assert [sent for sent, _ in result.uplink_bytes] == [little, payload]
    assert [got for _, got in result.uplink_bytes] == [payload, little]


@needs_lab
def test_lab_gives_each_host_an_uplink_of_its_own():
    wanted = Lab(
        hosts=4, rate="1gbit", groups="2x2", group_rate="20mbit", uplink_per_host=True
    )
    result = run_in_lab(wanted, python(SEND), timeout_seconds=60, on_line=quiet)
    assert result.ok, result.output
    assert result.seconds >= 8 * (2_000_000 - 256 * 1024) / 20e6
    payload = pytest.approx(2_000_000, rel=0.05)
    little = pytest.approx(0, abs=100_000)
    assert [sent for sent, _ in result.uplink_bytes] == [
        little,
        little,
        little,
        payload,
    ]
    assert [got for _, got in result.uplink_bytes] == [payload, little, little, little]
    assert result.card_bytes == ((little, little),) * 4


@needs_lab
def test_lab_ranks_of_one_host_talk_past_its_card():
    result = run_in_lab(
        Lab(hosts=1, ranks_per_host=2),
        python(SEND),
        timeout_seconds=60,
        on_line=quiet,
    )
    assert result.ok, result.output
    assert result.card_bytes[0] == pytest.approx((0, 0), abs=2000)


@needs_lab
def test_lab_ranks_get_torchruns_variables():
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR"
    rest = "GLOO_SOCKET_IFNAME OMP_NUM_THREADS MINE"
    shown = " ".join(f"${name}" for name in f"{names} {rest}".split())
    seen: list[tuple[int, str]] = []
    with lab(Lab(hosts=2, ranks_per_host=2, pin=True)) as built:
        result = built.run(
            ["sh", "-c", f"echo {shown}; printf unended"],
            timeout_seconds=20,
            environment={"MINE": "x"},
            on_line=lambda rank, line: seen.append((rank, line)),
        )
    assert result.output == tuple(
        f"{rank} 4 {rank % 2} 2 {rank // 2} 10.77.0.1 eth0 1 x\nunended"
        for rank in range(4)
    )
    assert sorted(seen) == sorted(
        (rank, line) for rank in range(4) for line in result.output[rank].splitlines()
    )
    assert not of_process(os.getpid())


def one_fails(built: BuiltLab, fate: str, ready: Path) -> tuple[float, tuple[int, ...]]:
    """Rank 1 fails once rank 0 is in the state that `fate` says."""
    began = time.monotonic()
    fails = (
        f'[ "$RANK" = 1 ] && {{ until [ -e {ready} ]; do sleep 0.05; done; exit 3; }}'
    )
    result = built.run(
        ["sh", "-c", f"{fails}; {fate.format(ready=ready)}"],
        timeout_seconds=60,
        on_line=quiet,
    )
    assert result.first_failed == 1
    assert not result.ok
    return time.monotonic() - began, result.exit_codes


@needs_lab
@pytest.mark.parametrize(
    ("fate", "code"),
    [
        ("touch {ready}; sleep 100", -signal.SIGTERM),
        ("trap '' TERM; touch {ready}; sleep 100; sleep 100", -signal.SIGKILL),
        ("setsid sleep 100 & touch {ready}; sleep 100", -signal.SIGTERM),
    ],
)
def test_lab_stops_all_within_five_seconds_of_a_failure(
    fate: str, code: int, tmp_path: Path
):
    with lab(Lab(hosts=2)) as built:
        seconds, codes = one_fails(built, fate, tmp_path / "ready")
        assert seconds < 5
        assert codes == (code, 3)
        for name in built.network.hosts:
            left = subprocess.check_output(["ip", "netns", "pids", name], timeout=20)
            assert left == b""


@needs_lab
def test_lab_time_out_names_the_ranks_and_what_they_said():
    with (
        pytest.raises(
            LabError, match=r"ranks \[1\] still ran after 0.5 s .* last words"
        ),
        lab(Lab(hosts=2)) as built,
    ):
        built.run(
            ["sh", "-c", '[ "$RANK" = 0 ] || { echo last words; sleep 100; }'],
            timeout_seconds=0.5,
            on_line=quiet,
        )
    assert not of_process(os.getpid())


# Prints its ranks' process ids; each rank says "bye" when it is interrupted.
IN_A_PROCESS = """
from placet.job.lab import Lab, run_in_lab
rank = "trap 'echo bye; exit 0' INT; echo $$; sleep 100 & wait"
run_in_lab(Lab(hosts=2), ["sh", "-c", rank], timeout_seconds=100)
"""


def lab_in_a_process() -> tuple[subprocess.Popen[str], list[int]]:
    process = subprocess.Popen(
        python(IN_A_PROCESS), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(2)]
    assert sorted(line[0] for line in lines) == ["[0]", "[1]"]
    return process, [int(line[1]) for line in lines]


@needs_lab
def test_lab_killed_takes_its_ranks_along_and_the_next_one_cleans_up():
    process, pids = lab_in_a_process()
    watched = [os.pidfd_open(pid) for pid in pids]
    assert len(of_process(process.pid)) == 3
    process.kill()
    process.communicate(timeout=20)
    for descriptor in watched:
        assert select.select([descriptor], [], [], 10)[0], "a rank outlived its lab"
        os.close(descriptor)
    assert len(of_process(process.pid)) == 3
    with lab(Lab(hosts=2)) as built:
        assert not of_process(process.pid)
        assert set(built.network.hosts) <= namespaces()
        assert remove_stale() == []
    assert not of_process(os.getpid())


@needs_lab
@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "bye"), (signal.SIGTERM, "")]
)
def test_lab_interrupted_stops_its_ranks_and_cleans_up(number: int, said: str):
    process, _ = lab_in_a_process()
    process.send_signal(number)
    printed, _ = process.communicate(timeout=20)
    assert process.returncode != 0
    assert printed.count("bye") == (2 if said else 0)
    assert not of_process(process.pid)


def test_lab_refuses_without_root(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root; this is user 1000"):
        run_in_lab(Lab(), ["true"])


def test_lab_refuses_without_iproute2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match=r"needs ip, tc, setpriv.* apt install iproute2"):
        run_in_lab(Lab(), ["true"])


@needs_lab
def test_lab_refuses_without_tbf_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for tool in ("ip", "setpriv", "sh"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    (tmp_path / "tc").write_text("#!/bin/sh\necho unknown qdisc >&2; exit 2\n")
    (tmp_path / "tc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LabError, match=r"tbf rate 100mbit.*'unknown qdisc'"):
        run_in_lab(Lab(), ["true"])
    assert not of_process(os.getpid())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hosts": 0}, "at least 1 of its hosts, got 0"),
        ({"ranks_per_host": 0}, "at least 1 of its ranks, got 0"),
        ({"rate": "100 mbit"}, "cannot read rate '100 mbit'"),
        ({"hosts": 4, "groups": "2x2"}, "come together"),
        ({"group_rate": "1mbit"}, "come together"),
        ({"groups": "2", "group_rate": "1mbit"}, "GROUPSxHOSTS"),
        ({"groups": "2x2", "group_rate": "1mbit"}, "holds 4 hosts, the lab has 2"),
        ({"uplink_per_host": True}, "without groups"),
    ],
)
def test_lab_values_that_do_not_fit(given, message: str):
    with pytest.raises(ValueError, match=message):
        Lab(**given)
