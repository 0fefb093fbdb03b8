"""`to_keras`: a pipeline as data for `fit`, `evaluate` and `predict` of Keras.

Keras asks a `DataAdapter` for batches: a `tf.data.Dataset` with the TensorFlow backend, an iterable with the
others. Each pass is a run of the pipeline, one epoch after the other. Keras builds an unbuilt model with a first
batch and then drops that iterator. Each batch is still read only once (see `KerasRuns`).

The class that adapters derive from is not in Keras' public interface. `adapter_class` looks for it where Keras 3
has it, and raises an error with that reason if it is not there.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from asyncfeed.bridges.run_factory import OpenRun, RunFactory
from asyncfeed.errors import PipelineError
from asyncfeed.stacking.foreign import is_foreign, to_array
from asyncfeed.trees import map_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from asyncfeed.bridges.trained import Trained
    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline
    from asyncfeed.sizes import Size

LET_GO = "Keras let go of the iterator"
MAX_REHEARSED_BATCHES = 4
"""Number of batches that Keras may have drawn when it drops a rehearsal. If it drew more, the rehearsal's run is
not used again, because more batches would have to be kept."""
END: Any = object()


class Rehearsal(OpenRun):
    """A run that Keras may use only to build its model. Then the next pass continues it from its first batch.

    When a bridge drops the rehearsal, a thread of the bridge may be drawing from it. A batch that is drawn then is
    kept for the next pass. The bridge sees the rehearsal as its run.
    """

    def __init__(self, run: OpenRun, items: Iterator[Any]) -> None:
        super().__init__(run.feed, run.place)
        self.run = run
        self.drawn = 0
        self._items = items
        self._lock = threading.Lock()
        self._kept: deque[Any] = deque()
        self._taken_over = self._let_go = self._decided = False

    def read(self) -> Iterator[Any]:
        """Yield the items to the first bridge, until the next pass takes over."""
        while True:
            with self._lock:
                item = next(self._items, END)
                if item is END:
                    return
                self.drawn += 1
                if self._taken_over or self.drawn <= MAX_REHEARSED_BATCHES:
                    self._kept.append(item)
                if self._taken_over:
                    return
            yield item
            del item

    def read_again(self) -> Iterator[Any]:
        """Yield all items, from the first."""
        while True:
            with self._lock:
                item = self._kept.popleft() if self._kept else next(self._items, END)
            if item is END:
                return
            yield item
            del item

    def stop(self, reason: str) -> None:
        """Note that the first bridge drops the run. Stop the run if no other pass can use it."""
        self._let_go = True
        if not self._taken_over and (self._decided or self.drawn > MAX_REHEARSED_BATCHES):
            super().stop(reason)
            self.trainer_ended()

    def trainer_ended(self) -> None:
        """Note that the trainer has ended, if no other pass can use the run."""
        if not self._taken_over and (self._decided or self.drawn > MAX_REHEARSED_BATCHES):
            super().trainer_ended()

    def take_over(self) -> bool:
        """Keep the run for the next pass. Return whether every item that was drawn is still kept."""
        with self._lock:
            self._taken_over = self.drawn <= MAX_REHEARSED_BATCHES
        return self._taken_over

    def decide(self) -> None:
        """Note that this was a pass of training or evaluation and no rehearsal."""
        self._decided = True
        if self._let_go:
            self.stop(LET_GO)


@dataclass(eq=False, repr=False)
class KerasRuns(RunFactory):
    """Makes the runs of a pipeline for Keras, and tells a rehearsal from a pass of training or evaluation.

    If a model, loss or metric is not built, Keras makes these calls: it asks for the length, begins an epoch,
    takes one batch, drops the iterator, asks for the length again and reports the end of an epoch. A pass of
    training or evaluation begins after a reported end instead.

    So a pass that begins right after a question for the length may be a rehearsal. If another question and a
    reported end follow, it was one, and the first pass of training continues its run.
    """

    _feeds: weakref.WeakSet[Feed[Any]] = field(default_factory=weakref.WeakSet, init=False)
    _asked: bool = field(default=False, init=False)
    _tentative: bool = field(default=False, init=False)
    _rehearsal: Rehearsal | None = field(default=None, init=False)
    _again: Rehearsal | None = field(default=None, init=False)

    def asked(self) -> None:
        """Note that Keras asks for the length."""
        self._asked = True

    def begins(self) -> None:
        """Note that Keras begins an epoch."""
        self._tentative, self._asked = self._asked, False
        self._decide()

    def ends(self) -> None:
        """Note that Keras reports the end of an epoch."""
        rehearsal = self._rehearsal
        if self._asked and rehearsal is not None and rehearsal.take_over():
            self._again, self._rehearsal = rehearsal, None
        self._asked = False
        self._decide()

    def open(self) -> tuple[OpenRun, Iterator[Any]]:
        """Return the next run, and an iterator of all its items."""
        again, self._again = self._again, None
        if again is not None:
            return again.run, again.read_again()
        run, items = super().open()
        if not self._tentative:
            return run, items
        self._tentative = False
        self._rehearsal = rehearsal = Rehearsal(run, items)
        return rehearsal, rehearsal.read()

    def withdraw(self) -> None:
        """Stop every run. A later pass starts a new one."""
        self._rehearsal = self._again = None
        self._begun.clear()
        for feed in list(self._feeds):
            feed.stop("the adapter was closed")

    def _decide(self) -> None:
        rehearsal, self._rehearsal = self._rehearsal, None
        if rehearsal is not None:
            rehearsal.decide()

    def _open(self) -> OpenRun:
        run = super()._open()
        self._feeds.add(run.feed)
        return run


class ClassWeights:
    """Adds weights to (x, y). The classes in y decide them: numbers, or one-hot in the last axis."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        if any(not isinstance(each, int | np.integer) or each < 0 for each in weights):
            raise PipelineError(
                f"to_keras: class_weight must map class numbers (0, 1, ...) to weights, as in {{0: 1.0, 1: 5.0}}, "
                f"not {weights!r}"
            )
        self._table = np.ones(max(weights, default=0) + 1, np.float32)  # the default is 1, as in Keras
        self._table[list(weights)] = list(weights.values())

    def __call__(self, batch: Any) -> Any:
        """Return a batch with its weights."""
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError("to_keras: class_weight needs batches (x, y); a third part would be their weights")
        x, given = batch
        y = to_array(given, "y".__str__) if is_foreign(given) else given
        if not isinstance(y, np.ndarray):
            raise ValueError("to_keras: class_weight needs one array of classes, so a model with one output")
        classes = y.argmax(-1) if y.ndim > 1 and y.shape[-1] > 1 else y.reshape(len(y), -1)[:, 0]
        classes = np.rint(classes).astype(np.int64)
        known = (classes >= 0) & (classes < len(self._table))
        return x, given, np.where(known, self._table[np.where(known, classes, 0)], np.float32(1))


