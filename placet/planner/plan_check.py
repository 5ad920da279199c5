"""Whether a plan goes with a model's step, and if not, what differs.

    homes       every state, nothing else; whole or split, in dims that it has
    signatures  every operator, nothing else; one per axis, that the operator has
    boxings     steps of one rule each, from layouts that there are; all that is read
                is made                                            -> check_division
    the rest    batch, shapes of states, operators, torch          -> differences

A plan that `plan` has made passes. One that was edited in its file may not.
"""

from collections.abc import Collection, Iterator, Sequence

import torch

from placet.boxing.path import direct_step
from placet.errors import PlanError
from placet.placement.layout import Layout, check_fits
from placet.planner.plan_data import PlanData
from placet.planner.plan_edit import is_legal
from placet.planner.plan_json import meta_text
from placet.planner.plan_names import nearest
from placet.planner.storage import is_home
from placet.program.capture import Captured
from placet.program.division import Division
from placet.program.graph import Graph, TensorMeta
from placet.program.route import Use, uses_of
from placet.program.rules.table import signatures
from placet.program.signature import operator_of, target_name

AGAIN = (
    ". It is of another model, or was edited by hand: edit it by Plan.with_home or "
    "Plan.with_signature, have Plan.routed find its boxings, or plan again"
)
"""What can be done about a plan that does not go with a step."""


def check_division(graph: Graph, division: Division) -> None:
    """Refuse a division that the graph cannot be run by.

    Args:
        graph: normalised for the division's number of ranks.

    Raises:
        PlanError: says what was given, and the nearest that could be.
    """
    _check_homes(graph, division)
    _check_signatures(graph, division)
    _check_boxings(graph, division)


def check_placements(graph: Graph, division: Division) -> None:
    """`check_division`, but for the boxings.

    Raises:
        PlanError: likewise.
    """
    _check_homes(graph, division)
    _check_signatures(graph, division)


def differences(
    plan: PlanData, captured: Captured, graph: Graph, precision: str
) -> str:
    """What a plan was made for, and what a step is, where they are not the same.

    Args:
        captured, graph: the step, and its normalised graph.
        precision: that it was captured in.
    """
    found = [*_batch(plan, captured), *_states(plan, graph)]
    if plan.precision != precision:
        found.append(f"precision: {plan.precision} in the plan, {precision} here")
    if plan.torch_version != torch.__version__:
        found.append(
            f"torch: {plan.torch_version} in the plan, {torch.__version__} here"
        )
    if not found:
        found.append(_operators(plan, graph))
    return "; ".join(found)


def _batch(plan: PlanData, captured: Captured) -> Iterator[str]:
    if captured.metas != plan.batch:
        ours = ", ".join(map(meta_text, captured.metas))
        theirs = ", ".join(map(meta_text, plan.batch))
        yield f"batch: {theirs} in the plan, {ours} here"


def _states(plan: PlanData, graph: Graph) -> Iterator[str]:
    """Names and shapes of parameters and buffers."""
    here = {s.name: graph.tensors[s.tensor] for s in graph.states}
    fresh = [name for name in here if name not in plan.states]
    gone = [name for name in plan.states if name not in here]
    other = [n for n in here if n in plan.states and here[n] != plan.states[n]]
    if fresh or gone:
        ours = f"{_few(fresh)} only here" if fresh else ""
        theirs = f"{_few(gone)} only in the plan" if gone else ""
        yield f"parameters and buffers: {', '.join(filter(None, (theirs, ours)))}"
    if other:
        name = other[0]
        more = f" (and {len(other) - 1} others)" if len(other) > 1 else ""
        yield (
            f"shapes: {name!r} is {meta_text(plan.states[name])} in the plan, "
            f"{meta_text(here[name])} here{more}"
        )


def _operators(plan: PlanData, graph: Graph) -> str:
    """The first operator that differs, and where it stands."""
    known = plan.division.signatures
    for op in graph.ops:
        if op.name not in known:
            where = ", ".join(filter(None, (op.module or "the loss", op.line)))
            return (
                f"operators: {target_name(op.target)} in {where} is not in the plan, "
                f"which has {len(known)}; there are {len(graph.ops)} here"
            )
    gone = [name for name in known if name not in {op.name for op in graph.ops}]
    if gone:
        return f"operators: {_few(gone)} only in the plan"
    return (
        "operators: the same ones with other arguments (a constant, a dropout rate, a "
        "size, train or eval mode)"
    )


