"""Recipes: whole jobs as functions, found by name and called with typed settings.

A recipe is a plain function whose keyword parameters have types and defaults and that
returns a Job. The command line names it `char_gpt` (a function in the module of the
same name in `recipes`) or `path/to/file.py:function`, and sets its parameters with
`--set name=value`; the parameter's annotation says how the value is read.
"""

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal

import recipes

TRUE = ("true", "yes", "on", "1")
FALSE = ("false", "no", "off", "0")


@dataclass(frozen=True)
class Parameter:
    """One setting of a recipe.

    Args:
        name: as written in `--set name=value`.
        annotation: its type; `str` when the function states none.
        default: its value when not set; `inspect.Parameter.empty` if it must be set.
    """

    name: str
    annotation: Any
    default: Any

    @property
    def is_required(self) -> bool:
        """Whether the recipe has no default for it."""
        return self.default is inspect.Parameter.empty

    def __str__(self) -> str:
        written = type_name(self.annotation)
        return f"{self.name}: {written}" + (
            " (must be set)" if self.is_required else f" = {self.default!r}"
        )


@dataclass(frozen=True)
class Recipe:
    """A function that returns a Job, and what can be set on it."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]

    @property
    def summary(self) -> str:
        """The first sentence of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n\n")[0].replace("\n", " ")


def known_recipes() -> tuple[str, ...]:
    """Names of the recipes that come with placet, without importing them."""
    return tuple(
        sorted(
            module.name
            for module in pkgutil.iter_modules(recipes.__path__)
            if f"def {module.name}(" in _source(module.name)
        )
    )


def find_recipe(target: str) -> Recipe:
    """The recipe `NAME` or `path.py:function`.

    >>> find_recipe("char_gpt").parameters
    >>> find_recipe("mine/jobs.py:small_gpt")

    Raises:
        ValueError: there is no such recipe, file or function; the message lists those
            that are there, the nearest first.
    """
    if ".py" in target or "/" in target:
        return _recipe_in_file(target)
    known = known_recipes()
    if target not in known:
        raise ValueError(
            f"no recipe is named {target!r}{_nearest(target, known)}. Known recipes: "
            f"{', '.join(known)}; a function of your own is path/to/file.py:function"
        )
    module = importlib.import_module(f"recipes.{target}")
    return _recipe(target, getattr(module, target))


def absolute_target(target: str) -> str:
    """`target` as it can be found from any working folder."""
    path, colon, function = target.rpartition(":")
    return f"{Path(path).resolve()}:{function}" if colon else target


def read_settings(recipe: Recipe, assignments: Sequence[str]) -> dict[str, Any]:
    """The typed keyword arguments that `--set name=value ...` stands for.

    Args:
        recipe: whose parameters are set.
        assignments: each "name=value"; a later one wins over an earlier one.

    Raises:
        ValueError: not of that form, no such parameter, a value its type does not
            read, or a parameter without a default that is not set.
    """
    by_name = {parameter.name: parameter for parameter in recipe.parameters}
    settings: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ValueError(
                f"--set {assignment!r} sets nothing: write --set name=value. "
                + _listed(recipe)
            )
        if name not in by_name:
            raise ValueError(
                f"{recipe.name} has no parameter {name!r}{_nearest(name, by_name)}. "
                + _listed(recipe)
            )
        annotation = by_name[name].annotation
        try:
            settings[name] = read_value(text.strip(), annotation)
        except ValueError as error:
            raise ValueError(
                f"--set {name}={text}: {error} ({recipe.name} declares {by_name[name]})"
            ) from None
    missing = [p for p in recipe.parameters if p.is_required and p.name not in settings]
    if missing:
        raise ValueError(
            f"{recipe.name} needs --set {missing[0].name}=... "
            f"({type_name(missing[0].annotation)}): it has no default. "
            + _listed(recipe)
        )
    return settings


