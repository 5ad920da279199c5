"""The plain core does what every core must."""

import pytest

from placet.wire.engine.plain.core import PlainCore
from tests.wire.engine import core_conformance, core_failures

CHECKS = core_conformance.CHECKS + core_failures.CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_plain_core_conforms(check):
    check(PlainCore)
