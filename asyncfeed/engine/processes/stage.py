"""Calls the sync function of a stage in worker processes.

A thread of the run takes a group of items, sends it to an idle worker process (or starts one), waits, and returns
the results. For the stage this is a group like any other. So order, groups, memory, errors and cancellation are
the same as on threads. Invariants:

* A worker belongs to one thread, or is idle, or has ended. The thread waits for the worker's answer or its end,
  whichever comes first. If the worker dies, the thread returns the results so far and an error for the item that
  the worker was at. The rest of the group goes back to the stage, for another worker.
* A worker that has answered may be kept for the next run of the same function (`engine/processes/kept.py`). A
  worker that died, was killed, or did not answer within the grace is never used again.
* No method that the event loop calls waits for a process.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Hashable, Sequence
from typing import Any

from asyncfeed.engine.constants import PROCESS_GROUP_SECONDS
from asyncfeed.engine.operators.dispatch import ThreadDispatch
from asyncfeed.engine.order.outcomes import Outcomes
from asyncfeed.engine.processes import worker as program
from asyncfeed.engine.processes.kept import KeptWorkers, kept
from asyncfeed.engine.processes.process import Worker, main_script, surroundings
from asyncfeed.engine.processes.shared import Arena, Failed
from asyncfeed.engine.processes.worker import NamesNeeded
from asyncfeed.engine.provenance import ItemPlace
from asyncfeed.engine.threads import Threads
from asyncfeed.errors import PipelineError, note
from asyncfeed.functions.sending import called, can_send_by_value, pack
from asyncfeed.machine import usable_cores
from asyncfeed.reading.listing import FileSpan
from asyncfeed.stages.steps import Work

log = logging.getLogger("asyncfeed")


class ProcessDispatch(ThreadDispatch):
    """Forms groups of about 10 ms or 1 MB of work, and has worker processes do them."""

    def __init__(self, threads: Threads, others: list[Processes], work: Work, name: str, unit: int) -> None:
        super().__init__(threads, work, name, unit)
        self._processes = Processes(work, name)
        others.append(self._processes)

    def group(self, count: int, costs: Sequence[int], ratio: float) -> int:
        """Return how many of `count` items go into the next group. Items are copied, so they weigh, too."""
        return super().group(count, costs, max(1.0, ratio))

    async def run(self, items: list[Any], places: list[ItemPlace] | None) -> Outcomes:
        """Call the function in a process, and learn the group size from the time it took there."""
        self._processes.room = self.room
        outcomes, seconds = await self._threads.run(
            self._name, self._processes.call, items, places, limiter=self.limiter
        )
        self._size.learn(seconds / max(1, len(outcomes)), PROCESS_GROUP_SECONDS)
        return outcomes


class Processes:
    """The worker processes of one stage, one for each call at a time. They are started when needed, and reused."""

    def __init__(self, work: Work, name: str, kept: KeptWorkers = kept) -> None:
        self._fn = work.fn
        self._name = name
        self._goes_on = work.skip is not None
        self.room = 0
        """Bytes of results at which a group ends early. It is set before the first call."""
        most = usable_cores() if work.concurrency == "auto" else work.concurrency
        self._library_threads = max(1, usable_cores() // most)
        self._kept = kept
        self._generation = kept.generation
        self._key: Hashable = None
        self._setup: tuple[Any, ...] | None = None
        """The `Setup` of each worker. It is the same for all, so the first thread that needs it makes it once."""
        self._by_value = False
        self._with_names = False
        """Whether items are sent with their names, since a function asked for one."""
        self._preparing = threading.Lock()
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []
        self._stopping = False

    # -- on threads

    def call(self, items: list[Any], places: list[ItemPlace] | None) -> tuple[Outcomes, float]:
        """Call the function for the items. Return their outcomes, perhaps for fewer items, and the seconds.

        Raises if no worker can be started, because that is not the fault of an item.
        """
        worker = self._take()
        if worker is not None and self._stopping:
            self._give_back(worker)
            worker = None
        outcomes, seconds = Outcomes(), 0.0
        if worker is not None:
            try:
                seconds = self._ask(worker, items, places, outcomes)
                if NamesNeeded in map(type, outcomes.missing.values()):
                    self._with_names, outcomes = True, Outcomes()
                    seconds += self._ask(worker, items, places, outcomes)
            except BaseException:
                worker.kill()  # its state is unknown, so no other run may use it
                self._end(worker)
                raise
            self._give_back(worker)
        if self._stopping:  # no step reads these outcomes
            outcomes = Outcomes()
            outcomes.leave_out(len(items))
        elif outcomes.missing and not self._goes_on:
            # The stream ends at this item, so the rest of the group is not needed.
            outcomes.leave_out(len(items) - len(outcomes))
        return outcomes, seconds

    def _ask(self, worker: Worker, items: list[Any], places: list[ItemPlace] | None, outcomes: Outcomes) -> float:
        """Have a worker call the function for the items, and add the results to `outcomes`. Return the seconds."""
        unsent: BaseException | None = None
        worker.items.begin()
        worker.items.put(worker.blocks.orders())
        sent = 0
        for item in items:
            place = None if places is None else self._sent(places[sent], item)
            try:
                worker.items.put((item,) if place is None else (item, place))
            except BaseException as error:  # noqa: BLE001 - the consumer gets it
                note(error, f"asyncfeed: an item of type {type(item).__qualname__} cannot be sent to a process")
                unsent = error
                break
            sent += 1
        worker.ask(program.CALL)  # also if no item was sent, because it must be told of its blocks
        count, seconds = worker.results.open()
        for _ in range(count):
            _read(worker.results, outcomes)
        if not worker.alive and len(outcomes) < sent:
            outcomes.add_missing(RuntimeError(self._exit_message(worker, "while it worked on this item")))
            return seconds
        if unsent is not None and len(outcomes) == sent:
            outcomes.add_missing(unsent)
        return seconds

    def _sent(self, place: ItemPlace, item: Any) -> program.SentPlace:
        """Return a place as it is sent. The members of a batch are named, too."""
        if not self._with_names:
            return program.SentPlace(place.epoch, place.ordinal)
        members = range(len(item)) if isinstance(item, list | FileSpan) else ()
        return program.SentPlace(place.epoch, place.ordinal, (place.name(), *map(place.name, members)))

    def _take(self) -> Worker | None:
        """Return an idle worker, a worker of an earlier run, or a new one. Return None if the run is stopping."""
        while True:
            with self._lock:
                if self._stopping:
                    return None
                if not self._idle:
                    break
                worker = self._idle.pop()
            if self._lives(worker):
                return worker
        self._prepare()
        while (kept := self._kept.take(self._key)) is not None:
            if self._lives(kept) and self._begin(kept, again=True):
                return kept
        if self._stopping:
            return None
        worker = self._start()
        return worker if self._begin(worker) else None

    def _lives(self, worker: Worker) -> bool:
        """Return whether an idle worker still lives. If it does not, forget it and log how it ended."""
        if worker.check():
            return True
        at_exit = worker.released
        how = self._exit_message(worker, "while it had nothing to do")
        self._forget(worker)
        if not (self._stopping or at_exit):
            log.warning(how)
        return False

    def _give_back(self, worker: Worker) -> None:
        with self._lock:
            idle = worker.alive and not self._stopping
            if idle:
                self._idle.append(worker)
        if not idle:
            self._leave(worker)

    def _leave(self, worker: Worker) -> None:
        """Keep a worker for the next run if it answers. Otherwise end it."""
        if worker.alive:
            try:
                worker.items.begin()
                worker.items.put(worker.blocks.rest())
            except OSError:  # the interpreter has closed the memory at its exit, while this thread still worked
                worker.kill()
                worker.alive = False
            else:
                worker.ask(program.REST)
        if worker.alive:
            worker.items.trim()
        with self._lock:
            # Under the lock: `kill` may kill this worker until it is kept, and must not kill it afterwards.
            if worker.alive and not worker.killed and self._kept.keep(self._key, worker, self._generation):
                self._workers.discard(worker)
                return
        self._end(worker)

    def _prepare(self) -> None:
        with self._preparing:  # not `_lock`, which the loop takes, because pickling may call the user's code
            if self._setup is None:
                # Worker processes have the main script under this name, as multiprocessing does.
                sys.modules.setdefault(program.MAIN, sys.modules["__main__"])
                packed = pack(self._fn)
                script = main_script()
                # A class that was defined in a session without a file cannot be imported by another process.
                self._by_value = packed.by_value or (script is None and can_send_by_value())
                self._setup = tuple(
                    program.Setup(
                        self._name, self._goes_on, self.room, sys.argv, script, self._by_value, packed.data
                    )
                )
                self._key = called(self._fn), self._library_threads, surroundings()

    def _start(self) -> Worker:
        if program.importing:
            raise PipelineError(
                f"{self._name}: this is a worker process that imports the main script, and the script opens the "
                'pipeline again. Put the code that the script runs under `if __name__ == "__main__":`, or put the '
                "function into a module of its own"
            )
        return Worker(self._library_threads)

    def _begin(self, worker: Worker, *, again: bool = False) -> bool:
        """Send the function to a worker. Return whether the worker has loaded it.

        Raises if a new worker cannot load it. If a worker that is used `again` cannot, this returns False, because
        a new worker may be able to.
        """
        with self._lock:
            worker.starting = True
            self._workers.add(worker)
            if self._stopping:
                worker.kill()
        try:
            worker.items.write_by_value(self._by_value)
            worker.items.begin()
            worker.items.put(self._setup)
            answer = worker.ask(program.BEGIN)
            failed = worker.results.get() if worker.results.open()[0] else None
            if answer == program.DONE and failed is None:
                worker.starting = False
                return True
            if not (again or self._stopping):
                if failed is None:
                    raise PipelineError(self._exit_message(worker, "while it was starting"))
                raise PipelineError(
                    f"{self._name}: a worker process cannot load the function: {failed.text}"
                ) from failed.unpack()
        except BaseException:
            self._end(worker)
            raise
        self._end(worker)
        return False

    def _end(self, worker: Worker) -> None:
        worker.finish()
        worker.end()
        self._forget(worker)

    def _exit_message(self, worker: Worker, when: str) -> str:
        return f"{self._name}: {worker.exit_message(when)}"

    def _forget(self, worker: Worker) -> None:
        with self._lock:
            self._workers.discard(worker)

    # -- on the loop

    def stop(self, threads: Threads) -> None:
        """Keep or end all workers, each after its present order. Threads wait for them, so this does not block."""
        with self._lock:
            self._stopping = True
            idle, self._idle = self._idle, []
            for worker in self._workers:
                if worker.starting:  # killed, because it would finish its imports before it ends
                    worker.kill()
        for worker in idle:
            try:
                threads.submit(f"letting a process of {self._name} go", self._leave, worker)
            except RuntimeError:  # the interpreter is ending, and starts no more threads
                worker.kill()
                self._end(worker)

    def kill(self) -> bool:
        """Kill the workers that are left, and the processes they started. Return whether there were any."""
        with self._lock:
            left = list(self._workers)
            for worker in left:
                if not worker.killed:
                    log.warning(
                        "%s: its process %d did not end when told to, and is killed", self._name, worker.pid
                    )
                    worker.kill()
        return bool(left)


def _read(arena: Arena, outcomes: Outcomes) -> None:
    """Add the next result, or the exception of its item, to `outcomes`."""
    try:
        value = arena.get()
    except BaseException as error:  # noqa: BLE001 - the consumer gets it
        note(error, "asyncfeed: the result cannot be loaded from its process")
        outcomes.add_missing(error)
        return
    if type(value) is Failed:
        outcomes.add_missing(value.unpack())
    else:
        outcomes.values.append(value)
