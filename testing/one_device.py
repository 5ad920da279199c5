"""The yardstick of every method that claims exactness: the same job on one device."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor


def assert_same_as_one_device(
    found: object, one_device: object, *, tolerance: float = 1e-6
) -> None:
    """Two states hold the same names, kinds, shapes and, within a tolerance, values.

    Example:
        >>> assert_same_as_one_device(
        ...     {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        ...     {"model": alone.state_dict(), "optimizer": alone_opt.state_dict()},
        ... )

    Args:
        found: a tensor, number or string, or dicts and lists of such.
        one_device: the same, from the run on one device.
        tolerance: largest |difference| allowed, relative to the largest |value| of the
            tensor on one device, or to 1 where that is smaller; whole numbers and
            booleans must be equal.

    Raises:
        AssertionError: names the first thing that differs and by how much.
    """
    ours, theirs = dict(_leaves(found, "")), dict(_leaves(one_device, ""))
    if ours.keys() != theirs.keys():
        missing, extra = sorted(theirs.keys() - ours), sorted(ours.keys() - theirs)
        raise AssertionError(f"missing: {missing}; not on one device: {extra}")
    for name, theirs_value in theirs.items():
        _assert_same(name, ours[name], theirs_value, tolerance)


def _leaves(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{name}[{i}]")
    else:
        yield name, value


def _assert_same(name: str, ours: object, theirs: object, tolerance: float) -> None:
    if isinstance(ours, bool | str | None) or isinstance(theirs, bool | str | None):
        assert ours == theirs, f"{name}: {ours!r}, on one device {theirs!r}"
        return
    a, b = _tensor(ours), _tensor(theirs)
    kinds = f"{a.dtype} {tuple(a.shape)}, on one device {b.dtype} {tuple(b.shape)}"
    assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{name}: {kinds}"
    if not a.numel():
        return
    if not (a.is_floating_point() or a.is_complex()):
        tolerance = 0.0
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    a, b = a.to(torch.float64), b.to(torch.float64)
    difference = (a - b).abs()
    difference[(a == b) | (a.isnan() & b.isnan())] = 0
    finite = b[b.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 1.0
    limit = tolerance * max(1.0, scale)
    where = int(difference.nan_to_num(torch.inf).argmax())
    worst = float(difference.flatten()[where])
    assert worst <= limit, (
        f"{name}: differs by {worst:.3g} (allowed {limit:.3g}) at flat index {where}: "
        f"{float(a.flatten()[where])!r}, on one device {float(b.flatten()[where])!r}"
    )


def _tensor(value: object) -> Tensor:
    return value.detach().cpu() if isinstance(value, Tensor) else torch.tensor(value)
