"""The classes of the four queues."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from asyncfeed.queues.base import QueueBase
from asyncfeed.queues.elements import Elements, as_dtypes, as_shapes
from asyncfeed.queues.stores import First, Shuffled, Sorted


class FIFOQueue(QueueBase):
    """A queue that delivers elements in the order in which they were enqueued.

    Args:
        capacity: Largest number of elements in the queue. A negative number means no bound.
        dtypes: The dtype of each component of an element, or one dtype (see `asyncfeed.queues`).
        shapes: The shape of each component. Without shapes, elements may differ in shape, and cannot be dequeued
            as a batch.
        names: The name of each component. With names, elements are dicts.
        name: The name of the queue in error messages.

    >>> import asyncio
    >>> async def main():
    ...     queue = FIFOQueue(10, ["float32", "int64"], shapes=[(2,), ()])
    ...     await queue.enqueue(([1, 2], 7))
    ...     await queue.enqueue_many(([[3, 4], [5, 6]], [8, 9]))
    ...     await queue.close()
    ...     vectors, labels = await queue.dequeue_many(2)
    ...     print(vectors.tolist(), labels.tolist())
    ...     async for vector, label in queue:
    ...         print(vector.tolist(), int(label))
    >>> asyncio.run(main())
    [[1.0, 2.0], [3.0, 4.0]] [7, 8]
    [5.0, 6.0] 9

    The same from threads:

    >>> queue = FIFOQueue(10, "int64", names="label")
    >>> queue.enqueue_blocking({"label": 1}, timeout=5)
    >>> queue.dequeue_nowait()
    {'label': array(1)}
    """

    def __init__(
        self, capacity: int, dtypes: Any, shapes: Any = None, names: Any = None, *, name: str = "fifo_queue"
    ) -> None:
        super().__init__(_elements(dtypes, shapes, names), First(), capacity=capacity, name=name)


class PaddingFIFOQueue(QueueBase):
    """A `FIFOQueue` of arrays whose shapes vary. It pads them when it makes a batch.

    `shapes` has a shape for each dtype, with None for the sizes that vary. In a batch, these axes are padded to
    the largest element of the batch, with zeros (b"" for strings). A single `dequeue` pads nothing. The other
    arguments are those of `FIFOQueue`.

    >>> queue = PaddingFIFOQueue(10, "int64", shapes=[(None,)])
    >>> queue.enqueue_blocking([[1, 2, 3]])
    >>> queue.enqueue_blocking([[4]])
    >>> queue.dequeue_many_blocking(2)
    array([[1, 2, 3],
           [4, 0, 0]])
    """

    def __init__(
        self, capacity: int, dtypes: Any, shapes: Any, names: Any = None, *, name: str = "padding_fifo_queue"
    ) -> None:
        several = isinstance(shapes, list | tuple) and shapes
        if not several or any(shape is None or isinstance(shape, int) for shape in shapes):
            raise ValueError(
                "PaddingFIFOQueue needs a list with a shape for each dtype, as in shapes=[(None, 40)]"
            )
        elements = Elements(as_dtypes(dtypes), as_shapes(shapes), names)
        super().__init__(elements, First(), capacity=capacity, name=name)


class RandomShuffleQueue(QueueBase):
    """A queue that delivers its elements in a random order. All its elements are equally likely to be next.

    While the queue is open, `min_after_dequeue` elements stay in it, so that there are always several to choose
    from. A dequeue waits until the queue has more. The same `seed` and the same operations give the same order.
    The other arguments are those of `FIFOQueue`.

    >>> queue = RandomShuffleQueue(10, 2, "int64", shapes=[()], seed=1)
    >>> queue.enqueue_many_nowait(range(4))
    >>> first = queue.dequeue_many_nowait(2)
    >>> queue.dequeue_nowait()
    Traceback (most recent call last):
    ...
    asyncio.queues.QueueEmpty
    >>> queue.close_nowait()
    >>> sorted([*first, *queue.dequeue_many_nowait(2)]) == [0, 1, 2, 3]
    True
    """

    def __init__(
        self,
        capacity: int,
        min_after_dequeue: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        seed: int | None = None,
        *,
        name: str = "random_shuffle_queue",
    ) -> None:
        keep = operator.index(min_after_dequeue)
        if keep < 0 or 0 <= capacity <= keep:
            raise ValueError(
                f"min_after_dequeue must be at least 0 and less than the capacity of {capacity}, not {keep}: "
                "a queue that keeps as many elements as it holds can never deliver one"
            )
        elements = _elements(dtypes, shapes, names)
        super().__init__(elements, Shuffled(seed), capacity=capacity, name=name, keep=keep)


class PriorityQueue(QueueBase):
    """A queue that delivers the element with the smallest priority. Equal priorities are first in, first out.

    The first component of an element is its priority, an int64 scalar. It is enqueued and dequeued with the other
    components, and `names` has a name for it. `types` and `shapes` leave it out. The elements of a batch are taken
    all at once, so that they are in order. So a batch that is larger than the capacity waits for ever. The other
    arguments are those of `FIFOQueue`.

    >>> queue = PriorityQueue(10, "string", shapes=[()])
    >>> for priority, name in [(2, "b"), (1, "a"), (2, "c")]:
    ...     queue.enqueue_nowait((priority, name))
    >>> priorities, names = queue.dequeue_many_nowait(3)
    >>> priorities, names
    (array([1, 2, 2]), array([b'a', b'b', b'c'], dtype=object))
    """

    def __init__(
        self, capacity: int, types: Any, shapes: Any = None, names: Any = None, *, name: str = "priority_queue"
    ) -> None:
        known = as_shapes(shapes) if shapes is None or shapes != [] or types else []
        elements = Elements(
            [np.dtype(np.int64), *as_dtypes(types)],
            None if known is None else [(), *_fixed(known)],
            names,
            priority=True,
        )
        super().__init__(elements, Sorted(), capacity=capacity, name=name, whole=True)


def _elements(dtypes: Any, shapes: Any, names: Any) -> Elements:
    known = as_shapes(shapes)
    return Elements(as_dtypes(dtypes), None if known is None else _fixed(known), names)


def _fixed(shapes: list[Any]) -> list[Any]:
    if any(None in shape for shape in shapes):
        raise ValueError(f"the shapes {shapes} have sizes of None: only PaddingFIFOQueue takes those")
    return shapes