def to_adapter(
    pipeline: Pipeline[Any],
    *,
    class_weight: Mapping[int, float] | None = None,
    output_signature: Any = None,
    on_open: Callable[[Feed[Any]], None] | None = None,
    memory_limit: Size | None = None,
) -> Any:
    """Return a pipeline as a Keras `DataAdapter`; see `Pipeline.to_keras`."""
    if class_weight is not None:
        pipeline = pipeline.map(ClassWeights(class_weight))
    return adapter_class()(KerasRuns(pipeline, on_open, memory_limit, "to_keras"), output_signature)


@cache
def adapter_class() -> Any:
    """Return the class of adapters, derived from that of the Keras that is installed."""
    try:
        from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    except ImportError as error:
        import keras

        raise PipelineError(
            f"to_keras: Keras {keras.__version__} has no DataAdapter where Keras 3 has it; use to_tf()"
        ) from error

    class KerasData(DataAdapter):  # type: ignore[misc]
        """The batches of a pipeline, for `fit`, `evaluate` and `predict`; each pass is its next epoch."""

        def __init__(self, runs: KerasRuns, signature: Any = None) -> None:
            self._runs = runs
            self._signature = signature
            self._dataset: Any = None
            self._size = runs.pipeline.size()
            weakref.finalize(self, runs.withdraw).atexit = False

        # -- what Keras asks

        @property
        def num_batches(self) -> int | None:
            """Number of batches in a pass; None if it is not known before."""
            self._runs.asked()
            return self._size

        @property
        def batch_size(self) -> int | None:
            """None: it is not known before a batch is read."""
            return None

        @property
        def has_partial_batch(self) -> bool | None:
            """None: it is not known."""
            return None

        @property
        def partial_batch_size(self) -> int | None:
            """None: it is not known."""
            return None

        def on_epoch_begin(self) -> None:
            """Note the call, which tells a rehearsal from a pass."""
            self._runs.begins()

        def on_epoch_end(self) -> None:
            """Note the call. Keras also makes it at other times than the end of an epoch."""
            self._runs.ends()

        # -- what Keras reads

        def get_tf_dataset(self) -> Any:
            """Return a dataset. Each iteration of it is a pass."""
            if self._dataset is None:
                from asyncfeed.bridges.tf_data import dataset_over

                self._dataset = dataset_over(self._runs, self._runs.pipeline, self._signature)
            return self._dataset

        def get_numpy_iterator(self) -> Iterator[Any]:
            """Yield the batches of a pass."""
            return _run(self._runs, lambda batch: batch)

        def get_jax_iterator(self) -> Iterator[Any]:
            """Yield the batches of a pass, with arrays of NumPy and of JAX."""
            return _run(self._runs, lambda batch: map_leaves(_for_jax, batch))

        def get_torch_dataloader(self) -> Any:
            """Return an iterable of batches of tensors. Each iteration of it is a pass."""
            return _TorchBatches(self._runs)

        # -- what users may call

        @property
        def size(self) -> int | None:
            """Number of batches in a pass; None if it is not known before. Keras does not ask for this."""
            return self._size

        def track(self, trained: Trained) -> None:
            """Count the batches of later passes that are trained on: see `FeedCheckpoint`."""
            self._runs.track(trained)

        def close(self) -> None:
            """Stop the current run. A later pass starts a new one."""
            self._runs.withdraw()

        def __enter__(self) -> Self:
            """Return itself."""
            return self

        def __exit__(self, *_: object) -> None:
            """Close."""
            self.close()

        def __repr__(self) -> str:
            """Return the call that made this adapter."""
            return f"{self._runs.pipeline!r}.to_keras()"

    return KerasData


class _TorchBatches:
    """Batches of tensors that share their memory with NumPy's arrays."""

    def __init__(self, runs: KerasRuns) -> None:
        self._runs = runs

    def __iter__(self) -> Iterator[Any]:
        import torch

        def tensor(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return leaf
            array = np.asarray(leaf)
            return leaf if array.dtype.kind in "OSUV" else torch.from_numpy(array)

        return _run(self._runs, lambda batch: map_leaves(tensor, batch))


def _for_jax(leaf: Any) -> Any:
    """Return the leaf as JAX takes it: a tensor of torch or TensorFlow becomes an array."""
    if not is_foreign(leaf) or type(leaf).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return leaf
    return to_array(leaf, "a leaf".__str__)


def _run(runs: KerasRuns, convert: Callable[[Any], Any]) -> Iterator[Any]:
    run, items = runs.open()
    try:
        for item in items:
            yield convert(item)
    finally:
        run.stop(LET_GO)
