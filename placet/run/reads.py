"""Parameters that are read outside their block's forward, or in an unusual order.

A block's hooks bring its parameters for its forward and backward (`placet.run.blocks`).
Code may read them elsewhere: a head tied by hand, a penalty in the loss, weight
normalisation before the forward, a second backward inside the loss. Every call of a
torch function is shown here, while the mode is on:

    before    a parameter that it takes is up to date, and whole    -> Reads.before
    after     its backward will find that parameter whole           -> Reads.after

Such a block stays whole until the step's backward has ended: more memory, right values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from placet.program.blocks import Block
from placet.run.blocks import BlockHooks

_ASIDE = ("device", "dtype", "grad", "grad_fn", "is_leaf", "requires_grad")
_READ_NO_VALUES = {
    *(getattr(Tensor, name).__get__ for name in _ASIDE),
    *(getattr(Tensor, name).__set__ for name in ("data", "grad", "requires_grad")),
}


@dataclass(frozen=True)
class Reads:
    """Watches what torch functions take for parameters.

    Args:
        hooks: bring parameters.
        owners: id of a parameter -> its block.
    """

    hooks: BlockHooks
    owners: Mapping[int, Block]

    def before(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Block]:
        """Have what a call reads; the blocks whose parameters it takes."""
        if func in _READ_NO_VALUES:
            return []
        found = list(self._blocks(args))
        if kwargs:
            found += self._blocks(kwargs.values())
        for block in found:
            self.hooks.read(block)
        return found

    def after(self, blocks: Sequence[Block], result: object) -> None:
        """Have the blocks whole again when the call's backward comes."""
        if not self.hooks.stored:
            return
        results = result if isinstance(result, tuple | list) else (result,)
        for tensor in results:
            node = tensor.grad_fn if isinstance(tensor, Tensor) else None
            if node is not None:
                node.register_prehook(lambda _: self.hooks.have_whole(blocks))

    def _blocks(self, values: Any) -> Iterator[Block]:
        owners = self.owners
        for value in values:
            if id(value) in owners:
                yield owners[id(value)]
            elif type(value) in (list, tuple):
                yield from self._blocks(value)
            elif isinstance(value, Tensor) and id(value._base) in owners:
                yield owners[id(value._base)]


class ReadsMode(TorchFunctionMode):
    """Only watches, where rows are no part of a global batch (evaluation)."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch."""
        blocks = self.reads.before(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if blocks:
            self.reads.after(blocks, result)
        return result
