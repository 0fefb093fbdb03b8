"""How many items go to a thread or a process together."""

from __future__ import annotations

from collections.abc import Sequence

from asyncfeed.engine.constants import CHUNK_ITEMS


class GroupSize:
    """The size of groups whose work takes a given time. It is learned from how long items take."""

    __slots__ = ("_seconds", "items")

    def __init__(self) -> None:
        self.items = 1
        """Maximum number of items in a group."""
        self._seconds: float | None = None
        """Estimated seconds per item."""

    def learn(self, seconds: float, worth: float) -> None:
        """Note how long an item took. A group should take `worth` seconds."""
        before = self._seconds
        self._seconds = now = seconds if before is None else max(seconds, 0.75 * before + 0.25 * seconds)
        # The size at most doubles at a time, and shrinks at once.
        self.items = max(1, min(int(worth / max(now, 1e-9)), 2 * self.items, CHUNK_ITEMS))

    def share(self, count: int) -> int:
        """Return how many of `count` items to take. Groups get equal sizes, because each costs the same."""
        return -(-count // max(1, round(count / self.items)))


def as_heavy(size: int, weights: Sequence[float], room: float) -> int:
    """Return how many of the first `size` items fit into `room` bytes together, at least one."""
    for place in range(size):
        room -= weights[place]
        if room < 0:
            return max(1, place)
    return size
