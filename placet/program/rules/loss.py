"""Rules of operators: loss."""

from collections.abc import Mapping
from typing import Any

from placet.program.signature import Rule

RULES: Mapping[Any, Rule] = {}
