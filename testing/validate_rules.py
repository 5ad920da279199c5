"""Checks every rule by brute force, and writes down what was found.

for each sample call, each signature, meshes of 2 and of 3 ranks, and pairs of
signatures on a mesh of 2 x 2:
    cut random inputs by the input placements (P: random terms)      -> cut
    run each rank's call on its parts                               -> run_rank
    put the outputs together by the output placements               -> assemble
    compare with the operator on the whole                          -> check

python -m testing.validate_rules            writes tests/program/rules/validated.txt
python -m testing.validate_rules aten.mm    prints what is found for some targets
"""

import random
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from placet.placement.layout import Layout, box_shape, part_box
from placet.placement.mesh import Mesh
from placet.placement.placement import Split
from placet.program.graph import TensorMeta
from placet.program.rules.table import fits, has_terms, localize, signatures
from placet.program.signature import Operator, Parts, Signature, Slot, target_name
from testing.rule_samples import (
    attention,
    convolution,
    creation,
    embedding,
    fallback,
    indexing,
    loss,
    matmul,
    norms,
    order,
    pointwise,
    pooling,
    reduce,
    softmax,
    views,
)
from testing.rule_samples import random as random_samples
from testing.rule_samples.forms import Sample, T

FAMILIES: dict[str, Sequence[Sample]] = {
    "pointwise": pointwise.SAMPLES,
    "views": views.SAMPLES,
    "reduce": reduce.SAMPLES,
    "matmul": matmul.SAMPLES,
    "creation": creation.SAMPLES,
    "indexing": indexing.SAMPLES,
    "order": order.SAMPLES,
    "convolution": convolution.SAMPLES,
    "pooling": pooling.SAMPLES,
    "attention": attention.SAMPLES,
    "embedding": embedding.SAMPLES,
    "loss": loss.SAMPLES,
    "norms": norms.SAMPLES,
    "softmax": softmax.SAMPLES,
    "random": random_samples.SAMPLES,
    "fallback": fallback.SAMPLES,
}
MESHES = (Mesh("x=2"), Mesh("x=3"), Mesh("x=2, y=2"))
MAX_PAIRS = 40
"""Pairs of signatures that are tried per sample on a mesh of two axes."""
DIGITS = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 1e-4}
"""How close results must be, by dtype."""
FILE = Path(__file__).parents[1] / "tests/program/rules/validated.txt"


@dataclass(frozen=True, eq=False)
class Whole:
    """A sample's operator with its tensors."""

    sample: Sample
    operator: Operator
    inputs: list[Tensor]
    outputs: list[Tensor | None]


def whole(sample: Sample) -> Whole:
    """Run a sample on the whole."""
    generator = torch.Generator().manual_seed(zlib.crc32(repr(sample.args).encode()))
    specs: list[T] = []

    def slot(value: Any) -> Any:
        if isinstance(value, T):
            specs.append(value)
            return Slot(len(specs) - 1)
        if isinstance(value, tuple | list):
            return tuple(slot(item) for item in value)
        return value

    args = slot(sample.args)
    kwargs = tuple((name, slot(value)) for name, value in sample.kwargs)
    inputs = [spec.make(generator) for spec in specs]
    inputs = inputs if sample.prepare is None else sample.prepare(inputs)
    made = run(sample.target, args, kwargs, inputs)
    operator = Operator(
        sample.target,
        args,
        kwargs,
        tuple(TensorMeta(tuple(x.shape), x.dtype) for x in inputs),
        tuple(None if x is None else TensorMeta(tuple(x.shape), x.dtype) for x in made),
    )
    return Whole(sample, operator, inputs, made)


