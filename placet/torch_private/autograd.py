"""torch.autograd's entry points, run with the active function modes left on.

torch takes a mode off while the mode serves a call. A backward pass may run forwards
(activation checkpointing), which then would run without it; and a mode that calls
`torch.autograd.backward` itself is asked again, for ever. These are the same functions
except that they ask no mode.
"""

from types import FunctionType
from typing import Any

import torch


def _asking_no_mode(function: Any) -> Any:
    assert "has_torch_function" in function.__code__.co_names, function
    names = function.__globals__ | {"has_torch_function": lambda args: False}
    copy = FunctionType(
        function.__code__,
        names,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


backward = _asking_no_mode(torch.autograd.backward)
grad = _asking_no_mode(torch.autograd.grad)
