"""How the suite shares two cores.

Under `pytest -n 2 --dist loadgroup` all tests that start processes, use the GPU or the
lab run one after another on one worker, while the other takes the rest: process tests
never compete with one another, and their time-outs mean something.
"""

import pytest

ALONE = ("procs", "lab", "gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(name) for name in ALONE):
            item.add_marker(pytest.mark.xdist_group("alone"))
