"""All rules: for each operator, how it may be divided and what a rank then calls.

    signatures(operator)                 the ways along one mesh axis, all-B first
    fits(operator, inputs, outputs)      whether those of several axes go together
    localize(operator, parts)            the call on one rank's parts

An operator's rule is its family's (a file of this folder); or that of all pointwise
operators; or one found by `rules.fallback`; or else every rank runs it whole.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from placet.placement.layout import Layout
from placet.placement.placement import Partial, Placement, Split
from placet.program.rules import (
    attention,
    convolution,
    creation,
    embedding,
    indexing,
    loss,
    matmul,
    norms,
    order,
    pointwise,
    pooling,
    random,
    reduce,
    softmax,
    views,
)
from placet.program.rules.fallback import fallback_rule
from placet.program.rules.pattern import WHOLE, Source, same_call
from placet.program.rules.pointwise import POINTWISE, is_pointwise
from placet.program.signature import (
    Call,
    Operator,
    Parts,
    Rule,
    Signature,
    replicated_signature,
)

FAMILIES: Mapping[str, Mapping[Any, Rule]] = {
    "pointwise": pointwise.RULES,
    "views": views.RULES,
    "reduce": reduce.RULES,
    "matmul": matmul.RULES,
    "creation": creation.RULES,
    "indexing": indexing.RULES,
    "order": order.RULES,
    "convolution": convolution.RULES,
    "pooling": pooling.RULES,
    "attention": attention.RULES,
    "embedding": embedding.RULES,
    "loss": loss.RULES,
    "norms": norms.RULES,
    "softmax": softmax.RULES,
    "random": random.RULES,
}
"""A file of this folder -> its rules."""

RULES: Mapping[Any, Rule] = {
    target: rule for family in FAMILIES.values() for target, rule in family.items()
}
"""Target -> its rule; no target has two."""


@lru_cache(maxsize=1 << 16)
def rule_of(operator: Operator) -> tuple[Rule, Source]:
    """An operator's rule, and where it comes from."""
    found = RULES.get(operator.target) or matmul.BY_NAME.get(str(operator.target))
    if found is None and is_pointwise(operator.target):
        found = POINTWISE
    if found is not None:
        return found, "own"
    return fallback_rule(operator, rule_of) or (WHOLE, "replicated")


@lru_cache(maxsize=1 << 16)
def signatures(operator: Operator) -> tuple[Signature, ...]:
    """The ways to divide an operator along one mesh axis: all-B, then its rule's.

    No complex tensor is a sum of terms: wires add real numbers only.
    """
    rule, _ = rule_of(operator)
    found = (replicated_signature(operator), *rule.signatures(operator))
    return tuple(s for s in dict.fromkeys(found) if _is_carried(operator, s))


def _is_carried(operator: Operator, signature: Signature) -> bool:
    pairs = zip(
        (*operator.inputs, *operator.outputs),
        (*signature.inputs, *signature.outputs),
        strict=True,
    )
    return not any(
        meta is not None and meta.dtype.is_complex and has_terms(placement)
        for meta, placement in pairs
    )


def has_terms(placement: Placement) -> bool:
    """Whether ranks hold terms: of a partial tensor, or in the adjoint of a halo."""
    adjoint = isinstance(placement, Split) and placement.adjoint
    return adjoint or isinstance(placement, Partial)


def fits(
    operator: Operator, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]
) -> bool:
    """Whether the layouts that signatures give go together, with these sizes."""
    rule, _ = rule_of(operator)
    return rule.fits is None or rule.fits(operator, inputs, outputs)


def localize(operator: Operator, parts: Parts) -> Call:
    """What a rank calls on its parts of the operator's inputs."""
    rule, _ = rule_of(operator)
    return same_call(operator) if rule.local is None else rule.local(operator, parts)
