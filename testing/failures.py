"""Which rank failed first: the one error worth reading when many ranks fail."""

import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from placet.errors import PeerLost


class RankDied(RuntimeError):
    """A rank's process ended without a result, or did not end in time."""


@dataclass(frozen=True)
class Failure:
    """One rank's end.

    Args:
        rank: who failed.
        error: what it raised.
        text: the traceback, or the stack of a rank that hung.
        seconds: when, on the clock that all ranks of one machine share.
    """

    rank: int
    error: BaseException
    text: str
    seconds: float

    def portable(self) -> "Failure":
        """This failure, with an error that pickle can carry."""
        try:
            pickle.loads(pickle.dumps(self.error))
        except Exception:
            plain = RuntimeError(f"{type(self.error).__name__}: {self.error}")
            return Failure(self.rank, plain, self.text, self.seconds)
        return self


def describe_error(error: BaseException) -> str:
    """The traceback of an error as text."""
    return "".join(traceback.format_exception(error))


def raise_first(failures: Sequence[Failure], num_ranks: int) -> None:
    """Raise the error of the rank that failed first, as the type it was.

    A rank that only lost its peer is a consequence, whenever it said so.
    """
    if not failures:
        return
    first = min(failures, key=lambda f: (isinstance(f.error, PeerLost), f.seconds))
    others = ", ".join(
        f"rank {f.rank} ({type(f.error).__name__})"
        for f in sorted(failures, key=lambda f: f.rank)
        if f is not first
    )
    note = f"rank {first.rank} of {num_ranks} failed first:\n{first.text}"
    if others:
        note += f"\nthen also: {others}"
    first.error.add_note(note)
    raise first.error
