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
        takes no Python on TensorFlow's side. Letting go of the iterator stops the run.

        Args:
            output_signature: A tree of `tf.TensorSpec` that gives shapes and dtypes, instead of the first item.
            via: "queue", or "from_generator" for the usual, slower way. Dropping the iterator of "from_generator"
                waits for the item that is being made.
            on_open: A function that is called with the feed of each run, for `stats()` and `failure`.
            memory_limit: As for `open`.

        Returns:
            A dataset. Shapes and dtypes are inferred from the first item, which the first iteration then delivers.
            An axis is left open (None) if it may vary: the first axis of a batch unless `drop_remainder`, padded
            axes unless `to` fixes them, all axes of an item that is not a batch. Python's numbers are int64,
            float64 and bool; text is `tf.string`; lists become tuples.

        Raises:
            PipelineError: TensorFlow has no tensors for the items, or there is no item to infer a signature from.
            OpError: From the iteration, a `tf.errors.OpError` for a failing item, after all items before it. It
                has the original's type, message and traceback as text; `feed.failure` has the exception. To leave
                failing items out use `on_error="skip"`, never `Dataset.ignore_errors`: if TensorFlow knows the
                length, that asks for the missing items without end.

        Order:
            That of the description.

        Memory:
            Beside `memory_limit`, the items on their way into TensorFlow: up to three, or as many as are ready and
            cross together, 16 MB or a sixteenth of the limit at most. These are up to 520 items of 1 KB at most,
            as a copy, or 18 larger ones. Larger arrays that start at a multiple of 64 bytes, as all batches do,
            are not copied: do not write to such an array afterwards.

        Example:
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

        Works with the TensorFlow, torch and JAX backends of Keras 3. Each pass is a run of its own and the next
        epoch of a `shuffle`. Every batch is read once, and no batch is read only to look at it. If the length is
        known, Keras knows the number of steps. With `steps_per_epoch`, the epochs of Keras go on in one run, which
        may then be endless.

        Args:
            class_weight: The weight of each class. Give it here: `fit` ignores it for data that is not an array or
                a dataset of its own.
            output_signature: A tree of `tf.TensorSpec` that gives shapes and dtypes. Without it, TensorFlow and an
                unbuilt model get them as `to_tf` infers them. An axis after the first that is not known otherwise
                is taken for fixed if the first two batches agree, unless a stage pads.
            on_open: A function that is called with the feed of each run, which has `failure`.
            memory_limit: As for `open`.

        Returns:
            An object for `fit`. A run stops when Keras lets go of it: at the end of `fit`, after a callback that
            stops training, and after an exception when that is dealt with. `with train.to_keras() as data:` stops
            all runs at its end.

        Raises:
            Exception: From `fit`, the exception of the pipeline with torch and JAX, and a `tf.errors.OpError` with
                its text with TensorFlow.

        Order:
            As for `open` and `to_tf`.

        Memory:
            As for `open` and `to_tf`.

        Example:
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

        An item with one axis more than the queue's elements is a batch of them. The end of the data closes the
        queue. Each session gets a run of its own.

        Args:
            queue_or_enqueue_op: The queue, or an enqueue op of your own that gets items through its placeholders.
            placeholders: The placeholders of an enqueue op that does not enqueue them as they are. A dict of items
                goes by `names=` of the queue, or by the keys of `placeholders`.
            enqueue_many: Whether items are batches of elements. None compares their axes.
            on_open: A function that is called with the feed of each run.
            memory_limit: As for `open`.

        Raises:
            PipelineError: The first item, which is read to check it, does not fit the queue in dtype or shape.
            Exception: From the coordinator, which a failing item stops with its exception. A stop, by the
                coordinator or by closing the session, ends an enqueue that waits.

        Example:
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
        """Start threads that feed `enqueue_op`, otherwise as `to_queue_runner`.

        Args:
            sess: The session that runs the op.
            enqueue_op: The op, which gets items through its placeholders.
            placeholders: As for `to_queue_runner`.
            coord: The coordinator to stop together with.
            on_open: A function that is called with the feed of the run.
            memory_limit: As for `open`.

        Returns:
            The threads, for `coord.join`.

        Example:
            >>> threads = train.enqueue(sess, enqueue_op, placeholders, coord=coord)  # doctest: +SKIP
        """
        from asyncfeed.bridges.tf_queues import enqueue

        return enqueue(
            self._pipeline, sess, enqueue_op, placeholders, coord=coord, on_open=on_open, memory_limit=memory_limit
        )
