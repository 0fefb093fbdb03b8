"""Whether the items of a stage take so long that a second thread may help."""

from __future__ import annotations

from asyncfeed.engine.constants import DOUBTFUL_GROUPS


class Slowness:
    """Decides that from one group after the other.

    One slow group may be the machine's fault. One quick group may be due to the many threads that wait for the GIL
    at the same time. So several in a row decide.
    """

    __slots__ = ("_in_a_row", "_last", "slow")

    def __init__(self) -> None:
        self.slow = False
        self._last = False
        """Whether the items of the last group were slow."""
        self._in_a_row = 0
        """Number of groups in a row of which that is true."""

    def note(self, is_slow: bool, *, sure: bool, doubtful: bool, working: int) -> None:
        """Note whether the items of a group were slow, and if that is `sure` or `doubtful`.

        As many threads worked at the same time.
        """
        self._in_a_row = 1 if is_slow is not self._last else self._in_a_row + 1
        self._last = is_slow
        enough = working + 1 if not is_slow else DOUBTFUL_GROUPS if doubtful else 2
        if sure or self._in_a_row >= enough:
            self.slow = is_slow
