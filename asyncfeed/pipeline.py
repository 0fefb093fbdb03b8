"""Pipeline: the description of an input pipeline, from its source to its batches."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar, overload

from asyncfeed.calling import Calling
from asyncfeed.errors import PipelineError
from asyncfeed.functions.resources import Resource
from asyncfeed.outputs import Outputs
from asyncfeed.ranks import given_or_found
from asyncfeed.sizes import Size
from asyncfeed.stages.base import Node
from asyncfeed.stages.cache import MEMORY, Cache
from asyncfeed.stages.enumerate import Enumerate
from asyncfeed.stages.in_processes import in_processes
from asyncfeed.stages.prefetch import Prefetch
from asyncfeed.stages.repeat import Repeat
from asyncfeed.stages.scan import Scan
from asyncfeed.stages.shard import Shard
from asyncfeed.stages.shuffle import Shuffle
from asyncfeed.stages.split import split_stages
from asyncfeed.stages.take import Skip, Take
from asyncfeed.stages.using import Using, with_resources

T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")
U = TypeVar("U")


class Pipeline(Outputs, Calling[T_co]):
    """A description of an input pipeline. Nothing is read before it is opened or iterated.

    A pipeline is immutable: each method returns a new pipeline, so pipelines can share a prefix. Two pipelines are
    equal if they are written the same. Iterating a pipeline runs it once: `for` runs it on a background thread,
    `async for` on the caller's loop. `open` returns the run as an object to hold.

    Order:
        Iterating a pipeline again repeats epoch 0, with the same order and random numbers. To train for several
        epochs use `epochs(n)`.

    Example:
        >>> import asyncfeed as af
        >>> numbers = af.items(range(5))
        >>> numbers.repeat(2).batch(3, drop_remainder=True)
        items(range(0, 5)).repeat(2).batch(3, drop_remainder=True)
        >>> [batch.tolist() for batch in numbers.repeat(2).batch(3, drop_remainder=True)]
        [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    """

    __slots__ = ()

    # -- order

    def shuffle(self, *, seed: int = 0, buffer: int | None = None, reshuffle: bool = True) -> Pipeline[T_co]:
        """Put the items of each epoch in a random order. Each epoch has a new order.

        Args:
            seed: Decides the order, together with the epoch and the number of random stages before this one.
            buffer: Number of items of a shuffle buffer, as in TensorFlow's `Dataset.shuffle`. Without it, the
                order is an exact permutation. That needs a source whose items can be reached by number (files,
                sequences, arrays), and in between only stages that rearrange them, and stages that work on each
                item for itself: `load`, and `map` without `rng`.
            reshuffle: False gives every epoch the order of epoch 0.

        Raises:
            PipelineError: There is no `buffer`, and the items cannot be reached by number.

        Order:
            The order is the same in every program with the same description. Iterating a pipeline again repeats
            epoch 0. `epochs(n)` counts epochs. The functions of a `map` or `load` before an exact shuffle are
            called in the shuffled order.

        Memory:
            A permutation is computed and not stored, and needs no start-up time. A buffer holds up to `buffer`
            items.

        Example:
            >>> import asyncfeed as af
            >>> sorted(af.items(range(5)).shuffle(seed=1))
            [0, 1, 2, 3, 4]
        """
        return self.then(Shuffle(seed=seed, buffer=buffer, reshuffle=reshuffle))

    def repeat(self, count: int | None = None) -> Pipeline[T_co]:
        """Run the stages before this one for `count` epochs, or without end.

        Args:
            count: Number of epochs. None repeats without end.

        Raises:
            PipelineError: The source is an iterator, which can be read only once.

        Order:
            Stages before `repeat` see where an epoch ends, stages after it do not. So `repeat().batch()` makes
            batches across epochs, and `batch().repeat()` does not. Reading ahead never pauses between epochs.

        Example:
            >>> import asyncfeed as af
            >>> [batch.tolist() for batch in af.items(range(3)).batch(2).repeat(2)]
            [[0, 1], [2], [0, 1], [2]]
        """
        return self.then(Repeat(count))

    def take(self, count: int) -> Pipeline[T_co]:
        """Keep the first `count` items of each epoch.

        Order:
            After a `shuffle` each epoch keeps other items. To keep the same items in all epochs use `split`, or
            `shuffle(reshuffle=False)`.

        Example:
            >>> import asyncfeed as af
            >>> list(af.items(range(5)).take(2))
            [0, 1]
        """
        return self.then(Take(count))

    def skip(self, count: int) -> Pipeline[T_co]:
        """Leave out the first `count` items of each epoch.

        Order:
            After a `shuffle` each epoch leaves out other items; see `take`.

        Example:
            >>> import asyncfeed as af
            >>> list(af.items(range(5)).skip(3))
            [3, 4]
        """
        return self.then(Skip(count))

    def enumerate(self, start: int = 0) -> Pipeline[tuple[int, T_co]]:
        """Pair each item with its number in the epoch.

        Args:
            start: The number of the first item of each epoch.

        Example:
            >>> import asyncfeed as af
            >>> list(af.items("ab".upper).enumerate(start=1))
            [(1, 'A'), (2, 'B')]
        """
        return self.then(Enumerate(start))

    @overload
    def split(
        self, first: float, second: float, /, *, seed: int = ..., key: Callable[[T_co], Any] | None = ...,
    ) -> tuple[Pipeline[T_co], Pipeline[T_co]]: ...  # fmt: skip
    @overload
    def split(
        self, first: float, second: float, third: float, /, *, seed: int = ...,
        key: Callable[[T_co], Any] | None = ...,
    ) -> tuple[Pipeline[T_co], Pipeline[T_co], Pipeline[T_co]]: ...  # fmt: skip
    @overload
    def split(
        self, *shares: float, seed: int = ..., key: Callable[[T_co], Any] | None = ...
    ) -> tuple[Pipeline[T_co], ...]: ...
    def split(
        self, *shares: float, seed: int = 0, key: Callable[[T_co], Any] | None = None
    ) -> tuple[Pipeline[T_co], ...]:
        """Return pipelines that share no item in any epoch and together hold every item.

        Args:
            *shares: The share of each part, as in `split(0.8, 0.2)`. They add up to 1.
            seed: Decides which items go to which part.
            key: A function of an item that returns text, bytes, a whole number, a path, or a tuple of them. `seed`
                and a hash of the key decide the part. Items with the same key stay together, such as all images of
                one patient. An item keeps its part when the list grows. If the items can be reached by number
                without calling your code, `key` is called for all of them here.

        Returns:
            A tuple with one pipeline for each share. Without a `key`, the shares are exact for items that can be
            reached by number. For a stream and with a `key`, the shares are kept on average.

        Raises:
            PipelineError: The shares do not add up to 1. Or there is no `key`, and an earlier stage gives an item
                another place in each epoch (`shuffle`) or no place of its own (`repeat`, `batch`).

        Order:
            Without a `key`, items that can be reached by number come in a random order that `seed` decides and
            that never changes. Shuffle a part to get another order in each epoch. The items of a stream are dealt
            out by their ordinal. With a `key`, the order is that of the source.

        Example:
            >>> import asyncfeed as af
            >>> train, test = af.items(range(10)).split(0.8, 0.2, seed=1)
            >>> len(train), sorted([*train, *test])
            (8, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
            >>> train.shuffle(seed=1)
            items(range(0, 10)).split(0.8, 0.2, seed=1)[0].shuffle(seed=1)
        """
        parts = split_stages(self.source, self.stages, shares, seed, key)
        return tuple(Pipeline(self.source, stages) for stages in parts)

    def shard(
        self, index: int | None = None, count: int | None = None, *, uneven: Literal["pad", "drop", "keep"] = "pad"
    ) -> Pipeline[T_co]:
        """Keep one of `count` parts of the items: the part of this process, if several train together.

        Part r has the items r, r + count, r + 2 * count, ... of the order that the stages before it give. So the
        parts are disjoint, and together they are everything.

        Args:
            index: The number of the part, counted from 0. If there is neither `index` nor `count`, they are the
                rank of this process and the number of ranks. These are asked, in this order: `tf.distribute` or
                TF_CONFIG; `torch.distributed`, or RANK and WORLD_SIZE; `jax.distributed`; SLURM_PROCID and
                SLURM_NTASKS; the variables of Open MPI. No framework is imported for this. The text of the
                pipeline shows the numbers, and a line in the log says what was asked for them.
            count: Number of parts.
            uneven: What happens if the number of items is no multiple of `count`. A rank that has one batch more
                than the others waits for them for ever. So "pad" and "drop" give all parts the same length. "pad"
                is the default because it leaves nothing out: a part that is one item short gets one from the
                start of the epoch's order again, as with torch's `DistributedSampler`. "drop" repeats nothing: it
                leaves out the last `len % count` items. "keep" does neither, so some parts have one item more.
                Use it if no rank waits for another, as in an exact evaluation.

        Raises:
            PipelineError: There are no numbers, and nothing says which rank this is, or two answers differ. A
                process that knows no rank is not taken for the only one: 8 of them would all train on everything.
                If it is the only one, write `shard(0, 1)`, or set RANK=0 WORLD_SIZE=1. Or an earlier stage has
                another order in each process (`ordered=False`), or other items (`on_error`).

        Order:
            All ranks must describe the same order: put `shard` behind `shuffle`, with one seed for all ranks.
            Then W ranks with batches of b items train on the same items in each step as W' ranks with batches of
            b', if W * b = W' * b'. Items keep their ordinals. So the random numbers of a `map` do not depend on
            the number of ranks, and no two ranks draw the same ones. A `filter`, `flat_map` or `on_error` behind
            `shard` may still give the ranks different numbers of items.

        Memory:
            Items that can be reached by number are dealt out before they are read, also if `load`, `map` or
            `batch` is before `shard`. So no process reads the items of another. Behind `batch` it deals out whole
            batches. All other stages before it run in each process for all items. "pad" then keeps the first
            `index` items of an epoch until it ends.

        Example:
            >>> import asyncfeed as af
            >>> [list(af.items(range(10)).shard(rank, 4)) for rank in range(4)]
            [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]
            >>> [list(af.items(range(10)).shard(rank, 4, uneven="drop")) for rank in range(4)]
            [[0, 4], [1, 5], [2, 6], [3, 7]]
        """
        return self.then(Shard(*given_or_found(index, count), uneven))

    # -- state

    @overload
    def scan(self, fn: Callable[[S, T_co], Awaitable[tuple[S, U]]], initial: S) -> Pipeline[U]: ...
    @overload
    def scan(self, fn: Callable[[S, T_co], tuple[S, U]], initial: S) -> Pipeline[U]: ...
    def scan(self, fn: Callable[[Any, Any], Any], initial: Any) -> Pipeline[Any]:
        """Replace each item by the result of a function that carries a state from item to item.

        This is TensorFlow's `scan`.

        Args:
            fn: A function `fn(state, item)` that returns `(next state, result)`. It is called for one item after
                the other, a sync function on a thread, an async one on the loop.
            initial: The state at the start of each epoch that the stage can see. Each epoch gets a copy of it.

        Raises:
            Exception: While the pipeline runs, the exception of `fn`. TypeError if it does not return a pair.

        Order:
            That of the items.

        Example:
            >>> import asyncfeed as af
            >>> list(af.items([1, 2, 3]).scan(lambda total, x: (total + x, total + x), 0).repeat(2))
            [1, 3, 6, 1, 3, 6]
        """
        return self.then(Scan(fn, initial))

    # -- flow

    def prefetch(self, count: int) -> Pipeline[T_co]:
        """Keep up to `count` items ready at this place. As the last stage it keeps them for the consumer.

        Example:
            >>> import asyncfeed as af
            >>> list(af.items(range(3)).prefetch(8))
            [0, 1, 2]
        """
        return self.then(Prefetch(count))

    def in_processes(self, count: int | None = None) -> Pipeline[T_co]:
        """Call the sync functions of `load` and `map` before it in worker processes: `on="process"` for each.

        Stages behind each other are called together. So a process reads the files, calls the functions and stacks
        the batch, and only whole batches come back, in shared memory. It is for functions that hold the GIL.

        Args:
            count: Number of processes for each run of such stages. None is one for each core, or the
                `concurrency` of a stage.

        Raises:
            PipelineError: No such stage is before it, a function cannot be sent to another process, or files are
                of an object store.

        Example:
            >>> import asyncfeed as af
            >>> import math
            >>> af.items([1, 4, 9]).map(math.sqrt).batch(3).in_processes(1)
            items([1, 4, 9]).map(sqrt, concurrency=1, on='process').batch(3)
        """
        return Pipeline(self.source, tuple(in_processes(self.stages, count)))

    # -- keeping

    def cache(
        self, folder: str | os.PathLike[str], *, max_bytes: Size | None = None, version: str | None = None
    ) -> Pipeline[T_co]:
        """Keep what is read or made, for later epochs and runs: in a folder of the local disk, or in memory.

        Directly behind `files(...)` it keeps the files as they are; shuffle after it. Behind `load` and `map` it
        keeps samples: what these stages make of one item. Then neither are the files read again, nor the functions
        called.

        Args:
            folder: A folder that belongs to you, and that only you can write to. It is made if it is not there.
                Any number of pipelines and processes may share it. Or "memory": samples are kept by this process,
                as long as this pipeline lives, or one that is made of it.
            max_bytes: Most bytes that are kept: a number, or text such as "200 GB". None is as many as the disk
                has, except for a twentieth of it. "memory" needs a number.
            version: A name for what your own functions do. Change it when they change. A folder needs it behind
                `map`, and behind `load` with a decoder of your own.

        Raises:
            PipelineError: It stands where it can keep nothing: behind a batch, or behind a function that is async,
                or runs in processes, or draws random numbers. Or a `version` is missing.
            PermissionError: While the pipeline runs: another user could write to the folder.
            TypeError: While the pipeline runs: a sample holds something else than arrays, numbers, text and bytes,
                in tuples, lists and dicts; or items of something else come in.

        Order:
            The items stay as they are.

        Memory:
            A folder holds nothing in memory. Files are read from it straight into a `batch`, as local files are.
            "memory" takes `max_bytes` beside the memory limit of a run, and a sample is copied each time. If a
            cache is full, it keeps what it has, and the rest is made again in each epoch. `feed.stats()` counts
            hits and misses. docs/storage.md says what an entry is found by, and what happens if a disk fails.

        Example:
            >>> import asyncfeed as af
            >>> calls = []
            >>> def square(number):
            ...     calls.append(number)
            ...     return number * number
            >>> kept = af.items(range(4)).map(square).cache("memory", max_bytes="1 MB")
            >>> list(kept), sorted(kept.shuffle(seed=7)), sorted(calls)
            ([0, 1, 4, 9], [0, 1, 4, 9], [0, 1, 2, 3])
        """
        place = os.fspath(folder)
        return self.then(Cache(place if place == MEMORY else os.path.abspath(place), max_bytes, version))  # noqa: PTH100

    # -- what functions need

    def using(self, **factories: Callable[[], Any]) -> Pipeline[T_co]:
        """Open something for each run: a client, a session of a database, a model.

        The functions of later stages get it, if they have a parameter of its name behind the first one. All of
        them get the same object. It is opened before the first item is drawn, and closed after the last function
        has returned, however the run ends. A loop over all items ends after it was closed.

        Args:
            **factories: Functions without arguments that return a context manager, by name. An async one is
                entered and left on the run's loop, by one task. Any other is entered and left on threads.

        Raises:
            PipelineError: A factory is no function, or a function for `on="process"` asks for one.
            TypeError: While the pipeline runs: a factory returned no context manager. What a factory or a context
                manager raises ends the run.

        Order:
            Several are opened in this order, and closed in the opposite order.

        Example:
            >>> import asyncfeed as af, contextlib
            >>> @contextlib.asynccontextmanager
            ... async def database():
            ...     print("open")
            ...     yield {1: "one", 2: "two"}
            ...     print("closed")
            >>> async def find(key, database):
            ...     return database[key]
            >>> list(af.items([1, 2]).using(database=database).map(find))
            open
            closed
            ['one', 'two']
        """
        return self.then(Using(tuple(Resource(name, factory) for name, factory in factories.items())))

    # -- stages of your own

    def apply(self, fn: Callable[[Pipeline[T_co]], Pipeline[U]]) -> Pipeline[U]:
        """Return `fn(pipeline)`: several stages under one name, in the order of the other calls.

        Args:
            fn: A function that gets this pipeline and returns another one.

        Raises:
            PipelineError: `fn` returns something else.

        Example:
            >>> import asyncfeed as af
            >>> def in_pairs(pipeline):
            ...     return pipeline.shuffle(seed=1).batch(2)
            >>> af.items(range(4)).apply(in_pairs)
            items(range(0, 4)).shuffle(seed=1).batch(2)
        """
        made = fn(self)
        if not isinstance(made, Pipeline):
            raise PipelineError(f"apply: the function must return a pipeline, not {made!r}")
        return made

    def then(self, node: Node) -> Pipeline[Any]:
        """Add a stage of your own. Every other method adds its stage in this way.

        Args:
            node: The stage. `asyncfeed.stages` has what a stage is made of; `docs/extending.md` shows how to write
                one.

        Example:
            >>> import asyncfeed as af
            >>> from asyncfeed.stages.take import Take
            >>> list(af.items(range(5)).then(Take(2)))
            [0, 1]
        """
        node = with_resources(node.after(self.source, self.stages), self.stages)
        return Pipeline(self.source, (*self.stages, node))
