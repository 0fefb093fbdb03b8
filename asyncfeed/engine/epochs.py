"""The numbers of epochs. They are counted per `repeat`, so reading ahead cannot change them.

Each `repeat` has a counter of its passes, which starts at 0 in each pass of the next `repeat`. The number of an
epoch is read off these counters as off an odometer: `repeat(3).repeat(2)` gives 0 to 5. Invariants:

* The number follows from the description alone. It does not depend on where a `take` cut the earlier passes short,
  or on how far the source had read when it was told.
* An epoch has the same number as in the same stages reached by number (`Repeated`).
* A run that is opened with `epoch=k` has the numbers of pass k of one more `repeat` around all of it.

An endless `repeat` has no last number. If another `repeat` follows and starts it anew, each of its passes is given
`ENDLESS` numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncfeed.epoch_end import END_OF_STREAM, EpochEnd, epoch_end

ENDLESS = 10**9
"""How many numbers an endless repeat is given. If it has more passes than this, two epochs share a number. It is a
power of ten, so both counters can be read in a message: epoch 2000000005 is pass 5 of the endless repeat, in pass
2 of the outer one."""


class EpochCounter:
    """The counters of the `repeat`s after a stage, nearest first, and of the runs."""

    def __init__(self, repeats: Sequence[int | None], run: int = 0, level: int | None = None) -> None:
        """Begin the first epoch.

        Args:
            repeats: The number of passes of each `repeat`; None is endless.
            run: The number of earlier runs.
            level: Each earlier run counts as a pass of the `repeat` at this level. By default it counts as a pass
                of one more `repeat` around all of them.
        """
        self._repeats = repeats
        self._passes = [0] * len(repeats)
        self._weights = [1]
        for count in repeats:
            self._weights.append(self._weights[-1] * (ENDLESS if count is None else count))
        self._base = run * self._weights[len(repeats) if level is None else level]
        self.number = self._base

    @property
    def levels(self) -> int:
        """Number of `repeat`s."""
        return len(self._repeats)

    @property
    def passes(self) -> list[int]:
        """The number of passes of each `repeat` that have ended, nearest first."""
        return self._passes.copy()

    def resume(self, passes: Sequence[int]) -> None:
        """Begin the epoch after these passes."""
        self._passes = list(passes)
        self._count()

    def weight(self, level: int) -> int:
        """Return how many numbers an epoch of this level has."""
        return self._weights[level]

    def passes_before(self, number: int) -> list[int]:
        """Return the passes after which the epoch with this number begins, for `resume`.

        >>> EpochCounter([3, 2, None]).passes_before(17)
        [2, 1, 2]
        """
        left = number - self._base
        passes = []
        for count in self._repeats[:-1]:
            left, ended = divmod(left, ENDLESS if count is None else count)
            passes.append(ended)
        return [*passes, left] if self._repeats else []

    def copy(self) -> EpochCounter:
        """Return a copy that counts on by itself."""
        same = EpochCounter(self._repeats)
        same._base = self._base
        same.resume(self._passes)
        return same

    def end(self, skipping: int = 0) -> EpochEnd:
        """End a pass over the source. Return the end, which says which epochs end with the pass.

        If a stage at level `skipping` cut the pass short, all epochs below that level end, too.
        """
        level = skipping
        while level < len(self._repeats) and self._passes[level] + 1 == self._repeats[level]:
            level += 1
        if level == len(self._repeats):
            return END_OF_STREAM
        self.go_on(level)
        return epoch_end(level)

    def go_on(self, depth: int) -> None:
        """Begin the epoch after an end of this depth: the next pass at that level, and the first one below it."""
        self._passes[:depth] = [0] * depth
        self._passes[depth] += 1
        self._count()

    def _count(self) -> None:
        passes = zip(self._passes, self._weights, strict=False)
        self.number = self._base + sum(number * weight for number, weight in passes)


class EpochsEnded:
    """Counts the epochs that have ended, at each level."""

    __slots__ = ("_counts",)

    def __init__(self, levels: int) -> None:
        self._counts = [0] * (levels + 1)

    def copy(self) -> EpochsEnded:
        """Return a copy that counts on by itself."""
        same = EpochsEnded(0)
        same._counts = self._counts.copy()
        return same

    def count(self, level: int) -> int:
        """Return the number of epochs of this level that have ended."""
        return self._counts[level]

    def note(self, boundary: EpochEnd) -> None:
        """Count the epochs that end at this boundary."""
        for level in range(min(boundary.depth + 1, len(self._counts))):
            self._counts[level] += 1
