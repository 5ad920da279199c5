"""Where a planned job's state is: parts that train, and the model's own whole tensors.

    cut(whole, home)     this rank's part, with memory of its own       -> own_cut
    Wholes.settle(step)  boxings home -> B, a bucket per home and dtype
    Wholes.rescue(step)  the same after an error, if all ranks have come to it
    Wholes.free()        the wholes' memory is given back: a step needs parts only

# NOTE [What a freed parameter reads]
The module keeps its own tensors (see NOTE [Parameters that come and go]) with their
shapes, so that code that looks at those goes on. Their one element is a NaN, seen by
everyone that reads values without `settle`; writing into one is an error of torch's.

# NOTE [Whole again after an error]
An error that all ranks meet (in the loss, the optimizer, a callback) should leave the
model as it can be read and saved. An error of one rank alone should end it at once: the
others wait for it in the step, and would never come to a boxing of wholes. So ranks
first tell one another that they have failed, and go on only if all have, within
`PATIENCE_SECONDS`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from placet.boxing.execute import Record, run, start
from placet.boxing.ledger import Ledger
from placet.boxing.plan import plan_boxing
from placet.errors import WireError
from placet.placement.layout import Layout, part_box, relative, replicated
from placet.placement.mesh import Mesh
from placet.placement.placement import Broadcast, P
from placet.wire.interface import Wire

PATIENCE_SECONDS = 2.0
"""How long a rank that has failed waits for others that have."""
POLL_SECONDS = 0.01

BUCKET_BYTES = 32 << 20
"""About as much travels at once when parts are made whole."""


@dataclass(frozen=True)
class Item:
    """A tensor that is stored in parts.

    Args:
        part: this rank's.
        whole: the model's own tensor, which is whole or stands in.
        home: the layout of the parts.
        shape, stride: of the whole tensor.
    """

    name: str
    part: Tensor
    whole: Tensor
    home: Layout
    shape: torch.Size
    stride: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Of the whole tensor."""
        return self.shape.numel() * self.part.dtype.itemsize


@dataclass
class Wholes:
    """The model's own tensors of what is stored in parts; see the module.

    Args:
        is_current: they are whole and hold what the parts hold.
        rescued_at: the step of the last `rescue`.
    """

    items: tuple[Item, ...]
    wire: Wire
    ledger: Ledger
    is_current: bool = True
    rescued_at: int | None = None

    def settle(self, step: int) -> None:
        """Have them whole and up to date; all ranks call it together."""
        if self.is_current:
            return
        for number, bucket in enumerate(buckets(self.items)):
            self._bring(bucket, f"settle.{number}", step)
        self.is_current = True

    def rescue(self, step: int) -> bool:
        """Settle after an error; see NOTE [Whole again after an error].

        Returns:
            Whether they are whole.
        """
        if self.is_current or not self.items:
            return True
        if self.rescued_at == step:
            return False
        self.rescued_at = step
        try:
            if not self._all_came(step):
                return False
            self.settle(step)
        except WireError:
            return False
        return True

    def _all_came(self, step: int) -> bool:
        ranks, name = self.items[0].home.mesh.ranks, "rescue"
        mesh = Mesh(f"ranks={len(ranks)}", ranks)
        src, dst = Layout(mesh, [P()]), replicated(mesh)
        (lowered,) = plan_boxing(((1,),), torch.float32, src, dst).lowered(
            self.wire.rank
        )
        record = Record(self.ledger, name, step)
        pending = start(
            lowered, (torch.ones(1),), self.wire, key=f"{name}.{step}", record=record
        )
        ends = time.monotonic() + PATIENCE_SECONDS
        while not pending.done():
            if time.monotonic() >= ends:
                return False
            time.sleep(POLL_SECONDS)
        pending.finish()
        return True

    def _bring(self, bucket: Sequence[Item], name: str, step: int) -> None:
        first = bucket[0]
        plan = plan_boxing(
            tuple(tuple(i.shape) for i in bucket),
            first.part.dtype,
            first.home,
            replicated(first.home.mesh),
            name=name,
        )
        found = run(
            plan,
            tuple(i.part.detach() for i in bucket),
            self.wire,
            key=name,
            record=Record(self.ledger, name, step),
            device=first.part.device,
        )
        for item, values in zip(bucket, found, strict=True):
            # Of its own: what was brought may be pieces of one buffer, or a wire's.
            own = torch.empty_strided(
                item.shape, item.stride, dtype=values.dtype, device=values.device
            )
            item.whole.data = own.copy_(values)

    def free(self) -> None:
        """Give their memory back; see NOTE [What a freed parameter reads]."""
        self.is_current = False
        for item in self.items:
            item.whole.data = _unreadable(item.part).expand(item.shape)

    def cut_again(self) -> None:
        """Take the parts out of the wholes, which were loaded."""
        for item in self.items:
            with torch.no_grad():
                item.part.copy_(_cut(item.whole, item.home, self.wire.rank))


