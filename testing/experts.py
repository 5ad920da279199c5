"""What experts plan by hand, as pins for the planner, with what each costs in bytes.

    n ranks, f = (n - 1) / n, |W| bytes of weights, A bytes of an activation

    data parallel        2 |W| f               gradients all-reduced
    ZeRO-3 homes         2 |W| f               gathered once, reduce-scattered
    Megatron             2 A f a sum           columns, then rows
    sequence parallel    2 A f a sum           each as reduce-scatter and all-gather
    vocabulary-parallel  2 A f for the head's gradient, and two numbers a token: the
                         largest logit and the sum; the target's is a term of the loss
    Ulysses              2 |W| f + 8 A f / n   a layer; to heads and back
    one weird trick      2 |conv| f + 2 A f    + a sum; A what the flat layers read
    2-D                  2 |W| f_a / b + 2 A f_b / a a sum; f_a = (a - 1) / a
    3-D                  the same with contractions split on a third axis; no formula

Bytes are the mean that a rank receives in a step. Sources: arXiv:1910.02054,
arXiv:1909.08053, arXiv:2205.05198, arXiv:2309.14509, arXiv:1404.5997, arXiv:2104.05343.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, Placement, S
from placet.planner.pins import Pin
from placet.program.graph import Graph, Op, Phase
from placet.program.signature import target_name
from testing.models.example import Example
from testing.models.language import Gpt
from testing.models.zoo import images, text, vectors

N = 4
F = (N - 1) / N
NUMBER_BYTES = 4
SCALAR_BYTES = 64
"""At most so many for sums of single numbers: the loss and the count of targets."""


@dataclass(frozen=True)
class Expert:
    """A way to divide a model that people know by a name.

    Args:
        example: the model it is shown on.
        mesh: of the ranks.
        pins: of a captured graph, whose operators they name.
        received_bytes: its price, without single numbers; None if there is no formula.
    """

    example: Example
    mesh: Mesh
    pins: Callable[[Graph], Sequence[Pin]]
    received_bytes: float | None


def pins_on(
    graph: Graph,
    target: str,
    modules: Sequence[str] = (),
    *,
    phase: Phase = "forward",
    axis: str | None = None,
    input: Placement | None = None,
    output: Placement | None = None,
) -> Iterator[Pin]:
    """Pins on all operators of a target, in some modules or in all."""
    for op in graph.ops:
        if _is(op, target, modules, phase):
            yield Pin(op.name, axis, input=input, output=output)


def _is(op: Op, target: str, modules: Sequence[str], phase: Phase) -> bool:
    in_module = not modules or op.module in modules
    return target in target_name(op.target) and in_module and op.phase == phase


def weight_bytes(example: Example) -> int:
    """All parameters of a model, each once."""
    with torch.device("meta"):
        model = example.model_fn()
    return sum(p.numel() * p.element_size() for p in model.parameters())


# Weights against activations: many rows for data parallelism, few for Megatron.
DEEP = vectors("rows outweigh weights", (32, 32, 32, 32), batch=4096)
WIDE_SIZE, WIDE_BATCH = 256, 32
WIDE = vectors("weights outweigh rows", (WIDE_SIZE,) * 5, batch=WIDE_BATCH)
WIDE_BYTES = WIDE_SIZE * WIDE_BATCH * NUMBER_BYTES
COLUMNS, ROWS = ("0", "4"), ("2", "6")

GPT_WIDTH, GPT_BATCH, GPT_LENGTH, GPT_LAYERS = 128, 2, 16, 2
GPT_BYTES = GPT_BATCH * GPT_LENGTH * GPT_WIDTH * NUMBER_BYTES
GPT = text(
    "GPT",
    lambda: Gpt(
        width=GPT_WIDTH,
        num_layers=GPT_LAYERS,
        num_heads=4,
        vocabulary=256,
        length=GPT_LENGTH,
    ),
    batch=GPT_BATCH,
    length=GPT_LENGTH,
    vocabulary=256,
)

LONG_WIDTH, LONG_LENGTH = 16, 1024
LONG_BYTES = LONG_LENGTH * LONG_WIDTH * NUMBER_BYTES
LONG = text(
    "one long sequence",
    lambda: Gpt(
        width=LONG_WIDTH, num_layers=1, num_heads=4, vocabulary=32, length=LONG_LENGTH
    ),
    batch=1,
    length=LONG_LENGTH,
    vocabulary=32,
)

CONV_BATCH, CONV_FLAT, CONV_HIDDEN, CONV_CLASSES = 16, 8 * 8 * 8, 1024, 32


def _weird() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(CONV_FLAT, CONV_HIDDEN),
        nn.ReLU(),
        nn.Linear(CONV_HIDDEN, CONV_CLASSES),
    )


WEIRD = images("VGG", _weird, batch=CONV_BATCH, side=8, num_classes=CONV_CLASSES)


def data_parallel(graph: Graph) -> list[Pin]:
    """Every rank has all weights and a part of the batch."""
    found = [Pin("*", home=B)]
    for target in ("linear", "aten.embedding", "native_layer_norm"):
        found += pins_on(graph, target, output=S(0))
    found += pins_on(graph, "contract", phase="backward", output=P())
    return found


def zero_3(graph: Graph) -> list[Pin]:
    """Weights are stored in parts, read whole; a part of the batch each."""
    found = [Pin("*", home=S(0))]
    found += pins_on(graph, "linear", output=S(0))
    found += pins_on(graph, "contract", phase="backward", output=P())
    return found


def megatron(graph: Graph) -> list[Pin]:
    """Columns, then rows, so that only what rows make is summed."""
    return [*_columns_and_rows(graph), *_between(graph, B)]


def sequence_parallel(graph: Graph) -> list[Pin]:
    """Megatron, with parts of the rows where nothing is split by columns."""
    return [*_columns_and_rows(graph), *_between(graph, S(0))]


def _columns_and_rows(graph: Graph, axis: str | None = None) -> Iterator[Pin]:
    for name in COLUMNS:
        yield Pin(f"{name}.weight", axis, home=S(0))
    for name in ROWS:
        yield Pin(f"{name}.weight", axis, home=S(1))
    yield from pins_on(graph, "linear", COLUMNS, axis=axis, output=S(1))
    yield from pins_on(graph, "linear", ROWS, axis=axis, output=P())


def _between(graph: Graph, placement: Placement, axis: str | None = None) -> list[Pin]:
    """After a layer by rows and before one by columns."""
    return [
        *pins_on(graph, "relu", ("3",), axis=axis, output=placement),
        *pins_on(graph, "cross_entropy_gradient", phase="backward", output=placement),
    ]


def megatron_gpt(graph: Graph) -> list[Pin]:
    """Heads and columns, then rows; embedding, head and loss by the vocabulary."""
    layers = [f"layers.{i}" for i in range(GPT_LAYERS)]
    columns = [f"{x}.{y}" for x in layers for y in ("query", "key", "value", "up")]
    rows = [f"{x}.{y}" for x in layers for y in ("out", "down")]
    return [
        *(Pin(f"{name}.weight", home=S(0)) for name in columns),
        *(Pin(f"{name}.weight", home=S(1)) for name in rows),
        Pin("tokens.weight", home=S(0)),
        *pins_on(graph, "linear", columns, output=S(2)),
        *pins_on(graph, "linear", rows, output=P()),
        *pins_on(graph, "aten.embedding", ("tokens",), output=P()),
        *pins_on(graph, "linear", ("head",), output=S(2)),
        *pins_on(graph, "exp_sum", output=P()),
        *pins_on(graph, "native_layer_norm", output=B),
    ]


def ulysses(graph: Graph) -> list[Pin]:
    """Parts of the sequence; in attention all of it, for some heads."""
    layers = [f"layers.0.{name}" for name in ("query", "key", "value")]
    return [
        Pin("*", home=B),
        *pins_on(graph, "scaled_dot_product", input=S(1)),
        *pins_on(graph, "scaled_dot_product", phase="backward", input=S(1)),
        *pins_on(graph, "native_layer_norm", output=S(1)),
        *pins_on(graph, "native_layer_norm", phase="backward", output=S(1)),
        *pins_on(graph, "contract", phase="backward", output=P()),
        *pins_on(graph, "aten.embedding", phase="backward", output=P()),
        *pins_on(graph, "aten.sum", layers, phase="backward", output=P()),
        *_by_tokens(graph),
    ]


def _by_tokens(graph: Graph) -> Iterator[Pin]:
    """Products of tokens and weights; a batch of one may have been flattened away."""
    for op in graph.ops:
        if target_name(op.target) == "linear" and op.outputs[0] is not None:
            yield Pin(op.name, output=S(len(graph.tensors[op.outputs[0]].shape) - 2))


def one_weird_trick(graph: Graph) -> list[Pin]:
    """Convolutions by the batch, flat layers by their weights."""
    return [
        Pin("0.*", home=B),
        *pins_on(graph, "aten.convolution", output=S(0)),
        *pins_on(graph, "convolution_backward", phase="backward", output=P()),
        Pin("3.weight", home=S(0)),
        Pin("5.weight", home=S(1)),
        *pins_on(graph, "linear", ("3",), output=S(1)),
        *pins_on(graph, "linear", ("5",), output=P()),
    ]


def two_d(graph: Graph) -> list[Pin]:
    """Parts of the batch along a, columns and rows along b."""
    return [
        Pin("*.weight", "a", home=B),
        *pins_on(graph, "linear", axis="a", output=S(0)),
        *pins_on(graph, "contract", phase="backward", axis="a", output=P()),
        *_columns_and_rows(graph, "b"),
        *_between(graph, B, "b")[:1],
    ]


def three_d(graph: Graph) -> list[Pin]:
    """Rows, columns and contractions of every product, each along an axis."""
    return [
        *pins_on(graph, "linear", axis="a", output=S(0)),
        *pins_on(graph, "linear", axis="b", output=S(1)),
        *pins_on(graph, "linear", axis="c", output=P()),
    ]


_LINE, _GRID, _CUBE = Mesh("a=4"), Mesh("a=2, b=2"), Mesh("a=2, b=2, c=2")
_TOKENS = GPT_BATCH * GPT_LENGTH * NUMBER_BYTES
_CONV_BYTES = (8 * 3 * 9 + 8) * NUMBER_BYTES
_FLAT_BYTES = CONV_BATCH * CONV_FLAT * NUMBER_BYTES
_CLASS_BYTES = CONV_BATCH * CONV_CLASSES * NUMBER_BYTES

EXPERTS: Mapping[str, Expert] = {
    "data parallel": Expert(DEEP, _LINE, data_parallel, 2 * weight_bytes(DEEP) * F),
    "ZeRO-3": Expert(DEEP, _LINE, zero_3, 2 * weight_bytes(DEEP) * F),
    "Megatron": Expert(WIDE, _LINE, megatron, 3 * 2 * WIDE_BYTES * F),
    "sequence parallel": Expert(WIDE, _LINE, sequence_parallel, 3 * 2 * WIDE_BYTES * F),
    "vocabulary-parallel loss": Expert(
        GPT,
        _LINE,
        megatron_gpt,
        (4 * GPT_LAYERS + 2) * 2 * GPT_BYTES * F + 2 * 2 * _TOKENS * F,
    ),
    "Ulysses": Expert(
        LONG, _LINE, ulysses, 2 * weight_bytes(LONG) * F + 8 * LONG_BYTES * F / N
    ),
    "one weird trick": Expert(
        WEIRD,
        _LINE,
        one_weird_trick,
        2 * F * (_CONV_BYTES + _FLAT_BYTES + _CLASS_BYTES),
    ),
    "2-D products": Expert(
        WIDE, _GRID, two_d, 2 * weight_bytes(WIDE) / 4 + 3 * 2 * WIDE_BYTES / 4
    ),
    "3-D products": Expert(WIDE, _CUBE, three_d, None),
}
