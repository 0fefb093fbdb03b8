"""Where the elements of a queue are, and which of them is next: what makes the queues differ."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

Element: TypeAlias = tuple[Any, ...]


class Store(Protocol):
    """The elements that are in a queue, and which of them is next."""

    def __len__(self) -> int:
        """Return how many there are."""

    def put(self, element: Element, /) -> None:
        """Add one."""

    def take(self) -> Element:
        """Remove the next one."""

    def give_back(self, elements: Sequence[Element], /) -> None:
        """Put back what was taken, so that it is taken again before everything else, in the same order."""

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
        """Remove this very element, if it is there; it is looked for from the end."""
        if (place := _place(reversed(self), element)) is not None:
            del self[len(self) - 1 - place]


class Shuffled(list[Element]):
    """Any of them, each as likely as the others."""

    put = list.append

    def __init__(self, seed: int | None) -> None:
        super().__init__()
        self._random = random.Random(seed).random  # noqa: S311 - it shuffles, it hides nothing

    def take(self) -> Element:
        """Remove one; the last takes its place, so nothing else moves."""
        place = int(self._random() * len(self))
        self[place], self[-1] = self[-1], self[place]
        return self.pop()

    def give_back(self, elements: Sequence[Element]) -> None:
        """Put elements back; what is next is drawn anew."""
        self.extend(elements)

    def discard(self, element: Element) -> None:
        """Remove this very element, if it is there."""
        if (place := _place(self, element)) is not None:
            del self[place]


class Sorted:
    """The smallest first component first; among equals, first in, first out."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Element]] = []
        self._last = itertools.count(1)
        self._front = itertools.count(-1, -1)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._heap)

    def put(self, element: Element) -> None:
        """Add one behind its equals."""
        heapq.heappush(self._heap, (int(element[0]), next(self._last), element))

    def take(self) -> Element:
        """Remove the smallest."""
        return heapq.heappop(self._heap)[-1]

    def give_back(self, elements: Sequence[Element]) -> None:
        """Put elements back before their equals."""
        for element in reversed(elements):
            heapq.heappush(self._heap, (int(element[0]), next(self._front), element))

    def discard(self, element: Element) -> None:
        """Remove this very element, if it is there."""
        if (place := _place((entry[-1] for entry in self._heap), element)) is not None:
            del self._heap[place]
            heapq.heapify(self._heap)


class Counted:
    """A store that only counts."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        """Return how many there are."""
        return self._size

    def put(self, element: Element) -> None:
        """Count one."""
        self._size += 1

    def take(self) -> Element:
        """Count one less."""
        self._size -= 1
        return ()

    def give_back(self, elements: Sequence[Element]) -> None:
        """Count them again."""
        self._size += len(elements)

    def discard(self, element: Element) -> None:
        """Do nothing: a rehearsal takes nothing back."""


def _place(elements: Iterable[Element], wanted: Element) -> int | None:
    return next((place for place, element in enumerate(elements) if element is wanted), None)
