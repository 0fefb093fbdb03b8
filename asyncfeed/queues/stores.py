"""The stores of the queues. A store holds the elements and decides which one is next."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

Element: TypeAlias = tuple[Any, ...]


class Store(Protocol):
    """The elements in a queue, and the rule that decides which one is next."""

    def __len__(self) -> int:
        """Return the number of elements."""

    def put(self, element: Element, /) -> None:
        """Add an element."""

    def take(self) -> Element:
        """Remove and return the next element."""

    def give_back(self, elements: Sequence[Element], /) -> None:
        """Put taken elements back. They are taken again before all others, in the same order."""

    def discard(self, element: Element, /) -> None:
        """Remove this very element, if it is there."""


class First(deque[Element]):
    """First in, first out."""

    put = deque.append
    take = deque.popleft

    def give_back(self, elements: Sequence[Element]) -> None:
        """Put elements back in front."""
        self.extendleft(reversed(elements))

    def discard(self, element: Element) -> None:
        """Remove this very element, if it is there. The search begins at the end."""
        if (place := _place(reversed(self), element)) is not None:
            del self[len(self) - 1 - place]


class Shuffled(list[Element]):
    """A random element comes first. All elements have the same probability."""

    put = list.append

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self._random = random.Random(seed).random  # noqa: S311 - it shuffles, it hides nothing

    def take(self) -> Element:
        """Remove a random element. The last one takes its place, so no other element moves."""
        place = int(self._random() * len(self))
        self[place], self[-1] = self[-1], self[place]
        return self.pop()

    def give_back(self, elements: Sequence[Element]) -> None:
        """Put elements back. The next one is drawn again."""
        self.extend(elements)

    def discard(self, element: Element) -> None:
        """Remove this very element, if it is there."""
        if (place := _place(self, element)) is not None:
            del self[place]


class Sorted:
    """The element with the smallest first component comes first. Equal ones are first in, first out."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Element]] = []
        self._last = itertools.count(1)
        self._front = itertools.count(-1, -1)

    def __len__(self) -> int:
        """Return the number of elements."""
        return len(self._heap)

    def put(self, element: Element) -> None:
        """Add an element behind those of equal priority."""
        heapq.heappush(self._heap, (int(element[0]), next(self._last), element))

    def take(self) -> Element:
        """Remove and return the smallest element."""
        return heapq.heappop(self._heap)[-1]

    def give_back(self, elements: Sequence[Element]) -> None:
        """Put elements back before those of equal priority."""
        for element in reversed(elements):
            heapq.heappush(self._heap, (int(element[0]), next(self._front), element))

    def discard(self, element: Element) -> None:
        """Remove this very element, if it is there."""
        if (place := _place((entry[-1] for entry in self._heap), element)) is not None:
            del self._heap[place]
            heapq.heapify(self._heap)


class Counted:
    """A store that only counts its elements. `Attempts.would_finish` uses it."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        """Return the number of elements."""
        return self._size

    def put(self, element: Element) -> None:
        """Count one more element."""
        self._size += 1

    def take(self) -> Element:
        """Count one element less."""
        self._size -= 1
        return ()

    def give_back(self, elements: Sequence[Element]) -> None:
        """Count them again."""
        self._size += len(elements)

    def discard(self, element: Element) -> None:
        """Do nothing: `would_finish` withdraws no attempt."""


def _place(elements: Iterable[Element], wanted: Element) -> int | None:
    return next((place for place, element in enumerate(elements) if element is wanted), None)
