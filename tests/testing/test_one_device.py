"""The yardstick sees every kind of difference, and only differences."""

import copy

import pytest
import torch

from testing.one_device import assert_same_as_one_device


def state():
    return {
        "model": {
            "w": torch.arange(6, dtype=torch.float64).view(2, 3),
            "steps": torch.tensor(7),
            "seen": torch.tensor(10_000_000),
            "phase": torch.tensor([1 + 1j]),
            "empty": torch.empty(0, 3),
            "odd": torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0]),
        },
        "optimizer": [
            {"lr": 0.1, "betas": (0.9, 0.99), "name": "adam", "foreach": None}
        ],
    }


def test_one_device_same():
    assert_same_as_one_device(state(), state())


def test_one_device_within_the_tolerance():
    other = state()
    other["model"]["w"] += 4e-6
    assert_same_as_one_device(other, state())
    with pytest.raises(AssertionError, match=r"model\.w: differs by 4e-06"):
        assert_same_as_one_device(other, state(), tolerance=1e-7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["model"]["w"][1].__setitem__(2, 9.0),
         r"model\.w: differs by 4 .* at flat index 5: 9\.0, on one device 5\.0"),
        (lambda s: s["model"].pop("w"), r"missing: \['model\.w'\]"),
        (lambda s: s["model"].update(new=1), r"not on one device: \['model\.new'\]"),
        (lambda s: s["model"].update(w=s["model"]["w"].float()),
         r"model\.w: torch\.float32 \(2, 3\), on one device torch\.float64"),
        (lambda s: s["model"].update(empty=torch.empty(3, 0)), r"model\.empty"),
        (lambda s: s["model"]["odd"].__setitem__(0, 0.0), r"model\.odd: .* nan"),
        (lambda s: s["model"]["odd"].__setitem__(1, -torch.inf), r"model\.odd: "),
        (lambda s: s["model"]["odd"].__setitem__(3, torch.nan), r"model\.odd: "),
        (lambda s: s["model"].update(steps=torch.tensor(8)), r"model\.steps"),
        (lambda s: s["model"].update(seen=torch.tensor(10_000_001)), r"model\.seen"),
        (lambda s: s["model"].update(phase=torch.tensor([1 + 2j])), r"model\.phase"),
        (lambda s: s["optimizer"][0].update(lr=0.2), r"optimizer\[0\]\.lr"),
        (lambda s: s["optimizer"][0].update(betas=(0.9, 0.98)), r"betas\[1\]"),
        (lambda s: s["optimizer"][0].update(name="sgd"), "'sgd', on one device 'adam'"),
        (lambda s: s["optimizer"][0].update(foreach=True), "True, on one device None"),
    ],
)  # fmt: skip
def test_one_device_differences_are_named(change, message):
    other = copy.deepcopy(state())
    change(other)
    with pytest.raises(AssertionError, match=message):
        assert_same_as_one_device(other, state())
