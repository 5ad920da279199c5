"""Windows that slide along a dim: which inputs an interval of outputs reads.

    out[j] reads x[stride j - padding + dilation t] for t < kernel

Where the input has `stride` times as many indices as the output, both are cut at the
same places, and a part [a, b) of the outputs reads its own inputs [stride a, stride b)
and beyond them

    below  padding
    above  dilation (kernel - 1) + 1 - stride - padding         -> Window.halo

A negative `above` are inputs that nobody reads.
"""

from dataclasses import dataclass

from placet.placement.layout import Layout
from placet.program.rules.pattern import same_cuts, split_sizes


@dataclass(frozen=True)
class Window:
    """A window along one dim.

    Args:
        size_in, size_out: indices of the input and of the output.
    """

    size_in: int
    size_out: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def is_aligned(self) -> bool:
        """Whether the input has stride times as many indices as the output."""
        return self.size_in == self.stride * self.size_out and self.size_out > 1

    @property
    def halo(self) -> tuple[int, int]:
        """What a part of the outputs reads of its neighbours' inputs."""
        above = self.dilation * (self.kernel - 1) + 1 - self.stride - self.padding
        return self.padding, max(0, above)

    def reads(self, start: int, stop: int) -> tuple[int, int]:
        """The inputs that outputs from `start` to `stop` read, also beyond the ends."""
        first = start * self.stride - self.padding
        span = self.dilation * (self.kernel - 1) + 1
        return first, (stop - 1) * self.stride - self.padding + span

    def pads(self, has: tuple[int, int], makes: tuple[int, int]) -> tuple[int, int]:
        """What to add to the inputs that are there, so that all that is read is."""
        first, last = self.reads(*makes)
        return has[0] - first, last - has[1]

    def cuts_match(self, src: Layout, dst: Layout, dim: int) -> bool:
        """Whether the input's parts are those that the output's parts stand for."""
        sizes = split_sizes(dst, dim)
        if split_sizes(src, dim) != sizes:
            return False
        whole = (self.size_in, 1), (self.size_out, self.stride)
        return not sizes or same_cuts(*whole, sizes)
