"""Patterns by the names of an operator's arguments, of which some may be left out.

native_layer_norm    input "n d", weight "d", bias "d"; with None for weight and bias
                     the operator has one tensor input, and the pattern too
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import signature
from typing import Any

from placet.program.rules.pattern import Letter, Pattern
from placet.program.signature import Call, Operator, Slot

Letters = Sequence[Letter]


@lru_cache(maxsize=4096)
def argument_names(target: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a target's arguments, in order."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return tuple(signature(target).parameters)
    return tuple(argument.name for argument in schema.arguments)


def slots(operator: Operator) -> dict[str, int]:
    """The arguments that are one tensor: name -> which of the inputs it is."""
    kwargs = dict(operator.kwargs)
    names = argument_names(operator.target)
    given = {**dict(zip(names, operator.args, strict=False)), **kwargs}
    return {n: value.index for n, value in given.items() if isinstance(value, Slot)}


def value_of(operator: Operator, name: str, default: Any = None) -> Any:
    """An argument by its name."""
    index = argument_names(operator.target).index(name)
    return operator.argument(index, name, default)


def with_values(operator: Operator, **values: Any) -> Call:
    """The same operator with other values for arguments that it was given."""
    names = argument_names(operator.target)
    pairs = zip(names, operator.args, strict=False)
    args = tuple(values.get(name, value) for name, value in pairs)
    kwargs = tuple((n, values.get(n, value)) for n, value in operator.kwargs)
    return Call(operator.target, args, kwargs)


def by_names(
    operator: Operator,
    inputs: Mapping[str, Letters],
    outputs: Sequence[Letters],
    *,
    linear: Sequence[Sequence[str]] = (),
    addends: Sequence[str] = (),
    **options: Any,
) -> Pattern:
    """A pattern by names; a tensor without letters is whole.

    Args:
        inputs: name -> letters; also of arguments that this operator was not given.
        outputs: letters; of one that has another number of dims, or that nobody reads,
            they do not count.
        linear: sets of names; of a set those count that the operator was given, as long
            as its first is among them.
        addends: names.
        options: of `Pattern`.
    """
    found = slots(operator)
    letters: list[tuple[Letter, ...]] = [
        (None,) * len(meta.shape) for meta in operator.inputs
    ]
    for name, index in found.items():
        if len(given := tuple(inputs.get(name, ()))) == len(letters[index]):
            letters[index] = given
    made = tuple(
        tuple(dims)
        if meta is None or len(dims) == len(meta.shape)
        else (None,) * len(meta.shape)
        for dims, meta in zip(outputs, operator.outputs, strict=True)
    )
    groups = tuple(
        tuple(found[name] for name in group if name in found)
        for group in linear
        if group[0] in found
    )
    added = tuple(found[name] for name in addends if name in found)
    return Pattern(tuple(letters), made, linear=groups, addends=added, **options)
