"""TensorFlow's four queues, for asyncio and for threads: the same rules, and nothing is ever lost.

`FIFOQueue`, `PaddingFIFOQueue`, `RandomShuffleQueue` and `PriorityQueue` take the arguments of their namesakes in
`tf.queue`. Elements are tuples of NumPy arrays: TensorFlow is neither needed nor imported. Dtypes may be NumPy's,
TensorFlow's, or names, where "float" is float32 as it is there, and strings are bytes in arrays of dtype object.

The rules, in short. Enqueues wait for room, dequeues for elements, each kind in its own line, in the order in
which they came: a `dequeue_many` that waits holds up the dequeues after it. `close` stands in the line of the
enqueues. A closed queue refuses enqueues (`ClosedError`), gives out what it has, and then says `OutOfRangeError`.

What differs from TensorFlow:

| | TensorFlow | asyncfeed |
|---|---|---|
| `dequeue_many` cancelled or timed out half-way | what it had collected is lost | goes back, in its old order |
| `PriorityQueue.dequeue_up_to`: closed, too few | `OutOfRangeError`, and they are lost | returns them |
| equal priorities | in no particular order | first in, first out |
| more components than the queue has | those beyond are dropped | `ValueError` |
| an array whose values do not fit the dtype | cast: 2**40 as int32 is 0 | `ValueError`, `TypeError` |
| enqueued arrays | copied | handed on as they are: do not write into them afterwards |
| capacity 0 | every enqueue waits for ever | `ValueError` |
| `PriorityQueue(shapes=None)` | fails | like the other queues: no batches |
| `PaddingFIFOQueue.enqueue_many` of empty slices | crashes the process | works |
| padding more than 4 dimensions | `UnimplementedError` | works |
| the random order of a seed | its own | another one, just as uniform |
| enqueue to a closed queue, closing it twice | `CancelledError` | `ClosedError`, as asyncio cancels tasks |
| what cannot be an element, a batch without shapes | `InvalidArgumentError` or `ValueError` | `ValueError` |
| `shared_name` | joins queues of one name | there is none: hand on the queue itself |
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
