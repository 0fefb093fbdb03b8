"""The part of `Pipeline` that calls functions: decoders, and functions of the user."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar, overload

from asyncfeed.attempts.skip import OnError
from asyncfeed.batching import Batching, Unknown
from asyncfeed.functions.sending import On
from asyncfeed.stages.filter import Filter
from asyncfeed.stages.flat_map import FlatMap
from asyncfeed.stages.interleave import Interleave
from asyncfeed.stages.load import Load
from asyncfeed.stages.map import Map
from asyncfeed.stages.steps import Concurrency

if TYPE_CHECKING:
    import numpy as np

    from asyncfeed.attempts.retry import Hedge, Retry
    from asyncfeed.formats.base import Decoder
    from asyncfeed.pipeline import Pipeline
    from asyncfeed.reading.file import File

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
Auto = Literal["auto"]
K = TypeVar("K")


class Calling(Batching[T_co]):
    """The part of `Pipeline` that reads files and calls functions."""

    __slots__ = ()

    @overload
    def load(
        self: Calling[Unknown], decoder: Decoder[Any] | Callable[[bytes], Any], *,
        concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ..., retry: Retry | Auto | None = ...,
        timeout: float | Auto | None = ..., hedge: Hedge = ..., on: On = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    @overload
    def load(
        self: Calling[File], decoder: Decoder[U], *,
        concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ..., retry: Retry | Auto | None = ...,
        timeout: float | Auto | None = ..., hedge: Hedge = ..., on: On = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def load(
        self: Calling[File], decoder: Callable[[bytes], Awaitable[U]], *,
        concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ..., retry: Retry | Auto | None = ...,
        timeout: float | Auto | None = ..., hedge: Hedge = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def load(
        self: Calling[File], decoder: Callable[[bytes], U], *,
        concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ..., retry: Retry | Auto | None = ...,
        timeout: float | Auto | None = ..., hedge: Hedge = ..., on: On = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def load(
        self: Calling[dict[K, Any]], decoder: Decoder[Any] | Callable[[bytes], Any], *,
        concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ..., retry: Retry | Auto | None = ...,
        timeout: float | Auto | None = ..., hedge: Hedge = ..., on: On = ...,
    ) -> Pipeline[dict[K, Any]]: ...  # fmt: skip
    @overload
    def load(
        self, decoder: Decoder[Any] | Callable[[bytes], Any], *,
        concurrency: Concurrency = ..., ordered: bool = ...,
        on_error: OnError = ..., skip_limit: float | None = ..., retry: Retry | Auto | None = ...,
        timeout: float | Auto | None = ..., hedge: Hedge = ..., on: On = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    def load(
        self,
        decoder: Decoder[Any] | Callable[[bytes], Any],
        *,
        concurrency: Concurrency = "auto",
        ordered: bool = True,
        on_error: OnError = "raise",
        skip_limit: float | None = None,
        retry: Retry | Auto | None = "auto",
        timeout: float | Auto | None = "auto",
        hedge: Hedge = "auto",
        on: On = "thread",
    ) -> Pipeline[Any]:
        """Read and decode each `File` in the items, with many reads in flight.

        If an item is a tree, each file in it is loaded. Leaves that are not files stay as they are.

        Args:
            decoder: A decoder (`npy`, `npz`, `raw(...)`, `text`, `json`), or a function of the bytes. A sync
                function runs on threads, an async one on the loop.
            concurrency: Number of reads at a time. "auto" finds it.
            ordered: False sends results as they finish.
            on_error: "raise" ends the run at an item that fails, "skip" leaves the item out. See `map`.
            skip_limit: Number of items that may be left out, or a rate if it is below 1. It counts over the whole
                run, all epochs together.
            retry: A `Retry`: repeats reads from an object store that failed. "auto" is what the store says, None
                is one attempt. Reads of local files are not repeated.
            timeout: Seconds that a request to an object store, or a read of an async filesystem of fsspec, may
                take, beside the time for its bytes. "auto" is what the store says, None is no limit.
            hedge: Seconds after which a request to an object store is made once more if it has not been
                answered. "auto" is what the store says, None is never. See `map`.
            on: "thread", or "process": worker processes read and decode the files. It is for decoders that hold
                the GIL, such as `json` or a function in Python, and for a training loop that holds it. See
                `Processes` of `map`. Files of an object store are refused, because the loop reads them.

        Raises:
            Exception: While the pipeline runs, the exception of the read or of the decoder, with a note that names
                the file. For `on="process"`, its cause is the traceback in the process, as text.
            RuntimeError: Two processes died at this item, one after the other.

        Order:
            That of the items, unless `ordered=False`.

        Memory:
            An item is counted with the file's size before it is read. With `npy`, `raw(...)` and uncompressed
            `npz`, files are read straight into the `batch` that follows (and its `pad`, except for `npz`), without
            a separate array for each sample. `take`, `skip`, `repeat` and `prefetch` may stand between. A stage
            that needs the samples, such as `map`, prevents this, and so do `on_error="skip"` and `ordered=False`.

        Example:
            >>> import asyncfeed as af, pathlib, tempfile
            >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
            >>> _ = path.write_text("hello")
            >>> list(af.files(str(path)).load(af.text))
            ['hello']
        """
        return self._pipeline.then(
            Load(
                decoder, concurrency=concurrency, ordered=ordered, on_error=on_error, skip_limit=skip_limit,
                retry=retry, timeout=timeout, hedge=hedge, on=on,
            )
        )  # fmt: skip

    @overload
    def map(
        self, fn: Callable[[T_co], Awaitable[U]], *, concurrency: Concurrency = ..., ordered: bool = ...,
        rng: Literal[False] = ..., seed: int = ..., on_error: OnError = ..., skip_limit: float | None = ...,
        retry: Retry | None = ..., timeout: float | None = ..., hedge: Hedge = ...,
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
        skip_limit: float | None = ..., retry: Retry | None = ..., timeout: float | None = ..., hedge: Hedge = ...,
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
        retry: Retry | None = None,
        timeout: float | None = None,
        hedge: Hedge = None,
    ) -> Pipeline[Any]:
        """Replace each item by `fn(item)`. A sync function runs on threads, an async one on the loop.

        Args:
            fn: A function of the item, and of a random generator if `rng=True`.
            concurrency: Number of calls at a time. "auto" finds it. For `on="process"` it is the number of
                processes, and "auto" is one for each core.
            ordered: False sends results as they finish.
            rng: True calls `fn` with the item and a `numpy.random.Generator` made from (seed, epoch, ordinal). The
                numbers are the same at any concurrency.
            seed: The seed of these generators.
            on_error: "raise" ends the run at an item that fails, with its own exception. "skip" leaves the item
                out.
            skip_limit: Number of items that "skip" may leave out, or a rate if it is below 1. It counts over the
                whole run, all epochs together.
            retry: A `Retry`: repeats a call of an async function that failed. Until its last attempt has ended,
                the item counts as one call.
            timeout: Seconds that a call of an async function may take. Then it is cancelled, and has failed with
                `TimedOut`.
            hedge: Seconds after which an item whose call has not returned is called once more, and again after as
                long, up to 3 times. The call that returns first counts, and the others are cancelled. "auto" finds
                a time that 95 % of calls keep. At most 5 % more calls are made. For async functions that may run
                more than once at a time.
            on: "thread", or "process" for a sync function that computes in Python. Such functions run one at a
                time on threads, because of the GIL.

        Raises:
            Exception: While the pipeline runs, the exception of `fn`, after all items before the one that failed.
                For `on="process"`, the cause of the exception is the traceback in the process, as text.
            RuntimeError: Two processes died at this item, one after the other.
            TimedOut: The last call for an item took longer than `timeout`.

        Order:
            That of the items at any `concurrency`, unless `ordered=False`. Processes change neither order nor
            random numbers.

        Memory:
            Beside `memory_limit`, each process holds one group of items (10 ms of work, or 1 MB) and its results.
            It also keeps up to 32 MB of shared memory for further results, or the memory of four results if they
            are larger, and up to 16 MB between runs.

        Processes:
            A function at the top level of a module is imported in the process. Any other function (a lambda, one
            of a notebook or of the main script) is sent by value, with the variables it uses. That needs `pip
            install cloudpickle`. Without it, a main script that holds the function needs `if __name__ ==
            "__main__":`.

            Items and results are pickled, except arrays. Arrays go through shared memory, and may be kept and
            written to. An array of an item is copied twice on its way. An array of a result is copied once if it
            has 64 KB or more, and twice if it is smaller. Numerical libraries in the processes share the cores,
            unless `OMP_NUM_THREADS` or the like is set.

            Processes start when the first items come. That takes 0.2 s and the import of the function's module.
            After the run they are kept for the next run of the same function, for up to five minutes, at most two
            for each core. The next run sends the function again. The variables of its module are as the last run
            left them, as on threads. A process is not used again if a file it imported, the environment or the
            working directory has changed. A process whose function hangs is killed after the `grace`.

            If a process dies (a crash, `os._exit`, a kill because memory ran out), another one goes on with its
            items. The item at which it died is called again. If a second process dies at it, that item has failed.
            `on_error` may leave it out. The log names each death, and `stats()` counts them. If two processes in a
            row die while they start, the run ends.

        Example:
            >>> import asyncfeed as af
            >>> list(af.items(range(4)).map(lambda x: x * x))
            [0, 1, 4, 9]
            >>> import math
            >>> list(af.items([1, 4, 9]).map(math.sqrt, on="process", concurrency=1))
            [1.0, 2.0, 3.0]
        """
        return self._pipeline.then(
            Map(
                fn, concurrency=concurrency, ordered=ordered, rng=rng, seed=seed,
                on_error=on_error, skip_limit=skip_limit, on=on, retry=retry, timeout=timeout,
                hedge=hedge,
            )
        )  # fmt: skip

    def map_batches(
        self, fn: Callable[[Any], Any], size: int, *, concurrency: Concurrency = "auto", on: On = "thread"
    ) -> Pipeline[Any]:
        """Call a function for each `size` samples at once, and go on with single samples.

        It is `batch(size).map(fn).unbatch()`, for functions that take many samples as fast as one, such as a
        tokenizer or a model. The last batch of an epoch may be smaller.

        Args:
            fn: A function of a batch, sync or async, that returns a tree of arrays. It may return another number
                of rows.
            size: Number of samples in a batch.
            concurrency: Number of calls at a time. "auto" finds it.
            on: "thread" or "process", as for `map`.

        Example:
            >>> import asyncfeed as af
            >>> [int(x) for x in af.items(range(5)).map_batches(lambda batch: batch * 10, 2)]
            [0, 10, 20, 30, 40]
        """
        return self.batch(size).map(fn, concurrency=concurrency, on=on).unbatch()

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
        """Keep the items for which `fn(item)` is true.

        Args:
            fn: A function of the item, sync or async.
            concurrency: Number of calls at a time. "auto" finds it.
            ordered: False sends items as their calls finish.
            on_error: "raise" or "skip", as for `map`.
            skip_limit: Number of items that "skip" may leave out, as for `map`. It counts over the whole run, all
                epochs together.

        Example:
            >>> import asyncfeed as af
            >>> list(af.items(range(5)).filter(lambda x: x % 2))
            [1, 3]
        """
        return self._pipeline.then(
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
        """Replace each item by the elements of `fn(item)`.

        Args:
            fn: A function of the item that returns an iterable or an async iterable. The function may be async. A
                decoder such as `lines` is allowed, too. With `tar(indexed=True)`, the samples are reached by
                number: then `shuffle` and `split` may follow and are exact over all files, each sample is read by
                itself, and the other options are for samples, not for files.
            concurrency: Number of items that are open at a time. "auto" finds it.
            ordered: False sends elements as they are ready.
            on_error: "raise" or "skip", as for `map`.
            skip_limit: Number of items that "skip" may leave out, as for `map`. It counts over the whole run, all
                epochs together.

        Memory:
            The first open item in order streams its elements. Each other open item holds a bounded number of
            elements.

        Example:
            >>> import asyncfeed as af
            >>> list(af.items([1, 2, 3]).flat_map(range))
            [0, 0, 1, 0, 1, 2]
        """
        return self._pipeline.then(
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
        """Replace each item by the elements of `fn(item)`, taking turns between `cycle` items.

        This is TensorFlow's `interleave`. Shards are read side by side, so their samples mix.

        Args:
            fn: A function of the item that returns its elements, as for `flat_map`.
            cycle: Number of items that take turns.
            block: Number of elements in a turn.
            on_error: "raise" or "skip", as for `map`.
            skip_limit: Number of items that "skip" may leave out, as for `map`. It counts over the whole run, all
                epochs together.

        Raises:
            Exception: While the pipeline runs, the exception of `fn`, after all elements before it in this order.

        Order:
            The order does not depend on timing. An item without more elements ends its turn. The next item of the
            input takes its place when its turn comes again. Elements of two passes of a `repeat` are not mixed.

        Memory:
            `cycle` items are open and two are opened ahead. Each holds a bounded number of elements.

        Example:
            >>> import asyncfeed as af
            >>> list(af.items(["abc", "de", "fgh"]).interleave(list, cycle=2))
            ['a', 'd', 'b', 'e', 'c', 'f', 'g', 'h']
        """
        return self._pipeline.then(
            Interleave(fn, cycle=cycle, block=block, on_error=on_error, skip_limit=skip_limit)
        )
