"""Calling a sync function in processes of its own, for several items per group.

To the stage this is a group as any other: one of the run's threads takes a group of items to an idle worker
process, starting one where there is none, waits for it and brings the results. So order, groups, memory, errors
and cancellation are those of threads. Invariants:

* A worker is with one thread, or idle, or has ended. A thread waits for its answer or its end, whichever is
  first, so a worker that dies answers, too: with the results it had and an error for the item it was at. The rest
  of its group is given back, and another worker takes it.
* A worker that has answered may be kept for the next run of the same function (`engine/processes/kept.py`). One
  that was killed, died, or did not answer within the grace is never given on.
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
from asyncfeed.engine.provenance import ItemPlace
from asyncfeed.engine.threads import Threads
from asyncfeed.errors import PipelineError, note
from asyncfeed.functions.sending import called, can_send_by_value, pack
from asyncfeed.machine import usable_cores
from asyncfeed.stages.steps import Work

log = logging.getLogger("asyncfeed")


class ProcessDispatch(ThreadDispatch):
    """Groups the items of a stage into groups of about 10 ms or 1 MB of work, in processes."""

    def __init__(self, threads: Threads, others: list[Processes], work: Work, name: str, unit: int) -> None:
        super().__init__(threads, work, name, unit)
        self._processes = Processes(work, name)
        others.append(self._processes)

    def group(self, count: int, costs: Sequence[int], ratio: float) -> int:
        """Return how many of `count` items go into the next group; items weigh as well as results."""
        return super().group(count, costs, max(1.0, ratio))

    async def run(self, items: list[Any], places: list[ItemPlace] | None) -> Outcomes:
        """Call the function in a process, and learn from how long it took there."""
        self._processes.room = self.room
        outcomes, seconds = await self._threads.run(
            self._name, self._processes.call, items, places, limiter=self.limiter
        )
        self._size.learn(seconds / max(1, len(outcomes)), PROCESS_GROUP_SECONDS)
        return outcomes


class Processes:
    """The worker processes of one stage: started when needed, reused, as many as there are calls at a time."""

    def __init__(self, work: Work, name: str, kept: KeptWorkers = kept) -> None:
        self._fn = work.fn
        self._name = name
        self._goes_on = work.on_error == "skip"
        self.room = 0
        """How many bytes of results end a group early; set before the first call."""
        most = usable_cores() if work.concurrency == "auto" else work.concurrency
        self._library_threads = max(1, usable_cores() // most)
        self._kept = kept
        self._generation = kept.generation
        self._key: Hashable = None
        self._setup: tuple[Any, ...] | None = None
        """What each worker is told first; the same for all, so it is made once, by the first that needs it."""
        self._by_value = False
        self._preparing = threading.Lock()
        self._lock = threading.Lock()
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []
        self._stopping = False

    # -- on threads

    def call(self, items: list[Any], places: list[ItemPlace] | None) -> tuple[Outcomes, float]:
        """Call the function for the items; return what became of them, maybe of fewer, and the seconds it took.

        Raises where a worker cannot be started: that is no item's fault.
        """
        worker = self._take()
        if worker is not None and self._stopping:
            self._give_back(worker)
            worker = None
        outcomes, seconds = Outcomes(), 0.0
        if worker is not None:
            try:
                seconds = self._ask(worker, items, places, outcomes)
            except BaseException:
                worker.kill()  # it may be anywhere: no other run may have it
                self._end(worker)
                raise
            self._give_back(worker)
        if self._stopping:  # nobody looks
            outcomes = Outcomes()
            outcomes.leave_out(len(items))
        elif outcomes.lost and not self._goes_on:
            # The stream ends at this item; what comes after it in the group is not wanted.
            outcomes.leave_out(len(items) - len(outcomes))
        return outcomes, seconds

    def _ask(self, worker: Worker, items: list[Any], places: list[ItemPlace] | None, outcomes: Outcomes) -> float:
        """Have a worker call the function for the items, and take in what it answers; return how long it took."""
        unsent: BaseException | None = None
        worker.items.begin()
        sent = 0
        for item in items:
            place = None if places is None else program.SentPlace(places[sent].epoch, places[sent].ordinal)
            try:
                worker.items.put((item,) if place is None else (item, place))
            except BaseException as error:  # noqa: BLE001 - it is the consumer's, whatever it is
                note(error, f"asyncfeed: an item of type {type(item).__qualname__} cannot go to another process")
                unsent = error
                break
            sent += 1
        seconds = 0.0
        if sent:
            worker.ask(program.CALL)
            count, seconds = worker.results.open()
            for _ in range(count):
                _read(worker.results, outcomes)
            if not worker.alive and len(outcomes) < sent:
                outcomes.lose(RuntimeError(self._exit_message(worker, "while it worked on this item")))
                return seconds
        if unsent is not None and len(outcomes) == sent:
            outcomes.lose(unsent)
        return seconds

    def _take(self) -> Worker | None:
        """Return an idle worker, one of an earlier run or a new one; None where the run is stopping."""
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
        """Return whether a worker that had nothing to do is still there; say so where it is not."""
        if worker.check():
            return True
        how = self._exit_message(worker, "while it had nothing to do")
        self._forget(worker)
        if not self._stopping:
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
        """Keep a worker for the next run, if it answers; or else end it."""
        if worker.alive:
            worker.ask(program.REST)
        if worker.alive:
            worker.items.trim()
        with self._lock:
            # Until it is kept the run may kill it, and does so no more from then on.
            if worker.alive and not worker.killed and self._kept.keep(self._key, worker, self._generation):
                self._workers.discard(worker)
                return
        self._end(worker)

    def _prepare(self) -> None:
        with self._preparing:  # not the other lock, which the loop takes: this may call the user's code
            if self._setup is None:
                # What the main script defines has that name there; multiprocessing does the same.
                sys.modules.setdefault(program.MAIN, sys.modules["__main__"])
                packed = pack(self._fn)
                script = main_script()
                # In a session without a file, the class of an item has no name that another process can find.
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
                f"{self._name}: this is a worker process, which imports the main script to find something in it, "
                "and the script opens the pipeline again. Put what the script does under "
                '`if __name__ == "__main__":`, or the function into a module of its own'
            )
        return Worker(self._library_threads)

    def _begin(self, worker: Worker, *, again: bool = False) -> bool:
        """Give a worker the function; return whether it has taken it.

        Raises where a new one cannot. One that is used `again` is then of no use, and a new one may be.
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
        """Let all workers go after what they are at; threads wait for them."""
        with self._lock:
            self._stopping = True
            idle, self._idle = self._idle, []
            for worker in self._workers:
                if worker.starting:  # it would import all that it needs first
                    worker.kill()
        for worker in idle:
            try:
                threads.submit(f"letting a process of {self._name} go", self._leave, worker)
            except RuntimeError:  # the interpreter ends, and starts no more threads
                worker.kill()
                self._end(worker)

    def kill(self) -> bool:
        """Kill the workers that are left, with what they started; return whether there were any."""
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
    """Add the next result, or what its item raised."""
    try:
        value = arena.get()
    except BaseException as error:  # noqa: BLE001 - it is the consumer's, whatever it is
        note(error, "asyncfeed: the result cannot be brought from its process")
        outcomes.lose(error)
        return
    if type(value) is Failed:
        outcomes.lose(value.unpack())
    else:
        outcomes.values.append(value)
