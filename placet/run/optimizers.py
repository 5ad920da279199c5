"""What placet must know of an optimizer: may it work on parts, and what is its state?

    is it element-wise?      known classes, else a probe    -> is_elementwise, verdict
    let it work on parts     swap the parameters            -> repoint
    state by parameter name  for checkpoints                -> optimizer_state,
                                                               load_optimizer_state

An element-wise optimizer updates each element from that element's own history, so parts
of a tensor are updated as in the whole. Others (Muon, Adafactor, LAMB, LBFGS ...) need
whole tensors.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
)

_ELEMENTWISE = {
    *(SGD, Adam, AdamW, Adagrad, Adadelta, Adamax, NAdam, RAdam, RMSprop, Rprop, ASGD)
}
_WHOLE = {
    LBFGS: "its directions mix all parameters",
    Muon: "it orthogonalises whole matrices",
    Adafactor: "its second moments are sums of rows and columns",
    SparseAdam: "its sparse gradients have no parts",
}


@dataclass(frozen=True)
class Verdict:
    """Whether an optimizer may work on parts of tensors, and why (not)."""

    elementwise: bool
    reason: str


_probed: dict[tuple[Any, ...], Verdict] = {}


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether each element is updated from its own history alone; see `verdict`."""
    return verdict(optimizer).elementwise


def verdict(optimizer: Optimizer) -> Verdict:
    """Whether an optimizer is element-wise, known by its class or found by a probe.

    An unknown class is made anew with the same options, over random tensors whole and
    over their parts (an empty one too), and must take both the same way for some steps,
    at small and large gradients. What cannot be probed counts as not element-wise:
    that is slower and always right. Results are kept per class and options.
    """
    kind = type(optimizer)
    if kind in _WHOLE:
        return Verdict(False, f"{kind.__name__}: {_WHOLE[kind]}")
    if kind in _ELEMENTWISE:
        return Verdict(True, f"{kind.__name__} is known to be element-wise")
    found = [_probe_once(kind, group) for group in optimizer.param_groups]
    return next((v for v in found if not v.elementwise), found[0])


def _probe_once(kind: type[Optimizer], group: Mapping[str, Any]) -> Verdict:
    options = {k: v for k, v in group.items() if k not in ("params", "param_names")}
    key = (kind, *sorted((k, repr(v)) for k, v in options.items()))
    if key not in _probed:
        _probed[key] = _probe(kind, options)
    return _probed[key]


def _probe(kind: type[Optimizer], options: Mapping[str, Any]) -> Verdict:
    name = kind.__name__
    accepted = inspect.signature(kind).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        options = {k: v for k, v in options.items() if k in accepted}
    try:
        # A stranger's class may raise anything, and may draw random numbers.
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            whole, parts = _probe_runs(kind, options)
    except Exception as error:
        return Verdict(
            False, f"{name} could not be probed: {type(error).__name__}: {error}"
        )
    for ours, theirs in zip(parts, whole, strict=True):
        if not torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12):
            return Verdict(False, f"{name} updates parts unlike whole tensors")
    return Verdict(True, f"{name} updated parts and whole tensors alike in a probe")


_PROBE_SHAPES = ((6, 5), (7,), (4, 3, 2, 2))
_PROBE_CUTS = (0, 3, 4, 4)
_PROBE_STEPS = 12


