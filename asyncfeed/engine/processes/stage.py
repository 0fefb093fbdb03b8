"""Calls the sync function of a stage in worker processes.

A thread of the run takes a group of items, sends it to an idle worker process (or starts one), waits, and returns
the results. For the stage this is a group like any other. So order, groups, memory, errors and cancellation are
the same as on threads. Invariants:

* A worker belongs to one thread, or is idle, or has ended. The thread waits for the worker's answer or its end,
  whichever comes first.
* An item has one result, whatever dies. The results that a worker had completed when it died count. The thread
  keeps all other items of the group, with their places and their part of the budget, until they have gone to
  another worker or back to the stage. So order, random numbers, states and memory are as if nothing had died.
* A worker suspects the item that it was at when it died: it was reading it, in the call, or writing its result.
  The items behind it are innocent. A worker that has not answered any item suspects the first one that it was
  sent. So each death has a suspect, or was preceded by an answer, and no series of deaths is endless.
* A suspect goes to another worker alone. If that dies of it, too, the item has failed, as if its function had
  raised. `on_error` may leave it out. A list of items has a suspect among its members. If another worker dies at
  another member, that is one more suspect.
* If a worker dies while it starts, another one is started. If that does so, too, the run ends, because no item is
  at fault.
* A worker that has answered may be kept for the next run of the same function (`engine/processes/kept.py`). A
  worker that died, was killed, or did not answer within the grace is never used again.
* No method that the event loop calls waits for a process.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

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
from asyncfeed.reading.listing import FileSpan
from asyncfeed.stages.chain import NamesNeeded, NoBatch
from asyncfeed.stages.steps import MemberError, Work
from asyncfeed.stats import SlowPaths

if TYPE_CHECKING:
    from asyncfeed.engine.operators.step import RunContext

log = logging.getLogger("asyncfeed")


class ProcessDispatch(ThreadDispatch):
    """Forms groups of about 10 ms or 1 MB of work, and has worker processes do them."""

    def __init__(self, context: RunContext, work: Work, name: str, unit: int) -> None:
        super().__init__(context.threads, work, name, unit)
        self._processes = Processes(work, name)
        context.processes.append(self._processes)
        context.slow_paths.append(self._processes.died)

    def group(self, count: int, costs: Sequence[int], ratio: float) -> int:
        """Return how many of `count` items go into the next group. Items are copied, so they weigh, too."""
        return super().group(count, costs, max(1.0, ratio))

    async def run(self, items: list[Any], places: list[ItemPlace] | None, number: int) -> Outcomes:
        """Call the function in a process, and learn the group size from the time it took there."""
        self._processes.room = self.room
        outcomes, seconds = await self._threads.run(
            self._name, self._in_process, items, places, number, limiter=self.limiter
        )
        if outcomes:
            self._size.learn(seconds / len(outcomes), PROCESS_GROUP_SECONDS)
        return outcomes

    def _in_process(self, items: list[Any], places: list[ItemPlace] | None, number: int) -> tuple[Outcomes, float]:
        if self.in_turn and number != self._turn:
            return Outcomes(), 0.0
        outcomes, seconds = self._processes.call(items, places)
        self._turn = number + len(outcomes)
        return outcomes, seconds


class Processes:
    """The worker processes of one stage, one for each call at a time. They are started when needed, and reused."""

    def __init__(self, work: Work, name: str, kept: KeptWorkers = kept) -> None:
        self._fn = work.fn
        self._name = name
        self._goes_on = work.skip is not None
        self._chained = work.members > 0
        """Whether each item is a list, whose members have places of their own."""
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
        self.died = SlowPaths()
        """Counts the workers that died while the run went on."""

    # -- on threads

    def call(self, items: list[Any], places: list[ItemPlace] | None) -> tuple[Outcomes, float]:
        """Call the function for the items. Return their outcomes, perhaps for fewer items, and the seconds.

        Raises if no worker can be started, because that is not the fault of an item.
        """
        outcomes, seconds = Outcomes(), 0.0
        deaths: set[int | None] = set()  # where workers have died in the first item without an outcome
        while deaths or not outcomes:
            worker = self._take()
            if worker is None:
                break
            if self._stopping:
                self._give_back(worker)
                break
            done = len(outcomes)
            todo = slice(done, done + 1 if deaths else None)
            try:
                took, suspected = self._ask(worker, items[todo], places and places[todo], outcomes)
            except BaseException as raised:
                at_exit = isinstance(raised, OSError) and worker.released
                worker.kill()  # its state is unknown, so no other run may use it
                self._end(worker)
                if at_exit:
                    continue  # the interpreter has closed the memory at its exit, while this thread still worked
                raise
            seconds += took
            if len(outcomes) > done:
                deaths.clear()
            if worker.alive:
                self._give_back(worker)
            elif not suspected:
                self._note_death(worker, "between two items")
            elif (member := worker.results.member()) not in deaths:
                deaths.add(member)
                self._note_death(worker, "while it worked on an item, which another one now does again")
            else:
                how = self._note_death(worker, "while it worked on this item, the second one to die there")
                error = RuntimeError(how)
                outcomes.add_missing(error if member is None else MemberError(member, self._name, error))
                deaths.clear()
        if self._stopping:  # no step reads these outcomes
            outcomes = Outcomes()
            outcomes.leave_out(len(items))
        elif outcomes.missing and not self._goes_on:
            # The stream ends at this item, so the rest of the group is not needed.
            outcomes.leave_out(len(items) - len(outcomes))
        return outcomes, seconds

    def _ask(
        self, worker: Worker, items: list[Any], places: list[ItemPlace] | None, outcomes: Outcomes
    ) -> tuple[float, bool]:
        """Have a worker call the function for the items, and add the results to `outcomes`.

        Return the seconds, and whether the worker has died and suspects the next item.
        """
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
        if self._stopping:  # `stop` has set it before it tells the workers, which `begin` may have undone
            worker.items.stop()
        worker.ask(program.CALL)  # also if no item was sent, because it must be told of its blocks
        count, seconds = worker.results.open()
        for _ in range(count):
            _read(worker.results, outcomes)
        worker.answered |= count > 0
        if type(outcomes.missing.get(len(outcomes) - 1)) is NamesNeeded:
            self._with_names = True
            outcomes.drop_last()
        elif unsent is not None and count == sent:
            outcomes.add_missing(unsent)
        died_of_it = worker.results.unfinished() or not worker.answered
        return seconds, not worker.alive and count < sent and died_of_it

    def _sent(self, place: ItemPlace, item: Any) -> program.SentPlace:
        """Return a place as it is sent. The members of a batch are named, too."""
        epochs = place.epochs() if self._chained else None
        if not self._with_names:
            return program.SentPlace(place.epoch, place.ordinal, None, epochs)
        members = range(len(item)) if isinstance(item, list | FileSpan) else ()
        return program.SentPlace(place.epoch, place.ordinal, (place.name(), *map(place.name, members)), epochs)

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
            if self._lives(kept):
                if self._begin(kept, again=True):
                    return kept
                self._end(kept)
        for how_often in ("", ", the second in a row: look at what the modules of the function do when imported"):
            if self._stopping:
                break
            worker = self._start()
            if self._begin(worker):
                return worker
            how = self._note_death(worker, "while it was starting" + how_often)
        if not self._stopping:
            raise PipelineError(how)
        return None

    def _lives(self, worker: Worker) -> bool:
        """Return whether an idle worker still lives. If it does not, note how it ended."""
        if worker.check():
            return True
        self._note_death(worker, "while it had nothing to do")
        return False

    def _note_death(self, worker: Worker, when: str) -> str:
        """Forget a worker that died. Return how it ended.

        The death is logged and counted, unless the run or the program is ending.
        """
        at_exit = worker.released
        how = f"{self._name}: {worker.exit_message(when)}"
        self._forget(worker)
        if not (self._stopping or at_exit):
            log.warning(how)
            self.died.note(f"{self._name}, worker process died")
        return how

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
        """Send the function to a worker. Return whether the worker has loaded it. If not, another one may.

        Raises if loading the function raises in a new worker. In a worker that is used `again`, it may be due to
        what the worker has done before.
        """
        with self._lock:
            worker.starting, worker.answered = True, False
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
            if failed is not None and not (again or self._stopping):
                raise PipelineError(
                    f"{self._name}: a worker process cannot load the function: {failed.text}"
                ) from failed.unpack()
        except BaseException:
            self._end(worker)
            raise
        return False

    def _end(self, worker: Worker) -> None:
        worker.finish()
        worker.end()
        self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        with self._lock:
            self._workers.discard(worker)

    # -- on the loop

    def stop(self, threads: Threads) -> None:
        """Keep or end all workers, each after its present item. Threads wait for them, so this does not block."""
        with self._lock:
            self._stopping = True
            idle, self._idle = self._idle, []
            for worker in self._workers:
                if worker.starting:  # killed, because it would finish its imports before it ends
                    worker.kill()
                else:
                    worker.items.stop()
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
    elif type(value) is NoBatch:
        outcomes.add_missing(None)
    else:
        outcomes.values.append(value)
