"""The methods of `Pipeline` that feed other libraries.

Each method imports its bridge when it is called, so `import asyncfeed` imports no framework.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from threading import Thread

    from asyncfeed.bridges.device_feed import PlacedBatches
    from asyncfeed.bridges.progress import Progress
    from asyncfeed.bridges.shards import Shards
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
        progress: Progress | None = None,
        on_open: Callable[[Feed[Any]], None] | None = None,
        memory_limit: Size | None = None,
    ) -> Any:
        """Return a `tf.data.Dataset` of the items, to pass to Keras `fit` or to transform further.

        Each iteration is a run of its own, and counts as the next epoch of a `shuffle` or `map(rng=True)`.
        TensorFlow calls no Python code to get an item. Dropping the iterator stops the run.

        Args:
            output_signature: A tree of `tf.TensorSpec` that gives shapes and dtypes, instead of the first item.
            via: "queue", or "from_generator" to use TensorFlow's `Dataset.from_generator`, which is slower.
                Dropping an iterator of "from_generator" waits until the item in progress is made.
            progress: Counts the items that were trained on, for states: see `Progress`. The dataset then has no
                length, because an iteration may be the rest of an epoch.
            on_open: A function that is called with the feed of each run, for `stats()` and `failure`.
            memory_limit: As for `open`.

        Returns:
            A dataset. Shapes and dtypes are inferred from the first item, which the first iteration then delivers.
            An axis that may vary has size None: the first axis of a batch unless `drop_remainder`, padded axes
            unless `to` fixes them, and all axes of an item that is not a batch. Python's numbers become int64,
            float64 and bool. Text becomes `tf.string`. Lists become tuples.

        Raises:
            PipelineError: TensorFlow has no tensors for the items, or there is no item to infer a signature from.
            OpError: From the iteration, a `tf.errors.OpError` for a failing item, after all items before it. The
                message has the type, message and traceback of the original exception. `feed.failure` has the
                exception itself. To leave out failing items use `on_error="skip"`, never `Dataset.ignore_errors`:
                if TensorFlow knows the length, `ignore_errors` asks for the missing items without end.

        Order:
            The order of the description.

        Memory:
            `memory_limit` does not count the items on their way into TensorFlow: up to 3 items, or more if items
            are ready and cross as a group. A group holds at most 16 MB, or a sixteenth of the limit if that is
            less. So at most 520 items of up to 1 KB are on their way, as copies, or 18 larger ones. A larger array
            that starts at a multiple of 64 bytes, as in all batches, is not copied: do not write to it afterwards.

        Example:
            >>> import asyncfeed as af
            >>> dataset = af.items(range(5)).batch(2).to_tf()  # doctest: +SKIP
            >>> dataset.element_spec  # doctest: +SKIP
            TensorSpec(shape=(None,), dtype=tf.int64, name=None)
        """
        from asyncfeed.bridges.tf_data import to_dataset

        return to_dataset(
            self._pipeline, output_signature=output_signature, via=via, progress=progress, on_open=on_open,
            memory_limit=memory_limit,
        )  # fmt: skip

    def to_keras(
        self,
        *,
        class_weight: Mapping[int, float] | None = None,
        output_signature: Any = None,
        on_open: Callable[[Feed[Any]], None] | None = None,
        memory_limit: Size | None = None,
    ) -> Any:
        """Return the batches for Keras' `fit`, `evaluate` and `predict`: (x, y), (x, y, sample weights) or x.

        It works with the TensorFlow, torch and JAX backends of Keras 3. Each pass is a run of its own, and the
        next epoch of a `shuffle`. Every batch is read once, and is used for training even if Keras also builds the
        model with it. If the length is known, Keras knows the number of steps. With `steps_per_epoch`, all epochs
        of Keras draw from one run, which may be endless.

        Args:
            class_weight: The weight of each class. Give it here: `fit` ignores it for data that is not an array or
                a dataset of its own.
            output_signature: A tree of `tf.TensorSpec` that gives shapes and dtypes. Without it, they are inferred
                as by `to_tf`, for the TensorFlow backend and for a model that is not built. If the size of an axis
                after the first is unknown, the first two batches decide: if they agree, the size is taken as
                fixed, unless a stage pads.
            on_open: A function that is called with the feed of each run. `feed.failure` says which item failed.
            memory_limit: As for `open`.

        Returns:
            An object for `fit`. A run stops when Keras drops its iterator: at the end of `fit`, after a callback
            that stops training, or after an exception, once the exception is no longer referenced.
            `with train.to_keras() as data:` stops all runs at its end.

        Raises:
            Exception: From `fit`. With torch and JAX, the exception of the pipeline. With TensorFlow, a
                `tf.errors.OpError` with the text of that exception.

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

    def to_torch(
        self, *, device: Any = None, pin_memory: bool | Literal["auto"] = "auto", dtype: Any = None,
        on_open: Callable[[Feed[Any]], None] | None = None, memory_limit: Size | None = None,
    ) -> PlacedBatches:  # fmt: skip
        """Return the batches as torch tensors, to iterate with `for` or `async for`.

        Each iteration is a run of its own, and the next epoch of a `shuffle`. Dropping the iterator stops the run.

        Args:
            device: The device of the tensors, such as "cuda". With CUDA, the next batch is copied on a stream of
                its own while the present batch is used. Other devices get a plain copy. Tensors that are on a
                device already stay there.
            pin_memory: Whether threads of the pipeline copy the tensors into pinned memory. "auto" pins memory if
                the device is "cuda".
            dtype: The dtype of floating-point tensors. Other tensors keep their dtype, as in `Module.to`.
            on_open: A function that is called with the feed of each run, for `stats()` and `failure`.
            memory_limit: As for `open`.

        Returns:
            An iterable with a length, if the length is known. Arrays and NumPy scalars become tensors. Text
            becomes str and lists of str. Python numbers, None and other objects stay as they are. A list of arrays
            of different lengths becomes a list of tensors. docs/torch.md has a table of all dtypes.
            `state_dict()` is the state after the last batch that was given out, and the iteration after
            `load_state_dict(state)` delivers the rest of its epoch.

        Raises:
            PipelineError: torch is missing, or an option is not valid. While the batches are drawn: torch has no
                dtype for an array.

        Order:
            The order of the description.

        Memory:
            On the CPU a tensor shares the memory of its array, which is not used again while the tensor exists.
            Arrays that are read-only, not aligned, not in native byte order or with negative strides are copied.
            On CUDA, the memory of the device holds the batch that was given out and the next one, if that has at
            most a sixteenth of the memory limit.

        Example:
            >>> import asyncfeed as af
            >>> [batch.sum().item() for batch in af.items(range(5)).batch(2).to_torch()]  # doctest: +SKIP
            [1, 5, 4]
        """
        from asyncfeed.bridges.torch_feed import to_batches

        return to_batches(
            self._pipeline, device=device, pin_memory=pin_memory, dtype=dtype, on_open=on_open,
            memory_limit=memory_limit,
        )  # fmt: skip

    def to_torch_dataset(
        self, *, ranks: Literal["split", "same"] | None = None, dtype: Any = None, memory_limit: Size | None = None
    ) -> Any:
        """Return a `torch.utils.data.IterableDataset` of the batches, for `DataLoader(dataset, batch_size=None)`.

        Each iteration is the next epoch, also with `persistent_workers`. Use no workers: the pipeline reads ahead
        by itself. If the loader has workers, each runs the pipeline with its share. A batch then comes from one
        worker, and reads no files of another. The order is that of a loader without workers, if each batch is made
        of a fixed number of consecutive items.

        Args:
            ranks: What each rank of a process group gets. "split" gives each rank another share, of the same
                number of batches; the rest is dropped. "same" gives each rank all batches: use it if another
                library divides them, as Accelerate does.
            dtype: As for `to_torch`.
            memory_limit: As for `open`. Each worker has this limit.

        Returns:
            A dataset with a length, if the length is known. It can be pickled if the pipeline can. `set_epoch(n)`
            makes `n` the next epoch. It has `state_dict()` and `load_state_dict(state)`, as its iterators have,
            for programs that draw without workers. `torchdata`'s `StatefulDataLoader` saves and restores its
            workers, too.

        Raises:
            PipelineError: torch is missing, or an option is not valid. While it is iterated: there are several
                ranks and no `ranks=`, or torch has no dtype for an array.
            StateError: From `set_epoch`: the state that was loaded is in a later epoch. From `state_dict`: the
                workers of a loader have drawn.

        Order:
            The order of the description. If a stage such as `filter` decides how many items there are, the items
            before the first function are divided instead of the batches.

        Memory:
            As for `to_torch`. Workers send copies, through shared memory.

        Example:
            >>> import asyncfeed as af
            >>> dataset = af.items(range(5)).batch(2).to_torch_dataset()  # doctest: +SKIP
            >>> loader = torch.utils.data.DataLoader(dataset, batch_size=None)  # doctest: +SKIP
            >>> len(loader)  # doctest: +SKIP
            3
        """
        from asyncfeed.bridges.torch_dataset import to_dataset

        return to_dataset(self._pipeline, ranks=ranks, dtype=dtype, memory_limit=memory_limit)

    def to_jax(
        self, *, device: Any = None, sharding: Any = None, on_open: Callable[[Feed[Any]], None] | None = None,
        memory_limit: Size | None = None,
    ) -> PlacedBatches:  # fmt: skip
        """Return the batches as arrays of JAX, to iterate with `for` or `async for`.

        Each iteration is a run of its own, and the next epoch of a `shuffle`. Dropping the iterator stops the run.
        The transfer of the next batch starts before the present batch is given out, if the next batch is ready.

        Args:
            device: The device of the arrays. The default is JAX's default device.
            sharding: How arrays are divided among devices, instead of a device: a `jax.sharding.Sharding` for all
                arrays, or a tree of them as `jax.device_put` takes it. The devices must belong to this process.
            on_open: A function that is called with the feed of each run, for `stats()` and `failure`.
            memory_limit: As for `open`.

        Returns:
            An iterable with a length, if the length is known. Arrays and NumPy scalars become arrays of JAX. Text
            becomes str and lists of str. Python numbers, None and other objects stay as they are.
            `state_dict()` is the state after the last batch that was given out, and the iteration after
            `load_state_dict(state)` delivers the rest of its epoch.

        Raises:
            PipelineError: JAX is missing, or an option is not valid. While the batches are drawn: JAX has no dtype
                for an array.
            ValueError: While the batches are drawn: a batch cannot be divided among the devices. Use
                `drop_remainder` for the last batch.

        Order:
            The order of the description.

        Memory:
            On the CPU an array shares the memory of the batch, which is not used again while the array exists.
            Otherwise the memory of the device holds the batch that was given out and the next one, if that has at
            most a sixteenth of the memory limit.

        Example:
            >>> import asyncfeed as af
            >>> [int(batch.sum()) for batch in af.items(range(5)).batch(2).to_jax()]  # doctest: +SKIP
            [1, 5, 4]
        """
        from asyncfeed.bridges.jax_feed import to_batches

        return to_batches(
            self._pipeline, device=device, sharding=sharding, on_open=on_open, memory_limit=memory_limit
        )

    def to_shards(
        self,
        folder: str | os.PathLike[str],
        *,
        format: Literal["npy", "parquet", "tar", "tfrecord"] = "tar",  # noqa: A002 - the word of the field
        name: str = "{:06}",
        max_items: int | None = None,
        max_bytes: Size = "256MB",
        progress: bool | Literal["auto"] = "auto",
        memory_limit: Size | None = None,
    ) -> Shards:
        """Write the samples into a few large files: the answer to millions of small files.

        Each file is there whole or not at all. If the program is interrupted, call it again: it goes on behind the
        last file. This blocks until all is written. Archives are read by `flat_map(tar)`, and records by
        `flat_map(tfrecord)`. Each of these files has an index, which `indexed=True` uses.

        Args:
            folder: A local folder. It is made if it does not exist.
            format: "tar": samples are dicts of parts by name, as WebDataset stores them. A part is bytes, text, a
                number or an array (`.npy`), and a dict or list if its name ends with "json". `"__key__"` is the
                name of the sample. The default is its number.
                "tfrecord" (`asyncfeed[tfrecord]`): samples are bytes, or dicts of features by name, which become a
                `tf.train.Example`. A feature is bytes, text, a number, or an array or list of these. Floats have
                32 bits, and arrays lose their shape.
                "npy": samples are arrays of one shape and dtype, or numbers. They become the rows of one array in
                each file. `load(npy).unbatch()` reads them, and so does `arrays` by number.
                "parquet" (`asyncfeed[parquet]`): samples are dicts of numbers, text, bytes, arrays, lists or dicts
                by column. The first sample decides the type of each column and the shape of its arrays.
                `flat_map(parquet)` reads them.
            name: The names of the files, without their end. It has a place for the number.
            max_items: Number of samples that a file has at most.
            max_bytes: Size of a file, in bytes or as text. A larger sample has a file for itself. "parquet"
                counts the size before compression.
            progress: Whether a progress bar is shown, which needs tqdm (`asyncfeed[progress]`). "auto" shows it if
                tqdm is installed and there is a terminal.
            memory_limit: As for `open`.

        Returns:
            The files: `paths`, and how many `items` and `nbytes` they have together.

        Raises:
            PipelineError: An option is not valid, the pipeline has no end, or the folder has files of another
                pipeline. Pipelines are told apart by how they are written.
            TypeError: The format cannot hold a sample. The message names it. The files before it stay.

        Order:
            The order of the description, epoch 0. It must be the same when a conversion goes on.

        Memory:
            One sample, and what the pipeline reads ahead. For "parquet" 16 MB of samples.

        Example:
            >>> import asyncfeed as af, tempfile
            >>> folder = tempfile.mkdtemp()
            >>> samples = af.items(range(5)).map(lambda n: {"cls": n, "txt": "x" * n})
            >>> samples.to_shards(folder, max_items=2).items
            5
            >>> train = af.files(f"{folder}/*.tar").flat_map(af.tar(indexed=True)).shuffle(seed=7)
            >>> sorted(sample["cls"] for sample in train)
            [b'0', b'1', b'2', b'3', b'4']
        """
        from asyncfeed.bridges.shards import to_shards

        return to_shards(
            self._pipeline, folder, format=format, name=name, max_items=max_items, max_bytes=max_bytes,
            progress=progress, memory_limit=memory_limit,
        )  # fmt: skip

    def to_queue_runner(
        self, queue_or_enqueue_op: Any, placeholders: Sequence[Any] | Mapping[str, Any] | None = None, *,
        enqueue_many: bool | None = None, on_open: Callable[[Feed[Any]], None] | None = None,
        memory_limit: Size | None = None,
    ) -> Any:  # fmt: skip
        """Return a `tf.compat.v1.train.QueueRunner` that fills a queue, for `add_queue_runner`.

        An item with one axis more than the elements of the queue is enqueued as a batch of elements. The end of
        the data closes the queue. Each session gets a run of its own.

        Args:
            queue_or_enqueue_op: The queue, or an enqueue op of your own that gets items through its placeholders.
            placeholders: The placeholders of the enqueue op, if the op does not enqueue them as they are. Items
                that are dicts are matched by the `names=` of the queue, or by the keys of `placeholders`.
            enqueue_many: Whether items are batches of elements. None decides by the number of axes.
            on_open: A function that is called with the feed of each run.
            memory_limit: As for `open`.

        Raises:
            PipelineError: The first item does not fit the queue in dtype or shape. This call reads it.
            Exception: From `coord.join`, the exception of a failing item, which stops the coordinator. If the
                coordinator is asked to stop or the session is closed, an enqueue that waits ends.

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
        """Start threads that feed `enqueue_op`. In all else this is `to_queue_runner`.

        Args:
            sess: The session that runs the op.
            enqueue_op: The op, which gets items through its placeholders.
            placeholders: As for `to_queue_runner`.
            coord: The coordinator. A stop of either side stops the other.
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
