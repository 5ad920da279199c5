"""Measuring what a rank computes: a few operators, each for a share of the time.

    rate = operations (or bytes) of a call / seconds of a call             -> _sustained
    what any call takes, and any boxing, besides its bytes                 -> _among

A call counts as its share of a window that is long beside a scheduler's turns, because
ranks may share cores: a call alone, between two turns, would hide the others. Of the
windows the median counts, so that a process that comes by does not. Sizes are those of
layers: large enough that a call's own time is small beside them. That time itself is
measured among larger calls: in a step nobody finds its own code and data in the caches,
which makes it ten times as long.
"""

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor
from torch.nn.functional import conv2d, linear, scaled_dot_product_attention

from placet.boxing.execute import CarriesResult, CarriesTraffic, start
from placet.boxing.moves import Move
from placet.boxing.plan import plan_boxing
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import Broadcast, Split

_CPU_DTYPES = (torch.float32, torch.float64)
_GPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

NEAR_BYTES = (1 << 18, 1 << 22)
"""Read and written by a call whose tensors a core's own cache holds, and by one whose
tensors it just does not hold."""

FAR = 32
"""Tensors of so many times the larger ones are past all caches."""

NUM_AMONG = 50
"""Calls that are timed one by one and count together."""

WINDOW_SECONDS = 0.03
"""Several turns of a scheduler, which gives a process 3 to 10 ms at a time."""


@dataclass(frozen=True)
class Measured:
    """Rates as in `placet.cost.machine.Machine`."""

    flops_per_s: tuple[tuple[str, str, float], ...]
    memory_bytes_per_s: float
    call_seconds: float
    boxing_seconds: float
    near: tuple[tuple[int, float], ...]


def device_name() -> str:
    """The device that ranks compute on: the GPU's name, or the processor's kind."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def measure(seconds: float) -> Measured:
    """Measure this rank's device with one thread, in about so many seconds.

    Args:
        seconds: 0.5 is a glance, 20 steady figures.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(seconds)
    finally:
        torch.set_num_threads(num_threads)


def _measure(seconds: float) -> Measured:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.no_grad():
        calls = list(_calls(device))
        share = seconds / (len(calls) + len(NEAR_BYTES) + 3)
        rates = tuple(
            (work, str(dtype).removeprefix("torch."), flops / _sustained(call, share))
            for work, dtype, flops, call in calls
        )
        near = tuple((n, _streaming(n, device, share)) for n in NEAR_BYTES)
        memory = _streaming(NEAR_BYTES[-1] * FAR, device, share)
        tiny = torch.ones(8, device=device)
        call = _among(lambda: tiny.add(tiny), device, share)
        boxing = _among(_boxing(device), device, share)
        return Measured(rates, memory, call, boxing, near)


def _calls(
    device: torch.device,
) -> Iterator[tuple[str, torch.dtype, int, Callable[[], object]]]:
    rows, width = (128, 1024) if device.type == "cpu" else (4096, 4096)
    for dtype in _CPU_DTYPES if device.type == "cpu" else _GPU_DTYPES:
        yield "matmul", dtype, 2 * rows * width**2, _layers(rows, width, dtype, device)
    rows, channels, image = (2, 64, 28) if device.type == "cpu" else (64, 128, 56)
    x = torch.ones(rows, channels, image, image, device=device)
    w = torch.ones(channels, channels, 3, 3, device=device)
    flops = 2 * x.numel() * channels * 9
    yield "convolution", torch.float32, flops, lambda: conv2d(x, w, padding=1)
    heads, length, width = (4, 256, 64) if device.type == "cpu" else (64, 2048, 64)
    q = torch.ones(1, heads, length, width, device=device)
    flops = 4 * heads * length * length * width
    yield (
        "attention",
        torch.float32,
        flops,
        lambda: scaled_dot_product_attention(q, q, q),
    )


def _layers(
    rows: int, width: int, dtype: torch.dtype, device: torch.device
) -> Callable[[], Tensor]:
    """A linear layer, another one each time: no cache holds a whole model's weights."""
    x = torch.ones(rows, width, dtype=dtype, device=device)
    weights = cycle([x.new_ones(width, width) for _ in range(8)])
    return lambda: linear(x, next(weights))


def _streaming(num_bytes: int, device: torch.device, seconds: float) -> float:
    """Bytes a second, read and written, of calls that read and write as many."""
    source = torch.ones(num_bytes // 8, device=device)
    return num_bytes / _sustained(lambda: torch.relu(source), seconds)


def _boxing(device: torch.device) -> Callable[[], object]:
    """A small boxing of two ranks, all but its way through the wire."""
    mesh = Mesh("a=2")
    layouts = Layout(mesh, [Split(0)]), Layout(mesh, [Broadcast()])
    (lowered,) = plan_boxing(((8, 8),), torch.float32, *layouts).lowered(0)
    part, nowhere = torch.ones(4, 8, device=device), _Nowhere(device)
    return lambda: start(lowered, (part,), nowhere, key="measure").finish()


class _Nowhere:
    """Carries moves without moving anything; every arrival is there at once."""

    rank = 0

    def __init__(self, device: torch.device) -> None:
        self.arrival = torch.ones(64, device=device)

    def submit(
        self,
        move: Move,
        payload: Tensor,
        *,
        key: str,
        priority: int = 0,
        out: Tensor | None = None,
    ) -> CarriesResult:
        """The arrival."""
        del move, payload, key, priority, out
        return self

    def done(self) -> bool:
        return True

    def wait(self) -> Tensor:
        return self.arrival

    def traffic(self) -> CarriesTraffic:
        raise NotImplementedError("nothing asks for the bytes of a move to nowhere")


def _among(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Seconds of a call that follows larger ones, on other data."""
    began = time.perf_counter()
    other = torch.ones(NEAR_BYTES[-1] // 8, device=device)
    _timed(call, 1)
    times: list[float] = []
    while not times or time.perf_counter() - began < seconds:
        total = 0.0
        for _ in range(NUM_AMONG):
            _timed(lambda: torch.relu(other), 1)
            total += _timed(call, 1)
        times.append(total / NUM_AMONG)
    return statistics.median(times)


def _sustained(call: Callable[[], object], seconds: float) -> float:
    """Seconds of a call that follows others, after one to warm up."""
    began = time.perf_counter()
    _timed(call, 1)
    once = max(_timed(call, 1), 1e-7)
    repeats = max(1, round(WINDOW_SECONDS / once))
    times: list[float] = []
    while not times or time.perf_counter() - began < seconds:
        times.append(_timed(call, repeats) / repeats)
    return statistics.median(times)


def _timed(call: Callable[[], object], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began
