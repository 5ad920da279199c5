"""The native core does what every core must, over sockets and over shared memory."""

import inspect
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace

import pytest

from placet.wire.engine.connect import MEMORY_BYTES
from placet.wire.engine.core import Link
from placet.wire.engine.native import build
from placet.wire.engine.native import core as native
from placet.wire.engine.native.core import NativeCore
from placet.wire.engine.plain.core import PlainCore
from tests.wire.engine import core_conformance, core_failures

CHECKS = core_conformance.CHECKS + core_failures.CHECKS
AMONG_CORES = [
    check for check in CHECKS if "beside_raw" not in inspect.getsource(check)
]
"""Those that let no test play a peer: a test cannot write into a ring."""


class OverRings:
    """Makes native cores whose links share memory, pair by pair."""

    def __init__(self) -> None:
        self._memories: dict[tuple[int, int], tuple[int, int]] = {}

    def __call__(self, number: int, links: Sequence[Link]) -> NativeCore:
        return NativeCore(number, [self._shared(number, link) for link in links])

    def _shared(self, number: int, link: Link) -> Link:
        pair = (min(number, link.peer), max(number, link.peer))
        if pair in self._memories:
            low, high = self._memories.pop(pair)
        else:
            low, high = os.memfd_create("ring"), os.memfd_create("ring")
            for memory in (low, high):
                os.ftruncate(memory, MEMORY_BYTES)
            self._memories[pair] = os.dup(low), os.dup(high)
        send, receive = (low, high) if number < link.peer else (high, low)
        return replace(
            link, send_memory=send, receive_memory=receive, memory_bytes=MEMORY_BYTES
        )


class Mixed:
    """Makes plain and native cores in turn, as where one host has no compiler."""

    def __call__(self, number: int, links: Sequence[Link]) -> NativeCore | PlainCore:
        return (NativeCore if number % 2 else PlainCore)(number, links)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_native_core_conforms(check):
    check(NativeCore)


@pytest.mark.parametrize("check", AMONG_CORES, ids=lambda check: check.__name__)
def test_native_core_conforms_over_rings(check):
    check(OverRings())


@pytest.mark.parametrize("check", AMONG_CORES, ids=lambda check: check.__name__)
def test_plain_and_native_cores_understand_each_other(check):
    check(Mixed())


def test_library_is_compiled_once(tmp_path, monkeypatch):
    sources, tmp_path = tmp_path / "sources", tmp_path / "kept"
    sources.mkdir()
    (sources / "small.cpp").write_text("int one() { return 1; }")
    monkeypatch.setattr(build, "SOURCES", sources)
    path = build.library(tmp_path)
    made = path.stat().st_mtime_ns
    assert build.library(tmp_path) == path
    assert path.stat().st_mtime_ns == made
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["lock", path.name])
    (sources / "small.cpp").write_text("int one() { return }")
    with pytest.raises(build.CannotBuild, match="error"):
        build.library(tmp_path)


def test_no_compiler_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(build.CannotBuild, match=r"no C\+\+ compiler .* is on the PATH"):
        build.library(tmp_path)


def test_library_that_cannot_be_loaded_is_said(tmp_path, monkeypatch):
    (tmp_path / "broken.so").write_text("no library")
    monkeypatch.setattr(native, "library", lambda: tmp_path / "broken.so")
    native._libraries.cache_clear()
    try:
        with pytest.raises(build.CannotBuild, match=r"broken\.so cannot be loaded"):
            native.check_usable()
    finally:
        native._libraries.cache_clear()
