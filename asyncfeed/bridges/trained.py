"""What a trainer has trained on, over the runs of a bridge that follow each other.

A framework reads ahead, also into the next run. So the batches that were trained on are counted over all runs in
their order: those of a run, and when all of it were trained on, those of the next one. Invariants:

* No more is acknowledged of a run than the framework has drawn from it.
* If a run begins and the framework has not drawn all of the one before, that one was left, and counts no more.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from asyncfeed.errors import PipelineError, StateError

if TYPE_CHECKING:
    from asyncfeed.bridges.run_factory import OpenRun, RunFactory
    from asyncfeed.running import State


class Trained:
    """Counts what was trained on. With `announced`, an epoch is over when `epoch_over` says so."""

    def __init__(self, *, announced: bool = False) -> None:
        self._factory: RunFactory | None = None
        self._pending: State | None = None
        """A state that was loaded before there was a dataset."""
        self._runs: deque[Iteration] = deque()
        """The run of which the last batch was, and the runs after it."""
        self._left: list[Iteration] = []
        """The runs that were not over when the next one began."""
        self._announced = announced
        self._lock = threading.RLock()

    def bind(self, factory: RunFactory) -> None:
        """Take part in the runs of one dataset."""
        if self._factory is not None:
            raise PipelineError(
                f"{factory.method}: this Progress belongs to another dataset; make one for each dataset"
            )
        self._factory = factory
        if self._pending is not None:
            state, self._pending = self._pending, None
            factory.places.load(state)

    def add_run(self, run: OpenRun) -> Iteration:
        """Return the count of a new run. The run before it is left, unless all its batches were delivered."""
        run.acknowledge(0)
        with self._lock:
            if self._runs and not self._runs[-1].has_ended:
                left = self._runs.pop()
                left.leave()
                self._left = [each for each in self._left if each.is_drawn] + [left]
            made = Iteration(run)
            self._runs.append(made)
            return made

    @property
    def epoch(self) -> int:
        """The number of the epoch of the next batch to train on, counted from 0."""
        with self._lock:
            run = self._present()
            if run is not None:
                return run.place.epoch
            return 0 if self._factory is None else self._factory.places.epoch

    def add_batches(self, batches: int) -> int:
        """Note that the next batches were trained on. Return how many of them were not delivered."""
        with self._lock:
            self._check_left()
            while batches:
                run = self._present()
                room = 0 if run is None else run.given - run.received
                if run is None or not room:
                    break
                count = min(batches, room)
                run.receive(count)
                batches -= count
            return batches

    def epoch_over(self) -> int:
        """Note that an epoch is over: the next batch is of another iteration.

        Return how many batches of it had not been noted.
        """
        with self._lock:
            run = self._present()
            if run is None or not (run.received or run.has_ended):
                return 0  # it is over already, and the next one may have begun
            rest = run.given - run.received if run.has_ended else 0  # else the framework has not drawn the rest
            if rest:
                run.receive(rest)
            run.place.over = True
            return rest

    def state(self) -> dict[str, Any]:
        """Return the state after the last batch that was trained on."""
        with self._lock:
            self._check_left()
            run = self._present()
            if run is not None:
                return run.place.state()
            if self._factory is None:
                raise StateError("this Progress was given to no dataset: write to_tf(progress=...)")
            return self._factory.places.state()

    def load(self, state: State) -> None:
        """Go on from a state in the next iteration."""
        with self._lock:
            if self._factory is None:
                self._pending = state
                return
            if any(run.received for run in self._runs if not run.is_over):
                raise StateError("load a state before the first batch is trained on")
            self._factory.withdraw()
            for run in self._runs:
                run.drop()
            self._factory.places.load(state)
            self._runs.clear()

    def _present(self) -> Iteration | None:
        """Return the run of the next batch to train on. None if that run has not begun."""
        while self._runs:
            run = self._runs[0]
            stays = self._announced and len(self._runs) == 1
            if not run.place.over and (stays or not run.is_over):
                return run
            run.place.over = True
            self._runs.popleft()
        return None

    def _check_left(self) -> None:
        if any(run.given > run.given_before for run in self._left):
            raise StateError(
                "two iterators of one dataset are drawn from, so nobody knows of which a batch was: give each "
                "dataset a Progress of its own"
            )


class Iteration:
    """How many batches of a run were trained on."""

    def __init__(self, run: OpenRun) -> None:
        self.place = run.place
        self.received = 0
        """Number of batches that were trained on."""
        self.given_before = 0
        """Number of batches that had been delivered when the next run began."""
        self._run: OpenRun | None = run
        """The run. None after its end, so that nothing of it is kept."""
        self._given = 0
        self._has_ended = False

    @property
    def given(self) -> int:
        """Number of batches that the framework has drawn."""
        handoff = None if self._run is None else self._run.handoff
        return self._given if handoff is None else handoff.delivered.count

    @property
    def has_ended(self) -> bool:
        """Whether the framework has drawn all batches."""
        if self._run is None:
            return self._has_ended
        handoff = self._run.handoff
        if handoff is None or not handoff.ended or handoff.stopped is not None or handoff.failure is not None:
            return False
        return not len(handoff)

    @property
    def is_over(self) -> bool:
        """Whether all batches were trained on."""
        return self.has_ended and self.received == self.given

    @property
    def is_drawn(self) -> bool:
        """Whether the framework may draw more batches."""
        return self._run is not None

    def receive(self, count: int) -> None:
        """Note that batches were trained on."""
        self.received += count
        self.place.acknowledge(self.received)

    def leave(self) -> None:
        """Note that another run has begun."""
        self.given_before = self.given

    def drop(self) -> None:
        """Stop the run: another one begins at its place."""
        if self._run is not None:
            self._run.stop("a state was loaded")

    def end(self) -> None:
        """Note that the framework lets go of the run, before the run is stopped."""
        if self._run is not None:
            self._given, self._has_ended = self.given, self.has_ended
            self.place.keep()
            self._run = None
