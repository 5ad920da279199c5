"""What cannot be captured is refused by module and line; wrappers, norms, hooks."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from placet.errors import CaptureError
from placet.program.capture import capture, state_tensors
from placet.program.capture_model import Place
from placet.program.interpret import interpret

X = torch.arange(24.0).view(6, 4) / 9


def squares(model: nn.Module, batch: Any) -> Tensor:
    found: Tensor = model(batch).square().mean()
    return found


class Decides(nn.Module):
    """A layer whose result goes through a function of (module, result)."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.how(self, self.layer(x))
        return found


def by_branch(module: nn.Module, y: Tensor) -> Tensor:
    return y if y.sum() > 0 else -y


def by_number(module: nn.Module, y: Tensor) -> Tensor:
    return y * y.sum().item()


def by_size(module: nn.Module, y: Tensor) -> Tensor:
    return y[y.sum(1).nonzero()[:, 0]]


def by_mask(module: nn.Module, y: Tensor) -> Tensor:
    return y[y > 0]


def by_numpy(module: nn.Module, y: Tensor) -> Tensor:
    return y * float(y.detach().numpy().mean())


def by_packing(module: nn.Module, y: Tensor) -> Tensor:
    return pack_padded_sequence(y.view(2, 3, 4), torch.tensor([3, 2]), True).data


def by_reentrant(module: Any, y: Tensor) -> Tensor:
    found: Tensor = checkpoint(module.layer, y, use_reentrant=True)
    return found


def by_wrong_shapes(module: nn.Module, y: Tensor) -> Tensor:
    return y @ torch.ones(5, 5)


def by_other_numbers(module: nn.Module, y: Tensor) -> Tensor:
    return y + torch.poisson(y.detach().abs())


REFUSED = [
    (by_branch, "depends on the values of a tensor"),
    (by_number, "depends on the values of a tensor"),
    (by_size, "depends on the values of a tensor"),
    (by_mask, "depends on the values of a tensor"),
    (by_packing, "depends on the values of a tensor"),
    (by_numpy, "no values and no memory"),
    (by_reentrant, "pass use_reentrant=False"),
    (by_wrong_shapes, "5, 5"),
    (by_other_numbers, "random numbers"),
]


@pytest.mark.parametrize(("how", "message"), REFUSED)
def test_refusals_name_module_and_line(how: Any, message: str) -> None:
    model = nn.Sequential(nn.Tanh(), Decides(how))
    with pytest.raises(CaptureError) as caught:
        capture(model, X, squares)
    line = how.__code__.co_firstlineno + 1
    assert f"test_capture_model.py:{line}, in" in str(caught.value)
    assert "module '1'" in str(caught.value)
    assert message in str(caught.value)


@dataclass
class Pair:
    """A batch that torch does not know how to look into."""

    x: Tensor


def _with_post_hook() -> nn.Module:
    model = nn.Linear(4, 4)
    model.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return model


@pytest.mark.parametrize(
    ("make", "batch", "message"),
    [
        (lambda: nn.DataParallel(nn.Linear(4, 4)), X, "which it has as .module"),
        (lambda: nn.LazyLinear(4), X, "has no shape yet"),
        (_with_post_hook, X, "'weight' has a hook"),
        (lambda: nn.Linear(4, 4), X[:0], "has no rows"),
        (lambda: nn.Linear(4, 4), Pair(X), "register_dataclass"),
    ],
)
def test_models_and_batches_that_are_none(make: Any, batch: Any, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture(make(), batch, squares)


def test_a_ddp_model_is_refused() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
        with pytest.raises(CaptureError, match="DistributedDataParallel"):
            capture(model, X, squares)
    finally:
        dist.destroy_process_group()


def test_sparse_gradients_are_refused_by_module() -> None:
    model = nn.Sequential(nn.Embedding(4, 4, sparse=True), nn.Tanh())
    with pytest.raises(CaptureError, match=r"in module '0'.*sparse=False"):
        capture(model, torch.arange(4), squares)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_compiled_modules_are_captured_as_written() -> None:
    inner = nn.Linear(4, 4)
    plain = capture(nn.Sequential(nn.Tanh(), inner), X, squares).graph
    compiled = torch.compile(nn.Sequential(nn.Tanh(), torch.compile(inner)))
    graph = capture(compiled, X, squares).graph
    assert [op.target for op in graph.ops] == [op.target for op in plain.ops]
    assert graph.states[0].name == "_orig_mod.1._orig_mod.weight"


def test_batch_norm_averages_over_all_steps() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None)).double()
    captured = capture(model, X.double(), squares)
    assert "forward" not in vars(model[1])
    for number in range(1, 4):
        batch = X.double().sin() * number
        states = {n: t.clone() for n, t in state_tensors(model, captured.graph).items()}
        found = interpret(captured.graph, states, captured.flatten(batch))
        model(batch)
        buffers = dict(model.named_buffers())
        for state in captured.graph.states:
            if not state.is_parameter:
                assert state.new is not None
                torch.testing.assert_close(found[state.new], buffers[state.name])


def test_a_step_without_backward_returns_what_the_function_does() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).double()

    def metrics(model: nn.Module, batch: Tensor) -> Any:
        found = model(batch)
        return {"loss": (found.square().mean(), 7), "all": [found, batch], "n": None}

    batch = X.double()
    captured = capture(model, batch, metrics, trains=False)
    graph = captured.graph
    assert graph.loss is None
    assert len(graph.extras) == 3
    assert all(s.new is None for s in graph.states)
    assert captured.result is not None
    assert captured.result.leaves[1] == 7
    assert captured.result.leaves[0] == Place(0)
    assert model.training
    found = interpret(graph, state_tensors(model, graph), captured.flatten(batch))
    result = captured.returned([found[name] for name in graph.extras])
    expected = metrics(model.eval(), batch)
    assert result["loss"][1] == 7
    assert result["n"] is None
    torch.testing.assert_close(result["loss"][0], expected["loss"][0].detach())
    torch.testing.assert_close(result["all"], [t.detach() for t in expected["all"]])


def test_a_model_without_a_loss_function_returns_its_output() -> None:
    model = nn.Linear(4, 3)
    captured = capture(model, X, trains=False)
    (name,) = captured.graph.extras
    found = interpret(captured.graph, state_tensors(model, captured.graph), [X])
    torch.testing.assert_close(captured.returned([found[name]]), model(X).detach())
