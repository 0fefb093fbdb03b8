"""Items by number: Python's sequences, datasets, and arrays in memory or in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from mmap import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncfeed.errors import note

if TYPE_CHECKING:
    from asyncfeed.stages.steps import Reading

QUICK = frozenset({list.__getitem__, tuple.__getitem__, range.__getitem__})
"""The `__getitem__` of Python's own sequences. They never block and never fail for a valid number."""
KERAS = frozenset({"keras", "tensorflow", "tf_keras"})
"""The packages with a `PyDataset` or `Sequence` that a dataset may derive from."""


class Numbered:
    """The items of a sequence by number.

    `fetch` returns many items, `one` returns a single item, and `name` returns the name of an item. `run` returns
    the items from one number up to another stacked, without a copy. It is None if that needs a copy.
    """

    def __init__(
        self,
        length: int,
        fetch: Callable[[Sequence[int]], list[Any]],
        *,
        on_thread: Reading | None = None,
        name: Callable[[int], str] = "number {}".format,
        one: Callable[[int], Any] | None = None,
        run: Callable[[int, int], Any] | None = None,
    ) -> None:
        self.one = one
        self.run = run
        self.on_thread = on_thread
        self._length = length
        self._fetch = fetch
        self._name = name

    def __len__(self) -> int:
        return self._length

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places."""
        return self._fetch(places)

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item at this place."""
        return self._name(place)


def length_of(data: object) -> int | None:
    """Return the length of `data`; None if it has none.

    The `__len__` of a `DataLoader` over a stream raises, because it has no length.
    """
    if isinstance(data, type) or not hasattr(data, "__len__"):
        return None
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None
    except Exception as error:
        note(error, f"asyncfeed: raised by the __len__ of this {type(data).__name__}")
        raise


def is_sequence(data: object) -> bool:
    """Return whether the items of `data` are reached by number."""
    if not hasattr(data, "__getitem__") or isinstance(data, Mapping | AbstractSet | type):
        return False
    # Torch's IterableDataset has a `[number]` that raises, and may have a length.
    streams = any(base.__name__ == "IterableDataset" for base in type(data).__mro__)
    return not streams and length_of(data) is not None


def pick_from(data: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Return the items of one of Python's sequences at these places."""
    if isinstance(places, range) and places.step == 1:
        return list(data[places.start : places.stop])
    return [data[place] for place in places]


class Mapped:
    """An array in a mapped file. `[number]` returns a copy of the row, so the file is read here and not later."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __getitem__(self, place: int) -> Any:
        row = self._array[place]
        return np.array(row) if isinstance(row, np.ndarray) else row.copy()


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view of an array that cannot be written to, and whose rows cannot.

    A function that changed a row in place would change the user's data, and find other data in the next epoch.

    >>> frozen(np.zeros((2, 3)))[0].flags.writeable
    False
    """
    view = array.view()
    view.flags.writeable = False
    return view


def is_mapped(array: Any) -> bool:
    """Return whether this is an array in a mapped file, or a view of one.

    >>> is_mapped(np.zeros(3)[1:])
    False
    """
    while isinstance(array, np.ndarray | memoryview):
        if isinstance(array, np.memmap):
            return True
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return isinstance(array, mmap)
