"""docs/from_scratch.py is short, needs torch alone, and can fail."""

import ast
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

PATH = Path(__file__).parents[2] / "docs" / "from_scratch.py"


@pytest.fixture(scope="module")
def essay() -> dict[str, Any]:
    return runpy.run_path(str(PATH))


def test_from_scratch_equals_one_device(essay: dict[str, Any]):
    essay["main"]()


def test_from_scratch_is_short():
    assert len(PATH.read_text().splitlines()) <= 300


def test_from_scratch_needs_torch_only():
    roots = set[str]()
    for node in ast.walk(ast.parse(PATH.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            roots.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            roots |= {name.name.split(".")[0] for name in node.names}
    assert roots - sys.stdlib_module_names == {"torch"}


@pytest.mark.parametrize("method", ["data_parallel", "zero_3", "megatron"])
def test_from_scratch_refuses_a_program_without_its_boxings(
    essay: dict[str, Any], method: str
):
    program = essay["read"](essay["STEP"])
    placements = essay[method]()[1]
    with pytest.raises(ValueError, match="box an operand first"):
        essay["train"](lambda: (program, placements), _tensors(), 2)


def test_from_scratch_ledger_notices_a_byte_too_many(
    essay: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    send = essay["Traffic"].send

    def dear(net: Any, tensor: Any, src: int, dst: int) -> Any:
        net.received_bytes += 1
        return send(net, tensor, src, dst)

    monkeypatch.setattr(essay["Traffic"], "send", dear)
    with pytest.raises(AssertionError):
        essay["train"](essay["data_parallel"], _tensors(), 2)


def _tensors() -> dict[str, Any]:
    shapes = {"x": (10, 6), "wanted": (10, 3), "w1": (6, 9), "w2": (9, 3)}
    return {n: torch.ones(s, dtype=torch.float64) for n, s in shapes.items()}
