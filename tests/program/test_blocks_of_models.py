"""Which modules are blocks, on models as people write them."""

from torch import nn

from placet.program.blocks import find_blocks
from recipes.char_gpt import GPT


def names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    return {block.name: block.parameters for block in find_blocks(model)}


def test_blocks_of_a_gpt_are_its_layers() -> None:
    blocks = names(GPT(width=8, depth=2, num_heads=2))
    assert list(blocks) == ["blocks.0", "blocks.1", ""]
    # head.weight is embed.weight: used outside every block.
    assert blocks[""] == ("embed.weight", "norm.weight")
    assert all(n.startswith("blocks.1.") for n in blocks["blocks.1"])


def test_blocks_are_the_outermost() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layer = nn.ModuleDict({"a": inner, "b": nn.Linear(2, 2)})
    assert list(names(nn.ModuleList([layer, nn.Linear(2, 2)]))) == [
        "0.a.0",
        "0.a.1",
        "1",
        "",
    ]
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False
    )
    assert list(names(encoder)) == ["layers.0", "layers.1", ""]


def test_weights_tied_between_blocks_belong_to_the_root() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU())
    model[1].weight = model[0].weight
    assert names(model) == {"0": ("0.bias",), "1": ("1.bias",), "": ("0.weight",)}


def test_a_block_that_also_stands_elsewhere_is_the_roots() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(2, 2)])})
    model["again"] = model["layers"][0]
    assert names(model) == {"": ("layers.0.weight", "layers.0.bias")}


def test_a_model_without_lists_is_one_block() -> None:
    assert names(nn.Linear(2, 2)) == {"": ("weight", "bias")}
    assert names(nn.ReLU()) == {"": ()}
