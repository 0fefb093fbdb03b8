"""Session: when the run of a feed begins, and how it ends.

A user sees a `Feed`: one pass over a pipeline. The session is the part of it that `Feed`, `Epochs` and the bridges
share. They get it from `feed.session_of`.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import weakref
from contextvars import copy_context
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, cast

from asyncfeed.engine.coroutines import report_held_up, running_loop
from asyncfeed.engine.interruptions import has_interrupted
from asyncfeed.engine.ready import get_ready, import_state, is_ready
from asyncfeed.errors import ClosedError, StateError
from asyncfeed.limits import process_memory

if TYPE_CHECKING:
    from asyncfeed.coordinator import CoordinatorBinding
    from asyncfeed.engine.checkpoint.track import Track
    from asyncfeed.engine.driver import Driver
    from asyncfeed.engine.handoff import Handoff
    from asyncfeed.engine.run import Run
    from asyncfeed.pipeline import Pipeline
    from asyncfeed.state.fingerprint import Fingerprint
    from asyncfeed.state.saving import Saving


class Sealing:
    """Seals the states of one pipeline, and opens those that it can go on from.

    Args:
        described: The pipeline as the user wrote it. `epochs` adds a `repeat`.
        by_epoch: Whether its consumer asks for epochs.
    """

    def __init__(self, described: Pipeline[Any], *, by_epoch: bool) -> None:
        self.by_epoch = by_epoch
        self._described = described
        self._fingerprint: Fingerprint | None = None

    def seal(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a state of its body."""
        from asyncfeed.state.envelope import seal  # noqa: PLC0415 - see engine/ready.py

        return seal(self._known(), {**body, "by epoch": self.by_epoch, **self._part(body)})

    def _part(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return which part of a whole the pipeline is, for `merge_states`."""
        from asyncfeed.stages.rest import Place, place_of_shard  # noqa: PLC0415 - see engine/ready.py

        place = own = place_of_shard(self._described.stages)
        rest = body if "parts" in body else body.get("rest")
        if place is None and rest:
            place = Place(0, 1, rest["stage"], rest["uneven"])
        return {} if place is None else {"part": {**asdict(place), "has shard": own is not None}}

    def unseal(self, state: object) -> dict[str, Any]:
        """Return the body of a state. Raise `StateError` if it is damaged, or is of another pipeline."""
        from asyncfeed.stages.rest import place_of_shard  # noqa: PLC0415 - see engine/ready.py
        from asyncfeed.state.envelope import opened, unseal  # noqa: PLC0415
        from asyncfeed.state.merging import check_shard, is_merged, whole  # noqa: PLC0415

        found = opened(state)
        place = place_of_shard(self._described.stages)
        merged = is_merged(found["body"]) and "part" not in found["body"]
        known = self._known()
        if merged:
            stage = found["body"].get("stage") if place is None else place.stage
            known = whole(known.parts, stage, has_shard=place is not None)
        body = dict(unseal(found, known))
        if merged and place is not None:
            check_shard(body, place.stage, place.uneven)
        body.pop("part", None)
        if type(body.get("run")) is not int or body["run"] < 0:
            raise StateError("the state is damaged: it does not say how many runs were before")
        if body.pop("by epoch", None) is not self.by_epoch:
            raise StateError("epochs(state=...) takes the states of epochs(...), and open(state=...) all others")
        return body

    def _known(self) -> Fingerprint:
        if self._fingerprint is None:
            from asyncfeed.state.fingerprint import fingerprint  # noqa: PLC0415 - see engine/ready.py

            self._fingerprint = fingerprint(self._described.source, self._described.stages)
        return self._fingerprint


class Session:
    """One run of a pipeline, on a background thread or on the caller's loop. The first draw decides which.

    The tasks and threads of the run do not hold the session. So the run stops when the last other reference to the
    session goes.
    """

    def __init__(
        self,
        pipeline: Pipeline[Any],
        *,
        memory_limit: int | None,
        grace: float,
        epoch: int = 0,
        epochs_of: Pipeline[Any] | None = None,
        coord: Any = None,
        state: object = None,
        saving: Saving | None = None,
    ) -> None:
        import_state()
        self.pipeline = pipeline
        sealing = self._sealing = Sealing(
            pipeline if epochs_of is None else epochs_of, by_epoch=epochs_of is not None
        )
        self.run: Run | None = None
        """The run; None before it has begun."""
        self.drawn: Run | None = None
        """The run; None before a thread has drawn from it."""
        self.stopped: str | None = None
        """The reason of the first stop; None if there was none."""
        self._options: dict[str, Any] = {
            "grace": grace,
            "epoch": epoch,
            "by_epoch": sealing.by_epoch,
            "state": None,
            "received": None,
            "saving": saving,
            "seal": sealing.seal,
            "context": copy_context(),
        }
        if state is not None:
            self.load(state)
        self._first = 0
        """The epoch to begin with. It is above 0 if the consumer left epochs before the run had begun."""
        self.memory_limit = memory_limit
        """The limit in bytes; None if the feed shares that of the process."""
        self._grace = grace
        self._driver: Driver | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting = threading.RLock()
        """Reentrant for handlers of signals: see `asyncfeed.engine.interruptions.py`."""
        self._binding: CoordinatorBinding | None = None
        if coord is not None:
            from asyncfeed.coordinator import CoordinatorBinding  # noqa: PLC0415 - few feeds have one

            self._binding = CoordinatorBinding(coord, weakref.WeakMethod(self.stop))
            self._binding.watch(self)

    # -- beginning

    def begin(self) -> Run:
        """Start on a background thread, unless the run has started."""
        from asyncfeed.engine.driver import Driver  # noqa: PLC0415
        from asyncfeed.engine.loops import new_event_loop  # noqa: PLC0415 - see engine/ready.py

        with self._starting:
            if self.run is None:
                self._check_open()
                loop = new_event_loop()
                try:
                    self.run = self.new_run(loop)
                except BaseException:
                    loop.close()
                    raise
                self._driver = Driver(self.run)
                self._driver.start()
                if self._binding is not None:
                    self._binding.joins(self._driver.thread)
        self._check_run(self.run)
        if self._driver is None:
            raise ClosedError("this feed runs on an event loop: draw from it with `async for` on that loop")
        return self.run

    def begin_here(self) -> Run:
        """Do what `begin` does, and allow `next` in a coroutine. The dataset of a framework needs that."""
        self.drawn = run = self.begin()
        return run

    async def begin_async(self) -> Run:
        """Start on the running loop, unless the run has started."""
        loop = running_loop()
        if not is_ready():
            await get_ready()
        with self._starting:
            if self.run is None:
                self._check_open()
                self.run = self.new_run(loop, driven=False)
                self._task = self.run.begin()
                if self._binding is not None:
                    self._binding.joins(self._task)
        self._check_run(self.run)
        if self._driver is not None:
            raise ClosedError(
                "this feed was started by a plain `with`, `for` or `next`, and runs on a background thread: write "
                "`async with` and `async for`, or draw from it on a thread"
            )
        if self.run.loop is not loop:
            raise ClosedError("this feed runs on another event loop: draw from it there")
        return self.run

    @property
    def may_refuse(self) -> bool:
        """Whether to refuse a plain `next` in a coroutine. It is not refused if another error is raised anyway."""
        return self.drawn is None and self._task is None and self.stopped is None

    def _check_open(self) -> None:
        if self.stopped is not None:
            raise self.with_cause(ClosedError(f"the feed was stopped: {self.stopped}"))

    def with_cause(self, error: ClosedError) -> ClosedError:
        """Set the cause of the error: the exception for which a coordinator stopped this feed, if any."""
        if self._binding is not None:
            error.__cause__ = self._binding.cause()
        return error

    def _check_run(self, run: Run) -> None:
        if run.forked:
            forked()
        # `stop` takes no lock, so that a signal handler may call it. So it may have been called just before `run`
        # was set.
        if self.stopped is not None:
            run.request_stop(self.stopped)

    def limit(self) -> int:
        """Return the memory limit: its own, or that of the process, which feeds share."""
        return process_memory.limit if self.memory_limit is None else self.memory_limit

    def new_run(self, loop: asyncio.AbstractEventLoop, *, driven: bool = True) -> Run:
        """Return a run that has not begun."""
        from asyncfeed.engine.run import Run  # noqa: PLC0415 - see engine/ready.py

        run = Run(self.pipeline, loop=loop, memory_limit=self.memory_limit, **self._options)
        if self._first:
            run.go_to_epoch(self._first)
        # Neither the tasks nor the threads hold the session, so this is called when the user drops the feed.
        run.watch(self, partial(_let_go, run, self._binding), driven=driven)
        if self._binding is not None:
            run.handoff.over.add_done_callback(partial(_over, self._binding, run.handoff))
        return run

    # -- for bridges and epochs, during the run

    @property
    def handoff(self) -> Handoff | None:
        """The queue that the run is drawn from; None before the run has begun."""
        return None if self.run is None else self.run.handoff

    def take_ready(self, most: int, nbytes: int) -> list[Any]:
        """Return items that are ready, without waiting: see `Handoff.take_ready`."""
        run = self.run
        return [] if run is None or run.forked else run.handoff.take_ready(most, nbytes)

    def trainer_ended(self) -> None:
        """Note that the trainer behind a bridge has ended: see `Handoff.end_seen`."""
        if self.run is not None:
            self.run.handoff.end_seen()

    def note_slow(self, reason: str) -> None:
        """Count for `stats` that a bridge took a slower path."""
        if self.run is not None:
            self.run.crossings.note(reason)

    def acknowledge(self, received: int) -> None:
        """Note how many items of this run the trainer behind a bridge has received. It never gets less.

        A bridge that reads ahead calls this with 0 before the run begins. Then a state has what the trainer has
        received, and not what the bridge has drawn.
        """
        self._options["received"] = received
        if self.run is not None:
            self.run.track.received = received

    def all_received(self) -> None:
        """Count what was drawn as received, in the file that the run writes, too."""
        run = self.run
        if run is None or run.saver is None or run.forked or has_interrupted(run.handoff.lock):
            return
        run.saver.handoff.finish_all()

    def state(self) -> dict[str, Any]:
        """Return where the consumers are, as a checkpoint."""
        run, options = self.run, self._options
        self.all_received()
        if run is not None:
            body = run.track.state(*run.handoff.gone())
        else:
            body = options["state"] or {"run": options["epoch"]}
        return self._sealing.seal(body)

    def load(self, state: object) -> int:
        """Begin the run from a state, and return how many epochs were left. Raise if it has begun."""
        if self.run is not None:
            raise StateError("the feed has begun: load a state before the first batch is drawn")
        from asyncfeed.state.merging import passes_left  # noqa: PLC0415 - see engine/ready.py

        body = self._options["state"] = self._sealing.unseal(state)
        return passes_left(body) if self._options["by_epoch"] else 0

    @property
    def at_end(self) -> bool:
        """Whether the state to begin from is that of a run which had delivered everything, as that run says."""
        return bool((self._options["state"] or {}).get("ended"))

    @property
    def first_run(self) -> int:
        """The number of runs before this one: of the state, if it begins from one."""
        return int((self._options["state"] or {"run": self._options["epoch"]})["run"])

    def kept(self) -> Session:
        """Return a session for `state` alone. It holds the track of the run, and neither the run nor this session.

        A bridge keeps it for a state after the run was dropped.
        """
        other = copy.copy(self)
        options = {**self._options, "context": None}  # the context has what `using` opened
        vars(other).update(drawn=None, _driver=None, _task=None, _binding=None, _options=options)
        if self.run is not None:
            other.run = cast("Run", LeftRun(self.run.track))
        return other

    def known_as(self, other: Session) -> None:
        """Share the fingerprint of another session of the same pipeline: to compute it takes up to 0.2 s."""
        self._sealing = other._sealing

    def go_to_epoch(self, epoch: int) -> None:
        """Drop the items of earlier epochs."""
        if self.run is None:
            self._first = epoch
        elif not self.run.forked:
            self.run.go_to_epoch(epoch)

    # -- ending

    def stop_all(self, reason: str) -> None:
        """Stop the run, and ask its coordinator to stop, too."""
        try:
            if self._binding is not None:
                self._binding.stopped(running=self.run is not None)
        finally:
            self.stop(reason)

    def stop(self, reason: str) -> None:
        """Stop the run without waiting. Any thread, task or signal handler may call this."""
        if self.stopped is None:
            self.stopped = reason
        if self.run is not None:
            self.run.request_stop(reason)

    def _leave(self) -> None:
        if self._binding is not None:
            self._binding.release()
        self.stop("the feed was closed")

    def _free_unbegun(self) -> None:
        """Free the file of a run that was stopped before it began. A run that has begun frees it at its end."""
        if self.run is None and (saving := self._options["saving"]) is not None:
            saving.lock.release()

    def close(self) -> None:
        """Stop the run, and wait for its background thread, if there is one.

        In a signal handler that has interrupted a draw this does not wait: the draw raises, and ends the run.
        """
        self._leave()
        if has_interrupted(self._starting):
            return
        with self._starting:  # another thread may be starting the run
            self._free_unbegun()
        if self.run is None or self.run.forked or has_interrupted(self.run.handoff.lock):
            return
        if self._driver is not None:
            started = monotonic()
            self._driver.join()
            report_held_up(monotonic() - started)
        self.run.handoff.clear()

    def wait_held(self) -> None:
        """Wait for the end of a run that has ended its stream, if something is left to do then."""
        if self.run is not None and self.run.ends_with_work and self._driver is not None:
            self._driver.join()

    async def wait_held_async(self) -> None:
        """The same, on the loop of the run."""
        run, task = self.run, self._task
        if run is None or not run.ends_with_work:
            return
        if self._driver is not None:
            await self._driver.join_async()
        elif task is not None and run.loop is asyncio.get_running_loop():
            from asyncfeed.tasks import ended  # noqa: PLC0415 - see engine/ready.py

            await ended(task, self._grace + 1.0)

    async def aclose(self) -> None:
        """Stop the run and wait for its end, on the loop of the run."""
        self._leave()
        run, task = self.run, self._task
        self._free_unbegun()
        if run is None or run.forked:
            return
        if self._driver is not None:
            await self._driver.join_async()
            run.handoff.clear()
        elif task is not None and run.loop is asyncio.get_running_loop():
            from asyncfeed.tasks import ended  # noqa: PLC0415 - see engine/ready.py

            run.handoff.finish(stopped="the feed was closed")
            await ended(task, self._grace + 1.0)
            run.handoff.clear()


class LeftRun:
    """What is kept of a run that was dropped: where the trainer behind the bridge was in it."""

    def __init__(self, track: Track) -> None:
        self.track = track
        self.handoff = self
        self.saver = None

    def gone(self) -> tuple[int, int]:
        """Return how many items the trainer has received, and 0, because a bridge asks for no epochs."""
        return self.track.received or 0, 0


def _let_go(run: Run, binding: CoordinatorBinding | None) -> None:
    """Stop the run of a session that was dropped. Its coordinator is not asked to stop."""
    if binding is not None:
        binding.release()
    run.request_stop("the last reference to the feed is gone")


def _over(binding: CoordinatorBinding, handoff: Handoff, _: object) -> None:
    failure = handoff.failure
    if failure is None:
        binding.over(None, None, stopped=handoff.stopped is not None)
    else:
        binding.over(failure.error, failure.traceback, stopped=False)


def forked() -> NoReturn:
    """Raise the error of a feed that was opened before a fork, in the child."""
    raise ClosedError(
        "this feed was opened before a fork, and its threads are not in the new process: open a feed there"
    )
