"""What ranks tell each other beside the moves: a line of JSON, then any bytes.

{"topic": "failed"}
{"collective": 17, "kind": "WireTimeout", "text": "...", ...}
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from placet.errors import MoveMismatch, PeerLost, WireError, WireTimeout

ASK_REPORT = "report?"
REPORT = "report"
FAILED = "failed"
SUBMITTED = "submitted"
PROPOSE = "propose"
ADVANCED = "advanced"
OWN_TOPICS = frozenset({ASK_REPORT, REPORT, FAILED, SUBMITTED, PROPOSE, ADVANCED})
"""Topics of the wire itself; no one else may use them."""

TEXT_BYTES = 1 << 13
"""An error's text that is told to others is cut after so many characters."""

_KINDS: dict[str, type[WireError]] = {
    kind.__name__: kind for kind in (WireError, WireTimeout, MoveMismatch, PeerLost)
}


@dataclass(frozen=True)
class Failure:
    """A collective failed on a rank, and so will on all its members.

    Args:
        epoch: of the sender; one of another epoch means nothing.
        collective: its number.
        key, group: which it is.
        control: whether it is one of the wire's own.
        kind: the error's class.
        text: the error's message.
    """

    epoch: int
    collective: int
    key: str
    group: tuple[int, ...]
    control: bool
    kind: str
    text: str

    def error(self) -> WireError:
        """The same error that the sender raises."""
        return _KINDS.get(self.kind, WireError)(self.text)


@dataclass(frozen=True)
class Submitted:
    """What a rank submitted under a number, when members disagree.

    Args:
        epoch: of the sender.
        collective: its number.
        key, group: which it is.
        control: whether it is one of the wire's own.
        text: what was submitted, with all that members must agree on.
    """

    epoch: int
    collective: int
    key: str
    group: tuple[int, ...]
    control: bool
    text: str


def pack_message(topic: str, data: bytes = b"") -> bytes:
    """A message as it travels."""
    return json.dumps({"topic": topic}).encode() + b"\n" + data


def unpack_message(message: bytes) -> tuple[str, bytes]:
    """Topic and data of a message.

    Raises:
        ValueError: it is none.
    """
    head, newline, data = message.partition(b"\n")
    if not newline:
        raise ValueError("a message without a head")
    topic = _read(head).get("topic")
    if not isinstance(topic, str):
        raise ValueError(f"a message without a topic: {head[:80]!r}")
    return topic, data


def pack_value(value: Failure | Submitted) -> bytes:
    """A failure or a submission as bytes."""
    return json.dumps(asdict(value)).encode()


def unpack_failure(data: bytes) -> Failure:
    """The failure in `data`.

    Raises:
        ValueError: it is none.
    """
    read = _read(data)
    try:
        return Failure(kind=str(read["kind"]), **_common(read))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a failure: {error!r}") from None


def unpack_submitted(data: bytes) -> Submitted:
    """The submission in `data`.

    Raises:
        ValueError: it is none.
    """
    try:
        return Submitted(**_common(_read(data)))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a submission: {error!r}") from None


def _read(data: bytes) -> dict[str, Any]:
    read = json.loads(data)
    if not isinstance(read, dict):
        raise ValueError("not an object")
    return read


def _common(read: dict[str, Any]) -> dict[str, Any]:
    return {
        "epoch": int(read["epoch"]),
        "collective": int(read["collective"]),
        "key": str(read["key"]),
        "group": tuple(map(int, read["group"])),
        "control": bool(read["control"]),
        "text": str(read["text"])[:TEXT_BYTES],
    }
