"""Which modules of a plain model are blocks: the opaque compute nodes of its program.

A block is a child of a ModuleList or Sequential that has parameters of its own,
outermost first; everything else belongs to the root block, named "". A parameter that
two blocks share (tied weights) belongs to the root.
"""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Block:
    """One module of the model and the parameters that are its own.

    Args:
        name: the module's name in the model; "" for the root.
        parameters: names of its parameters, in the model's order.
    """

    name: str
    parameters: tuple[str, ...]


def find_blocks(model: nn.Module) -> tuple[Block, ...]:
    """The blocks of a model in definition order, the root last (it may be empty)."""
    roots = [name for name, _ in _block_modules(model, "")]
    owners: dict[int, set[str]] = {}
    for block in roots:
        for parameter in model.get_submodule(block).parameters():
            owners.setdefault(id(parameter), set()).add(block)
    inside = {
        id(p) for name, p in _all_names(model) if not _covered(name, roots)
    }  # used outside every block as well: tied to the root
    members: dict[str, list[str]] = {name: [] for name in (*roots, "")}
    for name, parameter in model.named_parameters():
        found = owners.get(id(parameter), set())
        alone = len(found) == 1 and id(parameter) not in inside
        members[next(iter(found)) if alone else ""].append(name)
    return tuple(
        Block(name, tuple(parameters))
        for name, parameters in members.items()
        if parameters or name == ""
    )


def block_name(block: Block) -> str:
    """A block's name in node names; the root is called "root"."""
    return block.name or "root"


def _block_modules(module: nn.Module, prefix: str) -> list[tuple[str, nn.Module]]:
    found: list[tuple[str, nn.Module]] = []
    repeats = isinstance(module, nn.ModuleList | nn.Sequential)
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if not any(True for _ in child.parameters()):
            continue
        callable_block = not isinstance(child, nn.ModuleList | nn.ModuleDict)
        if repeats and callable_block and not isinstance(child, nn.Sequential):
            found.append((path, child))
        else:
            found += _block_modules(child, f"{path}.")
    return found


def _all_names(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters(remove_duplicate=False))


def _covered(name: str, blocks: list[str]) -> bool:
    return any(name.startswith(f"{block}.") for block in blocks)