def wholes_of(
    model: nn.Module,
    mine: Mapping[str, Tensor],
    homes: Mapping[str, Layout],
    wire: Wire,
    ledger: Ledger,
) -> Wholes:
    """What of a model is stored in parts.

    Args:
        mine: this rank's tensors by name.
        homes: where each of them is stored.
    """
    whole: dict[str, Tensor] = dict(model.named_parameters())
    whole |= dict(model.named_buffers())
    items = tuple(
        Item(n, t, whole[n], homes[n], whole[n].shape, _dense(whole[n]))
        for n, t in mine.items()
        if not is_whole(homes[n])
    )
    return Wholes(items, wire, ledger)


def buckets(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Items of equal home and dtype together, about `BUCKET_BYTES` of them at most."""
    groups: dict[tuple[Layout, torch.dtype], list[Item]] = {}
    for item in items:
        groups.setdefault((item.home, item.part.dtype), []).append(item)
    for group in groups.values():
        bucket: list[Item] = []
        for item in group:
            size = sum(i.num_bytes for i in bucket) + item.num_bytes
            if bucket and size > BUCKET_BYTES:
                yield bucket
                bucket = []
            bucket.append(item)
        yield bucket


def is_whole(layout: Layout) -> bool:
    """Whether every rank has all of a tensor."""
    return all(isinstance(p, Broadcast) for p in layout.placements)


def own_cut(whole: Tensor, layout: Layout, rank: int) -> Tensor:
    """The tensor itself, or a part with memory of its own."""
    if is_whole(layout):
        return whole
    return _cut(whole.detach(), layout, rank).clone(
        memory_format=torch.contiguous_format
    )


def part_of(parameter: nn.Parameter, layout: Layout, rank: int) -> nn.Parameter:
    """What the optimizer updates of a parameter: itself, or this rank's part."""
    if is_whole(layout):
        return parameter
    part = own_cut(parameter, layout, rank)
    return nn.Parameter(part, requires_grad=parameter.requires_grad)


def state_cutter(
    named: Mapping[str, nn.Parameter], homes: Mapping[str, Layout], rank: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """Cuts what an optimizer keeps of a parameter as the parameter is cut."""
    layouts = {id(parameter): homes[name] for name, parameter in named.items()}

    def cut(value: Tensor, parameter: Tensor) -> Tensor:
        return own_cut(value, layouts[id(parameter)], rank)

    return cut


def _cut(whole: Tensor, layout: Layout, rank: int) -> Tensor:
    shape = tuple(whole.shape)
    return whole[relative(part_box(shape, layout, rank), tuple((0, n) for n in shape))]


def _dense(tensor: Tensor) -> tuple[int, ...]:
    """The strides of a tensor of its own with this one's order of dims."""
    return torch.empty_like(tensor, device="meta").stride()


def _unreadable(like: Tensor) -> Tensor:
    """A number that nobody takes for a parameter."""
    if like.dtype.is_floating_point or like.dtype.is_complex:
        return like.new_full((), float("nan"))
    return like.new_full((), True if like.dtype == torch.bool else _largest(like.dtype))


def _largest(dtype: torch.dtype) -> int:
    return torch.iinfo(dtype).max
