"""Hooks that make a plain module's blocks the compute nodes of its program.

The user calls `model(...)` and autograd runs the backward; hooks on the blocks tell
when each opaque node begins and ends, so that the executor can fire the boxings around
it:

    before a block's forward    its parameters are whole; the next's are on their way
    after it                    level 3: only parts are kept, except the last block's
    before its backward         whole again; the block before is on its way
    after it                    level 3: only parts are kept
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from placet.program.blocks import Block, block_name
from placet.run.events import NodeFired, ignore
from placet.run.executor import Executor
from placet.run.own_hook import OwnHook
from placet.run.parameters import StoredBlock
from placet.torch_private.pytree import leaves


@dataclass
class BlockHooks:
    """What happens around the forward and backward of each block.

    Args:
        stored: the blocks with parts (level 3), in forward order; the root is last.
        updated: boxings of the last update that a block must wait for (level 1, 2).
        called: the blocks that this step has called.
        running: the blocks whose forward runs now.
        pinned: blocks that were used out of order, so they stay whole until the
            backward has ended.
        in_step: the step's own backward runs, not one inside the loss.
    """

    executor: Executor
    blocks: Sequence[Block]
    stored: dict[str, StoredBlock] = field(default_factory=dict)
    updated: dict[str, list[str]] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)
    in_backward: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    pinned: set[str] = field(default_factory=set)
    current: str | None = None
    in_step: bool = False

    def begin_step(self) -> None:
        """Forget the last step, even one that an exception has ended."""
        self.called.clear()
        self.running.clear()
        self.in_backward.clear()
        self.current = None
        self.in_step = False
        self.free()

    def read(self, block: Block) -> None:
        """A parameter is read, in its block's forward or anywhere else."""
        name = block_name(block)
        if name in self.running:
            return
        for boxing in self.updated.get(name, ()):
            self.executor.wait(boxing)
        if name in self.stored:
            self.stored[name].make_whole(self.executor, "forward")
            self.pinned.add(name)

    def have_whole(self, blocks: Sequence[Block]) -> None:
        """Backward is about to use the blocks' parameters."""
        for block in blocks:
            stored = self.stored.get(block_name(block))
            if stored is not None:
                stored.make_whole(self.executor, "backward")

    def before_forward(self, block: Block) -> None:
        """The block's parameters are needed."""
        name = block_name(block)
        self.called.add(name)
        for boxing in self.updated.get(name, ()):
            self.executor.wait(boxing)
        if name in self.stored:
            self.stored[name].make_whole(self.executor, "forward")
            if self.current is None:  # not recomputed by checkpointing
                self.prefetch(block, +1, "forward")
        self.running.add(name)
        self.began[name] = time.monotonic()

    def after_forward(self, block: Block, output: object) -> None:
        """The block has computed; arrange for its backward, or let go of it."""
        name = block_name(block)
        self.running.discard(name)
        self.tell(name, "forward")
        if name in self.in_backward:  # recomputed by activation checkpointing
            return
        if not self.stored and self.executor.observer is ignore:
            return
        tensors = [t for t in leaves(output) if isinstance(t, Tensor)]
        differentiable = [t for t in tensors if t.requires_grad]
        if differentiable and torch.is_grad_enabled():
            torch.autograd.graph.register_multi_grad_hook(
                differentiable, lambda _: self.before_backward(block), mode="any"
            )
        recomputed = self.current is not None
        if name in self.stored and not recomputed and not self.is_kept(block, tensors):
            self.let_go(name)

    def is_kept(self, block: Block, outputs: Sequence[Tensor]) -> bool:
        """Whether a block stays whole from its forward to its backward.

        The root and the last block do, and a block in whose output no tensor is found
        (an object of the user's own), since nothing would tell of its backward.
        """
        if not torch.is_grad_enabled():
            return False
        if not any(t.requires_grad for t in outputs):
            return not outputs
        return not block.name or block is self.last_block()

    def before_backward(self, block: Block) -> None:
        """The block's backward is about to run."""
        name = block_name(block)
        if not self.in_step:  # a gradient inside the loss, which may be used again
            if name in self.stored:
                self.stored[name].make_whole(self.executor, "backward")
                self.pinned.add(name)
            return
        if self.current is not None:
            if not block.name:  # the last block's output is the model's: it is running
                return
            self.after_backward(self.current)
        self.current = name
        self.in_backward.add(name)
        if name in self.stored:
            self.stored[name].make_whole(self.executor, "backward")
            self.prefetch(block, -1, "backward")
        self.began[name] = time.monotonic()

    def after_backward(self, name: str) -> None:
        """The next block's backward, or the end of all, has come."""
        self.tell(name, "backward")
        if name == "root":  # its embeddings and norms frame all other blocks
            return
        self.in_backward.discard(name)
        self.let_go(name)

    def end_backward(self) -> None:
        """All gradients have been made."""
        self.in_step = False
        if self.current is not None:
            self.after_backward(self.current)
        self.current = None
        self.in_backward.clear()
        self.free()

    def let_go(self, name: str) -> None:
        """Level 3: keep parts only of a block, unless it was used out of order."""
        if name in self.stored and name not in self.pinned:
            self.stored[name].free()

    def free(self) -> None:
        """Level 3: keep parts only, of every block."""
        self.pinned.clear()
        for stored in self.stored.values():
            for boxings in stored.gathers.values():
                for boxing in boxings:
                    self.executor.wait(boxing)
            stored.free()

    def last_block(self) -> Block | None:
        """The block whose backward comes first."""
        inner = [b for b in self.blocks if b.name]
        return inner[-1] if inner else None

    def prefetch(self, block: Block, direction: int, phase: str) -> None:
        """Start gathering the neighbour's parameters, so that they come in time."""
        inner = [b for b in self.blocks if b.name]
        here = (
            inner.index(block) if block.name else (-1 if direction > 0 else len(inner))
        )
        there = here + direction
        if 0 <= there < len(inner):
            neighbour = self.stored.get(block_name(inner[there]))
            if neighbour is not None:
                neighbour.submit(self.executor, phase)

    def tell(self, name: str, phase: str) -> None:
        """Let the observer know of an opaque compute node."""
        began = self.began.pop(name, None)
        if began is not None:
            event = NodeFired(
                self.executor.step,
                f"{name}.{phase}",
                "compute",
                began,
                time.monotonic(),
            )
            self.executor.observer(event)


def install(model: nn.Module, hooks: BlockHooks) -> list[Callable[[], None]]:
    """Hook the blocks of a model; the returned functions take the hooks off again."""
    handles: list[Callable[[], None]] = []
    for block in hooks.blocks:
        module = model.get_submodule(block.name)

        def before(_m: nn.Module, _args: Any, block: Block = block) -> None:
            hooks.before_forward(block)

        def after(_m: nn.Module, _a: Any, output: Any, block: Block = block) -> None:
            hooks.after_forward(block, output)

        first = module.register_forward_pre_hook(OwnHook(before), prepend=True)
        last = module.register_forward_hook(OwnHook(after))
        handles += [first.remove, last.remove]
    return handles
