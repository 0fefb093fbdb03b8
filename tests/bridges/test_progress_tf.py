"""Training with TensorFlow and Keras goes on after a crash with the batch after the last one that was trained on."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from tests.searching import sampled

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # TensorFlow's and Keras' own imports
]

BATCHES = 7
EPOCHS = 3


def train() -> af.Pipeline[Any]:
    return af.items(range(2 * BATCHES)).shuffle(seed=5).batch(2)


WHOLE = [batch.tolist() for epoch in range(EPOCHS) for batch in train().open(epoch=epoch)]


class Crash(Exception):
    pass


@pytest.mark.parametrize("via", ["queue", "from_generator"])
@pytest.mark.parametrize("ahead", [0, 3, 100])
@pytest.mark.parametrize("crashes", [[1], [4, 6], [7, 7], [3, 10, 20]])
def test_a_checkpoint_of_tensorflow_has_the_data_and_the_model(
    tmp_path: Path, via: Any, ahead: int, crashes: list[int]
) -> None:
    """`crashes` are the steps after which the process ends; a checkpoint is saved each second step."""
    import tensorflow as tf

    def run(until: int | None) -> list[tuple[int, list[int]]]:
        seen = []
        step = tf.Variable(0, dtype=tf.int64)
        progress = af.Progress()
        dataset = train().to_tf(progress=progress, via=via)
        if ahead:
            dataset = dataset.prefetch(ahead)
        checkpoint = tf.train.Checkpoint(step=step, data=progress.trackable())
        manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=2)
        checkpoint.restore(manager.latest_checkpoint)
        for _ in range(progress.epoch, EPOCHS):
            for batch in dataset:
                seen.append((int(step), batch.numpy().tolist()))
                progress.trained()
                step.assign_add(1)
                if int(step) % 2 == 0:
                    manager.save()
                if int(step) == until:
                    return seen
        return seen

    seen: dict[int, list[int]] = {}
    for until in [*crashes, None]:
        for step, batch in run(until):
            assert (
                seen.setdefault(step, batch) == batch
            )  # what was trained on after the last checkpoint comes again
    assert [seen[step] for step in range(len(seen))] == WHOLE


def test_a_dataset_that_repeats_itself_has_the_epoch_of_the_last_batch() -> None:
    progress = af.Progress()
    drawn = iter(train().to_tf(progress=progress).repeat(EPOCHS).prefetch(12))
    for number, whole in enumerate(WHOLE):
        assert progress.epoch == number // BATCHES
        assert next(drawn).numpy().tolist() == whole
        progress.trained()
        if number % 3 == 0:
            with train().open(state=progress.state_dict()) as feed:
                rest = [batch.tolist() for batch in feed]
            assert rest == WHOLE[number + 1 :][: len(rest)]
            assert (number + 1 + len(rest)) % BATCHES == 0
    del drawn


def model_that_notes(seen: list[list[float]]) -> Any:
    import keras
    import tensorflow as tf

    def note(y: Any) -> Any:
        seen.append(y.tolist())
        return np.float32(0)

    class Noting(keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            zero = tf.numpy_function(note, [y], tf.float32)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - tf.cast(y[:, None], tf.float32)) ** 2) + 0 * zero
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
            )
            return {"loss": loss}

        def test_step(self, data: Any) -> Any:
            return {"loss": 0.0}

    inputs = keras.Input((1,))
    model = Noting(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
    model.compile(keras.optimizers.SGD(0.001))
    return model


def keras_data() -> Any:
    return train().map(lambda batch: (batch[:, None].astype("f4"), batch)).to_keras()


class CrashAfter:
    """Makes a callback that ends training after some batches."""

    def __new__(cls, count: int | None) -> Any:
        import keras

        class Callback(keras.callbacks.Callback):
            left = count

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if self.left is not None:
                    self.left -= 1
                    if not self.left:
                        raise Crash

        return Callback()


def fit(
    folder: Path,
    seen: list[list[float]],
    until: int | None,
    save_freq: Any,
    *,
    weights_last: bool = False,
    **options: Any,
) -> Any:
    """Train, and crash after both have saved, or with `weights_last` before the weights are saved."""
    import keras

    model, data = model_that_notes(seen), keras_data()
    place = af.FeedCheckpoint(data, folder / "feed.json", save_freq=save_freq)
    weights = keras.callbacks.BackupAndRestore(str(folder / "model"), save_freq=save_freq)
    crash = CrashAfter(until)
    callbacks = [place, crash, weights] if weights_last else [place, weights, crash]
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks, **options)
    return model.get_weights()


@pytest.mark.parametrize(("save_freq", "crash", "again_from"), [
    (1, 3, 3), (1, 7, 7), (1, 10, 10), (2, 5, 4), (3, 10, 9), ("epoch", 10, 7), (100, 5, 0),
])  # fmt: skip
def test_fit_goes_on_in_the_middle_of_an_epoch(
    tmp_path: Path, save_freq: Any, crash: int, again_from: int, recwarn: pytest.WarningsRecorder
) -> None:
    whole: list[list[float]] = []
    weights = fit(tmp_path / "whole", whole, None, 100)
    assert whole == WHOLE
    before: list[list[float]] = []
    with pytest.raises(Crash):
        fit(tmp_path / "run", before, crash, save_freq)
    assert before == WHOLE[:crash]
    after: list[list[float]] = []
    resumed = fit(tmp_path / "run", after, None, save_freq)
    assert after == WHOLE[again_from:]
    assert all(np.array_equal(one, other) for one, other in zip(weights, resumed, strict=True))
    assert not [each for each in recwarn if "ran out of data" in str(each.message)]
    assert not (tmp_path / "run" / "feed.json").exists()


@sampled(4)
@pytest.mark.parametrize("weights_last", [False, True])
@pytest.mark.parametrize("crash", range(2, EPOCHS * BATCHES + 1))
def test_fit_goes_on_after_a_crash_at_any_batch(tmp_path: Path, crash: int, weights_last: bool) -> None:
    """Also between the file of the data and that of the weights."""
    expected = fit(tmp_path / "whole", [], None, 100)
    before, after = [], []
    with pytest.raises(Crash):
        fit(tmp_path / "run", before, crash, 1, weights_last=weights_last)
    resumed = fit(tmp_path / "run", after, None, 1)
    assert before + after == WHOLE[:crash] + WHOLE[crash - weights_last :]
    assert all(np.array_equal(one, other) for one, other in zip(expected, resumed, strict=True))


def test_after_a_crash_at_the_last_batch_nothing_is_trained(tmp_path: Path) -> None:
    seen: list[list[float]] = []
    with pytest.raises(Crash):
        fit(tmp_path, seen, EPOCHS * BATCHES, 1)
    resumed = fit(tmp_path, seen, None, 1)
    assert seen == WHOLE
    assert all(map(np.array_equal, resumed, fit(tmp_path / "whole", [], None, 100)))
    assert not (tmp_path / "feed.json").exists()


@pytest.mark.parametrize("crash", [2, BATCHES, BATCHES + 1, 2 * BATCHES + 1, EPOCHS * BATCHES])
def test_a_kill_between_the_weights_and_the_number_of_the_epoch_loses_nothing(tmp_path: Path, crash: int) -> None:
    """Keras writes its weights, and then its epoch. The file of the place knows the epoch of the weights."""
    seen: list[list[float]] = []
    with pytest.raises(Crash):
        fit(tmp_path / "run", seen, crash, 1)
    with pytest.raises(Crash):
        fit(tmp_path / "earlier", [], crash - 1, 1)
    number = Path("model", "training_metadata.json")
    (tmp_path / "run" / number).write_bytes((tmp_path / "earlier" / number).read_bytes())
    fit(tmp_path / "run", seen, None, 1)
    assert seen == WHOLE


def test_fit_goes_on_twice_and_with_data_for_validation(tmp_path: Path) -> None:
    seen: list[list[float]] = []
    for crash in (4, 5, None):
        other = keras_data()
        try:
            fit(tmp_path, seen, crash, 1, validation_data=other)
        except Crash:
            pass
    assert seen == WHOLE


def test_fit_goes_on_in_one_run_of_several_epochs(tmp_path: Path) -> None:
    """With `steps_per_epoch`, all epochs of Keras draw from one run, and a restart begins the epoch of Keras anew."""
    import keras

    pipeline = train().map(lambda batch: (batch[:, None].astype("f4"), batch)).repeat()
    expected = [batch.tolist() for batch in train().repeat(EPOCHS)]
    seen: list[list[float]] = []
    for crash in (9, None):
        model, data = model_that_notes(seen), pipeline.to_keras()
        callbacks = [
            af.FeedCheckpoint(data, tmp_path / "feed.json", save_freq=1),
            keras.callbacks.BackupAndRestore(str(tmp_path / "model"), save_freq=1),
            CrashAfter(crash),
        ]
        try:
            model.fit(data, epochs=2, steps_per_epoch=5, verbose=0, callbacks=callbacks)
        except Crash:
            pass
    assert seen == expected[: len(seen)]
    assert len(seen) == 9 + 5


def test_several_steps_in_one_execution_are_counted(tmp_path: Path) -> None:
    import keras

    seen: list[list[float]] = []
    for crash in (2, None):
        model, data = model_that_notes(seen), keras_data()
        model.compile(keras.optimizers.SGD(0.001), steps_per_execution=2)
        callbacks = [
            af.FeedCheckpoint(data, tmp_path / "feed.json", save_freq=1),
            keras.callbacks.BackupAndRestore(str(tmp_path / "model"), save_freq=1),
            CrashAfter(crash),
        ]
        try:
            model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks)
        except Crash:
            pass
    assert seen == WHOLE


@pytest.mark.parametrize("accumulated", [None, 3])
@pytest.mark.parametrize("crash", [2, 5, 6, 7, 8, 14, 15])
def test_a_crash_between_the_place_and_the_weights_loses_nothing(
    tmp_path: Path, crash: int, accumulated: int | None
) -> None:
    """The place is written, and the weights are not: training goes on from the weights before."""
    import keras

    seen: list[list[float]] = []
    for until in (crash, None):
        model, data = model_that_notes(seen), keras_data()
        model.compile(keras.optimizers.SGD(0.001, gradient_accumulation_steps=accumulated))
        callbacks = [
            af.FeedCheckpoint(data, tmp_path / "feed.json", save_freq=1),
            CrashAfter(until),
            keras.callbacks.BackupAndRestore(str(tmp_path / "model"), save_freq=1),
        ]
        try:
            model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks)
        except Crash:
            pass
    assert seen == WHOLE[:crash] + WHOLE[crash - 1 :]


@pytest.mark.parametrize("accumulated", [None, 3])
@pytest.mark.parametrize("in_one", [1, 2])
@pytest.mark.parametrize("crash", [3, 6])
def test_an_optimizer_that_counts_its_steps_goes_on_with_the_count(
    tmp_path: Path, crash: int, in_one: int, accumulated: int | None
) -> None:
    """The rest of an epoch ends before Keras expects it, and that is no step."""
    import keras

    rows = np.arange(2 * BATCHES, dtype="f4")[:, None]
    ends = []
    for folder, crashes in (("whole", [None]), ("run", [crash, None])):
        for until in crashes:
            inputs = keras.Input((1,))
            model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
            data = af.arrays(rows / 14, np.sin(rows)).shuffle(seed=5).batch(2).to_keras()
            optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=accumulated)
            model.compile(optimizer, "mse", steps_per_execution=in_one)
            callbacks = [
                af.FeedCheckpoint(data, tmp_path / folder / "feed.json", save_freq=1),
                keras.callbacks.BackupAndRestore(str(tmp_path / folder / "model"), save_freq=1),
                CrashAfter(until),
            ]
            try:
                model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks)
            except Crash:
                pass
        ends.append(model.get_weights())
    assert all(np.array_equal(one, other) for one, other in zip(*ends, strict=True))


def test_weights_of_another_step_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        fit(tmp_path, [], 5, 2)
    found = json.loads((tmp_path / "feed.json").read_text())
    (tmp_path / "feed.json").write_text(json.dumps({"after steps": {"99": found["after steps"]["4"]}}))
    with pytest.raises(af.StateError, match="list FeedCheckpoint before BackupAndRestore"):
        fit(tmp_path, [], None, 2)
    (tmp_path / "feed.json").write_text("{")
    with pytest.raises(af.StateError, match="damaged"):
        fit(tmp_path, [], None, 2)


def test_a_length_that_is_not_known_is_refused(tmp_path: Path) -> None:
    import keras

    pipeline = train().filter(lambda batch: True).map(lambda batch: (batch[:, None].astype("f4"), batch))
    for crash, error in ((3, Crash), (None, af.StateError)):
        model, data = model_that_notes([]), pipeline.to_keras()
        callbacks = [
            af.FeedCheckpoint(data, tmp_path / "feed.json", save_freq=1),
            keras.callbacks.BackupAndRestore(str(tmp_path / "model"), save_freq=1),
            CrashAfter(crash),
        ]
        with pytest.raises(error):
            model.fit(data, epochs=2, verbose=0, callbacks=callbacks)


def test_what_is_no_data_of_to_keras_is_refused(tmp_path: Path) -> None:
    with pytest.raises(af.PipelineError, match="to_keras"):
        af.FeedCheckpoint([1], tmp_path / "feed.json")
    with pytest.raises(af.PipelineError, match="save_freq"):
        af.FeedCheckpoint(keras_data(), tmp_path / "feed.json", save_freq=0)


KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from tests.bridges.test_progress_tf import fit, keras_data, model_that_notes
import keras
save = keras.Model.save_weights
def replace(model, filepath, **options):  # Keras writes in place, so a kill may leave half a file
    save(model, new := str(filepath).replace(".weights", ".new.weights"), **options)
    os.replace(new, filepath)
keras.Model.save_weights = replace
class Seen(list):
    def append(self, batch):
        with open({folder!r} + "/seen", "a") as out:
            print(*batch, file=out, flush=True)
fit(Path({folder!r}), Seen(), None, 1)
"""


