"""Models built without memory, and filled bit by bit as a plain construction would."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from placet.placement.layout import chunk
from placet.run.deferred import deferred, materialise

SEED = 42


class Net(nn.Module):
    """What GPT-like models do: tying, apply, a second pass by name, masks, padding."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 16, padding_idx=3)
        self.ln = nn.LayerNorm(16)
        self.att = nn.MultiheadAttention(16, 4)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.emb.weight
        self.pos = nn.Parameter(torch.randn(1, 8, 16) * 0.02)
        self.register_buffer("mask", torch.tril(torch.ones(8, 8)).view(1, 8, 8))
        self.register_buffer("ids", torch.arange(8), persistent=False)
        self.register_buffer("real", torch.tensor([1.0, 2.0]))
        self.plain = torch.linspace(0, 1, 5)
        self.many = [torch.randn(3), {"no": "tensor"}]
        self.rates = [x.item() for x in torch.linspace(0, 0.1, 4)]
        self.apply(self._init)
        for name, p in self.named_parameters():
            if name.endswith("proj.weight"):
                nn.init.normal_(p, std=0.02 / 4**0.5)
        with torch.no_grad():
            self.emb.weight[self.emb.padding_idx].zero_()
            self.att.in_proj_weight.mul_(torch.tensor(0.5))
            self.ln.weight.add_(self.ln.bias.sum() + self.pos[0, 0])

    def _init(self, module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(module.weight, std=0.02)


def initialised(function, make=lambda: nn.Linear(12, 9)):
    def build():
        module = make()
        function(module.weight)
        return module

    return build


def masked():
    linear = nn.Linear(30, 20)
    with torch.no_grad():
        linear.weight[torch.rand(20, 30) < 0.5] = 0
        linear.weight.masked_fill_(torch.bernoulli(torch.full((30,), 0.3)).bool(), 3.0)
        linear.weight.data = linear.weight.data / linear.weight.norm()
        linear.bias.copy_(torch.dropout(torch.ones(20), 0.5, True))
        linear.bias += torch.randperm(20) + torch.multinomial(torch.ones(20), 20)
        linear.bias[2:5] += torch.rand_like(linear.bias[2:5])
        linear.bias[::2].normal_()
    return linear


def seeds():
    layers = [nn.Linear(3, 4)]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers.append(nn.Linear(3, 4))
        nn.init.normal_(layers[0].bias)
    layers.append(nn.Linear(3, 4))
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        layers.append(nn.Linear(3, 4))
    generator = torch.Generator().manual_seed(3)
    for layer in layers[:2]:
        nn.init.normal_(layer.weight, generator=generator)
    nn.init.trunc_normal_(layers[2].weight, generator=generator)
    generator.manual_seed(3)
    nn.init.normal_(layers[2].bias, generator=generator)
    return nn.Sequential(*layers)


def fork_at_the_end():
    linear = nn.Linear(3, 4)
    with torch.random.fork_rng():
        torch.manual_seed(1)
    return linear


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


def double_default():
    torch.set_default_dtype(torch.float64)
    try:
        linear = nn.Linear(3, 4)
        linear.extra = nn.Parameter(torch.rand(5))
        return linear
    finally:
        torch.set_default_dtype(torch.float32)


def from_numpy():
    linear = nn.Linear(3, 4)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(np.arange(12.0).reshape(4, 3)))
        linear.bias.mul_(torch.tensor([1, 2, 3, 4]))
    return linear


ZOO = {
    "net": Net,
    "linear": lambda: nn.Linear(5, 7),
    "embedding": lambda: nn.Embedding(5, 7, padding_idx=0),
    "bilinear": lambda: nn.Bilinear(2, 3, 4),
    "conv2d": lambda: nn.Conv2d(3, 8, 3),
    "conv1d transposed": lambda: nn.ConvTranspose1d(3, 4, 2),
    "channels last": lambda: nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last),
    "batch norm": lambda: nn.BatchNorm2d(4),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "lstm": lambda: nn.LSTM(4, 5, 2, bidirectional=True, proj_size=3),
    "gru": lambda: nn.GRU(3, 4),
    "attention": lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True),
    "encoder, by deepcopy": encoder,
    "decoder": lambda: nn.TransformerDecoderLayer(8, 2, 16),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 5)),
    "prelu": lambda: nn.PReLU(4),
    "bfloat16": lambda: nn.Linear(4, 5).to(torch.bfloat16),
    "half": lambda: nn.LSTM(4, 5).half(),
    "double default": double_default,
    "deepcopies": lambda: nn.ModuleList([copy.deepcopy(nn.Linear(3, 4))] * 2),
    "masked": masked,
    "seeds": seeds,
    "fork at the end": fork_at_the_end,
    "numpy": from_numpy,
    "empty": lambda: nn.Linear(0, 4),
    "no parameters": nn.ReLU,
    "dirac_": initialised(nn.init.dirac_, lambda: nn.Conv1d(4, 4, 3)),
    "sparse_": initialised(lambda w: nn.init.sparse_(w, 0.3)),
    "trunc_normal_, far": initialised(lambda w: nn.init.trunc_normal_(w, 0, 1, 3, 4)),
} | {
    name: initialised(getattr(nn.init, name))
    for name in (
        "eye_",
        "kaiming_normal_",
        "kaiming_uniform_",
        "normal_",
        "ones_",
        "orthogonal_",
        "trunc_normal_",
        "uniform_",
        "xavier_normal_",
        "xavier_uniform_",
        "zeros_",
    )
}


def tensors_of(model):
    named = dict(model.named_parameters(remove_duplicate=False))
    return named | dict(model.named_buffers(remove_duplicate=False))


