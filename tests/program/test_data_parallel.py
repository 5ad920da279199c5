"""Data-parallel programs of any model: what each ZeRO level boxes, and how much."""

from collections import Counter
from itertools import pairwise
from typing import Any, get_args

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from placet.placement.mesh import Mesh
from placet.placement.placement import Broadcast, Partial, Split
from placet.program.blocks import find_blocks
from placet.program.data_parallel import (
    DataParallel,
    ParameterSpec,
    ZeroLevel,
    build_program,
)
from placet.program.node import Boxing, Update
from placet.program.program import Program
from placet.program.verify import verify

LEVELS = get_args(ZeroLevel)


class Plain(nn.Module):
    """A module with a parameter of its own, perhaps 0-d, and children."""

    def __init__(self, children: list[nn.Module], dims: int) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.ones([3] * dims))
        self.inner = nn.ModuleDict({f"c{i}": c for i, c in enumerate(children)})


def leaves() -> st.SearchStrategy[nn.Module]:
    return st.one_of(
        st.builds(nn.Linear, st.integers(1, 5), st.integers(1, 5)),
        st.builds(nn.LayerNorm, st.integers(1, 5)),
        st.builds(nn.ReLU),
        st.builds(lambda: nn.Linear(2, 2).double()),
        st.builds(Plain, st.just([]), st.integers(0, 2)),
    )


def containers(children: st.SearchStrategy[nn.Module]) -> st.SearchStrategy[nn.Module]:
    some = st.lists(children, max_size=3)
    return st.one_of(
        st.builds(nn.ModuleList, some),
        st.builds(lambda modules: nn.Sequential(*modules), some),
        st.builds(Plain, some, st.integers(0, 2)),
    )


@st.composite
def models(draw: st.DrawFn) -> nn.Module:
    """A random tree; some parameters frozen, some modules standing at two places."""
    tree = st.recursive(leaves(), containers, max_leaves=12)
    model = Plain(draw(st.lists(tree, max_size=4)), draw(st.integers(0, 2)))
    modules = [m for m in model.modules() if m is not model]
    if modules and draw(st.booleans()):
        model.again = draw(st.sampled_from(modules))
    linears = [m for m in modules if isinstance(m, nn.Linear)]
    if len(linears) > 1:
        first, second = draw(st.sampled_from(linears)), draw(st.sampled_from(linears))
        second.weight = first.weight
    for parameter in model.parameters():
        parameter.requires_grad_(draw(st.integers(0, 4)) > 0)
    return model


def specs(model: nn.Module) -> list[ParameterSpec]:
    return [
        ParameterSpec(n, tuple(p.shape), p.dtype, p.requires_grad)
        for n, p in model.named_parameters()
    ]


def program_of(model: nn.Module, num_ranks: int = 2, **options: Any) -> Program:
    mesh = Mesh(f"data={num_ranks}")
    blocks = find_blocks(model)
    return build_program(
        "job", mesh, specs(model), blocks, options=DataParallel(**options)
    )


@given(models())
@settings(max_examples=40, deadline=None)
def test_blocks_partition_the_parameters(model: nn.Module) -> None:
    blocks = find_blocks(model)
    named = dict(model.named_parameters())
    owned = [name for block in blocks for name in block.parameters]
    assert sorted(owned) == sorted(named)
    assert blocks[-1].name == ""
    assert len({b.name for b in blocks}) == len(blocks)
    for block in blocks[:-1]:
        assert block.parameters
        module = model.get_submodule(block.name)
        assert not isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict)
        inside = {id(p) for p in module.parameters()}
        assert all(id(named[n]) in inside for n in block.parameters)
        # Its parameters are nowhere outside it.
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if not name.startswith(f"{block.name}."):
                assert id(parameter) not in {id(named[n]) for n in block.parameters}


@given(
    models(),
    st.sampled_from(LEVELS),
    st.integers(1, 5),
    st.fixed_dictionaries(
        {
            "whole_updates": st.booleans(),
            "bucket_bytes": st.sampled_from([1, 64, 8 << 20]),
            "accumulate": st.integers(1, 3),
            "batch_norms": st.sampled_from([(), (3,), (4, 2)]),
            "needs_norm": st.booleans(),
        }
    ),
)
@settings(max_examples=80, deadline=None)
def test_programs_of_any_model_are_well_formed(
    model: nn.Module, level: Any, num_ranks: int, options: dict[str, Any]
) -> None:
    program = program_of(model, num_ranks, level=level, batch_rows=8, **options)
    verify(program)
    whole_updates = options["whole_updates"]
    splits = level >= 1 and not whole_updates
    boxed = Counter(name for b in program.boxings() for name in b.inputs)
    (update,) = [n for n in program.nodes if isinstance(n, Update)]
    for parameter in specs(model):
        name = parameter.name
        is_part = splits and bool(parameter.shape)
        stored = program.tensors[name].layout.placements[0]
        assert isinstance(stored, Split) == (is_part and level == 3)
        assert boxed[f"{name}.grad"] == parameter.trainable
        assert (f"{name}.grad.sum" in update.inputs) == parameter.trainable
        assert (f"{name}.new" in update.outputs) == parameter.trainable
        if parameter.trainable:
            reduced = program.tensors[f"{name}.grad.sum"].layout.placements[0]
            assert isinstance(reduced, Split) == is_part
        returns = is_part and level < 3 and parameter.trainable
        assert boxed[f"{name}.new"] == returns
        assert (boxed[name] > 0) == (is_part and level == 3)
    assert boxed["totals"] == 1


