"""Private names of torch.distributed, and those that it exports without saying so."""

from typing import cast

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.distributed_c10d import _get_default_store

__all__ = ["PrefixStore", "Store", "TCPStore", "default_store", "set_bytes"]


def default_store() -> Store:
    """The store through which the ranks of the default process group met."""
    return _get_default_store()


def set_bytes(store: Store, key: str, value: bytes) -> None:
    """Store any bytes; the stubs say str, which torch would encode as UTF-8."""
    store.set(key, cast(str, value))
