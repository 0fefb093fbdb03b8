"""What can go wrong, as a tree.

::

    AsyncfeedError
    ├── PipelineError(ValueError)   a description that cannot run; raised by the line that wrote it
    ├── StoreError(OSError)
    │   ├── Unavailable             a read that failed for now: how often it was tried, and the last cause
    │   └── Corrupt                 bytes that are not what they claim: short, bad header, changed, wrong checksum
    ├── StateError(ValueError)      a checkpoint of another pipeline or version
    └── ClosedError                 used after close; never for the end of the data

An item that fails keeps its own exception: none of these wraps it. What is known about the failure is
added to the exception as a note, and held as data in `Failure`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType


class AsyncfeedError(Exception):
    """The root of every error that asyncfeed itself raises."""


class PipelineError(AsyncfeedError, ValueError):
    """A description that cannot run; the message says what to write instead."""


class StoreError(AsyncfeedError, OSError):
    """Reading from storage failed."""


class Unavailable(StoreError):
    """A read did not succeed for now, after `attempts` tries."""

    def __init__(self, message: str, *, attempts: int = 1) -> None:
        super().__init__(message)
        self.attempts = attempts


class Corrupt(StoreError):
    """The bytes are not what they claim to be: cut short, a bad header, changed since they were listed."""


class StateError(AsyncfeedError, ValueError):
    """A checkpoint does not belong to this pipeline or this version."""


class ClosedError(AsyncfeedError):
    """The feed was used after it was closed, or from where it cannot be used."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed item: what failed, where, and why.

    `ordinal` is the item's place in the order of its epoch, counted from 0; a tuple where the item came out
    of a `flat_map` (the parent's ordinal, then the child's), and the members' ordinals where it is a batch.
    """

    error: BaseException
    """The original exception, with its own traceback."""
    stage: str
    """The stage that raised, as it is written in the description."""
    key: str
    """What the item is called: a file's path, or the item's place where it has no name."""
    ordinal: object
    epoch: int
    attempt: int = 1
    traceback: TracebackType | None = field(default=None, repr=False, compare=False)
    """Where it was raised, without the frames that handing it on adds."""

    def note(self) -> str:
        """Return the line that is added to the exception."""
        return (
            f"asyncfeed: in stage {self.stage}, item {self.key} "
            f"(ordinal {self.ordinal} of epoch {self.epoch}, attempt {self.attempt})"
        )