def read_value(text: str, annotation: Any) -> Any:
    """The value that `text` spells for a parameter of this type.

    Reads int (also 1e3 and 1_000), float, bool, str, Path, Literal[...], X | None
    (`none`), and list[X] or tuple[X, ...] (separated by commas).

    Raises:
        ValueError: the text does not spell such a value, or the type is none of these.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _READERS:
        return _READERS[annotation](text)
    if origin is Literal:
        matching = [value for value in arguments if str(value) == text]
        if matching:
            return matching[0]
        choices = ", ".join(map(str, arguments))
        raise ValueError(f"{text!r} is none of: {choices}{_nearest(text, arguments)}")
    if origin in (typing.Union, UnionType):
        if NoneType in arguments and text.lower() in ("none", ""):
            return None
        return _first_that_reads(text, [a for a in arguments if a is not NoneType])
    if origin in (list, tuple) and arguments:
        items = [item.strip() for item in text.strip("()[]").split(",") if item.strip()]
        types = [a for a in arguments if a is not Ellipsis]
        if len(types) > 1 and len(types) != len(items):
            raise ValueError(f"needs {len(types)} values, got {len(items)}: {text!r}")
        each = types if len(types) > 1 else types * len(items)
        return origin(read_value(i, a) for i, a in zip(items, each, strict=True))
    raise ValueError(
        f"a value of type {type_name(annotation)} cannot be written on the command "
        "line; set it in a function of your own that calls this recipe"
    )


def type_name(annotation: Any) -> str:
    """A type as one writes it in an annotation."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("pathlib.", "")


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = _read_float(text, "whole number")
        if not number.is_integer():
            raise ValueError(f"{text!r} is not a whole number") from None
        return int(number)


def _read_float(text: str, kind: str = "number") -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a {kind}") from None


def _read_bool(text: str) -> bool:
    if text.lower() in TRUE + FALSE:
        return text.lower() in TRUE
    raise ValueError(f"{text!r} is neither true nor false")


_READERS: dict[Any, Callable[[str], Any]] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: str,
    Path: Path,
    Any: str,
}


def _first_that_reads(text: str, annotations: Sequence[Any]) -> Any:
    problems = []
    for annotation in annotations:
        try:
            return read_value(text, annotation)
        except ValueError as error:
            problems.append(str(error))
    raise ValueError(", and ".join(problems))


def _recipe(name: str, function: Callable[..., Any]) -> Recipe:
    hints = typing.get_type_hints(function)
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ValueError(
                f"recipe {name}: parameter {parameter.name!r} cannot be given by name; "
                "remove the '/' from its signature"
            )
        annotation = hints.get(parameter.name, _type_of_default(parameter.default))
        parameters.append(Parameter(parameter.name, annotation, parameter.default))
    return Recipe(name, function, tuple(parameters))


def _type_of_default(default: Any) -> Any:
    return type(default) if type(default) in _READERS else str


def _recipe_in_file(target: str) -> Recipe:
    text, _, name = target.rpartition(":")
    path = Path(text if name and not name.endswith(".py") else target)
    if not path.is_file():
        raise ValueError(
            f"there is no file {path} (from {Path.cwd()}); a recipe of your own is "
            "path/to/file.py:function"
        )
    module = _import_file(path.resolve())
    functions = [
        key
        for key, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not key.startswith("_")
    ]
    if path == Path(target):
        suggestion = functions[-1] if functions else "function"
        raise ValueError(
            f"{target} names a file; add the recipe's name: {target}:{suggestion}"
        )
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(
            f"{path} has no function {name!r}{_nearest(name, functions)}; it has "
            f"{', '.join(functions) or 'none'}"
        )
    return _recipe(name, function)


def _import_file(path: Path) -> ModuleType:
    """Import a file under its own name, as `python file.py` would see its folder."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    taken = sys.modules.get(path.stem)
    if taken is not None and getattr(taken, "__file__", None) != str(path):
        raise ValueError(
            f"{path.name} has the name of the module {path.stem!r}, which is already "
            "imported; rename the file"
        )
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module  # so that its classes and functions pickle
    spec.loader.exec_module(module)
    return module


def _source(module: str) -> str:
    spec = importlib.util.find_spec(f"recipes.{module}")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text()


def _nearest(given: str, known: Mapping[str, Any] | Sequence[Any]) -> str:
    close = difflib.get_close_matches(given, list(map(str, known)), n=1, cutoff=0.5)
    return f"; the nearest is {close[0]!r}" if close else ""


def _listed(recipe: Recipe) -> str:
    if not recipe.parameters:
        return f"{recipe.name} has no parameters"
    lines = "".join(f"\n  {parameter}" for parameter in recipe.parameters)
    return f"Its parameters:{lines}"
