"""How many items go to a thread or a process together, for all that calls there."""

from __future__ import annotations

from collections.abc import Sequence

from asyncfeed.engine.constants import CHUNK_ITEMS


class GroupSize:
    """As many items as take the time that the way to a thread is worth; found from how long items take."""

    __slots__ = ("_seconds", "items")

    def __init__(self) -> None:
        self.items = 1
        """How many items a group has at most."""
        self._seconds: float | None = None
        """How long an item takes."""

    def learn(self, seconds: float, worth: float) -> None:
        """Note how long an item took. A group is to take `worth` seconds."""
        before = self._seconds
        self._seconds = now = seconds if before is None else max(seconds, 0.75 * before + 0.25 * seconds)
        # Doubling on the way up, at once on the way down.
        self.items = max(1, min(int(worth / max(now, 1e-9)), 2 * self.items, CHUNK_ITEMS))

    def share(self, count: int) -> int:
        """Return how many of `count` items to take. The parts are equal: a small rest costs as much as a group."""
        return -(-count // max(1, round(count / self.items)))


def as_heavy(size: int, weights: Sequence[float], room: float) -> int:
    """Return how many of the first `size` items have `room` bytes together: one at least."""
    for place in range(size):
        room -= weights[place]
        if room < 0:
            return max(1, place)
    return size
