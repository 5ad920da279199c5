"""Autocast by the name of a precision."""

from typing import Literal, TypeAlias

import torch

Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision) -> torch.autocast:
    """The autocast region of a precision; one that does nothing for fp32."""
    dtype = DTYPES[precision]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.autocast(
        device, dtype=dtype or torch.bfloat16, enabled=dtype is not None
    )
