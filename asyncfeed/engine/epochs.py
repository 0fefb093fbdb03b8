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

from asyncfeed.stages.steps import END

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

    def end(self, skipping: int = 0) -> int:
        """End a pass over the source; return its mark: the highest level whose epoch ends with it.

        A pass that is cut short by a stage at level `skipping` ends the epochs below that, too. `END` means that
        all have ended.
        """
        level = skipping
        while level < len(self._repeats) and self._passes[level] + 1 == self._repeats[level]:
            level += 1
        if level == len(self._repeats):
            return END
        self.go_on(level)
        return level

    def go_on(self, mark: int) -> None:
        """Begin the epoch that follows a mark: the next pass at its level, the first at those below."""
        self._passes[:mark] = [0] * mark
        self._passes[mark] += 1
        passes = zip(self._passes, self._weights, strict=False)
        self.number = self._base + sum(number * weight for number, weight in passes)


class Marks:
    """How many epochs have ended, at each level."""

    __slots__ = ("_ended",)

    def __init__(self, levels: int) -> None:
        self._ended = [0] * (levels + 1)

    def copy(self) -> Marks:
        """Return the same counts, to go on from."""
        same = Marks(0)
        same._ended = self._ended.copy()
        return same

    def ended(self, level: int) -> int:
        """Return how many epochs of this level have ended."""
        return self._ended[level]

    def note(self, mark: int) -> None:
        """Count the epochs that end at a mark: those of its level and of all below."""
        for level in range(min(mark + 1, len(self._ended))):
            self._ended[level] += 1
