"""Pipeline: the description of what is read, and how it becomes batches."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar, overload

from asyncfeed.batching import Batching, Unknown
from asyncfeed.outputs import Outputs
from asyncfeed.stages.base import Node
from asyncfeed.stages.enumerate import Enumerate
from asyncfeed.stages.filter import Filter
from asyncfeed.stages.flat_map import FlatMap
from asyncfeed.stages.interleave import Interleave
from asyncfeed.stages.load import Load
from asyncfeed.stages.map import Map, On
from asyncfeed.stages.prefetch import Prefetch
from asyncfeed.stages.repeat import Repeat
from asyncfeed.stages.shuffle import Shuffle
from asyncfeed.stages.split import split_stages
from asyncfeed.stages.steps import Concurrency, OnError
from asyncfeed.stages.take import Skip, Take

if TYPE_CHECKING:
    import numpy as np

    from asyncfeed.formats.base import Decoder
    from asyncfeed.reading.file import File

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
K = TypeVar("K")


class Pipeline(Outputs, Batching[T_co]):
    """A description of an input pipeline; nothing is read before it is opened or iterated.

    Immutable: each method returns a new pipeline, so a prefix can be shared. Two pipelines are equal if they are
    written the same. Iterating one runs it once, `for` on a background thread, `async for` on the caller's loop;
    `open` gives the run to hold. Iterating it again repeats epoch 0, with the same order and random numbers. To
    train for several epochs use `epochs(n)`.

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
        """Put the items of each epoch in a random order, another one each epoch.

        Without `buffer`: an exact permutation, computed and not stored, of a source whose items can be reached
        by number (files, sequences, arrays, and what only rearranges them). No memory, no start-up time.
        With it: a stream through a buffer of so many items, as TensorFlow's `Dataset.shuffle`.

        Order: `seed`, the epoch and the number of random stages before this one decide it, so it is the same in
        every program. Iterating a pipeline again is epoch 0 again: `epochs(n)` counts them. With `reshuffle=False`
        all epochs have the order of epoch 0.

        Raises:
            PipelineError: there is no `buffer` and the items cannot be reached by number.

        >>> import asyncfeed as af
        >>> sorted(af.items(range(5)).shuffle(seed=1))
        [0, 1, 2, 3, 4]
        """
        return self.then(Shuffle(seed=seed, buffer=buffer, reshuffle=reshuffle))

    def repeat(self, count: int | None = None) -> Pipeline[T_co]:
        """Go through everything above `count` times, or for ever.

        Stages above see where an epoch ends, stages below do not: `repeat().batch()` makes batches across
        epochs, `batch().repeat()` does not. Reading ahead never pauses between epochs.

        Raises:
            PipelineError: the source is an iterator, which can be read only once.

        >>> import asyncfeed as af
        >>> [batch.tolist() for batch in af.items(range(3)).batch(2).repeat(2)]
        [[0, 1], [2], [0, 1], [2]]
        """
        return self.then(Repeat(count))

    def take(self, count: int) -> Pipeline[T_co]:
        """Keep the first `count` items of each epoch.

        After a `shuffle` these are other items in each epoch. For a part that stays the same, see `split`, or use
        `shuffle(reshuffle=False)`.

        >>> import asyncfeed as af
        >>> list(af.items(range(5)).take(2))
        [0, 1]
        """
        return self.then(Take(count))

    def skip(self, count: int) -> Pipeline[T_co]:
        """Leave out the first `count` items of each epoch.

        After a `shuffle` these are other items in each epoch; see `take`.

        >>> import asyncfeed as af
        >>> list(af.items(range(5)).skip(3))
        [3, 4]
        """
        return self.then(Skip(count))

    def enumerate(self, start: int = 0) -> Pipeline[tuple[int, T_co]]:
        """Pair each item with its number in the epoch.

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
        """Return parts that share no item in any epoch and are everything together: `split(0.8, 0.2)`.

        Without a `key`, items that can be reached by number are dealt out exactly, in a random order that `seed`
        decides and that never changes; shuffle a part for another order in each epoch. The items of a stream are
        dealt out by their ordinal, so the shares are kept on average.

        With a `key`, each item goes where `seed` and a hash of `key(item)` say: text, bytes, a whole number, a
        path, or a tuple of them. An item keeps its part when the list grows. Items with one key stay together: all
        images of one patient, say. The shares are kept on average, and the order is that of the source. If the
        items can be reached by number without calling your code, they are all asked for their keys here.

        Raises:
            PipelineError: the shares do not make 1, or without a `key` the stages before give an item another
                place in each epoch (`shuffle`) or none of its own (`repeat`, `batch`).

        >>> import asyncfeed as af
        >>> train, test = af.items(range(10)).split(0.8, 0.2, seed=1)
        >>> len(train), sorted([*train, *test])
        (8, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
        >>> train.shuffle(seed=1)
        items(range(0, 10)).split(0.8, 0.2, seed=1)[0].shuffle(seed=1)
        """
        parts = split_stages(self.source, self.stages, shares, seed, key)
        return tuple(Pipeline(self.source, stages) for stages in parts)

    # -- work

    @overload
    def load(
        self: Pipeline[Unknown], decoder: Decoder[Any] | Callable[[bytes], Any], *,
        concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    @overload
    def load(
        self: Pipeline[File], decoder: Decoder[U], *,
        concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def load(
        self: Pipeline[File], decoder: Callable[[bytes], Awaitable[U]], *,
        concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def load(
        self: Pipeline[File], decoder: Callable[[bytes], U], *,
        concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def load(
        self: Pipeline[dict[K, Any]], decoder: Decoder[Any] | Callable[[bytes], Any], *,
        concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[dict[K, Any]]: ...  # fmt: skip
    @overload
    def load(
        self, decoder: Decoder[Any] | Callable[[bytes], Any], *,
        concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    def load(
        self,
        decoder: Decoder[Any] | Callable[[bytes], Any],
        *,
        concurrency: Concurrency = "auto",
        ordered: bool = True,
        on_error: OnError = "raise",
        skip_limit: float | None = None,
    ) -> Pipeline[Any]:
        """Read each `File` in the items and decode it: many reads in flight, results in order.

        `decoder` is one of ours (`npy`, `npz`, `raw(...)`, `text`, `json`) or any function of the bytes. In a
        tree of files every file is loaded; what is no file stays as it is.

        With `npy`, `raw(...)` and uncompressed `npz`, a `batch` (and its `pad`, but for `npz`) that follows is
        read into: no sample exists on its own. `take`, `skip`, `repeat` and `prefetch` may stand between; a
        `map`, and what else needs the samples, ends that, and so does `on_error="skip"` or `ordered=False`.

        Memory: an item is counted with the file's size before it is read. Errors: what reading or decoding
        raises, naming the file. For `on_error` see `map`. `skip_limit` counts over the whole run, all epochs
        together.

        >>> import asyncfeed as af, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
        >>> _ = path.write_text("hello")
        >>> list(af.files(str(path)).load(af.text))
        ['hello']
        """
        return self.then(
            Load(decoder, concurrency=concurrency, ordered=ordered, on_error=on_error, skip_limit=skip_limit)
        )

    @overload
    def map(
        self, fn: Callable[[T_co], Awaitable[U]], *, concurrency: Concurrency = ..., ordered: bool = ...,
        rng: Literal[False] = ..., seed: int = ..., on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def map(
        self, fn: Callable[[T_co], U], *, concurrency: Concurrency = ..., ordered: bool = ...,
        rng: Literal[False] = ..., seed: int = ..., on_error: OnError = ..., skip_limit: float | None = ...,
        on: On = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def map(
        self, fn: Callable[[T_co, np.random.Generator], Awaitable[U]], *, concurrency: Concurrency = ...,
        ordered: bool = ..., rng: Literal[True], seed: int = ..., on_error: OnError = ...,
        skip_limit: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def map(
        self, fn: Callable[[T_co, np.random.Generator], U], *, concurrency: Concurrency = ...,
        ordered: bool = ..., rng: Literal[True], seed: int = ..., on_error: OnError = ...,
        skip_limit: float | None = ..., on: On = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    def map(
        self,
        fn: Callable[..., Any],
        *,
        concurrency: Concurrency = "auto",
        ordered: bool = True,
        rng: bool = False,
        seed: int = 0,
        on_error: OnError = "raise",
        skip_limit: float | None = None,
        on: On = "thread",
    ) -> Pipeline[Any]:
        """Replace each item by `fn(item)`; a sync function runs on threads, an async one on the loop.

        Order: that of the items, whatever `concurrency` (how many calls at a time; "auto" finds it);
        `ordered=False` hands results on as they come. With `rng=True` the function is called with the item and
        a `numpy.random.Generator` made from (seed, epoch, ordinal): the same numbers at any concurrency.

        Errors: by default an item that fails ends the run with its own exception, after all items before it.
        `on_error="skip"` leaves it out instead; `skip_limit` says how many may be (a count, or a rate below 1).
        `skip_limit` counts over the whole run, all epochs together.

        `on="process"` calls a sync function in as many processes as `concurrency` says ("auto": one for each
        core), for functions that compute in Python, which threads do one at a time. A function at the top level of
        a module is imported there. Any other (a lambda, one of a notebook or the main script) is sent by value,
        with the variables it uses, which needs `pip install cloudpickle`; without it, a main script that holds
        the function needs `if __name__ == "__main__":`. Order, random numbers and errors are the same; an
        exception's cause is its traceback there, as text. A process that dies is a `RuntimeError` at the item it
        was at. Items and results are pickled, except arrays: these go through shared memory, with a copy each
        way, and may be kept and written to. Numerical libraries in the processes share the cores, unless
        `OMP_NUM_THREADS` and its like are set. Memory: beside `memory_limit`, each process holds one group of
        items (10 ms of work, or 1 MB) and its results.

        Processes start when the first items come: 0.2 s, and what importing the function's module takes. After
        the run they are kept for the next run of the same function, for up to five minutes, at most two for each
        core. The next run sends the function anew, and the module's variables are as the last run left them, as
        on threads. A process is not used again if a file it imported, the environment or the working directory
        has changed. A process whose function hangs is killed after the `grace`.

        >>> import asyncfeed as af
        >>> list(af.items(range(4)).map(lambda x: x * x))
        [0, 1, 4, 9]
        >>> import math
        >>> list(af.items([1, 4, 9]).map(math.sqrt, on="process", concurrency=1))
        [1.0, 2.0, 3.0]
        """
        return self.then(
            Map(
                fn, concurrency=concurrency, ordered=ordered, rng=rng, seed=seed,
                on_error=on_error, skip_limit=skip_limit, on=on,
            )
        )  # fmt: skip

    @overload
    def filter(
        self, fn: Callable[[T_co], TypeGuard[U]], *, concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def filter(
        self, fn: Callable[[T_co], object], *, concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[T_co]: ...  # fmt: skip
    def filter(
        self,
        fn: Callable[[T_co], object],
        *,
        concurrency: Concurrency = "auto",
        ordered: bool = True,
        on_error: OnError = "raise",
        skip_limit: float | None = None,
    ) -> Pipeline[Any]:
        """Keep the items for which `fn(item)` is true; sync or async, with the options of `map`.

        `skip_limit` counts over the whole run, all epochs together.

        >>> import asyncfeed as af
        >>> list(af.items(range(5)).filter(lambda x: x % 2))
        [1, 3]
        """
        return self.then(
            Filter(fn, concurrency=concurrency, ordered=ordered, on_error=on_error, skip_limit=skip_limit)
        )

    @overload
    def flat_map(
        self, fn: Callable[[T_co], AsyncIterable[U]], *, concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def flat_map(
        self, fn: Callable[[T_co], Iterable[U]], *, concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def flat_map(
        self, fn: Callable[[T_co], Awaitable[Iterable[U]]], *, concurrency: Concurrency = ...,
        ordered: bool = ..., on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    def flat_map(
        self,
        fn: Callable[..., Any],
        *,
        concurrency: Concurrency = "auto",
        ordered: bool = True,
        on_error: OnError = "raise",
        skip_limit: float | None = None,
    ) -> Pipeline[Any]:
        """Replace each item by the elements of `fn(item)`, an iterable or async iterable, as they come.

        `concurrency` items are open at a time; the first in order streams, the others gather a bounded
        number of elements. Options as for `map`. `skip_limit` counts over the whole run, all epochs together.

        >>> import asyncfeed as af
        >>> list(af.items([1, 2, 3]).flat_map(range))
        [0, 0, 1, 0, 1, 2]
        """
        return self.then(
            FlatMap(fn, concurrency=concurrency, ordered=ordered, on_error=on_error, skip_limit=skip_limit)
        )

    @overload
    def interleave(
        self, fn: Callable[[T_co], AsyncIterable[U]], *, cycle: int, block: int = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def interleave(
        self, fn: Callable[[T_co], Iterable[U]], *, cycle: int, block: int = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def interleave(
        self, fn: Callable[[T_co], Awaitable[Iterable[U]]], *, cycle: int, block: int = ...,
        on_error: OnError = ..., skip_limit: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    def interleave(
        self,
        fn: Callable[[T_co], Any],
        *,
        cycle: int,
        block: int = 1,
        on_error: OnError = "raise",
        skip_limit: float | None = None,
    ) -> Pipeline[Any]:
        """Replace each item by the elements of `fn(item)`, `block` of each of `cycle` items by turns.

        As TensorFlow's `interleave`: shards are read side by side, so their samples mix. `fn` as for `flat_map`.

        Order: the same at any speed. An item with no more elements ends its turn, and the next takes its place
        when the turn comes to it again. Memory: `cycle` items are open and two are opened ahead; each holds a
        bounded number of elements. Errors: as for `map`, after all elements before it in this order. `skip_limit`
        counts over the whole run, all epochs together.

        >>> import asyncfeed as af
        >>> list(af.items(["abc", "de", "fgh"]).interleave(list, cycle=2))
        ['a', 'd', 'b', 'e', 'c', 'f', 'g', 'h']
        """
        return self.then(Interleave(fn, cycle=cycle, block=block, on_error=on_error, skip_limit=skip_limit))

    # -- flow

    def prefetch(self, count: int) -> Pipeline[T_co]:
        """Keep up to `count` items ready here; as the last stage, for the consumer.

        >>> import asyncfeed as af
        >>> list(af.items(range(3)).prefetch(8))
        [0, 1, 2]
        """
        return self.then(Prefetch(count))

    # -- stages of your own

    def then(self, node: Node) -> Pipeline[Any]:
        """Add a stage of your own: every method above adds its stage this way.

        What a stage is made of is in `asyncfeed.stages`; `docs/extending.md` shows how.

        >>> import asyncfeed as af
        >>> from asyncfeed.stages.take import Take
        >>> list(af.items(range(5)).then(Take(2)))
        [0, 1]
        """
        return Pipeline(self.source, (*self.stages, node.after(self.source, self.stages)))
