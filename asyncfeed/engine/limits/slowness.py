"""Whether the items of a stage take so long that a second thread may help."""

from __future__ import annotations


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

    def note(self, is_slow: bool, *, sure: bool, working: int) -> None:
        """Note whether the items of a group were slow, and if that is `sure`. As many threads worked at a time."""
        self._in_a_row = 1 if is_slow is not self._last else self._in_a_row + 1
        self._last = is_slow
        if sure or self._in_a_row > (1 if is_slow else working):
            self.slow = is_slow