def _few(names: Sequence[str]) -> str:
    text = ", ".join(map(repr, names[:3]))
    return f"{text} and {len(names) - 3} more" if len(names) > 3 else text


def _check_homes(graph: Graph, division: Division) -> None:
    states = {s.name: graph.tensors[s.tensor].shape for s in graph.states}
    _check_names("parameter or buffer", division.homes, states)
    for name, shape in states.items():
        layout = division.homes[name]
        try:
            check_fits(shape, layout)
        except ValueError as error:
            raise PlanError(
                f"the plan stores {name!r} as {layout!r}: {error}"
            ) from error
        if not is_home(layout):
            raise PlanError(
                f"the plan stores {name!r} as {layout!r}: what lives from step to step "
                "is whole or split, B or S(dim), without halos" + AGAIN
            )


def _check_signatures(graph: Graph, division: Division) -> None:
    _check_names("operator", division.signatures, [op.name for op in graph.ops])
    for op in graph.ops:
        operator, picked = operator_of(op, graph), division.signatures[op.name]
        if not is_legal(division, operator, picked):
            options = list(dict.fromkeys(map(repr, signatures(operator))))
            where = ", ".join(filter(None, (op.module, op.line))) or "the loss"
            raise PlanError(
                f"the plan divides {op.name!r}, {operator.text} in {where}, by "
                f"{'; '.join(map(repr, picked))} on {division.mesh!r}; it can have, "
                f"one for each axis: {'; '.join(options[:8])}"
                f"{' ...' if len(options) > 8 else ''}" + AGAIN
            )


def _check_names(kind: str, given: Collection[str], needed: Collection[str]) -> None:
    missing = [name for name in needed if name not in given]
    for name in given:
        if name not in needed:
            raise PlanError(
                f"the plan names {kind} {name!r}, which the model's step lacks; "
                f"{nearest(name, missing or needed)}{AGAIN}"
            )
    if missing:
        raise PlanError(
            f"the plan says nothing of the {kind} {missing[0]!r}"
            f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}{AGAIN}"
        )


def _check_boxings(graph: Graph, division: Division) -> None:
    uses = uses_of(graph, division)
    for kind, found in (("boxings", division.boxings), ("again", division.again)):
        for name in found:
            if name not in uses:
                raise PlanError(
                    f"the plan's {kind} name tensor {name!r}, which the model's step "
                    f"lacks; {nearest(name, uses)}{AGAIN}"
                )
    for name, use in uses.items():
        meta = graph.tensors[name]
        made = _reached(name, meta, use, division.boxings.get(name, ()))
        again = made
        if name in division.again:
            again = _reached(name, meta, use, division.again[name])
        for read in use.reads:
            there = made if read.phase == "forward" else again
            if read.reader == "":
                there = made | again
            if read.layout not in there:
                raise PlanError(
                    f"{read.reader or 'the end of the step'} reads {name!r} as "
                    f"{read.layout!r}, which no boxing of the plan makes; it is there "
                    f"as {', '.join(map(repr, there))}{AGAIN}"
                )


def _reached(
    name: str, meta: TensorMeta, use: Use, steps: Sequence[tuple[Layout, Layout]]
) -> set[Layout]:
    """The layouts that a tensor is in after some steps.

    Raises:
        PlanError: a step from where it is not, or that no rule makes.
    """
    there = {use.made}
    for src, dst in steps:
        if src not in there:
            raise PlanError(
                f"a boxing of {name!r} begins at {src!r}; the tensor is there as "
                f"{', '.join(map(repr, there))}{AGAIN}"
            )
        if direct_step((meta.shape,), meta.dtype, src, dst) is None:
            raise PlanError(
                f"no single step changes {name!r} from {src!r} to {dst!r}{AGAIN}"
            )
        if dst in there:
            raise PlanError(f"the plan makes {name!r} twice as {dst!r}{AGAIN}")
        there.add(dst)
    return there