def run(
    target: Any, args: Any, kwargs: Any, inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Call a target with tensors for its slots; its outputs as a list."""
    fill = _filler(inputs)
    made = target(*fill(args), **{name: fill(value) for name, value in kwargs})
    made = made if isinstance(made, tuple | list) else (made,)
    return [x if isinstance(x, Tensor) else None for x in made]


def _filler(inputs: Sequence[Tensor]) -> Any:
    def fill(value: Any) -> Any:
        if isinstance(value, Slot):
            return inputs[value.index]
        if isinstance(value, tuple | list):
            return tuple(fill(item) for item in value)
        return value

    return fill


def layouts(
    mesh: Mesh, operator: Operator, picked: Sequence[Signature]
) -> tuple[tuple[Layout, ...], tuple[Layout, ...]] | None:
    """The layouts of an operator's tensors; None if not all ranks have parts of all."""
    try:
        inputs = tuple(
            Layout(mesh, [s.inputs[i] for s in picked])
            for i in range(len(operator.inputs))
        )
        outputs = tuple(
            Layout(mesh, [s.outputs[i] for s in picked])
            for i in range(len(operator.outputs))
        )
    except ValueError:  # two reductions, or two halos on a dim
        return None
    pairs = zip((*operator.inputs, *operator.outputs), (*inputs, *outputs), strict=True)
    for meta, layout in pairs:
        if meta is None or 0 in meta.shape:
            continue
        if any(0 in box_shape(part_box(meta.shape, layout, r)) for r in mesh.ranks):
            return None
    return inputs, outputs


def _term(layout: Layout, rank: int) -> int:
    """Which term of a partial tensor a rank holds."""
    index = 0
    coordinate = layout.mesh.coordinate(rank)
    for c, size, p in zip(
        coordinate, layout.mesh.sizes, layout.placements, strict=True
    ):
        index = index * size + c if has_terms(p) else index
    return index


def _num_terms(layout: Layout) -> int:
    return 1 + max(_term(layout, rank) for rank in layout.mesh.ranks)


def cut(x: Tensor, layout: Layout, generator: torch.Generator) -> list[Tensor]:
    """Each rank's part of a tensor; terms of a partial one are random."""
    count = _num_terms(layout)
    shape = (count, *x.shape)
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    exact = noise if x.dtype == torch.float64 else noise.mul(3).round()
    terms = exact.to(x.dtype)
    if layout.reduction in ("max", "min"):
        sign = -1 if layout.reduction == "max" else 1
        terms = x + sign * terms.abs()
        terms[int(torch.randint(count, (), generator=generator))] = x
    elif layout.reduction == "sum":
        terms[0] = x - terms[1:].sum(0)
    else:
        terms[0] = x
    parts = []
    for rank in layout.mesh.ranks:
        box = part_box(tuple(x.shape), layout, rank)
        term = terms[_term(layout, rank)]
        parts.append(term[tuple(slice(*interval) for interval in box)].clone())
    return parts


def assemble(parts: Sequence[Tensor], like: Tensor, layout: Layout) -> Tensor:
    """The whole of the ranks' parts; copies must agree and all of it be covered.

    Raises:
        AssertionError: a part of another shape or dtype, or copies that differ.
    """
    shape = tuple(like.shape)
    found: dict[int, Tensor] = {}
    covered: dict[int, Tensor] = {}
    for rank, part in zip(layout.mesh.ranks, parts, strict=True):
        box = part_box(shape, layout, rank)
        assert tuple(part.shape) == box_shape(box), (
            f"rank {rank} made {tuple(part.shape)}, not {box_shape(box)}"
        )
        assert part.dtype == like.dtype, f"rank {rank} made {part.dtype}"
        term = _term(layout, rank)
        made = found.setdefault(term, torch.zeros_like(like))
        seen = covered.setdefault(term, torch.zeros(shape, dtype=torch.bool))
        where = tuple(slice(*interval) for interval in box)
        both = seen[where]
        assert close(made[where][both], part[both]), f"rank {rank}: copies differ"
        made[where] = part
        seen[where] = True
    if any(isinstance(p, Split) and p.adjoint for p in layout.placements):
        covered = {0: torch.stack(list(covered.values())).any(0)}
    assert all(bool(seen.all()) for seen in covered.values()), "not all is covered"
    terms = torch.stack([found[i] for i in sorted(found)])
    if layout.reduction == "max":
        return terms.amax(0)
    if layout.reduction == "min":
        return terms.amin(0)
    return terms.sum(0, dtype=like.dtype) if len(found) > 1 else terms[0]


def close(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding, in the digits that the dtype has."""
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    tolerance = DIGITS.get(a.dtype, 5e-2)
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def check(case: Whole, mesh: Mesh, picked: Sequence[Signature]) -> bool:
    """Whether a way to divide an operator was allowed; if so, it was right.

    Raises:
        AssertionError: it was wrong; says how.
    """
    operator = case.operator
    placed = layouts(mesh, operator, picked)
    if placed is None or not fits(operator, *placed):
        return False
    generator = torch.Generator().manual_seed(zlib.crc32(repr(picked).encode()))
    inputs = [
        cut(x, layout, generator)
        for x, layout in zip(case.inputs, placed[0], strict=True)
    ]
    made = []
    for i, rank in enumerate(mesh.ranks):
        call = localize(operator, Parts(*placed, rank))
        parts = [ranks[i] for ranks in inputs]
        made.append(run(call.target, call.args, call.kwargs, parts))
    for j, expected in enumerate(case.outputs):
        if expected is None:
            continue
        parts = [_tensor(outputs[j]) for outputs in made]
        if case.sample.has_values:
            result = assemble(parts, expected, placed[1][j])
            assert close(result, expected), f"output {j} is wrong"
        else:
            boxes = [
                part_box(tuple(expected.shape), placed[1][j], r) for r in mesh.ranks
            ]
            assert [tuple(p.shape) for p in parts] == [box_shape(b) for b in boxes]
    return True


def _tensor(x: Tensor | None) -> Tensor:
    assert x is not None, "an output is missing"
    return x


@dataclass(frozen=True)
class Verdict:
    """What was found for a sample.

    Args:
        num_signatures: besides all-B.
        num_runs: ways to divide it that were run.
        unused: signatures that fitted on no mesh of one axis.
    """

    name: str
    num_signatures: int
    num_runs: int
    unused: tuple[Signature, ...]
    errors: tuple[str, ...]


def validate(sample: Sample) -> Verdict:
    """Check all signatures of a sample."""
    case = whole(sample)
    known = signatures(case.operator)
    errors, ran, used = [], 0, set()
    for mesh, picked in _ways(known):
        try:
            allowed = check(case, mesh, picked)
        except (AssertionError, RuntimeError, IndexError, TypeError) as error:
            text = "; ".join(map(repr, picked))
            errors.append(f"{case.operator.text} by {text} on {mesh!r}: {error}")
            continue
        ran += allowed
        if allowed and len(picked) == 1:
            used.add(picked[0])
    unused = tuple(s for s in known[1:] if s not in used)
    name = target_name(sample.target)
    return Verdict(name, len(known) - 1, ran, unused, tuple(errors))


def _ways(known: Sequence[Signature]) -> Iterator[tuple[Mesh, tuple[Signature, ...]]]:
    for mesh in MESHES:
        ways = list(product(known, repeat=len(mesh.axes)))
        if len(ways) > MAX_PAIRS and len(mesh.axes) > 1:
            ways = random.Random(len(ways)).sample(ways, MAX_PAIRS)
        yield from ((mesh, picked) for picked in ways)


def all_samples() -> Iterator[Sample]:
    """Every sample of every family."""
    for samples in FAMILIES.values():
        yield from samples


def line(verdicts: Sequence[Verdict]) -> str:
    """A line of the table: target, samples, signatures, runs, verdict."""
    name = verdicts[0].name
    num_signatures = sum(v.num_signatures for v in verdicts)
    num_runs = sum(v.num_runs for v in verdicts)
    wrong = sum(len(v.errors) for v in verdicts)
    verdict = f"{wrong} WRONG" if wrong else "right"
    return (
        f"{name:48} {len(verdicts):3} samples {num_signatures:4} signatures "
        f"{num_runs:5} runs  {verdict}"
    )


def by_name(samples: Iterator[Sample]) -> dict[str, list[Sample]]:
    """Samples by their targets' names."""
    found: dict[str, list[Sample]] = {}
    for one in samples:
        found.setdefault(target_name(one.target), []).append(one)
    return dict(sorted(found.items()))


def main(names: Sequence[str]) -> int:
    """Check all, or some by name; the number of targets that are wrong."""
    num_wrong, lines = 0, []
    for name, samples in by_name(all_samples()).items():
        if names and not any(name.startswith(wanted) for wanted in names):
            continue
        verdicts = [validate(one) for one in samples]
        lines.append(line(verdicts))
        errors = [error for v in verdicts for error in v.errors]
        num_wrong += bool(errors)
        if names or errors:
            print(lines[-1])
            print(*(f"    {error}" for error in errors[:5]), sep="\n")
        if names:
            unused = [
                f"{one.args}: {v.unused}"
                for one, v in zip(samples, verdicts, strict=True)
                if v.unused
            ]
            print(*(f"    never fitted: {text}" for text in unused), sep="\n")
    if not names:
        FILE.write_text("\n".join(lines) + "\n")
        print(f"{len(lines)} targets, {num_wrong} wrong")
    return num_wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(min(1, main(sys.argv[1:])))
