"""What can go wrong, as a tree.

::

    AsyncfeedError
    ├── PipelineError(ValueError)   a description that cannot run; raised by the line that wrote it
    ├── StoreError(OSError)
    │   └── Corrupt                 bytes that are not what they claim: short, bad header, changed, wrong checksum
    └── ClosedError                 used after close; never for the end of the data

An item that fails keeps its own exception: none of these wraps it. What is known about the failure is
added to the exception as a note, and held as data in `Failure`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType


class AsyncfeedError(Exception):
    """The root of every error that asyncfeed itself raises."""


class PipelineError(AsyncfeedError, ValueError):
    """A description that cannot run; the message says what to write instead."""


class StoreError(AsyncfeedError, OSError):
    """Reading from storage failed."""


class Corrupt(StoreError):
    """The bytes are not what they claim to be: cut short, a bad header, changed since they were listed."""


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
    traceback: TracebackType | None = field(default=None, repr=False, compare=False)
    """Where it was raised, without the frames that handing it on adds."""

    def note(self) -> str:
        """Return the line that is added to the exception."""
        return f"asyncfeed: in stage {self.stage}, item {self.key} (ordinal {self.ordinal} of epoch {self.epoch})"


def note(error: BaseException, text: str) -> None:
    """Add a note to an exception; one that takes none, as a frozen dataclass, is still the one to raise."""
    with suppress(Exception):
        error.add_note(text)
