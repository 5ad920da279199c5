"""Ranks in real processes that are killed after they met leave nothing behind."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from placet.wire.engine.meeting import meet
from tests.wire.engine.meeting_ranks import open_descriptors


class FolderStore:
    """A `MeetingStore` of several processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        return self.folder / key.replace("/", "-")

    def set(self, key: str, value: bytes) -> None:
        written = self.folder / f"{os.getpid()}.new"
        written.write_bytes(value)
        written.rename(self.path(key))

    def get(self, key: str, seconds: float) -> bytes:
        until = time.monotonic() + seconds
        while not self.path(key).exists():
            if time.monotonic() > until:
                raise TimeoutError(key)
            time.sleep(0.005)
        return self.path(key).read_bytes()


def be_rank(rank: int, host: str, folder: Path, told: Connection) -> None:
    """Meet, tell what is open, then wait for the other rank's end."""
    before = open_descriptors()
    met = meet(
        FolderStore(folder),
        rank,
        2,
        timeout_seconds=20,
        share_memory=True,
        memory_bytes=1 << 16,
        interface="lo",
        host=host,
    )
    (link,) = met.links
    told.send({k: v for k, v in open_descriptors().items() if k not in before})
    link.sockets[0].settimeout(20)
    told.send(link.sockets[0].recv(1))
    told.recv()


@pytest.mark.procs
@pytest.mark.parametrize("far", [False, True])
def test_killed_ranks_leave_nothing_behind(far: bool, tmp_path: Path, monkeypatch):
    folders = tmp_path / "store", tmp_path / "temporary"
    for folder in folders:
        folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folders[1]))
    fork = multiprocessing.get_context("fork")
    ends, ranks = [], []
    try:
        for rank in range(2):
            mine, theirs = fork.Pipe()
            host = f"host {rank if far else 0}"
            arguments = (rank, host, folders[0], theirs)
            ranks.append(fork.Process(target=be_rank, args=arguments, daemon=True))
            ranks[-1].start()
            theirs.close()
            ends.append(mine)
        for end in ends:
            assert end.poll(30)
            kinds = sorted(name.split(":")[0] for name in end.recv().values())
            assert kinds == (["socket"] if far else ["/memfd", "/memfd", "socket"])
        assert list(folders[1].iterdir()) == []  # already while they live
        os.kill(ranks[0].pid, signal.SIGKILL)
        assert ends[1].poll(10)
        assert ends[1].recv() == b""  # the other rank notices at once
    finally:
        for process in ranks:
            process.kill()
            process.join(10)
        for end in ends:
            end.close()
    assert list(folders[1].iterdir()) == []
    names = Path("/proc/net/unix").read_text()
    for path in folders[0].glob("address-*"):
        place = path.read_text().split("placet-")[1][:32]
        assert place not in names


def test_the_store_of_these_tests_waits(tmp_path: Path):
    store = FolderStore(tmp_path)
    with pytest.raises(TimeoutError):
        store.get("a/1", 0.01)
    store.set("a/1", b"x")
    assert store.get("a/1", 0.01) == b"x"
