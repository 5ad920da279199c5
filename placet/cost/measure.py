"""Measuring what a rank computes: a few operators, each for a share of the time.

    rate = operations (or bytes) of a call / median seconds of the calls   -> _median

Medians, so that another process that interrupts a call or two does not count. Sizes
are those of layers: large enough that a call's own time is small beside them.
"""

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import conv2d, scaled_dot_product_attention

_CPU_DTYPES = (torch.float32, torch.float64)
_GPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Measured:
    """Rates as in `placet.cost.machine.Machine`."""

    flops_per_s: tuple[tuple[str, str, float], ...]
    memory_bytes_per_s: float
    call_seconds: float


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
        share = seconds / (len(calls) + 2)
        rates = tuple(
            (work, str(dtype).removeprefix("torch."), flops / _median(call, share))
            for work, dtype, flops, call in calls
        )
        source = torch.ones(1 << 23, device=device)  # 32 MiB: past the caches
        target = torch.empty_like(source)
        moved = 2 * source.numel() * source.itemsize
        memory = moved / _median(lambda: target.copy_(source), share)
        tiny = torch.ones(8, device=device)
        return Measured(rates, memory, _median(lambda: tiny.add(tiny), share, 100))


def _calls(
    device: torch.device,
) -> Iterator[tuple[str, torch.dtype, int, Callable[[], object]]]:
    size = 384 if device.type == "cpu" else 4096
    for dtype in _CPU_DTYPES if device.type == "cpu" else _GPU_DTYPES:
        a = torch.ones(size, size, dtype=dtype, device=device)
        yield "matmul", dtype, 2 * size**3, lambda a=a: a.mm(a)  # type: ignore[misc]
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


def _median(call: Callable[[], object], seconds: float, repeats: int = 1) -> float:
    """Median seconds of a call, after one to warm up."""
    _timed(call, 1)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        times.append(_timed(call, repeats) / repeats)
    return statistics.median(times)


def _timed(call: Callable[[], object], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began
