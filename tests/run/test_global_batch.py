"""A rank's rows under the mode are, bit for bit, rows of what one device computes."""

import time
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from placet.run import random_ops
from placet.run.global_batch import GlobalBatchMode, Rows
from placet.run.keyed_random import op_key, reseed
from placet.wire.interface import Wire
from testing.ranks import run_threads

SPLITS = [(12,), (6, 6), (5, 4, 3), (4, 3, 3, 2), (1, 11)]

Function = Callable[[Tensor], Tensor]


def generator(seed: int = 0) -> torch.Generator:
    made = torch.Generator()
    reseed(seed, 1, generator=made)
    return made


def parts(split: Sequence[int]) -> list[Rows]:
    stops = [sum(split[: i + 1]) for i in range(len(split))]
    return [Rows(a, b - a, stops[-1]) for a, b in pairwise([0, *stops])]


def split_run(fn: Function, x: Tensor, split: Sequence[int], dim: int = 0) -> Tensor:
    """`fn` on each rank's rows under the mode, joined."""
    pieces = []
    for rows in parts(split):
        with GlobalBatchMode(rows, generator=generator()):
            pieces.append(fn(x.narrow(dim, rows.first_row, rows.num_rows)))
    return torch.cat(pieces, dim)


def attention(x: Tensor, **options: Any) -> Tensor:
    q = x.view(len(x), 4, 10, 8)
    k, v = (q[:, :2], q[:, 2:]) if options.get("enable_gqa") else (q * 2, q + 1)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.4, **options).flatten(1)


BY_ROW: dict[str, Function] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout_in_place": lambda x: F.dropout(x.clone(), 0.3, inplace=True),
    "dropout_twice": lambda x: F.dropout(F.dropout(x, 0.3), 0.3),
    "dropout_heads": lambda x: F.dropout(x.view(-1, 5, 8), 0.3).view(len(x), -1),
    "dropout1d": lambda x: F.dropout1d(x.view(len(x), -1, 8), 0.3).flatten(1),
    "dropout2d": lambda x: F.dropout2d(x.view(len(x), -1, 4, 2), 0.3).flatten(1),
    "dropout3d": lambda x: F.dropout3d(x.view(len(x), -1, 2, 2, 2), 0.3).flatten(1),
    "module": lambda x: nn.Dropout(0.3)(x),
    "alpha": lambda x: nn.AlphaDropout(0.3)(x),
    "feature_alpha": lambda x: F.feature_alpha_dropout(
        x.view(len(x), -1, 8), 0.3, True
    ).flatten(1),
    "torch_dropout": lambda x: torch.dropout(x, 0.3, train=True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "channels_last": lambda x: F.dropout(
        x.view(len(x), 4, 10, 8).to(memory_format=torch.channels_last), 0.3
    ).flatten(1),
    "attention": attention,
    "attention_causal": lambda x: attention(x, is_causal=True),
    "attention_scale": lambda x: attention(x, scale=0.1),
    "attention_grouped": lambda x: attention(x, enable_gqa=True),
    "attention_mask": lambda x: attention(
        x, attn_mask=torch.ones(10, 10, dtype=torch.bool).tril(2)
    ),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu_in_place": lambda x: F.rrelu(x.clone(), training=True, inplace=True),
    "gumbel": lambda x: F.gumbel_softmax(x),
    "gumbel_hard": lambda x: F.gumbel_softmax(x, hard=True),
    "fractional_pool": lambda x: F.fractional_max_pool2d(
        x.view(len(x), 5, 8, 8), 2, output_size=5
    ).flatten(1),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 50),
    "randint_like_low": lambda x: torch.randint_like(x, 20, 50),
    "rand": lambda x: torch.rand(len(x), 3, 7),
    "randn": lambda x: torch.randn(x.shape, dtype=torch.float64),
    "randint": lambda x: torch.randint(1000, (len(x), 1)),
    "randint_low": lambda x: torch.randint(10, 20, size=(len(x), 4)),
    "normal": lambda x: torch.normal(x, 2.0),
    "normal_tensors": lambda x: torch.normal(x, x.abs()),
    "normal_size": lambda x: torch.normal(1.0, 2.0, size=(len(x), 6)),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli_p": lambda x: torch.bernoulli(x, p=0.2),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.4),
    "bernoulli_tensor_": lambda x: torch.empty_like(x).bernoulli_(x[:, :1].sigmoid()),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 4),
    "normal_": lambda x: torch.empty_like(x).normal_(3, 0.5),
    "exponential_": lambda x: torch.empty_like(x).exponential_(2.0),
    "random_": lambda x: torch.empty_like(x).random_(),
    "random_to_": lambda x: torch.empty_like(x).random_(9),
    "random_int_": lambda x: x.new_empty(len(x), 5, dtype=torch.int32).random_(),
    "multinomial": lambda x: torch.multinomial(x.abs(), 1),
    "multinomial_several": lambda x: torch.multinomial(x.abs(), 5),
    "init": lambda x: nn.init.normal_(torch.empty_like(x)),
    "distribution": lambda x: torch.distributions.Normal(x, 1.0).rsample(),
    "categorical": lambda x: torch.distributions.Categorical(logits=x).sample()[
        :, None
    ],
    "strided": lambda x: torch.empty(7, len(x)).t().uniform_(),
}


