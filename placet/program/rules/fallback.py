"""Rules for operators without one of their own."""

from placet.program.rules.pattern import Source
from placet.program.signature import Operator, Rule


def fallback_rule(operator: Operator) -> tuple[Rule, Source] | None:
    """A rule found for an operator; None if there is none."""
    return None
