"""What a pipeline can be handed to: one method for each bridge, which imports the other side when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from threading import Thread

    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline
    from asyncfeed.sizes import Size


class Outputs:
    """The part of `Pipeline` that feeds other libraries."""

    __slots__ = ()

    @property
    def _pipeline(self) -> Pipeline[Any]:
        return self  # type: ignore[return-value] # nothing else derives from this

    def to_tf(
        self,
        *,
        output_signature: Any = None,
        via: Literal["queue", "from_generator"] = "queue",
        on_open: Callable[[Feed[Any]], None] | None = None,
        memory_limit: Size | None = None,
    ) -> Any:
        """Return a `tf.data.Dataset` of the items, to pass to Keras `fit` or to transform further.

        Each iteration is a run of its own, and counts as the next epoch of a `shuffle` or `map(rng=True)`. It
        takes no Python on TensorFlow's side; letting go of the iterator stops the run. `on_open` is called
        with the feed of each, for `stats()` and `failure`.

        Shapes and dtypes are inferred from the first item, which the first iteration then delivers. An axis is
        left open (None) where it may vary: the first axis of a batch unless `drop_remainder`, padded axes
        unless `to` fixes them, all axes of what is no batch. `output_signature`, a tree of `tf.TensorSpec`,
        says it instead. Python's numbers are int64, float64 and bool; text is `tf.string`; lists become tuples.

        Order: that of the description. Memory: `memory_limit` as for `open`, and what is on its way into
        TensorFlow: up to three items, or as many as are ready and cross together, 16 MB or a sixteenth of the
        limit at most. Those are up to 520 where they have 1 KB at most, as a copy, and 18 larger ones. Larger
        arrays that start at a multiple of 64 bytes, as all batches do, are not copied: one that is kept must
        not be written to afterwards. `via="from_generator"` is the usual, slower way: dropping its iterator
        waits for the item that is being made.

        Errors: a failing item ends the iteration with a `tf.errors.OpError` that has the original's type,
        message and traceback as text, after all items before it; `feed.failure` has the exception. To leave
        failing items out use `on_error="skip"`, never `Dataset.ignore_errors`: where TensorFlow knows the
        length, it goes on asking for what is missing for ever.

        Raises:
            PipelineError: items TensorFlow has no tensors for, or none to infer a signature from.

        >>> import asyncfeed as af
        >>> dataset = af.items(range(5)).batch(2).to_tf()  # doctest: +SKIP
        >>> dataset.element_spec  # doctest: +SKIP
        TensorSpec(shape=(None,), dtype=tf.int64, name=None)
        """
        from asyncfeed.bridges.tf_data import to_dataset

        return to_dataset(
            self._pipeline, output_signature=output_signature, via=via, on_open=on_open, memory_limit=memory_limit
        )

    def to_keras(
        self,
        *,
        class_weight: Mapping[int, float] | None = None,
        output_signature: Any = None,
        on_open: Callable[[Feed[Any]], None] | None = None,
        memory_limit: Size | None = None,
    ) -> Any:
        """Return the batches for Keras' `fit`, `evaluate` and `predict`: (x, y), (x, y, sample weights) or x.

        Each pass is a run of its own and the next epoch of a `shuffle`; every batch is read once, and none to look
        at it. Where the length is known, Keras knows the number of steps; with `steps_per_epoch` its epochs go
        on in one run, which then may be endless. Works with the TensorFlow, torch and JAX backends of Keras 3.

        `class_weight`, which Keras ignores for what is no array or dataset of its own, goes here. A run stops when
        Keras lets go of it: at the end of `fit`, after a callback that stops training, and with an exception as
        soon as that is dealt with; `with train.to_keras() as data:` stops all at its end.

        TensorFlow and an unbuilt model ask for shapes. They are inferred as `to_tf` does; an axis after the first
        that is not known otherwise is taken for fixed if the first two batches agree, unless something pads.
        `output_signature`, a tree of `tf.TensorSpec`, says it instead.

        Order, memory: as for `open` and `to_tf`. Errors: those of the pipeline, from `fit`: as they are with torch
        and JAX, as text in a `tf.errors.OpError` with TensorFlow; `on_open` gets each feed, which has `failure`.

        >>> import asyncfeed as af
        >>> data = af.items(range(5)).batch(2).to_keras()  # doctest: +SKIP
        >>> data.num_batches  # doctest: +SKIP
        3
        """
        from asyncfeed.bridges.keras import to_adapter

        return to_adapter(
            self._pipeline, class_weight=class_weight, output_signature=output_signature, on_open=on_open,
            memory_limit=memory_limit,
        )  # fmt: skip

    def to_queue_runner(
        self, queue_or_enqueue_op: Any, placeholders: Sequence[Any] | Mapping[str, Any] | None = None, *,
        enqueue_many: bool | None = None, on_open: Callable[[Feed[Any]], None] | None = None,
        memory_limit: Size | None = None,
    ) -> Any:  # fmt: skip
        """Return a `tf.compat.v1.train.QueueRunner` that fills a queue, for `add_queue_runner`.

        An item with one axis more than the queue's elements is a batch of them and goes in by `enqueue_many`.
        An enqueue op of your own gets items through its placeholders, given where it enqueues what it makes of
        them. A dict goes by `names=` of the queue, or by the keys of `placeholders`.

        The end of the data closes the queue. A failing item stops the coordinator with its exception; a stop, from
        it or by closing the session, ends an enqueue that waits. Each session gets a run of its own; `on_open` is
        called with its feed.

        Raises:
            PipelineError: the first item, which is read for it, does not fit the queue in dtype or shape.

        >>> v1.train.add_queue_runner(train.to_queue_runner(queue))  # doctest: +SKIP
        >>> threads = v1.train.start_queue_runners(sess, coord)  # doctest: +SKIP
        """
        from asyncfeed.bridges.tf_queues import to_queue_runner as made

        return made(
            self._pipeline, queue_or_enqueue_op, placeholders,
            enqueue_many=enqueue_many, on_open=on_open, memory_limit=memory_limit,
        )  # fmt: skip

    def enqueue(
        self, sess: Any, enqueue_op: Any, placeholders: Sequence[Any] | Mapping[str, Any] | None = None, *,
        coord: Any = None, on_open: Callable[[Feed[Any]], None] | None = None, memory_limit: Size | None = None,
    ) -> list[Thread]:  # fmt: skip
        """Start threads that feed `enqueue_op`; return them for `coord.join`. Otherwise as `to_queue_runner`.

        >>> threads = train.enqueue(sess, enqueue_op, placeholders, coord=coord)  # doctest: +SKIP
        """
        from asyncfeed.bridges.tf_queues import enqueue

        return enqueue(
            self._pipeline, sess, enqueue_op, placeholders, coord=coord, on_open=on_open, memory_limit=memory_limit
        )
