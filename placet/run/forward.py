"""A model's forward as part of a global batch: its randomness and its statistics.

`prepare` says which rows come next and starts their randomness; hooks on the model keep
the `GlobalBatchMode` active in each forward, and `active` also around what surrounds it
(the loss, and the backward, in which activation checkpointing runs forwards again).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from placet.placement.layout import along
from placet.placement.placement import B, P
from placet.run.global_batch import GlobalBatchMode, Rows
from placet.run.keyed_random import reseed
from placet.run.own_hook import OwnHook
from placet.run.reads import ReadsMode
from placet.run.training import Training
from placet.torch_private.pytree import leaves


@dataclass
class Forward:
    """Runs a model's forwards as parts of global batches.

    Args:
        local_batch_norm: leave F.batch_norm to each rank's own rows.
    """

    training: Training
    seed: int
    local_batch_norm: bool
    generator: torch.Generator | None
    mode: GlobalBatchMode | None = None
    depth: int = 0
    entered: list[Any] = field(default_factory=list)
    silent: bool = False
    has_outputs: bool = False

    def prepare(self, step: int, rows: Rows) -> None:
        """The next forwards are of these rows; key their randomness by the step."""
        reseed(self.seed, step, generator=self.generator)
        alone = self.training.wire.num_ranks == 1
        reduce_sum = None if self.local_batch_norm or alone else self.reduce_sum
        self.mode = GlobalBatchMode(
            rows,
            reduce_sum=reduce_sum,
            generator=self.generator,
            reads=self.training.reads,
        )
        self.has_outputs = False

    def backward(
        self, loss: Tensor, num_targets: float, *, is_last: bool, stop: bool = False
    ) -> None:
        """Compute one micro-batch's gradients; see `Training.backward`.

        Rows without targets have no gradient of their own, yet they took part in the
        statistics of batch normalisation. There the model's outputs get zeros for
        cotangents (a mean over no targets gives NaN), and the rest is as ever.
        """
        in_statistics = (
            self.mode is not None
            and self.mode.num_norms > 0
            and not self.mode.rows.is_dummy
        )
        self.silent = not num_targets and in_statistics and self.has_outputs
        discard = not num_targets and not self.silent
        with self.active():
            self.training.backward(
                loss, num_targets, is_last=is_last, stop=stop, discard=discard
            )
        self.silent = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Keep the mode on for a while; forwards inside do not enter it again."""
        if self.mode is None or self.depth:
            yield
            return
        self.depth += 1
        try:
            with self.mode:
                yield
        finally:
            self.depth -= 1

    def reduce_sum(self, tensor: Tensor, name: str) -> Tensor:
        """The sum over ranks of a layer's statistics: a boxing P(sum) -> B."""
        training = self.training
        axis = training.options.axis
        src, dst = along(training.mesh, axis, P()), along(training.mesh, axis, B)
        return training.executor.box_now(name, tensor, src, dst)

    def enter(self, model: nn.Module, args: Any) -> None:
        """Before the model's forward (a hook)."""
        if self.depth:
            return
        reads = self.training.reads
        mode: Any = self.mode if model.training else None
        if mode is None and reads is not None:
            mode = ReadsMode(reads)
        if mode is not None:
            mode.__enter__()
            self.entered.append(mode)

    def leave(self, model: nn.Module, args: Any, output: Any) -> None:
        """After it, also when it raised (a hook)."""
        if self.entered:
            self.entered.pop().__exit__(None, None, None)
        if self.mode is not None and self.mode.num_norms and torch.is_grad_enabled():
            for tensor in leaves(output):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    self.has_outputs = True
                    untyped: Any = tensor
                    untyped.register_hook(self.cotangent)

    def cotangent(self, grad: Tensor) -> Tensor:
        """What the model's output gets for its cotangent (a hook)."""
        return torch.zeros_like(grad) if self.silent else grad


def global_forward(
    model: nn.Module, training: Training, seed: int, local_batch_norm: bool
) -> Forward:
    """Hook a model so that its training forwards are parts of global batches."""
    forward = Forward(training, seed, local_batch_norm, _own_generator())
    model.register_forward_pre_hook(OwnHook(forward.enter), prepend=True)
    model.register_forward_hook(OwnHook(forward.leave), always_call=True)
    return forward


def _own_generator() -> torch.Generator | None:
    """None for torch's default generator, which belongs to the main thread.

    Ranks that are threads of one process share it, so each takes one of its own.
    Activation checkpointing restores the default generator alone: in another thread,
    dropout under it gets another mask in the backward.
    """
    if threading.current_thread() is threading.main_thread():
        return None
    return torch.Generator()
