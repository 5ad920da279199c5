"""Run-time failures of a job, in one small tree; a caller's mistake is a ValueError.

    PlacetError
    ├── WireError            a move could not be carried
    │   ├── WireTimeout      a deadline passed; names who waits for whom
    │   ├── MoveMismatch     ranks disagree on what moves under one key
    │   └── PeerLost         another rank is gone
    ├── RankFailed           a rank raised or was killed; the first one's traceback
    ├── RanksDiffer          ranks were started with different code or parameters
    ├── NonFiniteLoss        the loss became NaN or infinite
    ├── CheckpointError      a checkpoint is truncated, foreign, or for another model
    ├── CaptureError         a step of the model cannot be captured as a graph
    ├── PlanError            no plan fits, or a plan is for another model or mesh
    └── LabError             the emulated cluster could not be built

Each message ends with the page that explains it (docs/errors.md).
"""

PAGE = "docs/errors.md"


class PlacetError(Exception):
    """The root of placet's run-time failures."""

    def __str__(self) -> str:
        text = ": ".join(map(str, self.args))
        if f"see {PAGE}#" in text:  # another failure's message, which says where
            return text
        return f"{text}\n  see {PAGE}#{type(self).__name__.lower()}"


class WireError(PlacetError):
    """A move could not be carried."""


class WireTimeout(WireError):
    """A deadline passed while ranks waited for one another."""


class MoveMismatch(WireError):
    """Ranks disagree on what moves under one key."""


class PeerLost(WireError):
    """Another rank of the job is gone."""


class RankFailed(PlacetError):
    """A rank of the job raised or was killed; holds the first one's traceback."""


class RanksDiffer(PlacetError):
    """Ranks were started with different code, parameters or settings."""


class NonFiniteLoss(PlacetError):
    """The loss became NaN or infinite."""


class CheckpointError(PlacetError):
    """A checkpoint is truncated, foreign, or belongs to another model."""


class CaptureError(PlacetError):
    """A step of the model cannot be captured as a graph; names module and line."""


class PlanError(PlacetError):
    """No plan fits the memory, or a plan is for another model or mesh."""


class LabError(PlacetError):
    """The emulated cluster could not be built."""
