"""Which dims attention may be divided along, also where only an accelerator runs it."""

from dataclasses import replace

import torch

from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, Placement, S
from placet.program.graph import TensorMeta
from placet.program.rules.table import fits, localize, signatures
from placet.program.signature import Operator, Parts, Slot

aten = torch.ops.aten
F16, F32 = torch.float16, torch.float32
Q = TensorMeta((4, 8, 128, 16), F16)
K = TensorMeta((4, 8, 256, 16), F16)
STATS = TensorMeta((4, 8, 128), F32)
SEED = TensorMeta((2,), torch.uint64)
FLASH_BACKWARD = Operator(
    aten._scaled_dot_product_flash_attention_backward.default,
    (
        *(Slot(0), Slot(1), Slot(2), Slot(3), Slot(4), Slot(5)),
        *(None, None, 128, 256, 0.0, False, Slot(6), Slot(6)),
    ),
    (),
    (Q, Q, K, K, Q, STATS, SEED),
    (Q, K, K),
)


def _efficient(mask: TensorMeta) -> Operator:
    target = aten._scaled_dot_product_efficient_attention.default
    args = (Slot(0), Slot(1), Slot(2), Slot(3), True)
    return Operator(target, args, (), (Q, K, K, mask), (Q, STATS, None, None))


def _outputs(operator: Operator) -> set[tuple[Placement, ...]]:
    return {s.outputs for s in signatures(operator)[1:]}


def test_flash_backward_sums_gradients_of_keys_over_queries() -> None:
    assert _outputs(FLASH_BACKWARD) == {
        (S(0), S(0), S(0)),
        (S(1), S(1), S(1)),
        (S(2), P(), P()),
    }


def test_flash_backward_is_told_its_own_number_of_queries() -> None:
    mesh = Mesh("x=2")
    by_queries = signatures(FLASH_BACKWARD)[3]
    parts = Parts(
        tuple(Layout(mesh, [p]) for p in by_queries.inputs),
        tuple(Layout(mesh, [p]) for p in by_queries.outputs),
        1,
    )
    assert localize(FLASH_BACKWARD, parts).args[8:10] == (64, 256)


def test_causal_attention_keeps_its_queries_together() -> None:
    args = tuple(True if i == 11 else a for i, a in enumerate(FLASH_BACKWARD.args))
    causal = replace(FLASH_BACKWARD, args=args)
    assert _outputs(causal) == {(S(0),) * 3, (S(1),) * 3}


def test_dropout_inside_of_attention_forbids_all_splits() -> None:
    args = tuple(0.1 if i == 10 else a for i, a in enumerate(FLASH_BACKWARD.args))
    assert len(signatures(replace(FLASH_BACKWARD, args=args))) == 1


def test_mask_is_split_where_it_does_not_broadcast() -> None:
    mask = TensorMeta((4, 1, 128, 256), F16)
    masks = {s.inputs[0]: s.inputs[3] for s in signatures(_efficient(mask))[1:]}
    assert masks == {S(0): S(0), S(1): B, S(2): S(2)}


def test_padded_statistics_want_aligned_parts_of_queries() -> None:
    operator = _efficient(TensorMeta((128, 256), F16))
    by_queries = signatures(operator)[3]
    assert by_queries.outputs[:2] == (S(2), S(2))
    for mesh, allowed in ((Mesh("x=4"), True), (Mesh("x=8"), False)):
        inputs = tuple(Layout(mesh, [p]) for p in by_queries.inputs)
        outputs = tuple(Layout(mesh, [p]) for p in by_queries.outputs)
        assert fits(operator, inputs, outputs) is allowed