@pytest.mark.parametrize("name", BY_ROW)
def test_random_rows_are_those_of_one_device(name: str):
    fn, x = BY_ROW[name], torch.randn(12, 320, dtype=torch.float64)
    whole = split_run(fn, x, (12,))
    assert len(whole) == 12
    assert not torch.equal(whole[0], whole[1])
    for split in SPLITS[1:]:
        joined = split_run(fn, x, split)
        torch.testing.assert_close(joined, whole, rtol=1e-12, atol=1e-12)
    with GlobalBatchMode(parts((12,))[0], generator=generator(seed=5)):
        assert not torch.equal(fn(x), whole)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_mask_is_bit_equal_and_scaled(p: float):
    x = torch.ones(12, 64, 32)
    whole = split_run(lambda x: F.dropout(x, p), x, (12,))
    kept = F.dropout(torch.ones(1000), p).max()
    assert set(whole.unique().tolist()) == {0.0, float(kept)}
    assert abs(float((whole == 0).double().mean()) - p) < 0.02
    for split in SPLITS:
        assert torch.equal(split_run(lambda x: F.dropout(x, p), x, split), whole)


def test_dropout_gradient_takes_the_same_mask():
    x = torch.randn(12, 5, requires_grad=True)
    y = split_run(lambda x: F.dropout(x, 0.5), x, (5, 7))
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.where(y == 0, 0.0, 2.0))


class Recurrent(nn.Module):
    """Two layers with dropout between, rows in dim 0 or 1."""

    def __init__(self, kind: type[nn.RNNBase], batch_first: bool) -> None:
        nn.Module.__init__(self)
        self.layers = kind(8, 6, 2, dropout=0.5, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)[0]
        return y


class Attention(nn.Module):
    """nn.MultiheadAttention over itself."""

    def __init__(self, batch_first: bool, need_weights: bool) -> None:
        nn.Module.__init__(self)
        self.heads = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=batch_first)
        self.need_weights = need_weights

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.heads(x, x, x, need_weights=self.need_weights)[0]
        return y


