"""Embedding: the indices, the width or the table's rows may be split.

embedding(w, i)        B, S(0) -> S(0)     S(1), B -> S(last)     S(0), B -> P(sum)
its gradient(g, i)     S(0), S(0) -> P     S(last), B -> S(1)     B, B -> S(0)
_embedding_bag         S(1), B, B -> S(1)

With a part of the rows a rank looks up what it has, and zeros for the rest.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from placet.placement.placement import B, S
from placet.program.functions.embedding import embedding_part, embedding_part_gradient
from placet.program.rules.named import by_names, value_of
from placet.program.rules.pattern import Pattern, by_pattern, num_cuts, same_call
from placet.program.signature import Call, Operator, Parts, Rule, Signature

aten = torch.ops.aten


def _embedding(operator: Operator) -> Pattern:
    index = tuple(range(len(operator.inputs[1].shape)))
    inputs = (("row", "width"), index)
    return Pattern(inputs, ((*index, "width"),), "sum", linear=((0,),))


def _embedding_local(operator: Operator, parts: Parts) -> Call:
    if num_cuts(parts.inputs[0], 0) == 1:
        return same_call(operator)
    first, _ = parts.input_box(operator, 0)[0]
    return Call(embedding_part, (*operator.args[:2], first))


def _backward(operator: Operator) -> Sequence[Signature]:
    index = operator.inputs[1]
    dims = tuple(range(len(index.shape)))
    made = Pattern(((*dims, "width"), dims), ((None, "width"),), "sum", linear=((0,),))
    found = made.signatures(operator)
    if value_of(operator, "scale_grad_by_freq"):  # counts an index in all the batch
        return tuple(s for s in found if s.inputs[1] == B)
    rows = Signature((B, B), (S(0),))
    return (*found, rows) if value_of(operator, "num_weights") > 1 else found


def _backward_local(operator: Operator, parts: Parts) -> Call:
    if num_cuts(parts.outputs[0], 0) == 1:
        return same_call(operator)
    first, last = parts.output_box(operator)[0]
    padding = value_of(operator, "padding_idx")
    return Call(
        embedding_part_gradient, (*operator.args[:2], last - first, padding, first)
    )


def _bag(operator: Operator) -> Sequence[Signature]:
    """The width of a row; other results say which rows a bag has, or the maximum."""
    outputs = (S(1), B, B, S(1) if value_of(operator, "mode", 0) == 2 else B)
    if operator.inputs[0].shape[1] < 2:
        return ()
    return [Signature((S(1), *(B,) * (len(operator.inputs) - 1)), outputs)]


def _bag_backward(operator: Operator) -> Pattern:
    maximum = (None, "width") if value_of(operator, "mode") == 2 else ()
    inputs = {"grad": (None, "width"), "maximum_indices": maximum}
    return by_names(operator, inputs, ((None, "width"),), linear=(("grad",),))


RULES: Mapping[Any, Rule] = {
    aten.embedding.default: by_pattern(_embedding, _embedding_local),
    aten.embedding_dense_backward.default: Rule(_backward, _backward_local),
    aten._embedding_bag.default: Rule(_bag),
    aten._embedding_bag_forward_only.default: Rule(_bag),
    aten._embedding_bag_dense_backward.default: by_pattern(_bag_backward),
}