@given(models(), st.integers(2, 4))
@settings(max_examples=30, deadline=None)
def test_bytes_of_each_level(model: nn.Module, num_ranks: int) -> None:
    """ZeRO's own account, summed over the ranks: T(p - 1) a gather or a reduction."""
    trained = [p for p in model.parameters() if p.requires_grad and p.dim()]
    trained_bytes = sum(p.numel() * p.element_size() for p in trained)

    def received(level: Any, queues: tuple[str, ...], accumulate: int = 1) -> int:
        program = program_of(model, num_ranks, level=level, accumulate=accumulate)
        chosen = [b for b in program.boxings() if b.queue in queues]
        return sum(
            b.times * program.boxing_plan(b).received_bytes(rank)
            for b in chosen
            for rank in range(num_ranks)
        )

    gather = trained_bytes * (num_ranks - 1)
    assert received(1, ("params",)) == received(2, ("params",)) == gather
    split_only = all(p.dim() for p in model.parameters())
    if split_only:
        assert received(1, ("grads",)) == received(2, ("grads",)) == gather
        assert received(3, ("grads",)) == gather
        assert received(1, ("grads",), 3) == gather
        assert received(2, ("grads",), 3) == 3 * gather
    everything = sum(
        p.numel() * p.element_size() for p in model.parameters() if p.dim()
    )
    once = everything * (num_ranks - 1)
    assert once <= received(3, ("params",)) <= 2 * once


def boxing_named(program: Program, name: str) -> Boxing:
    return next(b for b in program.boxings() if b.name == name)


def test_gradients_travel_in_buckets_in_backward_order() -> None:
    widths = (4, 4, 4, 4, 8, 8)
    model = nn.Sequential(*(nn.Linear(*w, bias=False) for w in pairwise(widths)))
    program = program_of(model, bucket_bytes=160)
    names = [b.inputs for b in program.boxings()]
    assert names == [
        ("4.weight.grad",),  # a large one goes alone
        ("3.weight.grad",),
        ("2.weight.grad", "1.weight.grad"),
        ("0.weight.grad", "totals"),
    ]
    assert all(isinstance(b.src.placements[0], Partial) for b in program.boxings())
    assert all(isinstance(b.dst.placements[0], Broadcast) for b in program.boxings())


def test_buckets_hold_one_dtype() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(torch.bfloat16))
    for level in LEVELS:
        program = program_of(model, level=level)
        for boxing in program.boxings():
            assert len({program.tensors[n].dtype for n in boxing.inputs}) == 1


def test_accumulation_boxes_parts_each_micro_batch_from_level_two_on() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for level, times in ((0, {1}), (1, {1}), (2, {3}), (3, {3})):
        program = program_of(model, level=level, accumulate=3)
        grads = {b.times for b in program.boxings() if b.queue == "grads"}
        assert grads == times
        assert {b.times for b in program.boxings() if b.queue == "totals"} <= {1}


def test_the_last_block_stays_whole_for_its_backward() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    program = program_of(model, level=3)
    gathers = [b.name for b in program.boxings() if b.queue == "params"]
    assert gathers == [
        "0.gather.forward.0",
        "1.gather.forward.0",
        "2.gather.forward.0",
        "1.gather.backward.0",
        "0.gather.backward.0",
    ]
    assert boxing_named(program, "0.gather.forward.0").priority == 1


def test_other_axes_hold_replicas() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    mesh = Mesh("data=2, model=2")
    program = build_program(
        "job",
        mesh,
        specs(model),
        find_blocks(model),
        options=DataParallel(level=3, axis="model"),
    )
    weight = program.tensors["0.weight"].layout
    assert repr(weight) == "Layout(B @data, S(0) @model)"
    with pytest.raises(ValueError, match="no axis 'rows'"):
        build_program(
            "job",
            mesh,
            specs(model),
            find_blocks(model),
            options=DataParallel(axis="rows"),
        )
