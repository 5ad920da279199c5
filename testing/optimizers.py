"""Optimizers that torch does not have, as small as they can be."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Stranger(Optimizer):
    """What third-party optimizers have in common: options, and a step by parameter."""

    def __init__(
        self, params: Iterable[Tensor], lr: float = 0.01, **extra: Any
    ) -> None:
        Optimizer.__init__(self, params, {"lr": lr, **extra})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Change each parameter that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(self.change(p, self.state[p], group), alpha=-group["lr"])

    def change(self, p: Any, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        """What a parameter changes by, for a learning rate of -1."""
        raise NotImplementedError


class Lamb(Stranger):
    """LAMB (You et al., arXiv:1904.00962): Adam, scaled to each tensor's norm."""

    def change(self, p: Any, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        """Adam's change times the trust ratio."""
        first = state.setdefault("first", torch.zeros_like(p))
        second = state.setdefault("second", torch.zeros_like(p))
        state["step"] = step = state.get("step", 0) + 1
        first.lerp_(p.grad, 0.1)
        second.lerp_(p.grad**2, 0.001)
        update = first / (1 - 0.9**step)
        update = update / ((second / (1 - 0.999**step)).sqrt() + 1e-6) + 0.01 * p
        norms = p.norm(), update.norm()
        trust = torch.where((norms[0] > 0) & (norms[1] > 0), norms[0] / norms[1], 1.0)
        result: Tensor = update * trust
        return result
