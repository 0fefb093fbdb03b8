"""Progress: what a trainer has trained on, where a framework reads ahead of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from asyncfeed.bridges.trained import Trained
from asyncfeed.errors import StateError

if TYPE_CHECKING:
    from asyncfeed.running import State


class Progress:
    """Counts the batches that a model was trained on, so that a state has these and no others.

    TensorFlow and Keras draw batches long before they train on them. What was drawn is not trained on, and would
    be lost if a state had it. So the training loop says what it has trained on, by `trained`. The state is at that
    batch, however far the framework has read ahead, also into the next epoch.

    Give it to `to_tf(progress=...)`. For Keras, `FeedCheckpoint` does all this.

    A new iteration of the dataset begins the next epoch. What was left of an iteration that was dropped is not
    trained on any more. An epoch is over when all its batches were trained on.

    Raises:
        PipelineError: One object is given to two datasets.
        StateError: More batches were trained on than delivered, or two iterators are drawn from in turns, so that
            nobody knows of which a batch was.

    Order:
        The batches of a dataset are trained on in its order. A `shuffle` or `filter` of TensorFlow's behind the
        dataset makes the count wrong.

    Memory:
        As for a state: see `Feed.state_dict`.

    Example:
        >>> import asyncfeed as af, tensorflow as tf  # doctest: +SKIP
        >>> progress = af.Progress()  # doctest: +SKIP
        >>> dataset = train.to_tf(progress=progress)  # doctest: +SKIP
        >>> checkpoint = tf.train.Checkpoint(model=model, data=progress.trackable())  # doctest: +SKIP
        >>> checkpoint.restore(tf.train.latest_checkpoint("run"))  # doctest: +SKIP
        >>> for epoch in range(progress.epoch, 10):  # doctest: +SKIP
        ...     for batch in dataset:
        ...         step(batch)
        ...         progress.trained()
    """

    def __init__(self) -> None:
        self._trained = Trained()

    @property
    def epoch(self) -> int:
        """The number of the epoch of the next batch to train on, counted from 0."""
        return self._trained.epoch

    def trained(self, batches: int = 1) -> None:
        """Note that the model was trained on the next batches. Any thread may call this.

        Args:
            batches: Number of items of the dataset.

        Raises:
            StateError: More than were delivered, or nobody knows of which iterator they were.
        """
        left = self._trained.add_batches(batches)
        if left:
            raise StateError(
                f"trained({batches}): {left} more than the dataset has delivered; call it once for each of its "
                "items, after the step"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was trained on, as JSON: see `Feed.state_dict`."""
        return self._trained.state()

    def load_state_dict(self, state: State) -> None:
        """Go on from a state in the next iteration.

        Args:
            state: What `state_dict` returned, or its JSON.

        Raises:
            StateError: The state is damaged, is of another pipeline, or an iteration has begun.
        """
        self._trained.load(state)

    def trackable(self) -> Any:
        """Return an object for `tf.train.Checkpoint(data=...)`, which saves and restores the state with the model.

        Restore the checkpoint before the first batch is drawn.
        """
        import tensorflow as tf

        progress = self

        class Trackable(tf.train.experimental.PythonState):  # type: ignore[misc]
            """The state of a `Progress`."""

            def serialize(self) -> str:
                """Return the state."""
                return json.dumps(progress.state_dict())

            def deserialize(self, string_value: bytes) -> None:
                """Go on from the state."""
                progress.load_state_dict(string_value.decode())

        return Trackable()


def trained_of(progress: Progress) -> Trained:
    """Return the count of a `Progress`, for the bridges."""
    return progress._trained  # noqa: SLF001 - it is no part of the public interface
