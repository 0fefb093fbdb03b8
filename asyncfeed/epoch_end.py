"""The ends between two items of a stream: of an epoch, with all epochs inside it, or of the stream itself."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True, order=True)
class EpochEnd:
    """The end of an epoch. Ends compare by depth.

    Each `repeat` of a description has epochs of its own level: 0 for the `repeat` nearest to the source, 1 for the
    next. An end of depth 2 ends the epochs of levels 0, 1 and 2. `END_OF_STREAM` ends the epochs of every level.
    """

    depth: int
    """The highest level whose epoch ends here."""

    def ends(self, level: int) -> bool:
        """Return whether the epoch of this level ends here."""
        return level <= self.depth

    @property
    def is_end_of_stream(self) -> bool:
        """Whether this is the end of the whole stream."""
        return self.depth == END_OF_STREAM.depth

    def counted_from(self, level: int) -> EpochEnd | None:
        """Return this end with levels counted from `level`, or None if only epochs below that level end."""
        if self.is_end_of_stream:
            return self
        return epoch_end(self.depth - level) if self.ends(level) else None


END_OF_STREAM = EpochEnd(sys.maxsize)
"""The end of the whole stream. Every stage flushes at it."""


RESTORED = EpochEnd(-1)
"""What a run that resumes sends after the items that its stages held at the checkpoint. It ends no epoch, and like
every end nothing overtakes it."""


@cache
def epoch_end(depth: int) -> EpochEnd:
    """Return the end of this depth. Each is made once."""
    return EpochEnd(depth)
