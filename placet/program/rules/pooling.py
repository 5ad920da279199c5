"""Rules of operators: pooling."""

from collections.abc import Mapping
from typing import Any

from placet.program.signature import Rule

RULES: Mapping[Any, Rule] = {}
