"""A mode in which a rank's part of the batch behaves as if it were in the whole batch.

Each rank has some rows of the global batch, S(0). Two kinds of operation see more than
their own row, and this mode gives them the meaning they have on one device:

    random operations    keyed by global index      -> placet.run.random_ops
    F.batch_norm         statistics of all rows     -> placet.run.batch_norm

The mode must be active in the forward and in the backward: activation checkpointing
runs forwards inside the backward. Everything else passes through at once.

# NOTE [What is taken for a part of the batch]

A tensor whose dim 0 is the number of local rows or a multiple (heads or places
flattened into the rows), except parameters. Any other tensor is taken for equal on all
ranks. A replicated tensor whose dim 0 happens to be a multiple (dropout on a table of
positions, say) is therefore taken for a part; give such a dropout a leading dim of 1.
Recurrent layers are recognised, their rows stand in dim 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from placet.run.batch_norm import (
    ReduceSum,
    Reduction,
    global_batch_norm,
    global_instance_statistics,
)
from placet.run.random_ops import KeyedRandomOps, Part
from placet.run.reads import Reads
from placet.torch_private import autograd, random_operators


@dataclass(frozen=True)
class Rows:
    """Which rows of the global batch (dim 0) this rank has.

    Args:
        first_row: global index of the first.
        num_rows: how many there are here, at least 1 (a dummy where there are none).
        global_rows: how many all ranks have together.
        weight: 0 says that the rows are a dummy and not of the batch.

    Raises:
        ValueError: rows outside the global batch.
    """

    first_row: int
    num_rows: int
    global_rows: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.num_rows < 1 or self.first_row < 0:
            raise ValueError(f"{self}: needs first_row >= 0 and num_rows >= 1")
        if not self.is_dummy and self.first_row + self.num_rows > self.global_rows:
            raise ValueError(
                f"{self}: rows end at {self.first_row + self.num_rows}, beyond the "
                f"global batch; a rank without rows takes a dummy row of weight 0"
            )

    @property
    def is_dummy(self) -> bool:
        """Whether the rows count for nothing."""
        return self.weight == 0


class GlobalBatchMode(TorchFunctionMode):
    """While active, operations on this rank's rows mean what they mean on one device.

    >>> with GlobalBatchMode(Rows(first_row=4, num_rows=4, global_rows=8)):
    ...     F.dropout(x, 0.5).sum().backward()   # rows 4 to 7 of one device's mask

    Args:
        rows: which rows this rank has.
        reduce_sum: sums a tensor over the ranks; None leaves batch_norm local.
        generator: where operations take their keys; equal on all ranks. The default
            generator when left out (see `placet.run.keyed_random.reseed`).
        reads: is shown every call, if its parameters may be elsewhere.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        reduce_sum: ReduceSum | None = None,
        generator: torch.Generator | None = None,
        reads: Reads | None = None,
    ) -> None:
        self.rows = rows
        self.reads = reads
        self.reduce_sum = reduce_sum
        self.generator = generator
        self.num_norms = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one function of torch."""
        reads = self.reads
        blocks = reads.before(func, args, kwargs or {}) if reads is not None else ()
        meaning = _MEANINGS.get(func)
        if meaning is not None:
            result = meaning(self, func, args, kwargs or {})
        else:
            result = func(*args, **kwargs) if kwargs else func(*args)
        if blocks and reads is not None:
            reads.after(blocks, result)
        return result

    def part(self, dim: int = 0) -> Part:
        """The rows as the random operations know them."""
        return Part(self.rows.first_row, self.rows.num_rows, dim)

    def next_norm(self, reduce_sum: ReduceSum) -> Reduction:
        """How the next normalisation of this forward is summed over the ranks."""
        self.num_norms += 1
        name = f"batch_norm.{self.num_norms - 1}"
        return Reduction(reduce_sum, name, is_dummy=self.rows.is_dummy)


Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def _given(args: Args, kwargs: Kwargs, place: int, names: str, default: Any) -> Any:
    """An argument, by place or by one of its names."""
    if len(args) > place:
        return args[place]
    return next((kwargs[n] for n in names.split() if n in kwargs), default)


def _random(mode: GlobalBatchMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    with KeyedRandomOps(mode.part(), mode.generator):
        return func(*args, **kwargs)


def _dropout(mode: GlobalBatchMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    off_unless_told = func in (F.alpha_dropout, F.feature_alpha_dropout)
    training = _given(args, kwargs, 2, "training train", not off_unless_told)
    if not training or _given(args, kwargs, 1, "p", 0.5) == 0.0:
        return func(*args, **kwargs)
    shared = isinstance(_given(args, kwargs, 0, "input", None), torch.nn.Parameter)
    with KeyedRandomOps(Part(0, 0) if shared else mode.part(), mode.generator):
        return func(*args, **kwargs)


def _attention(mode: GlobalBatchMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    if func is F.multi_head_attention_forward:
        dropout = _given(args, kwargs, 10, "dropout_p", 0.0)
        dropout *= bool(_given(args, kwargs, 13, "training", True))
    else:
        dropout = _given(args, kwargs, 4, "dropout_p", 0.0)
    if dropout == 0.0:
        return func(*args, **kwargs)
    if _given(args, kwargs, 0, "query", None).device.type == "cpu":
        # With dropout the CPU always takes the plain form.
        return _random(mode, func, args, kwargs)
    # Fused kernels draw inside; the plain form takes a mask of ours.
    with sdpa_kernel(SDPBackend.MATH):
        return _random(mode, func, args, kwargs)


def _recurrent(mode: GlobalBatchMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    is_packed = isinstance(args[1], Tensor) and isinstance(args[3], (list, tuple))
    dropout, training = (args[6], args[7]) if is_packed else (args[5], args[6])
    if dropout == 0.0 or not training:
        return func(*args, **kwargs)
    if is_packed:
        raise NotImplementedError(
            "dropout between recurrent layers over a PackedSequence cannot be keyed by "
            "global row; pad instead of packing, or stack one-layer modules with "
            "nn.Dropout between"
        )
    # Time stands in dim 0 inside, whatever batch_first says; cuDNN's own dropout
    # escapes the table and warns.
    with KeyedRandomOps(mode.part(dim=1), mode.generator):
        return func(*args, **kwargs)


def _batch_norm(mode: GlobalBatchMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    training = _given(args, kwargs, 5, "training", False)
    if mode.reduce_sum is None or not training:
        return func(*args, **kwargs)
    if func is F.batch_norm:
        places = "running_mean running_var weight bias"
    else:
        places = "weight bias running_mean running_var"
    tensors = {
        name: _given(args, kwargs, i, name, None)
        for i, name in enumerate(places.split(), start=1)
    }
    return global_batch_norm(
        _given(args, kwargs, 0, "input", None),
        **tensors,
        momentum=_given(args, kwargs, 6, "momentum", 0.1),
        eps=_given(args, kwargs, 7, "eps", 1e-5),
        reduction=mode.next_norm(mode.reduce_sum),
    )


def _instance_norm(mode: GlobalBatchMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    names = ("input", "running_mean", "running_var", "weight", "bias")
    given = [_given(args, kwargs, i, name, None) for i, name in enumerate(names)]
    input, running_mean, running_var, weight, bias = given
    use_input_stats = _given(args, kwargs, 5, "use_input_stats", True)
    if mode.reduce_sum is None or not use_input_stats or running_mean is None:
        return func(*args, **kwargs)
    momentum = _given(args, kwargs, 6, "momentum", 0.1)
    global_instance_statistics(
        input,
        running_mean,
        running_var,
        momentum=momentum,
        reduction=mode.next_norm(mode.reduce_sum),
    )
    eps = _given(args, kwargs, 7, "eps", 1e-5)
    return func(input, None, None, weight, bias, True, momentum, eps)


def _backward(mode: GlobalBatchMode, func: Any, args: Args, kwargs: Kwargs) -> Any:
    # torch takes a mode off while it serves a call, yet this call may run forwards.
    with mode:
        if func is torch.autograd.grad:
            return autograd.grad(*args, **kwargs)
        if func is torch.Tensor.backward and "gradient" in kwargs:
            kwargs = kwargs | {"grad_tensors": kwargs["gradient"]}
            del kwargs["gradient"]
        return autograd.backward(*args, **kwargs)


def _named(owner: Any, names: str) -> list[Any]:
    return [getattr(owner, name) for name in names.split()]


_MEANINGS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        _named(F, "dropout dropout1d dropout2d dropout3d alpha_dropout")
        + _named(F, "feature_alpha_dropout")
        + _named(torch, "dropout dropout_ feature_dropout feature_dropout_")
        + _named(torch, "alpha_dropout alpha_dropout_ feature_alpha_dropout")
        + _named(torch, "feature_alpha_dropout_ native_dropout"),
        _dropout,
    ),
    **dict.fromkeys(
        _named(torch, "rand rand_like randn randn_like randint randint_like randperm")
        + _named(torch, "normal bernoulli multinomial poisson rrelu rrelu_")
        + _named(torch, "binomial pca_lowrank svd_lowrank")
        + _named(torch.Tensor, "bernoulli bernoulli_ uniform_ normal_ exponential_")
        + _named(torch.Tensor, "random_ cauchy_ log_normal_ geometric_ multinomial")
        + _named(F, "rrelu gumbel_softmax fractional_max_pool2d fractional_max_pool3d")
        + _named(F, "fractional_max_pool2d_with_indices")
        + _named(F, "fractional_max_pool3d_with_indices")
        + _named(torch.nn.init, "uniform_ normal_ trunc_normal_ kaiming_uniform_")
        + _named(torch.nn.init, "kaiming_normal_ xavier_uniform_ xavier_normal_")
        + _named(torch.nn.init, "orthogonal_ sparse_")
        + list(random_operators.FUNCTIONS),
        _random,
    ),
    **dict.fromkeys(
        _named(F, "scaled_dot_product_attention multi_head_attention_forward"),
        _attention,
    ),
    **dict.fromkeys(_named(torch, "lstm gru rnn_tanh rnn_relu"), _recurrent),
    **dict.fromkeys([F.batch_norm, torch.batch_norm], _batch_norm),
    F.instance_norm: _instance_norm,
    **dict.fromkeys(
        [torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad], _backward
    ),
}
