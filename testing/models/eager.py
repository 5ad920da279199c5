"""A captured step beside the eager one: what any plan of it is measured by."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.testing import assert_close

from placet.program.capture import Captured, capture, state_tensors
from placet.program.interpret import interpret


def assert_capture_is_eager(
    model: nn.Module, batch: Any, loss: Callable[[nn.Module, Any], Tensor]
) -> Captured:
    """Loss and all gradients of the captured graph are those of the eager step.

    Args:
        model: in float64; its gradients are left behind.
        batch: in float64 where it is floating point.
        loss: of model and batch.

    Raises:
        AssertionError: they differ by more than rounding, or a gradient is missing.
    """
    captured = capture(model, batch, loss)
    graph = captured.graph
    states = {n: t.clone() for n, t in state_tensors(model, graph).items()}
    found = interpret(graph, states, captured.flatten(batch))
    expected = loss(model, batch)
    expected.backward()  # type: ignore[no-untyped-call]
    assert graph.loss is not None
    assert_close(found[graph.loss], expected.detach(), rtol=1e-10, atol=1e-12)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    for state in graph.states:
        gradient = gradients.get(state.name)
        if gradient is not None:
            assert state.new is not None, f"no gradient of {state.name} was captured"
            assert_close(found[state.new], gradient, rtol=1e-8, atol=1e-11)
    return captured
