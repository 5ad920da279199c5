"""The interpreter runs ops in order, drops what nobody reads, and gives the results."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from placet.program.graph import Graph, Op, Ref, State, TensorMeta
from placet.program.interpret import call, interpret

aten = torch.ops.aten
META = TensorMeta((2, 3), torch.float64)


def op(name: str, target: Any, *args: Any, outputs: tuple[str | None, ...] = ()) -> Op:
    made = outputs or (name,)
    return Op(name, target, args, (), made, bool(outputs), "forward")


def graph(*ops: Op, loss: str, extras: tuple[str, ...] = (), new: str = "") -> Graph:
    names = {n for one in ops for n in one.outputs if n} | {"x", "w"}
    states = (State("weight", "w", new or None, True),)
    return Graph(
        dict.fromkeys(names, META), ops, states, ("x",), loss, None, tuple(extras)
    )


X = torch.arange(6.0, dtype=torch.float64).view(2, 3)
W = torch.full((2, 3), 2.0, dtype=torch.float64)


def test_results_by_name() -> None:
    made = graph(
        op("product", aten.mul.Tensor, Ref("x"), Ref("w")),
        op("total", aten.sum.default, Ref("product")),
        op("grad", aten.neg.default, Ref("x")),
        loss="total",
        extras=("product",),
        new="grad",
    )
    found = interpret(made, {"weight": W}, [X])
    assert found.keys() == {"total", "product", "grad"}
    assert found["total"].item() == 30.0
    torch.testing.assert_close(found["product"], 2 * X)
    torch.testing.assert_close(found["grad"], -X)


def test_several_outputs_of_which_some_are_not_read() -> None:
    made = graph(
        op("top", aten.topk.default, Ref("x"), 2, outputs=("values", None)),
        op("total", aten.sum.default, Ref("values")),
        loss="total",
    )
    assert interpret(made, {"weight": W}, [X])["total"].item() == 1 + 2 + 4 + 5


def test_tensors_in_lists_and_keywords() -> None:
    cat = Op(
        "cat",
        aten.cat.default,
        ((Ref("x"), Ref("w")),),
        (("dim", 1),),
        ("cat",),
        False,
        "forward",
    )
    assert cat.inputs == ("x", "w")
    (found,) = call(cat, {"x": X, "w": W})
    torch.testing.assert_close(found, torch.cat([X, W], 1))


def test_a_view_of_strides_that_do_not_allow_one() -> None:
    view = op("flat", aten.view.default, Ref("x"), (6,))
    (found,) = call(view, {"x": X.t()})
    torch.testing.assert_close(found, X.t().reshape(6))


def test_what_nobody_reads_any_more_is_dropped() -> None:
    made: list[weakref.ref[Tensor]] = []

    def noted(x: Tensor) -> Tensor:
        found = x + 1
        made.append(weakref.ref(found))
        return found

    def last(x: Tensor) -> Tensor:
        assert made[0]() is None
        assert made[1]() is not None
        return x.sum()

    ops = (
        op("first", noted, Ref("x")),
        op("second", noted, Ref("first")),
        op("third", last, Ref("second")),
    )
    assert interpret(graph(*ops, loss="third"), {"weight": W}, [X])["third"] == 27.0


def test_the_number_of_inputs_must_be_right() -> None:
    made = graph(op("total", aten.sum.default, Ref("x")), loss="total")
    with pytest.raises(ValueError, match="argument 2 is longer"):
        interpret(made, {"weight": W}, [X, X])
