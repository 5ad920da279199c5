"""Stores of torch as the engine's ranks meet in them."""

import pytest
from torch.distributed import FileStore, HashStore

from placet.wire.torch_store import TorchStore


@pytest.mark.parametrize("kind", ["hash", "file"])
def test_what_never_comes_is_a_timeout(kind, tmp_path):
    store = HashStore() if kind == "hash" else FileStore(str(tmp_path / "store"), 2)
    met = TorchStore(store, "meeting")
    with pytest.raises(TimeoutError, match=r"nothing under 'token' in 0\.01 s"):
        met.get("token", 0.01)
    met.set("token", b"\x00x")
    assert met.get("token", 1.0) == b"\x00x"
