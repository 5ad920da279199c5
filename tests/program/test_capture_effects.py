"""What a forward leaves behind is kept as a buffer, undone, or refused by name."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placet.errors import CaptureError
from placet.program.capture import Captured, capture, state_tensors
from placet.program.capture_effects import hold, undone
from placet.program.interpret import interpret

X = torch.arange(12.0, dtype=torch.float64).view(3, 4) / 7


class Odd(nn.Module):
    """A layer, and a forward that also does something else."""

    def __init__(self, also: Callable[["Odd", Tensor], Tensor], **attributes: Any):
        super().__init__()
        self.layer = nn.Linear(4, 4).double()
        self.register_buffer("count", torch.tensor(1.0, dtype=torch.float64))
        self.register_buffer("average", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("table", None)
        for name, value in attributes.items():
            setattr(self, name, value)
        self.also = also

    def forward(self, x: Tensor) -> Tensor:
        return self.also(self, self.layer(x)).square().mean()


def step(model: nn.Module, captured: Captured) -> dict[str, Tensor]:
    """The loss and the states' news by their names."""
    graph = captured.graph
    states = {n: t.clone() for n, t in state_tensors(model, graph).items()}
    found = interpret(graph, states, captured.flatten(X))
    assert graph.loss is not None
    news = {s.name: found[s.new] for s in graph.states if s.new is not None}
    return {"loss": found[graph.loss], **news}


def sets_buffers(model: Odd, y: Tensor) -> Tensor:
    model.count = model.count + 1
    model.average = 0.9 * model.average + 0.1 * y.detach().mean(0)
    return y / model.count + model.average


def test_buffers_that_are_set_anew_are_news() -> None:
    model = Odd(sets_buffers)
    count, average = model.count, model.average
    captured = capture(model, X)
    assert model.count is count
    assert model.average is average
    found = step(model, captured)
    torch.testing.assert_close(found["loss"], model(X).detach())
    torch.testing.assert_close(found["count"], model.count)
    torch.testing.assert_close(found["average"], model.average)
    captured_gradient = found["layer.weight"]
    model.count, model.average = count, average
    model(X).backward()
    assert model.layer.weight.grad is not None
    torch.testing.assert_close(captured_gradient, model.layer.weight.grad)


def grows(model: Odd, y: Tensor) -> Tensor:
    model.average = torch.cat([model.average, y.detach()[0]])
    return y


def counts(model: Any, y: Tensor) -> Tensor:
    model.calls += 1
    return y * 0.5**model.calls


def collects(model: Any, y: Tensor) -> Tensor:
    model.seen.append(len(y))
    return y


def collects_deep(model: Any, y: Tensor) -> Tensor:
    model.log["of"]["rows"].append(len(y))
    return y


def counts_in_namespace(model: Any, y: Tensor) -> Tensor:
    model.state.calls += 1
    return y


def replaces_parameter(model: Odd, y: Tensor) -> Tensor:
    model.layer.weight = nn.Parameter(model.layer.weight * 2)
    return y


def adds_module(model: Odd, y: Tensor) -> Tensor:
    model.extra = nn.Identity()
    return y


def carries(model: Any, y: Tensor) -> Tensor:
    before = model.last if model.last is not None else torch.zeros(4).double()
    model.last = y.detach().mean(0)
    return y + before


def reads_in_place(model: Any, y: Tensor) -> Tensor:
    model.scale.mul_(2.0)
    return y * model.scale


REFUSED = [
    (grows, {}, r"replaces its buffer 'average', \[4\] .* by \[8\]"),
    (counts, {"calls": 0}, r"attribute 'calls' \(0 -> 1\)"),
    (collects, {"seen": []}, r"attribute 'seen' \(\[\] -> \[3\]\)"),
    (collects_deep, {"log": {"of": {"rows": []}}}, r"'log' \(\[\] -> \[3\]\)"),
    (counts_in_namespace, {"state": SimpleNamespace(calls=0)}, r"attribute 'state'"),
    (replaces_parameter, {}, "'layer' makes or replaces its parameter 'weight'"),
    (adds_module, {}, "makes or replaces its submodule 'extra'"),
    (carries, {"last": None}, r"test_capture_effects\.py:\d+, in carries.*'last'"),
    (reads_in_place, {"scale": torch.ones(4)}, "changes 'scale' in place"),
]


@pytest.mark.parametrize(("also", "attributes", "message"), REFUSED)
def test_what_would_be_frozen_is_refused_and_undone(
    also: Any, attributes: dict[str, Any], message: str
) -> None:
    model = Odd(also, **attributes)
    weight, before = model.layer.weight, repr(attributes)
    with pytest.raises(CaptureError, match=message):
        capture(model, X)
    assert repr({name: getattr(model, name) for name in attributes}) == before
    assert model.layer.weight is weight
    assert not hasattr(model, "extra")


def test_an_error_of_the_forward_leaves_the_model_as_it_was() -> None:
    def fails(model: Any, y: Tensor) -> Tensor:
        model.calls, model.fresh = 7, 8
        model.seen.append(y)
        raise ValueError("mine")

    model = Odd(fails, calls=0, seen=[])
    with pytest.raises(ValueError, match="mine"):
        capture(model, X)
    assert (model.calls, model.seen, hasattr(model, "fresh")) == (0, [], False)


def keeps_caches(model: Any, y: Tensor) -> Tensor:
    if model.mask is None:
        model.mask = torch.ones(4, 4, dtype=torch.float64).triu()
    if model.table is None:
        model.table = torch.arange(4.0, dtype=torch.float64)
    model.by_size.setdefault(4, torch.eye(4, dtype=torch.float64))
    model.scores = y.detach().exp()
    return y @ model.mask @ model.by_size[4] + model.table + model.scores


def test_caches_and_tensors_to_look_at_are_undone() -> None:
    model = Odd(keeps_caches, mask=None, by_size={}, scores=None)
    found = step(model, capture(model, X))
    assert model.mask is None
    assert model.scores is None
    assert model.table is None
    assert model.by_size == {}
    torch.testing.assert_close(found["loss"], model(X).detach())


class Shared(nn.Module):
    """One layer under three names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4).double()
        self.twice = nn.Sequential(self.layer, nn.Tanh(), self.layer)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(self.twice(x)).square().mean()
        return found


def test_shared_modules_have_their_own_parameters_afterwards() -> None:
    model = Shared()
    weight = model.layer.weight
    captured = capture(model, X)
    assert model.layer.weight is weight
    found = step(model, captured)
    model(X).backward()
    assert weight.grad is not None
    torch.testing.assert_close(found["layer.weight"], weight.grad)


def test_undone_puts_back_what_was_held() -> None:
    model = Odd(collects, seen=[1], log={"a": {2}}, ratio=float("nan"))
    (held, *_) = hold(model)
    assert held.contents == hold(model)[0].contents
    with undone(model):
        model.seen.append(3)
        model.log["a"].add(4)
        model.ratio = 1.0
        model.average = None
        del model.also
    assert (model.seen, model.log) == ([1], {"a": {2}})
    assert model.average is held.buffers["average"]
    assert model.also is collects
    assert held.contents == hold(model)[0].contents
