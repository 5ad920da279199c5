"""A rank reads only its slices of safetensors files."""

import json

import pytest
import torch
from safetensors.torch import save_file

from placet.errors import CheckpointError
from placet.placement.layout import Layout, part_box
from placet.placement.mesh import Mesh
from placet.placement.placement import B, S
from placet.run.safetensors_stream import Wanted, stream_safetensors

TENSORS = {
    "a": torch.arange(35, dtype=torch.float64).view(7, 5),
    "b": torch.arange(3).to(torch.bfloat16),
    "c": torch.tensor(2.5),
}


@pytest.fixture
def sharded(tmp_path):
    """Two files and their index."""
    save_file({"a": TENSORS["a"]}, tmp_path / "one.safetensors")
    save_file({"b": TENSORS["b"], "c": TENSORS["c"]}, tmp_path / "two.safetensors")
    index = {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    return tmp_path


def test_safetensors_parts_of_all_ranks_make_the_whole(sharded):
    mesh = Mesh("data=4, model=2")
    layouts = {"a": Layout(mesh, [S(0), S(1)]), "b": Layout(mesh, [S(0), B])}
    for rank in mesh.ranks:
        boxes = {
            n: part_box(tuple(TENSORS[n].shape), x, rank) for n, x in layouts.items()
        }
        wanted = {n: Wanted(tuple(TENSORS[n].shape), box) for n, box in boxes.items()}
        got = stream_safetensors(sharded, wanted)
        for name, box in boxes.items():
            expected = TENSORS[name][tuple(slice(*interval) for interval in box)]
            assert torch.equal(got[name], expected)
            assert got[name].dtype == expected.dtype
            assert got[name].untyped_storage().nbytes() == expected.nbytes


@pytest.mark.parametrize(
    "paths",
    [
        lambda f: f,
        lambda f: f / "model.safetensors.index.json",
        lambda f: [f / "one.safetensors", f / "two.safetensors"],
    ],
)
def test_safetensors_files_index_or_folder(sharded, paths):
    wanted = {name: Wanted.whole(tuple(t.shape)) for name, t in TENSORS.items()}
    got = stream_safetensors(paths(sharded), wanted)
    assert list(got) == list(TENSORS)
    assert all(torch.equal(got[name], t) for name, t in TENSORS.items())


def test_safetensors_errors_name_file_and_key(sharded):
    def read(path=sharded, name="a", shape=(7, 5)):
        return stream_safetensors(path, {name: Wanted.whole(shape)})

    with pytest.raises(CheckpointError, match=r"shape \(7, 5\) for 'a', .* \(7, 6\)"):
        read(shape=(7, 6))
    with pytest.raises(CheckpointError, match="lacks 'aa'; nearest there: 'a'"):
        read(name="aa")
    with pytest.raises(CheckpointError, match=r"gone\.safetensors cannot be read"):
        read(sharded / "gone.safetensors")
    (sharded / "none").mkdir()
    with pytest.raises(CheckpointError, match="no safetensors file lacks 'a'"):
        read(sharded / "none")
    whole = (sharded / "one.safetensors").read_bytes()
    for size in (0, 7, 40, len(whole) - 1):
        (sharded / "one.safetensors").write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"one\.safetensors cannot be read"):
            read()
    (sharded / "model.safetensors.index.json").write_text("{")
    with pytest.raises(CheckpointError, match="no safetensors index"):
        read()
