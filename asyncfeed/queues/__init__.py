"""TensorFlow's four queues, for asyncio and for threads. No element is lost by a cancellation or a time-out.

`FIFOQueue`, `PaddingFIFOQueue`, `RandomShuffleQueue` and `PriorityQueue` take the arguments of the queues with
these names in `tf.queue`. Elements are tuples of NumPy arrays. TensorFlow is neither needed nor imported. A dtype
may be NumPy's, TensorFlow's, or a name. "float" is float32, as in TensorFlow. Strings are bytes in arrays of dtype
object.

The rules are those of TensorFlow:

- Enqueues wait for room. Dequeues wait for elements.
- There is one line for enqueues and one for dequeues. Each is served in the order of arrival. So a `dequeue_many`
  that waits also holds up the dequeues after it.
- `close` waits in the line of the enqueues.
- A closed queue refuses enqueues with `ClosedError`. Its elements can still be dequeued. After that, a dequeue
  raises `OutOfRangeError`.

These are the differences:

| | TensorFlow | asyncfeed |
|---|---|---|
| `dequeue_many` is cancelled or times out half-way | the collected elements are lost | they go back, in order |
| `PriorityQueue.dequeue_up_to`, closed, too few elements | `OutOfRangeError`, and they are lost | returns them |
| equal priorities | in no particular order | first in, first out |
| more components than the queue has | the surplus is dropped | `ValueError` |
| an array whose values do not fit the dtype | cast: 2**40 as int32 is 0 | `ValueError`, `TypeError` |
| enqueued arrays | copied | not copied: do not write into them afterwards |
| capacity 0 | every enqueue waits for ever | `ValueError` |
| `PriorityQueue(shapes=None)` | fails | works, but gives no batches, like the other queues |
| `PaddingFIFOQueue.enqueue_many` of empty slices | crashes the process | works |
| padding more than 4 dimensions | `UnimplementedError` | works |
| the random order of a seed | its own | another one, just as uniform |
| enqueue to a closed queue, closing it twice | `CancelledError` | `ClosedError`; asyncio uses the other name |
| a value that is no element, a batch without shapes | `InvalidArgumentError`, `ValueError` | `ValueError` |
| `shared_name` | joins queues of one name | does not exist: pass the queue itself |
| several components, dequeued | a list | a tuple |
"""

from asyncfeed.errors import ClosedError
from asyncfeed.queues.attempts import OutOfRangeError
from asyncfeed.queues.base import QueueBase
from asyncfeed.queues.kinds import FIFOQueue, PaddingFIFOQueue, PriorityQueue, RandomShuffleQueue

__all__ = [
    "ClosedError",
    "FIFOQueue",
    "OutOfRangeError",
    "PaddingFIFOQueue",
    "PriorityQueue",
    "QueueBase",
    "RandomShuffleQueue",
]