@pytest.mark.parametrize("build", ZOO.values(), ids=ZOO.keys())
@pytest.mark.filterwarnings("ignore:mean is more than 2 std")
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors is a no-op")
def test_deferred_is_bit_equal_to_a_plain_construction(build):
    torch.manual_seed(SEED)
    plain = build()
    draw = torch.rand(3)

    torch.manual_seed(7)
    before = torch.get_rng_state()
    model, recording = deferred(build)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.is_meta for p in model.parameters())

    torch.manual_seed(SEED)
    memory = materialise(model, recording)
    assert torch.equal(torch.rand(3), draw)
    assert memory.live_bytes == 0
    a, b = tensors_of(plain), tensors_of(model)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name
        assert a[name].dtype == b[name].dtype
        assert a[name].stride() == b[name].stride()
        assert a[name].requires_grad == b[name].requires_grad
        assert type(b[name]) is type(a[name])


def test_deferred_keeps_ties_attributes_and_plain_tensors():
    torch.manual_seed(SEED)
    plain = Net()
    model, recording = deferred(Net)
    torch.manual_seed(SEED)
    names = []
    materialise(model, recording, lambda name, full: names.append(name) or full)
    assert model.head.weight is model.emb.weight
    assert sorted(names) == sorted(tensors_of_once(plain))
    assert torch.equal(model.plain, plain.plain)
    assert torch.equal(model.many[0], plain.many[0])
    assert model.rates == plain.rates
    assert model.state_dict().keys() == plain.state_dict().keys()


def tensors_of_once(model):
    return dict(model.named_parameters()) | dict(model.named_buffers())


def test_deferred_lstm_runs_after_being_filled():
    torch.manual_seed(SEED)
    plain = nn.LSTM(3, 4)
    model, recording = deferred(lambda: nn.LSTM(3, 4))
    torch.manual_seed(SEED)
    materialise(model, recording)
    x = torch.ones(2, 1, 3)
    assert torch.equal(model(x)[0], plain(x)[0])


@pytest.mark.parametrize("rank", range(3))
def test_deferred_parts_hold_only_their_own_memory(rank):
    def keep(name, full):
        if full.ndim == 0:
            return full
        start, stop = chunk(0, full.shape[0], 3, rank)
        return full[start:stop]

    torch.manual_seed(SEED)
    plain = tensors_of_once(Net())
    model, recording = deferred(Net)
    torch.manual_seed(SEED)
    materialise(model, recording, keep)
    for name, part in tensors_of_once(model).items():
        assert torch.equal(part, keep(name, plain[name]))
        assert part.untyped_storage().nbytes() == part.nbytes, name
        assert part.is_leaf


class Deep(nn.Module):
    """Layers of 64 KiB, initialised thrice and scaled in place at the end."""

    def __init__(self, num_layers, last):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(num_layers))
        self.apply(
            lambda m: isinstance(m, nn.Linear) and nn.init.xavier_normal_(m.weight)
        )
        self.apply(lambda m: isinstance(m, nn.Linear) and last(m.weight))
        with torch.no_grad():
            for p in self.parameters():
                p.mul_(0.5)
            self.layers[0].weight[3:5] *= 2


@pytest.mark.parametrize(
    ("last", "num_tensors"), [(nn.init.normal_, 1), (nn.init.orthogonal_, 6)]
)
def test_deferred_holds_a_few_tensors_at_once(last, num_tensors):
    def build():
        return Deep(30, last)

    torch.manual_seed(SEED)
    plain = build()
    model, recording = deferred(build)
    torch.manual_seed(SEED)
    memory = materialise(model, recording)
    assert all(
        torch.equal(a, b)
        for a, b in zip(plain.parameters(), model.parameters(), strict=True)
    )
    biases = 30 * 512
    assert 65536 <= memory.peak_bytes <= num_tensors * 65536 + biases


def test_deferred_needs_no_memory_for_a_model_that_fits_nowhere():
    model, _ = deferred(lambda: nn.Linear(1 << 30, 1 << 20))
    assert model.weight.shape == (1 << 20, 1 << 30)
    assert model.weight.is_meta


def read_item():
    return nn.Linear(3, int(torch.randint(1, 5, ()).item()))


def branch():
    linear = nn.Linear(3, 4)
    if (linear.weight > 0).any():
        linear.weight.data.zero_()
    return linear


def write_real():
    linear = nn.Linear(3, 4)
    linear.register_buffer("real", torch.tensor([1.0, 2.0]))
    linear.real.normal_()
    return linear


def select_by_value():
    linear = nn.Linear(3, 4)
    linear.extra = nn.Parameter(linear.bias.data[linear.bias.data > 0])
    return linear


def to_numpy():
    linear = nn.Linear(3, 4)
    linear.norm = np.linalg.norm(linear.bias.detach().numpy())
    return linear


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (read_item, "reads a random value in Python"),
        (branch, "reads a random value in Python"),
        (write_real, "made by torch.tensor or from numpy"),
        (select_by_value, "needs a tensor's values"),
        (to_numpy, "needs a tensor's values"),
        (lambda: nn.LazyLinear(3), "lazy module"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_deferred_refuses_what_needs_values(build, message):
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        deferred(build)
    assert torch.equal(torch.get_rng_state(), state)


def test_deferred_refuses_another_models_record():
    model, _ = deferred(lambda: nn.Linear(2, 2))
    _, recording = deferred(lambda: nn.Linear(2, 2))
    with pytest.raises(ValueError, match="not made by this record"):
        materialise(model, recording)
