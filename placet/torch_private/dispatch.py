"""Private torch names around operator dispatch, behind names of our own."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

OperatorMode = TorchDispatchMode
"""A mode that sees every operator below autograd, as torch really runs it."""


def takes_generator(operator: Any) -> bool:
    """Whether an operator (an overload) has an argument `generator`."""
    return any(argument.name == "generator" for argument in operator._schema.arguments)
