"""`queue_dataset`: the elements of a TensorFlow queue as a `tf.data.Dataset`."""

from __future__ import annotations

import weakref
from typing import Any

from asyncfeed.errors import PipelineError


def queue_dataset(queue: Any) -> Any:
    """Return a `tf.data.Dataset` with the elements of a live TensorFlow queue.

    With eager execution it takes queues that were made eagerly, and in a `tf.Graph` the queues of that graph. The
    dataset keeps the queue alive.

    Args:
        queue: The queue of TensorFlow.

    Returns:
        A dataset that ends when the queue is closed and empty.
        (`Dataset.range(...).map(lambda _: queue.dequeue())` would end with an error.) Its items are the results of
        `dequeue`: a tensor, a tuple, or a dict for a queue with `names`. Each element goes to one iterator.
        Dropping an iterator does not change the queue, even if the iterator waits. But tf.data may have taken one
        or two elements ahead.

    Raises:
        PipelineError: The argument is not a queue of TensorFlow.

    Order:
        The order of the queue.

    Memory:
        The dataset holds no elements itself.

    Example:
        >>> import asyncfeed as af, tensorflow as tf  # doctest: +SKIP
        >>> queue = tf.queue.FIFOQueue(9, [tf.int64], [()])  # doctest: +SKIP
        >>> queue.enqueue_many([[1, 2, 3]]), queue.close()  # doctest: +SKIP
        >>> [int(each) for each in af.queue_dataset(queue)]  # doctest: +SKIP
        [1, 2, 3]
    """
    import tensorflow as tf

    if not isinstance(queue, tf.queue.QueueBase):
        raise PipelineError(f"queue_dataset: takes a queue of TensorFlow, not {queue!r}")
    names = queue.names or [""] * len(queue.dtypes)
    order = sorted(range(len(names)), key=names.__getitem__)  # as tf.data sorts the keys of a dict
    specs = [tf.TensorSpec(queue.shapes[place], queue.dtypes[place]) for place in order]
    structure: Any = specs[0] if len(specs) == 1 else tuple(specs)
    if queue.names is not None:
        structure = {names[place]: spec for place, spec in zip(order, specs, strict=True)}

    def dequeue(resource: Any) -> list[Any]:
        tensors = tf.raw_ops.QueueDequeueV2(handle=resource, component_types=queue.dtypes)
        for tensor, shape in zip(tensors, queue.shapes, strict=True):
            tensor.set_shape(shape)
        return [tensors[place] for place in order]

    def traced(function: Any) -> Any:
        made = tf.function(function, autograph=False, input_signature=[tf.TensorSpec(None, tf.resource)])
        return made.get_concrete_function()

    with tf.device("CPU:0"):
        variant = tf.raw_ops.GeneratorDataset(
            init_func_other_args=[queue.queue_ref],
            next_func_other_args=[],
            finalize_func_other_args=[],
            init_func=traced(lambda resource: resource),
            next_func=traced(dequeue),
            finalize_func=traced(lambda resource: tf.constant(0, tf.int64)),  # noqa: ARG005 - it stays as it is
            output_types=[spec.dtype for spec in specs],
            output_shapes=[spec.shape for spec in specs],
        )
    dataset = tf.data.experimental.from_variant(variant, structure)
    weakref.finalize(
        dataset, id, queue
    ).atexit = False  # keeps a reference to the queue: its elements are lost when its Python object is dropped
    return dataset
