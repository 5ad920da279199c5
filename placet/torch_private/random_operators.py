"""Private torch names around random operators, behind names of our own."""

from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

OperatorMode = TorchDispatchMode
"""A mode that sees every operator below autograd, as torch really runs it."""

FUNCTIONS = (torch._standard_gamma, torch._sample_dirichlet)
"""Random functions that torch.distributions calls."""


@lru_cache(maxsize=4096)
def is_random(operator: Any) -> bool:
    """Whether an operator (an overload) draws random numbers."""
    seeded = torch.Tag.nondeterministic_seeded in operator.tags
    return seeded or takes_generator(operator)


def takes_generator(operator: Any) -> bool:
    """Whether an operator has an argument `generator`."""
    return any(argument.name == "generator" for argument in operator._schema.arguments)


def with_generator(operator: Any) -> Any | None:
    """The form of a random operator that takes a generator, if there is one."""
    if takes_generator(operator):
        return operator
    return getattr(operator.overloadpacket, "generator", None)
