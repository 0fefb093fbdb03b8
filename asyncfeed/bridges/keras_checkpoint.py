"""`FeedCheckpoint`: a Keras callback that saves where training is in its data.

Keras saves weights, and this callback saves the place in the data, in a file of its own. A kill may come between
both. The weights have the number of optimizer steps in them (`optimizer.iterations`). So the file has the places
after several numbers of steps, and the one that belongs to the restored weights is taken. The place is written
before the weights: list this callback before the one that saves weights.
"""

from __future__ import annotations

import json
import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from asyncfeed.bridges.trained import Trained
from asyncfeed.errors import PipelineError, StateError
from asyncfeed.writing.whole import write_whole

KEPT = 8
"""Number of places in the file. Each save of weights needs the last two."""


def FeedCheckpoint(  # noqa: N802 - it makes an object of a class that needs Keras
    data: Any, path: str | os.PathLike[str], *, save_freq: int | str = "epoch"
) -> Any:
    """Return a Keras callback that saves where training is in its data, and goes on there after a crash.

    Use it with `keras.callbacks.BackupAndRestore`, and list it first. Then `fit`, called as before, goes on in the
    middle of an epoch: the model sees the same batches in the same order as without the crash. Batches that Keras
    has drawn and not trained on are drawn again. Keras shows the epoch in which it was, and the rest of its steps.

    Args:
        data: What `to_keras` has returned, and `fit` gets.
        path: The file. It is removed when `fit` has ended, as `BackupAndRestore` removes its files.
        save_freq: The same as for `BackupAndRestore`: "epoch", or a number of batches.

    Returns:
        A callback for `fit(callbacks=[...])`.

    Raises:
        PipelineError: `data` is not of `to_keras`, or has a callback of this kind already.
        StateError: From `fit`: the file has no place for the restored weights, the state is damaged or is of
            another pipeline, or the number of batches is not known. Keras would then take the rest of an epoch for
            the length of all epochs: give `fit` a number of `steps_per_epoch`, and the pipeline a `repeat()`.

    Example:
        >>> import asyncfeed as af, keras  # doctest: +SKIP
        >>> data = train.to_keras()  # doctest: +SKIP
        >>> callbacks = [  # doctest: +SKIP
        ...     af.FeedCheckpoint(data, "run/feed.json", save_freq=100),
        ...     keras.callbacks.BackupAndRestore("run/model", save_freq=100),
        ... ]
        >>> model.fit(data, epochs=10, callbacks=callbacks)  # doctest: +SKIP
    """
    if not hasattr(data, "track"):
        raise PipelineError(f"FeedCheckpoint: takes what to_keras() returns, not {data!r}")
    if save_freq != "epoch" and (isinstance(save_freq, bool) or not isinstance(save_freq, int) or save_freq < 1):
        raise PipelineError(f"FeedCheckpoint: save_freq must be 'epoch' or a number of batches, not {save_freq!r}")
    return _callback_class()(data, Path(path), save_freq)


class _NoStep:
    """Stands in for Keras' function of a training step, and trains nothing. `replaces` is that function."""

    def __init__(self, replaces: Any) -> None:
        self.replaces = replaces

    def __call__(self, *args: Any) -> Any:
        """Return no logs. With JAX there are two arguments, and the first one, the state, is returned, too."""
        return {} if len(args) == 1 else ({}, args[0])


