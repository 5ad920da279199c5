"""A torch store as the engine's ranks meet in it."""

from datetime import timedelta

from placet.torch_private.c10d import PrefixStore, Store, set_bytes


class TorchStore:
    """A `MeetingStore` over a part of a torch store.

    Args:
        store: any store of torch.distributed.
        name: the part's name; equal on all ranks, used for one meeting only.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = PrefixStore(name, store)

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        set_bytes(self._store, key, value)

    def get(self, key: str, seconds: float) -> bytes:
        """Read a value once it is there.

        Raises:
            TimeoutError: it was not there in time.
        """
        try:
            self._store.wait([key], timedelta(seconds=seconds))
        except RuntimeError as error:  # a FileStore raises no class of its own
            if "timeout" not in str(error).lower():
                raise
            raise TimeoutError(f"nothing under {key!r} in {seconds:g} s") from error
        return bytes(self._store.get(key))