def test_fit_that_was_killed_goes_on(tmp_path: Path) -> None:
    """At random moments, also between the file of the data and that of the weights. Each file is whole."""
    root = str(Path(__file__).parent.parent.parent)
    text = textwrap.dedent(KILLED.format(tests=root, folder=str(tmp_path)))
    seen = tmp_path / "seen"
    starts = 0
    for number in (3, 6, 1):  # lines after which it is killed
        with subprocess.Popen([sys.executable, "-c", text], env=dict(os.environ)) as running:
            lines = starts
            while running.poll() is None and lines < starts + number:
                time.sleep(0.005)  # a loop without a pause would take a core from the process it watches
                lines = len(seen.read_text().splitlines()) if seen.exists() else 0
            running.send_signal(signal.SIGKILL)
        starts = len(seen.read_text().splitlines())
    subprocess.run([sys.executable, "-c", text], check=True, env=dict(os.environ))
    batches = [list(map(int, line.split())) for line in seen.read_text().splitlines()]
    place, again = 0, 0
    for batch in batches:  # at most the batch whose step was not saved comes again
        if batch != WHOLE[place]:
            again += 1
            place -= 1
            assert batch == WHOLE[place]
        place += 1
    assert place == len(WHOLE)
    assert again <= 3


OTHER_BACKEND = """
import sys
from pathlib import Path
import keras, numpy as np
import asyncfeed as af
rows = np.arange(14, dtype="float32")[:, None] / 14

class Crash(keras.callbacks.Callback):
    def __init__(self, left):
        super().__init__()
        self.left = left
    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise InterruptedError

def fit(folder, left, every=2):
    data = af.arrays(rows, 2 * rows).shuffle(seed=1).batch(2).to_keras()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse")
    callbacks = [
        af.FeedCheckpoint(data, folder / "feed.json", save_freq=every),
        keras.callbacks.BackupAndRestore(str(folder / "model"), save_freq=every),
        Crash(left),
    ]
    model.fit(data, epochs=3, callbacks=callbacks, verbose=0)
    return model.get_weights()

folder = Path(sys.argv[1])
whole = fit(folder / "whole", 1000)
for left in (5, 9, 2):
    try:
        fit(folder / "run", left)
    except InterruptedError:
        pass
again = fit(folder / "run", 1000)
try:
    fit(folder / "last", 21, 1)  # the last batch of all
except InterruptedError:
    pass
assert all(map(np.array_equal, whole, fit(folder / "last", 1000, 1)))
assert all(np.array_equal(one, other) for one, other in zip(whole, again, strict=True)), (whole, again)
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.timeout(240)
def test_fit_of_other_backends_ends_with_the_same_weights(backend: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OTHER_BACKEND, str(tmp_path)],
        check=True,
        env={**os.environ, "KERAS_BACKEND": backend},
    )