@cache
def _callback_class() -> Any:
    import keras

    class FeedCheckpointCallback(keras.callbacks.Callback):  # type: ignore[misc]
        """See `FeedCheckpoint`."""

        def __init__(self, data: Any, path: Path, save_freq: int | str) -> None:
            super().__init__()
            self._data = data
            self._trained = Trained(announced=True)  # Keras counts its epochs itself
            data.track(self._trained)
            self._path = path
            self._save_freq = save_freq
            self._begins = False
            """Whether `fit` has begun and no epoch has."""
            self._epoch = 0
            """The number of the present epoch. After a second crash `BackupAndRestore` begins with one that is too
            low, because it counts only the epochs that ended since the last restart."""
            self._done = 0
            """Number of batches of this epoch that were trained on before this call of `fit`."""
            self._is_over = False
            """Whether the place was saved behind the last batch of this epoch."""
            self._last_batch = -1
            """The number of the last batch that was trained on, in this epoch of Keras."""
            self._since_saved = 0
            """Number of batches since the place was saved."""
            self._quiet: Any = None
            """Silences Keras about the rest of an epoch, which is shorter. None in whole epochs."""
            self._steps_done = 0
            """Number of optimizer steps in the rest of an epoch, and before it."""

        # -- what Keras calls

        def on_train_begin(self, logs: Any = None) -> None:
            """Note that no epoch has begun. Other callbacks have yet to restore the weights."""
            self._begins = True
            self._since_saved = 0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            """Go on from the file, if this is the first epoch and there is a file."""
            self._last_batch = -1
            self._epoch += 1
            self._done, self._is_over = 0, False
            if self._begins:
                self._begins, self._epoch = False, epoch
                if self._path.exists():
                    self._restore()
                if self._epoch >= self.params["epochs"]:  # Keras has begun an epoch that was trained on
                    self.model.train_function = _NoStep(self.model.train_function)
                    self.model.stop_training = True

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """Note what was trained on, and save the place if it is time."""
            if isinstance(self.model.train_function, _NoStep):
                return
            count, self._last_batch = batch - self._last_batch, batch
            self._trained.add_batches(count)
            self._since_saved += count
            if self._quiet is not None:
                self._steps_done = self._steps
            if self._save_freq != "epoch" and self._since_saved >= int(self._save_freq):
                # An epoch without batches is an error of Keras with JAX, so none is saved.
                done = self._done + batch + 1
                self._is_over = self._whole and done >= (self._data.size or 0)
                if self._is_over:
                    self._trained.epoch_over()
                self._save(self._epoch + self._is_over, 0 if self._is_over else done)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """Note that the rest of the epoch was trained on, and save the place if that is done after epochs."""
            train = self.model.train_function
            if isinstance(train, _NoStep):
                self.model.train_function = train.replaces
                self._speak()
                return
            if self._whole:
                # The last steps of several in one execution are not reported, if fewer batches are left.
                unreported = 0 if self._is_over else self._trained.epoch_over()
                if self._quiet is not None:
                    self._forget_steps_after(self._steps_done + unreported)
            self._speak()
            if self._save_freq == "epoch":
                self._save(self._epoch + 1, 0)
            if self._epoch + 1 >= self.params["epochs"]:
                self.model.stop_training = True

        def on_train_end(self, logs: Any = None) -> None:
            """Remove the file."""
            self._speak()
            if self._path.exists():
                self._path.unlink()

        # -- places

        @property
        def _whole(self) -> bool:
            """Whether each epoch of Keras is an iteration of its own."""
            return self.params.get("steps") in (None, self._data.size)

        @property
        def _counter(self) -> Any:
            optimizer = self.model.optimizer
            optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
            # `iterations` counts several batches as one if gradients are accumulated
            return getattr(optimizer, "_iterations", optimizer.iterations)

        @property
        def _steps(self) -> int:
            return int(self._counter)

        def _forget_steps_after(self, steps: int) -> None:
            """Set the count of the optimizer back, if it is higher.

            The rest of an epoch ends before Keras expects it. TensorFlow then runs a step without a batch. It
            changes no weights, and counts.
            """
            if self._steps > steps:
                self._counter.assign(steps)

        def _save(self, epoch: int, done: int) -> None:
            self._since_saved = 0
            places = self._read() if self._path.exists() else {}
            steps = self._steps
            kept = sorted((each for each in places if int(each) < steps), key=int)[1 - KEPT :]
            made = {each: places[each] for each in kept} | {
                str(steps): {"epoch": epoch, "done": done, "place": self._trained.state()}
            }
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps({"after steps": made}).encode(), lasts=True)

        def _read(self) -> dict[str, Any]:
            try:
                found: dict[str, Any] = json.loads(self._path.read_bytes())["after steps"]
            except (KeyError, TypeError, ValueError) as error:
                raise StateError(f"{self._path} is damaged: {error!r}") from error
            return found

        def _restore(self) -> None:
            places, steps = self._read(), str(self._steps)
            if steps not in places:
                raise StateError(
                    f"{self._path} has the places after {', '.join(places)} optimizer steps, and the weights are "
                    f"after {steps}: list FeedCheckpoint before BackupAndRestore, with the same save_freq. To "
                    "begin again, remove the files of both"
                )
            try:
                place = places[steps]["place"]
                self._epoch, self._done = int(places[steps]["epoch"]), int(places[steps]["done"])
            except (KeyError, TypeError, ValueError) as error:
                raise StateError(f"{self._path} is damaged: {error!r}") from error
            self._trained.load(place)
            if self.params.get("steps") is None:
                raise StateError(
                    "FeedCheckpoint: the number of batches is not known, and Keras would take the rest of this "
                    "epoch for the length of all: use repeat() and fit(steps_per_epoch=...)"
                )
            self._steps_done = self._steps
            self._quiet = warnings.catch_warnings()
            self._quiet.__enter__()
            warnings.filterwarnings("ignore", message="Your input ran out of data")

        def _speak(self) -> None:
            if self._quiet is not None:
                self._quiet.__exit__(None, None, None)
                self._quiet = None

    return FeedCheckpointCallback
