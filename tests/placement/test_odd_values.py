"""What is no mesh, placement or layout is refused in words, and never taken for B."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import placet
from placet.placement.layout import Layout
from placet.placement.mesh import Mesh
from placet.placement.placement import B, P, S

MESH: Any = Mesh("data=2")
odd: Any = {"text": "S(0)", "number": 1.5, "function": S, "class": type(B)}

ODD: dict[str, tuple[Callable[[], object], str]] = {
    "mesh of a number": (lambda: Mesh(odd["number"]), "write axes as"),
    "ranks below zero": (lambda: Mesh("data=2", [-1, 0]), "whole numbers from 0"),
    "ranks of text": (lambda: Mesh("data=1", odd["text"][:1]), "whole numbers from 0"),
    "dim of text": (lambda: S(odd["text"]), "dim must be a whole number"),
    "dim of 1.5": (lambda: S(odd["number"]), "S(1.5): dim must be"),
    "halo of three": (lambda: S(0, odd.get("x", (1, 1, 1))), "give (below, above)"),
    "halo of a number": (lambda: S(0, odd["number"]), "give (below, above)"),
    "unknown reduction": (lambda: P(odd["text"]), "must be one of sum"),
    "layout of text": (lambda: Layout(MESH, [odd["text"]]), "'S(0)' in ['S(0)'] is no"),
    "layout of a function": (
        lambda: Layout(MESH, [odd["function"]]),
        "is no placement",
    ),
    "layout of a class": (lambda: Layout(MESH, [odd["class"]]), "is no placement"),
    "layout of one": (lambda: Layout(MESH, B), "is no list of placements"),  # type: ignore
    "layout on text": (lambda: Layout(odd["text"], [B]), "is no mesh"),
    "place a number": (lambda: placet.place(odd["number"], MESH, [B]), "got a float"),
    "place on text": (
        lambda: placet.place(torch.ones(2), odd["text"], [B]),
        "got a Tensor and a str",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_values_are_refused_in_words(case: str) -> None:
    make, message = ODD[case]
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        make()
