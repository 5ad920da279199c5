"""What one rank's device computes and moves per second, as measured.

    flops/s    of matmul, convolution and attention, by dtype    -> Machine.flops_per_s
    bytes/s    that an operator reads and writes; more where all
               of it fits a cache                                -> memory_seconds
    seconds    that any call takes, and any boxing               -> call_seconds,
               without its bytes                                    boxing_seconds

There are no built-in figures: `placet calibrate --compute` measures them with all ranks
running, one thread each, and keeps them under the user's cache folder; where that was
never done, `machine_here` takes a quick look.  -> placet.cost.measure
"""

import hashlib
import json
import math
import platform
from bisect import bisect
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from placet.cost.measure import FAR, Measured, device_name, measure
from placet.settings import cache_dir

Work: TypeAlias = Literal["matmul", "convolution", "attention"]

QUICK_SECONDS = 1.5
"""How long a look takes where nothing was calibrated."""


@dataclass(frozen=True)
class Machine:
    """The speed of one rank.

    Args:
        device: what was measured.
        flops_per_s: (work, dtype as in "float32", operations per second).
        memory_bytes_per_s: read and written, together, in large amounts.
        call_seconds: of a call on next to nothing.
        num_ranks: how many ran at once.
        boxing_seconds: that a rank works for a boxing of next to nothing.
        near: (bytes, bytes per second) of calls on smaller amounts, which caches hold,
            by size.
    """

    device: str
    flops_per_s: tuple[tuple[str, str, float], ...]
    memory_bytes_per_s: float
    call_seconds: float
    num_ranks: int = 1
    boxing_seconds: float = 0.0
    near: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        rates = [self.memory_bytes_per_s, *(rate for *_, rate in self.flops_per_s)]
        rates += [rate for _, rate in self.near]
        least = min(self.call_seconds, self.boxing_seconds)
        if not self.flops_per_s or min(rates) <= 0 or least < 0:
            raise ValueError(
                f"{self!r}: rates must be above 0, one at least of matmul, and "
                "seconds not below 0"
            )

    def rate(self, work: Work, dtype: torch.dtype) -> float:
        """Operations per second.

        A dtype that was not measured counts as the measured one nearest in size, and
        work that was not as matmul.
        """
        of_work = [row for row in self.flops_per_s if row[0] == work]
        rows = of_work or list(self.flops_per_s)
        name = str(dtype).removeprefix("torch.")

        def distance(row: tuple[str, str, float]) -> tuple[bool, int]:
            known: torch.dtype = getattr(torch, row[1])
            return row[1] != name, abs(known.itemsize - dtype.itemsize)

        return min(rows, key=distance)[2]

    def memory_seconds(self, num_bytes: float) -> float:
        """What reading and writing so many bytes takes.

        Between two sizes that were measured the rate changes by powers, as caches fill
        gradually; above the largest of `near` it is on its way to `memory_bytes_per_s`,
        which it has at `FAR` times that size.
        """
        if not self.near or not num_bytes:
            return num_bytes / self.memory_bytes_per_s
        sizes, rates = self._curve
        at = math.log(num_bytes)
        i = min(max(bisect(sizes, at), 1), len(sizes) - 1)
        part = (at - sizes[i - 1]) / (sizes[i] - sizes[i - 1])
        part = min(max(part, 0.0), 1.0)
        return num_bytes / math.exp(rates[i - 1] * (1 - part) + rates[i] * part)

    @cached_property
    def _curve(self) -> tuple[list[float], list[float]]:
        """Sizes and rates, as logarithms."""
        sizes = [math.log(size) for size, _ in self.near]
        rates = [math.log(rate) for _, rate in self.near]
        last = sizes[-1] + math.log(FAR)
        return [*sizes, last], [*rates, math.log(self.memory_bytes_per_s)]

    def to_json(self) -> str:
        """Text that `from_json` reads."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> "Machine":
        """A machine from its text.

        Raises:
            ValueError: not JSON, or not of a machine.
        """
        try:
            found = json.loads(text)
            rows = tuple((str(a), str(b), float(c)) for a, b, c in found["flops_per_s"])
            return Machine(
                device=str(found["device"]),
                flops_per_s=rows,
                memory_bytes_per_s=float(found["memory_bytes_per_s"]),
                call_seconds=float(found["call_seconds"]),
                num_ranks=int(found["num_ranks"]),
                boxing_seconds=float(found["boxing_seconds"]),
                near=tuple((int(a), float(b)) for a, b in found["near"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no machine ({error!r}): {text[:80]!r}") from None


def as_machine(measured: Measured, num_ranks: int = 1) -> Machine:
    """What was measured, as a value."""
    return Machine(
        device=device_name(),
        flops_per_s=measured.flops_per_s,
        memory_bytes_per_s=measured.memory_bytes_per_s,
        call_seconds=measured.call_seconds,
        num_ranks=num_ranks,
        boxing_seconds=measured.boxing_seconds,
        near=measured.near,
    )


def machine_file(folder: Path | None = None) -> Path:
    """Where this machine's figures are kept, by host, device and torch version."""
    what = f"{platform.node()} {device_name()} {torch.__version__}"
    key = hashlib.sha256(what.encode()).hexdigest()[:16]
    return (folder or cache_dir()) / f"machine-{key}.json"


def machine_here(folder: Path | None = None) -> Machine:
    """As calibrated; else from a look of at most two seconds, which is not kept.

    Args:
        folder: where figures are kept; the user's cache folder if left out.

    Raises:
        ValueError: what is kept cannot be read; run `placet calibrate --compute`.
    """
    file = machine_file(folder)
    if file.exists():
        try:
            return Machine.from_json(file.read_text())
        except ValueError as error:
            raise ValueError(
                f"{file}: {error}; run `placet calibrate --compute`"
            ) from None
    return as_machine(measure(QUICK_SECONDS))


def keep_machine(machine: Machine, folder: Path | None = None) -> Path:
    """Keep figures for `machine_here`; where they are now."""
    file = machine_file(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".draft")
    draft.write_text(machine.to_json())
    draft.replace(file)
    return file
