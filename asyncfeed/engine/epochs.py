"""Which epoch a place in the stream is in: counted per `repeat`, so read-ahead cannot change it.

Each `repeat` has a counter, which starts at 0 with each pass of the next `repeat`. The number of an epoch is read
off the counters as off an odometer: `repeat(3).repeat(2)` gives 0 to 5. Invariants:

* The number follows from the description alone: which pass of each `repeat` this is. It does not matter where a
  `take` cut the passes before, nor how far the source had read when it heard of that.
* The number of an epoch is the one that the same stages have when they are reached by number (`Repeated`).
* A run that is opened with `epoch=k` has the numbers of pass k of one more `repeat` around all of it.

An endless `repeat` has no last number, so it is given `ENDLESS` of them if a `repeat` follows that starts it anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncfeed.epoch_end import END_OF_STREAM, EpochEnd, epoch_end

ENDLESS = 10**9
"""How many numbers an endless repeat takes. Fewer would let two of its passes share one; decimal, so that a reader
of a message sees both counters: epoch 2000000005 is pass 5 of the endless repeat in pass 2 around it."""


class EpochCounter:
    """The counters of the `repeat`s after a stage, the nearest first, and of the runs."""

    def __init__(self, repeats: Sequence[int | None], run: int = 0, level: int | None = None) -> None:
        """Begin the first epoch.

        `repeats` are the counts; None means for ever. `run` says how many runs went before. Each of them counts as
        a pass of the repeat at `level`, by default of one more around all of them.
        """
        self._repeats = repeats
        self._passes = [0] * len(repeats)
        self._weights = [1]
        for count in repeats:
            self._weights.append(self._weights[-1] * (ENDLESS if count is None else count))
        self._base = run * self._weights[len(repeats) if level is None else level]
        self.number = self._base

    def end(self, skipping: int = 0) -> EpochEnd:
        """End a pass over the source; return which epochs end with it.

        A pass that is cut short by a stage at level `skipping` ends the epochs below that, too.
        """
        level = skipping
        while level < len(self._repeats) and self._passes[level] + 1 == self._repeats[level]:
            level += 1
        if level == len(self._repeats):
            return END_OF_STREAM
        self.go_on(level)
        return epoch_end(level)

    def go_on(self, depth: int) -> None:
        """Begin the epoch after an end of this depth: the next pass at that level, the first at those below."""
        self._passes[:depth] = [0] * depth
        self._passes[depth] += 1
        passes = zip(self._passes, self._weights, strict=False)
        self.number = self._base + sum(number * weight for number, weight in passes)


class EpochsEnded:
    """How many epochs have ended, at each level."""

    __slots__ = ("_counts",)

    def __init__(self, levels: int) -> None:
        self._counts = [0] * (levels + 1)

    def copy(self) -> EpochsEnded:
        """Return the same counts, to go on from."""
        same = EpochsEnded(0)
        same._counts = self._counts.copy()
        return same

    def count(self, level: int) -> int:
        """Return how many epochs of this level have ended."""
        return self._counts[level]

    def note(self, boundary: EpochEnd) -> None:
        """Count the epochs that end here."""
        for level in range(min(boundary.depth + 1, len(self._counts))):
            self._counts[level] += 1