MODULES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "lstm": (lambda: Recurrent(nn.LSTM, True), 0),
    "lstm_time_first": (lambda: Recurrent(nn.LSTM, False), 1),
    "gru": (lambda: Recurrent(nn.GRU, True), 0),
    "rnn_time_first": (lambda: Recurrent(nn.RNN, False), 1),
    "attention": (lambda: Attention(True, False), 0),
    "attention_weights": (lambda: Attention(True, True), 0),
    "attention_time_first": (lambda: Attention(False, False), 1),
    "attention_time_first_weights": (lambda: Attention(False, True), 1),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 0),
    "decoder": (
        lambda: nn.Transformer(8, 2, 1, 1, 16, dropout=0.3, batch_first=True).encoder,
        0,
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_module_with_dropout_inside(name: str):
    make, dim = MODULES[name]
    torch.manual_seed(1)
    module = make().double()
    x = torch.randn(12, 7, 8, dtype=torch.float64).transpose(0, dim)
    whole = split_run(module, x, (12,), dim)
    with GlobalBatchMode(parts((12,))[0], generator=generator(seed=5)):
        assert not torch.allclose(module(x), whole)
    for split in SPLITS[1:]:
        joined = split_run(module, x, split, dim)
        torch.testing.assert_close(joined, whole, rtol=1e-10, atol=1e-10)


def tensor_backward(loss: Tensor, x: Tensor) -> Tensor | None:
    loss.backward(gradient=torch.ones(()))
    return x.grad


def autograd_backward(loss: Tensor, x: Tensor) -> Tensor | None:
    torch.autograd.backward(loss, inputs=[x])
    return x.grad


def autograd_grad(loss: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(loss, [x])[0]


@pytest.mark.parametrize("run", [tensor_backward, autograd_backward, autograd_grad])
def test_checkpointing_recomputes_the_same_mask(
    run: Callable[[Tensor, Tensor], Tensor],
):
    start, weight = torch.randn(6, 40), torch.randn(40, 40)

    def block(x: Tensor) -> Tensor:
        return F.dropout(F.dropout(x @ weight, 0.5).tanh(), 0.5)

    grads = []
    for forward in (block, lambda x: checkpoint(block, x, use_reentrant=False)):
        x = start.clone().requires_grad_()
        reseed(0, 1)
        with GlobalBatchMode(Rows(6, 6, 12)):
            grads.append(run(forward(x).pow(2).sum(), x))
    assert grads[0].count_nonzero() > 0
    assert torch.equal(grads[0], grads[1])


def test_mode_is_each_threads_own():
    x = torch.randn(12, 50)
    whole = split_run(lambda x: F.dropout(x, 0.5), x, (12,))

    def run(wire: Wire) -> Tensor:
        rows = parts((5, 4, 3))[wire.rank]
        local = x[rows.first_row : rows.first_row + rows.num_rows]
        own = generator()
        with GlobalBatchMode(rows, generator=own):
            return F.dropout(local, 0.5)

    assert torch.equal(torch.cat(run_threads(3, run)), whole)


def replicated_draws(rows: Rows) -> list[Tensor]:
    """Random things that are not of the batch, between some that are."""
    own = generator()
    weight = nn.Parameter(torch.ones(rows.num_rows * 5, 3))
    with GlobalBatchMode(rows, generator=own):
        F.dropout(torch.ones(rows.num_rows, 100), 0.5)
        draws = [torch.rand(()), torch.randn(1, 17)]
        torch.rand(rows.num_rows, 3)
        draws += [F.dropout(weight, 0.5)[:10], torch.tensor(op_key(own))]
    return draws


def test_random_tensors_outside_the_batch_are_equal_on_all_ranks():
    first, *others = [replicated_draws(rows) for rows in parts((2, 6, 4))]
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert torch.equal(a, b)


def test_dropout_that_does_nothing_draws_nothing():
    own = generator()
    x = torch.ones(4, 6)
    q = x.view(4, 1, 3, 2)
    layers = nn.LSTM(6, 3, 2, dropout=0.5).eval()
    heads = nn.MultiheadAttention(6, 2, dropout=0.5).eval()
    mode = GlobalBatchMode(Rows(0, 4, 8), generator=own)
    with mode:
        assert F.dropout(x, 0.5, training=False) is x
        assert torch.equal(F.dropout(x, 0.0), x)
        assert torch.equal(F.alpha_dropout(x, 0.5), x)
        F.scaled_dot_product_attention(q, q, q)
        layers(x)
        heads(x, x, x)
    with pytest.raises(ValueError, match="between 0 and 1"), mode:
        F.dropout(x, 1.5)
    assert op_key(own) == op_key(generator())


def test_a_generator_of_the_users_own_is_left_alone():
    with GlobalBatchMode(Rows(4, 4, 8), generator=generator()):
        ours = torch.randn(4, 3, generator=torch.Generator().manual_seed(5))
        also = torch.empty(4, 3).normal_(generator=torch.Generator().manual_seed(5))
    theirs = torch.randn(4, 3, generator=torch.Generator().manual_seed(5))
    assert torch.equal(ours, theirs)
    assert torch.equal(also, theirs)


UNKEYED: dict[str, Function] = {
    "randperm": lambda x: torch.randperm(len(x)),
    "multinomial": lambda x: torch.multinomial(x, 20, replacement=True),
    "poisson": torch.poisson,
    "cauchy": lambda x: torch.empty_like(x).cauchy_(),
    "gamma": lambda x: torch.distributions.Gamma(x, x).sample(),
}


@pytest.mark.parametrize("name", UNKEYED)
def test_what_cannot_be_keyed_warns_and_stays_in_step(name: str):
    def run(rows: Rows) -> tuple[Tensor, int]:
        own = generator()
        x = torch.rand(rows.num_rows, 5) + 0.5
        with (
            pytest.warns(UserWarning, match="cannot key by global index"),
            GlobalBatchMode(rows, generator=own),
        ):
            values = UNKEYED[name](torch.full_like(x, 2.0))
        return values, op_key(own)

    (first, key), (again, _), (other, other_key) = (
        run(Rows(first_row, rows, 48))
        for first_row, rows in ((0, 24),) * 2 + ((24, 24),)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert key == other_key


def test_dropout_between_packed_layers_is_refused():
    packed = pack_padded_sequence(torch.randn(5, 4, 3), torch.tensor([5, 4, 2, 1]))
    layers = nn.LSTM(3, 4, 2, dropout=0.5)
    with (
        pytest.raises(NotImplementedError, match="pad instead of packing"),
        GlobalBatchMode(Rows(0, 4, 8)),
    ):
        layers(packed)
    with GlobalBatchMode(Rows(0, 4, 8)):
        layers.eval()(packed)
        nn.LSTM(3, 4, 2)(packed)


ELSEWHERE = {  # random operators below or beside those that are keyed
    "fused attention, not taken with dropout": "attention",
    "cuDNN and MIOpen layers, which warn": "_rnn",
    "fused dropout, of native_dropout": "_fused_dropout",
}
COMPOSITE = {"dropout", "alpha_dropout", "lstm", "gru", "rnn_tanh", "rnn_relu"}
WARN = {"poisson", "_standard_gamma", "cauchy", "cauchy_", "geometric", "geometric_"}
WARN |= {"log_normal", "log_normal_", "randperm"}


def test_every_random_operator_of_torch_is_known():
    unknown = []
    # Not `dir(torch.ops.aten)`, which lists what has been called so far.
    known = torch._C._dispatch_get_all_op_names()
    names = {n.split("::")[1].split(".")[0] for n in known if n.startswith("aten::")}
    for name in names:
        packet = getattr(torch.ops.aten, name)
        if not hasattr(packet, "overloads") or name in COMPOSITE | WARN:
            continue
        if any(part in name for part in ELSEWHERE.values()):
            continue
        for overload in packet.overloads():
            operator = getattr(packet, overload)
            is_out = overload.endswith("out")
            if torch.Tag.nondeterministic_seeded not in operator.tags or is_out:
                continue
            if torch._C._dispatch_has_kernel_for_dispatch_key(
                operator.name(), "CompositeImplicitAutograd"
            ):  # made of other operators: dropout_, once it has been called
                continue
            takes = overload.endswith(("generator", "generator_dtype"))
            if operator not in random_ops.KEYED and not takes:
                unknown.append(str(operator))
    # In-place forms are what torch runs; these functional twins, rare forms and
    # operators within others warn.
    assert sorted(unknown) == [
        "aten._cudnn_init_dropout_state.default",
        "aten._fill_mem_eff_dropout_mask_.default",
        "aten._fused_sdp_choice.default",
        "aten._lstm_mps.default",
        "aten._nested_tensor_softmax_with_shape.default",
        "aten._sample_dirichlet.default",
        "aten.bernoulli.Tensor",
        "aten.binomial.default",
        "aten.exponential.default",
        "aten.normal_functional.default",
        "aten.randint_like.Tensor",
        "aten.random.default",
        "aten.random.from",
        "aten.random.to",
        "aten.rrelu_with_noise_functional.default",
        "aten.uniform.default",
    ]


def test_rows_outside_the_batch_are_refused():
    with pytest.raises(ValueError, match="num_rows >= 1"):
        Rows(0, 0, 8)
    with pytest.raises(ValueError, match="rows end at 9, beyond"):
        Rows(5, 4, 8)
    assert Rows(8, 1, 8, weight=0.0).is_dummy


def cpu_seconds(fn: Callable[[], object]) -> float:
    def once() -> float:
        began = time.process_time()
        fn()
        return time.process_time() - began

    return min(once() for _ in range(6))


def test_keyed_dropout_costs_at_most_twice_torchs():
    x = torch.randn(16, 256, 512)
    plain = cpu_seconds(lambda: F.dropout(x, 0.1))
    with GlobalBatchMode(Rows(3, 16, 64), generator=generator()):
        keyed = cpu_seconds(lambda: F.dropout(x, 0.1))
    assert keyed < 2.0 * plain


def test_mode_warns_of_nothing_it_need_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("dropout", "attention", "rand", "init"):
            split_run(BY_ROW[name], torch.rand(12, 320), (12,))
