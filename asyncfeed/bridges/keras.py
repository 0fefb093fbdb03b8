"""`to_keras`: a pipeline as what Keras' `fit`, `evaluate` and `predict` read.

Keras asks a `DataAdapter` for batches: a `tf.data.Dataset` with the TensorFlow backend, an iterable with the
others. Each pass is a run of the pipeline, one epoch after the other; each batch is read once, though Keras builds
an unbuilt model with a first batch that it then lets go of (see `Passes`).

The class that adapters derive from is not in Keras' public interface, so `adapter_class` looks for it where it is
in Keras 3 and says so where it is not.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from asyncfeed.bridges.offer import Offer, OpenRun
from asyncfeed.errors import PipelineError
from asyncfeed.stacking.foreign import is_foreign, to_array
from asyncfeed.trees import map_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from asyncfeed.feed import Feed
    from asyncfeed.pipeline import Pipeline
    from asyncfeed.sizes import Size

LET_GO = "Keras let go of the iterator"
AHEAD = 4
"""How many batches may be on their way to Keras when it lets go of the first."""
END: Any = object()


class Attempt(OpenRun):
    """A run that Keras may only build its model with; then the next pass goes on with it, from its first batch.

    A bridge that lets go of it may be in the middle of drawing, on a thread of its own: what is drawn for nobody
    is kept for whoever comes next. To that bridge this is the run.
    """

    def __init__(self, run: OpenRun, items: Iterator[Any]) -> None:
        super().__init__(run.feed)
        self.run = run
        self.drawn = 0
        self._items = items
        self._lock = threading.Lock()
        self._kept: deque[Any] = deque()
        self._taken_over = self._let_go = self._decided = False

    def read(self) -> Iterator[Any]:
        """Yield the items for the bridge that is first, until another takes over."""
        while True:
            with self._lock:
                item = next(self._items, END)
                if item is END:
                    return
                self.drawn += 1
                if self._taken_over or self.drawn <= AHEAD:
                    self._kept.append(item)
                if self._taken_over:
                    return
            yield item
            del item

    def read_again(self) -> Iterator[Any]:
        """Yield the items from the first."""
        while True:
            with self._lock:
                item = self._kept.popleft() if self._kept else next(self._items, END)
            if item is END:
                return
            yield item
            del item

    def stop(self, reason: str) -> None:
        """Stop the run, where no other pass can want it; the first bridge lets go."""
        self._let_go = True
        if not self._taken_over and (self._decided or self.drawn > AHEAD):
            super().stop(reason)
            self.trainer_ended()

    def trainer_ended(self) -> None:
        """Note that the trainer is done, where no other pass can want the run."""
        if not self._taken_over and (self._decided or self.drawn > AHEAD):
            super().trainer_ended()

    def take_over(self) -> bool:
        """Keep the run for another pass; return whether all that was drawn is still there."""
        with self._lock:
            self._taken_over = self.drawn <= AHEAD
        return self._taken_over

    def decide(self) -> None:
        """Note that this is a pass as any other."""
        self._decided = True
        if self._let_go:
            self.stop(LET_GO)


@dataclass(eq=False, repr=False)
class Passes(Offer):
    """The runs of a pipeline, as Keras goes through them.

    With a model, loss or metric that is not built, Keras asks for the length, begins an epoch, takes one batch,
    forgets the iterator, asks for the length again and reports the end of an epoch. A pass of training or
    evaluation begins after a reported end instead. So a pass that begins right after a question is an attempt, and
    becomes the first pass if a question and an end follow.
    """

    _feeds: weakref.WeakSet[Feed[Any]] = field(default_factory=weakref.WeakSet, init=False)
    _asked: bool = field(default=False, init=False)
    _tentative: bool = field(default=False, init=False)
    _attempt: Attempt | None = field(default=None, init=False)
    _again: Attempt | None = field(default=None, init=False)

    def asked(self) -> None:
        """Note that Keras asks for the length."""
        self._asked = True

    def begins(self) -> None:
        """Note that Keras begins an epoch."""
        self._tentative, self._asked = self._asked, False
        self._decide()

    def ends(self) -> None:
        """Note that Keras reports the end of an epoch."""
        attempt = self._attempt
        if self._asked and attempt is not None and attempt.take_over():
            self._again, self._attempt = attempt, None
        self._asked = False
        self._decide()

    def open(self) -> tuple[OpenRun, Iterator[Any]]:
        """Return the next run, and its items from the first."""
        again, self._again = self._again, None
        if again is not None:
            return again.run, again.read_again()
        run, items = super().open()
        if not self._tentative:
            return run, items
        self._tentative = False
        self._attempt = attempt = Attempt(run, items)
        return attempt, attempt.read()

    def withdraw(self) -> None:
        """Stop every run; a later pass starts anew."""
        self._attempt = self._again = None
        self._begun.clear()
        for feed in list(self._feeds):
            feed.stop("the adapter was closed")

    def _decide(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.decide()

    def _open(self) -> Feed[Any]:
        feed = super()._open()
        self._feeds.add(feed)
        return feed


class ClassWeights:
    """Makes (x, y, weights) of (x, y), the weights by the classes in y: numbers, or one-hot in its last axis."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        if any(not isinstance(each, int | np.integer) or each < 0 for each in weights):
            raise PipelineError(
                f"to_keras: class_weight maps class numbers from 0 on to weights, as in {{0: 1.0, 1: 5.0}}, "
                f"not {weights!r}"
            )
        self._table = np.ones(max(weights, default=0) + 1, np.float32)  # none: all weigh the same, as in Keras
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
    return adapter_class()(Passes(pipeline, on_open, memory_limit, "to_keras"), output_signature)


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

        def __init__(self, passes: Passes, signature: Any = None) -> None:
            self._passes = passes
            self._signature = signature
            self._dataset: Any = None
            self._size = passes.pipeline.size()
            weakref.finalize(self, passes.withdraw).atexit = False

        # -- what Keras asks

        @property
        def num_batches(self) -> int | None:
            """How many batches a pass has, where that is known before."""
            self._passes.asked()
            return self._size

        @property
        def batch_size(self) -> int | None:
            """Not known before a batch is read."""
            return None

        @property
        def has_partial_batch(self) -> bool | None:
            """Not known."""
            return None

        @property
        def partial_batch_size(self) -> int | None:
            """Not known."""
            return None

        def on_epoch_begin(self) -> None:
            """Take note."""
            self._passes.begins()

        def on_epoch_end(self) -> None:
            """Take note; Keras calls it at other times, too."""
            self._passes.ends()

        # -- what Keras reads

        def get_tf_dataset(self) -> Any:
            """Return a dataset, each iteration of which is a pass."""
            if self._dataset is None:
                from asyncfeed.bridges.tf_data import dataset_over

                self._dataset = dataset_over(self._passes, self._passes.pipeline, self._signature)
            return self._dataset

        def get_numpy_iterator(self) -> Iterator[Any]:
            """Yield the batches of a pass."""
            return _run(self._passes, lambda batch: batch)

        def get_jax_iterator(self) -> Iterator[Any]:
            """Yield the batches of a pass; JAX takes numpy's arrays and its own."""
            return _run(self._passes, lambda batch: map_leaves(_for_jax, batch))

        def get_torch_dataloader(self) -> Any:
            """Return an iterable of batches of tensors, each iteration of which is a pass."""
            return _TorchBatches(self._passes)

        # -- what users may

        def close(self) -> None:
            """Stop what runs; a later pass starts anew."""
            self._passes.withdraw()

        def __enter__(self) -> Self:
            """Return itself."""
            return self

        def __exit__(self, *_: object) -> None:
            """Close."""
            self.close()

        def __repr__(self) -> str:
            """Return the call that makes it."""
            return f"{self._passes.pipeline!r}.to_keras()"

    return KerasData


class _TorchBatches:
    """Batches of tensors that share their memory with numpy's arrays."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes

    def __iter__(self) -> Iterator[Any]:
        import torch

        def tensor(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return leaf
            array = np.asarray(leaf)
            return leaf if array.dtype.kind in "OSUV" else torch.from_numpy(array)

        return _run(self._passes, lambda batch: map_leaves(tensor, batch))


def _for_jax(leaf: Any) -> Any:
    """Return a leaf that JAX takes: tensors of torch and TensorFlow as arrays."""
    if not is_foreign(leaf) or type(leaf).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return leaf
    return to_array(leaf, "a leaf".__str__)


def _run(passes: Passes, convert: Callable[[Any], Any]) -> Iterator[Any]:
    run, items = passes.open()
    try:
        for item in items:
            yield convert(item)
    finally:
        run.stop(LET_GO)
