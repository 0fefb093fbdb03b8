"""The exceptions that asyncfeed raises, and the record of a failed item.

::

    AsyncfeedError
    ├── PipelineError(ValueError)   the description cannot run; raised by the call that wrote it
    ├── StoreError(OSError)         reading from storage failed
    │   ├── Unavailable             the store did not answer as it should; another try may succeed
    │   │   └── TimedOut            the call took too long; this is a `TimeoutError`, too
    │   └── Corrupt                 the bytes are damaged, or changed since the file was listed
    ├── StateError                  a saved state is damaged, or is of another pipeline
    └── ClosedError                 used after it was closed; never raised for the end of the data

If an item fails, its original exception is raised and not wrapped in one of these. The exception gets a note with
the stage, the item and its place. `Failure` holds the same as data.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType


class AsyncfeedError(Exception):
    """The base of all exceptions that asyncfeed defines."""


class PipelineError(AsyncfeedError, ValueError):
    """The description cannot run. The message says what to write instead."""


class StoreError(AsyncfeedError, OSError):
    """Reading from storage failed."""


@dataclass(frozen=True)
class FailedAttempt:
    """One call that failed: its number, when it ended, and what it raised, as text.

    The exception itself is not kept: it would hold the item, and all that the call had.
    """

    number: int
    """Counted from 1."""
    seconds: float
    """Seconds between the start of the first attempt and the end of this one."""
    error: str

    def __str__(self) -> str:
        return f"{self.number}: {self.error} (after {self.seconds:.3g} s)"


class Unavailable(StoreError):
    """The store did not answer as it should. The same request may succeed later.

    `kind` says what happened:

    * "throttled": the store asked for fewer requests (429, 503).
    * "timeout": no answer, or no further byte, in time.
    * "connection": no connection, or it was closed before the answer.
    * "interrupted": the connection was closed before the end of the contents.
    * "server": an error of the server (another 5xx).
    * "other": a failure that no name is known for.
    """

    def __init__(self, *args: object, kind: str = "other") -> None:
        super().__init__(*args)
        self.kind = kind
        self.attempts: tuple[FailedAttempt, ...] = ()
        """The attempts before the one that this error ended."""


def tell_attempts(error: Exception, earlier: list[FailedAttempt], seconds: float) -> None:
    """Let the error of the last attempt tell of the attempts before it, `seconds` after the first one began."""
    if not earlier:
        return
    before = "; ".join(map(str, earlier))
    text = f"attempt {len(earlier) + 1}, {seconds:.3g} s after the first began; before it: {before}"
    note(error, f"asyncfeed: {text}")
    if isinstance(error, Unavailable):
        error.attempts = tuple(earlier)


class Corrupt(StoreError):
    """A file's bytes are damaged.

    They are cut short, have a bad header or a wrong checksum, or changed since the file was listed.
    """

    def __init__(self, *args: object, transient: bool = False) -> None:
        super().__init__(*args)
        self.transient = transient
        """Whether the answer of a store was damaged, and not the file: another read may bring the right bytes."""


class StateError(AsyncfeedError):
    """A saved state cannot be used. It is damaged, or it is of a pipeline with other data or another order.

    The message says what differs.
    """


class ClosedError(AsyncfeedError):
    """A feed or queue was used after it was closed, or a feed was used from an event loop that is not its own."""


class TimedOut(Unavailable, TimeoutError):
    """A call took longer than its `timeout`. The call was cancelled."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed item: its exception, its stage, its name and its place."""

    error: BaseException
    """The original exception, with its own traceback."""
    stage: str
    """The stage that raised it, as it is written in the description."""
    key: str
    """The item's name: the path of a file, or the item's place if it has no name."""
    ordinal: object
    """The item's number in its epoch, counted from 0. A child of a `flat_map` has a tuple: the ordinal of its
    parent, then its own number. A batch has the ordinals of its members."""
    epoch: int
    """The number of the epoch, counted from 0."""
    traceback: TracebackType | None = field(default=None, repr=False, compare=False)
    """The traceback from where the exception was raised, without the frames that passed it on."""

    def note(self) -> str:
        """Return the line that is added to the exception as a note."""
        return f"asyncfeed: in stage {self.stage}, item {self.key} (ordinal {self.ordinal} of epoch {self.epoch})"


def note(error: BaseException, text: str) -> None:
    """Add a note to an exception, if it takes notes."""
    with suppress(Exception):  # a frozen dataclass takes none; the caller still raises it
        error.add_note(text)