def _probe_runs(
    kind: type[Optimizer], options: Mapping[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """The same tensors after some steps, by one optimizer and by one for each part."""
    random = torch.Generator().manual_seed(20)
    start = [_normal(shape, random) for shape in _PROBE_SHAPES]
    whole = [torch.nn.Parameter(x.clone()) for x in start]
    spans = [
        slice(a, b) for a, b in zip(_PROBE_CUTS, [*_PROBE_CUTS[1:], None], strict=True)
    ]
    parts = [[torch.nn.Parameter(x[span].clone()) for x in start] for span in spans]
    make: Callable[..., Optimizer] = kind
    optimizers = [make(params, **options) for params in (whole, *parts)]
    for step in range(_PROBE_STEPS):
        scale = 10.0 ** (step % 5 - 2)
        grads = [_normal(shape, random) * scale for shape in _PROBE_SHAPES]
        for parameter, grad in zip(whole, grads, strict=True):
            parameter.grad = grad.clone()
        for span, params in zip(spans, parts, strict=True):
            for parameter, grad in zip(params, grads, strict=True):
                parameter.grad = grad[span].clone()
        for optimizer in optimizers:
            optimizer.step()
    joined = [torch.cat(pieces).detach() for pieces in zip(*parts, strict=True)]
    return [p.detach() for p in whole], joined


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def repoint(
    optimizer: Optimizer,
    new_of: Mapping[Tensor, Tensor],
    *,
    cut: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Let an optimizer update other tensors (parts) in place of its parameters.

    Args:
        optimizer: changed in place; groups and their options stay.
        new_of: old parameter -> new one. A parameter without an entry stays.
        cut: (entry of the state, old parameter) -> the new parameter's entry, for
            entries shaped like the parameter; needed if there are any and the new
            parameter has another shape.

    Raises:
        ValueError: state that does not fit the new parameter, and no `cut`; nothing
            has been changed.
    """
    state = {
        new: _moved_state(optimizer.state[old], old, new, cut)
        for old, new in new_of.items()
        if old in optimizer.state and old is not new
    }
    for group in optimizer.param_groups:
        group["params"][:] = [new_of.get(p, p) for p in group["params"]]
    for old, new in new_of.items():
        if old in optimizer.state and old is not new:
            del optimizer.state[old]
    for new, entries in state.items():
        optimizer.state[new] = entries


def _moved_state(
    entries: Mapping[str, Any],
    old: Tensor,
    new: Tensor,
    cut: Callable[[Tensor, Tensor], Tensor] | None,
) -> dict[str, Any]:
    moved = {}
    for key, value in entries.items():
        if not follows(value, old) or (cut is None and old.shape == new.shape):
            moved[key] = value
        elif cut is None:
            raise ValueError(
                f"the optimizer's {key!r} of a parameter {tuple(old.shape)} does not "
                f"fit its part {tuple(new.shape)}; give `cut`, or make the job before "
                "the first step"
            )
        else:
            moved[key] = cut(value, old)
    return moved


def follows(value: Any, parameter: Tensor) -> bool:
    """Whether an entry of the state is placed like its parameter.

    Entries of the parameter's shape are cut as it is; all others (step counters, 0-d
    tensors, numbers) are whole and equal on all ranks.
    """
    return (
        isinstance(value, Tensor) and value.dim() > 0 and value.shape == parameter.shape
    )


def optimizer_state(
    optimizer: Optimizer, names: Mapping[Tensor, str]
) -> dict[str, Any]:
    """An optimizer's state with parameters by name.

    Args:
        names: parameter (or part) -> its name in the model.

    Returns:
        `{"state": {name: {entry: value}}, "groups": [{"params": [names], ...}]}`, where
        a group holds its options too. Tensors are the optimizer's own, not copies.

    Raises:
        ValueError: a parameter without a name.
    """
    saved = optimizer.state_dict()
    by_index = dict(enumerate(_names(optimizer, names)))
    groups = [
        group | {"params": [by_index[i] for i in group["params"]]}
        for group in saved["param_groups"]
    ]
    state = {by_index[i]: dict(entries) for i, entries in saved["state"].items()}
    return {"state": state, "groups": groups}


def load_optimizer_state(
    optimizer: Optimizer, names: Mapping[Tensor, str], saved: Mapping[str, Any]
) -> None:
    """Load what `optimizer_state` gave, whatever the order of parameters was then.

    Options of the groups (the learning rate among them) are loaded too, as torch does.
    Tensors are moved to each parameter's device, and to its dtype if they follow it;
    counters and products keep theirs, so that training resumes to the same bits.

    Args:
        names: parameter (or part) -> its name in the model.
        saved: entries shaped like the parameters (parts) that the optimizer has now.

    Raises:
        ValueError: other parameters or another grouping; nothing has been loaded.
    """
    ours = _names(optimizer, names)
    known = {name for group in saved["groups"] for name in group["params"]}
    if set(ours) != known:
        raise ValueError(
            "the saved optimizer has other parameters: missing "
            f"{sorted(set(ours) - known)}, unknown {sorted(known - set(ours))}"
        )
    index = {name: i for i, name in enumerate(ours)}
    groups = []
    for group in optimizer.param_groups:
        members = [names[p] for p in group["params"]]
        match = [g for g in saved["groups"] if set(g["params"]) == set(members)]
        if not match:
            raise ValueError(
                f"no saved group has the parameters {members}; group them as the saved "
                f"optimizer did: {[g['params'] for g in saved['groups']]}"
            )
        theirs = {k: v for k, v in match[0].items() if k != "param_names"}
        own_names = {k: group[k] for k in ("param_names",) if k in group}
        theirs |= {"params": [index[name] for name in members]} | own_names
        groups.append(theirs)
    state = {index[name]: dict(e) for name, e in saved["state"].items()}
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for parameter in _parameters(optimizer):
        loaded = optimizer.state.get(parameter, {})
        for key, value in saved["state"].get(names[parameter], {}).items():
            if isinstance(value, Tensor) and not follows(value, parameter):
                loaded[key] = value.to(loaded[key].device)


def _names(optimizer: Optimizer, names: Mapping[Tensor, str]) -> list[str]:
    """The names of an optimizer's parameters, in its own order."""
    found = []
    for parameter in _parameters(optimizer):
        if parameter not in names:
            raise ValueError(
                f"the optimizer updates a parameter of shape {tuple(parameter.shape)} "
                "that has no name: it is not one of the model's"
            )
        found.append(names[parameter])
    return found


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
