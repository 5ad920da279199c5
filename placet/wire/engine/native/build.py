"""Compiles the native core once, and keeps it: a few seconds at first use.

The library lies in the user's cache folder under a name made of the sources, the
compiler and the processor, so another version or machine makes another one. It is
written beside and renamed, so ranks that start together cannot see half a file; a lock
lets one of them compile while the others wait (and dies with its holder).

torch's extension builder is not used: the sources need nothing of torch (its headers
cost half a minute), and a build that is killed there leaves a lock that all later ones
wait for without end.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from placet.settings import cache_dir

SOURCES = Path(__file__).parent
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-shared", "-pthread")
TIMEOUT_SECONDS = 120.0
_BUILDING = "building-"


class CannotBuild(RuntimeError):
    """There is no compiler, it refused, or no place for the result; says why."""


def library(folder: Path | None = None) -> Path:
    """The compiled core, made if need be.

    Args:
        folder: where it is kept; the user's cache folder if left out.

    Raises:
        CannotBuild: no C++ compiler, it failed, or the folder cannot be written.
    """
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if platform.system() != "Linux":
        raise CannotBuild(f"the native core is for Linux, this is {platform.system()}")
    kept = folder or cache_dir()
    path = kept / f"engine-{_digest(compiler)}.so"
    if path.exists():
        return path
    if compiler is None:
        raise CannotBuild("no C++ compiler (c++, g++ or clang++) is on the PATH")
    try:
        kept.mkdir(parents=True, exist_ok=True)
        with (kept / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _compile(compiler, path)
    except OSError as error:
        raise CannotBuild(
            f"{kept} cannot keep it ({error}); set XDG_CACHE_HOME to a folder that "
            "this user can write"
        ) from error
    return path


def _compile(compiler: str, path: Path) -> None:
    sources = sorted(str(source) for source in SOURCES.glob("*.cpp"))
    for left in path.parent.glob(f"{_BUILDING}*"):  # by one that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_BUILDING, dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [compiler, *FLAGS, *sources, "-o", str(made)]
        try:
            ran = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CannotBuild(f"{compiler}: not done in {error.timeout:g} s") from error
        if ran.returncode:
            raise CannotBuild(f"{' '.join(command)} failed:\n{ran.stderr[-2000:]}")
        os.replace(made, path)


def _digest(compiler: str | None) -> str:
    files = sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")])
    parts = [file.read_bytes() for file in files]
    about = " ".join((*FLAGS, compiler or "", platform.machine(), _processor()))
    return hashlib.sha256(b"\0".join([*parts, about.encode()])).hexdigest()[:16]


def _processor() -> str:
    # -march=native: a cache that machines share must keep them apart.
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Feat"))), "")
