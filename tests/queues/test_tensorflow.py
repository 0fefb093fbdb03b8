"""The queues beside TensorFlow's own: the same programs of operations, with the same results.

Operations that wait are part of a program, and the order in which they begin to wait matters. Ours are tasks on a
loop that is run until nothing moves. Theirs are threads, one for each operation, and the next operation begins when
the one before has returned or waits inside the kernel: Linux says which futex a thread waits for, and that it waits
without a time limit, as nothing else here does (the GIL is waited for with one). So no time decides anything.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncfeed import queues
from tests.searching import SEARCH

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(not os.access("/proc/self/syscall", os.R_OK), reason="needs Linux's /proc"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning:(tensorflow|keras|google|flatbuffers|h5py|ml_dtypes|gast)"
    ),
]

PROGRAMS = max(50, int(150 * SEARCH))  # for each of the four kinds
FUTEX = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, "202")


@pytest.fixture(scope="module")
def tf() -> Any:
    return pytest.importorskip("tensorflow")


# -- operations that may wait


class Theirs:
    """An operation of TensorFlow on a thread of its own; made when it has returned or waits."""

    def __init__(self, call: Callable[[], Any], desk: Desk) -> None:
        self.call = call
        self.entered = False
        self.outcome: Any = None
        self.done = False
        worker = desk.take()
        worker.jobs.put(self)
        worker.waits = worker.find(lambda: self.done, lambda: self.entered)


class Worker(threading.Thread):
    """Runs one operation after the other."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(daemon=True)
        self.jobs: queue.SimpleQueue[Theirs | None] = queue.SimpleQueue()
        self.desk = desk
        self.start()
        self._file = Path(f"/proc/self/task/{self.native_id}/syscall")
        self.waits = ""
        """The futex of its operation."""
        self.idles = self.find(lambda: False, lambda: True)
        """The futex of its empty queue."""

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job.entered = True
            try:
                job.outcome = job.call()
            except Exception as error:
                job.outcome = error
            self.desk.free.append(self)
            job.done = True
            del job

    def place(self) -> str:
        """Return the futex that it waits for without a time limit; nothing where it does not."""
        words = self._file.read_text().split()
        return words[1] if words[0] == FUTEX and int(words[4], 16) == 0 else ""

    def rests(self) -> bool:
        """Return whether it waits inside its operation, or for another one."""
        place = self.place()
        return bool(place) and place in (self.waits, self.idles)

    def find(self, done: Callable[[], bool], entered: Callable[[], bool]) -> str:
        """Return the futex that it comes to wait for. All others rest, so it is no lock that they would hold."""
        place, seen = "", 0
        while not done() and seen < 3:
            here = self.place() if entered() else ""
            seen = seen + 1 if here and here == place else int(bool(here))
            place = here
            time.sleep(0)
        return place if seen == 3 else ""


class Desk:
    """The workers."""

    def __init__(self) -> None:
        self.free: list[Worker] = []
        self.all: list[Worker] = []

    def take(self) -> Worker:
        if self.free:
            return self.free.pop()
        self.all.append(Worker(self))
        return self.all[-1]

    def rest(self) -> None:
        """Return when each worker waits inside its operation or for another one: nothing moves any more.

        A worker that was told to go on may wait at the same futex for a lock that another worker still holds. So
        each worker is looked at again after all others rested.
        """
        rounds = 0
        while rounds < 2:
            rounds = rounds + 1 if all(worker.rests() for worker in self.all) else 0
            time.sleep(0)


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    for worker in made.all:
        worker.jobs.put(None)
        worker.join()


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


async def idle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


# -- the four kinds


class Kind:
    """Makes both queues, their elements, and says what may be compared."""

    def __init__(self, tf: Any, name: str, capacity: int, keep: int) -> None:
        self.name = name
        self.number = 0
        if name == "fifo":
            make = [(m.FIFOQueue, {"dtypes": d, "shapes": [()]}) for m, d in self.sides(tf)]
        elif name == "padding":
            make = [(m.PaddingFIFOQueue, {"dtypes": d, "shapes": [(None,)]}) for m, d in self.sides(tf)]
        elif name == "shuffle":
            make = [
                (m.RandomShuffleQueue, {"min_after_dequeue": keep, "dtypes": d, "shapes": [()], "seed": 1})
                for m, d in self.sides(tf)
            ]
        else:
            make = [(m.PriorityQueue, {"types": d, "shapes": [()]}) for m, d in self.sides(tf)]
        self.ours, self.theirs = [made(capacity=capacity, **arguments) for made, arguments in make]

    @staticmethod
    def sides(tf: Any) -> Any:
        return [(queues, "int32"), (tf.queue, [tf.int32])]

    def batch(self, draws: list[int], *, shortest: int = 1) -> Any:
        """Return as many elements as there are draws; a draw is a priority, or a length.

        TensorFlow crashes the process where the slices of a batch are empty: `shortest` = 0 for one element only.
        """
        numbers = np.arange(self.number, self.number + len(draws), dtype=np.int32)
        self.number += len(draws)
        if self.name == "priority":
            return (np.array(draws, np.int64), numbers)
        if self.name == "padding":
            return (np.repeat(numbers[:, None], max(shortest, *draws, 0), 1),)
        return (numbers,)

    def seen(self, outcome: Any, numbers: list[int]) -> Any:
        """Return what must be equal of an outcome, and note which elements it has."""
        if isinstance(outcome, Exception):
            name = type(outcome).__name__
            assert name in {"OutOfRangeError", "ClosedError", "CancelledError"}, outcome
            return "the end" if name == "OutOfRangeError" else "closed"
        if outcome is None:
            return None
        if self.name == "priority":
            priorities, these = map(np.asarray, outcome)
            numbers.extend(these.ravel().tolist())
            return priorities.tolist()
        array = np.asarray(outcome)
        if self.name == "shuffle":
            numbers.extend(array.ravel().tolist())
            return array.shape
        return array.tolist()


SMALL = st.integers(0, 3)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.lists(SMALL, min_size=1, max_size=1)),
        st.tuples(st.just("enqueue_many"), st.lists(SMALL, max_size=6)),
        st.tuples(st.just("dequeue"), st.just(0)),
        st.tuples(st.sampled_from(["dequeue_many", "dequeue_up_to"]), st.integers(0, 6)),
        st.tuples(st.just("close"), st.sampled_from([False, False, True])),
    ),
    min_size=3,
    max_size=14,
)
ran = {"programs": 0, "operations": 0, "waited": 0}


@pytest.mark.parametrize("name", ["fifo", "padding", "shuffle", "priority"])
@settings(max_examples=PROGRAMS, suppress_health_check=list(HealthCheck))
@given(capacity=st.sampled_from([1, 2, 3, 5, -1]), keep=SMALL, operations=OPERATIONS)
def test_programs_do_what_they_do_in_tensorflow(
    tf: Any, desk: Desk, loop: Any, name: str, capacity: int, keep: int, operations: list[tuple[str, Any]]
) -> None:
    """What returns, waits and fails, with which elements, and how many are left: after every operation.

    The one deviation: a closed `PriorityQueue` gives `dequeue_up_to` what it has; theirs loses it.
    """
    kind = Kind(tf, name, capacity, keep if capacity < 0 else min(keep, capacity - 1))
    numbers: tuple[list[int], list[int]] = ([], [])
    lost: list[int] = []
    waiting: list[tuple[str, Any, asyncio.Task[Any], Theirs]] = []
    ran["programs"] += 1

    def step(operation: str, argument: Any) -> None:
        arguments: tuple[Any, ...]
        if operation == "enqueue":
            arguments = (tuple(component[0, ...] for component in kind.batch(argument, shortest=0)),)
        elif operation == "enqueue_many":
            arguments = (kind.batch(argument),)
        else:
            arguments = () if operation == "dequeue" else (argument,)
        task = loop.create_task(getattr(kind.ours, operation)(*arguments))
        loop.run_until_complete(idle())
        theirs = Theirs(lambda: getattr(kind.theirs, operation)(*arguments), desk)
        desk.rest()
        waiting.append((operation, argument, task, theirs))
        ran["operations"] += 1
        ran["waited"] += not task.done()
        for entry in list(waiting):
            compare(*entry)
        assert kind.ours.size() == int(kind.theirs.size())
        assert kind.ours.is_closed() == bool(kind.theirs.is_closed())

    def compare(operation: str, argument: Any, task: asyncio.Task[Any], theirs: Theirs) -> None:
        assert task.done() == theirs.done, operation
        if not task.done():
            return
        waiting[:] = [entry for entry in waiting if entry[2] is not task]
        outcome = task.exception() or task.result()
        if name == "priority" and operation == "dequeue_up_to" and fewer(outcome, argument):
            kind.seen(outcome, lost)
            assert kind.seen(theirs.outcome, []) == "the end"
        else:
            assert kind.seen(outcome, numbers[0]) == kind.seen(theirs.outcome, numbers[1]), operation

    try:
        for operation, argument in operations:
            step(operation, argument)
        step("close", True)
        assert waiting == []
        if left := kind.ours.size():
            step("dequeue_many", left)
    finally:
        if waiting:  # it has failed: let go of the threads and tasks
            kind.theirs.close(True)
            kind.ours.close_nowait(True)
            loop.run_until_complete(asyncio.wait([entry[2] for entry in waiting]))
    assert len({*numbers[0], *lost}) == len(numbers[0]) + len(lost)
    if lost:  # of equal priorities, others may have been lost
        assert set(numbers[1]) <= {*numbers[0], *lost}
        assert len(set(numbers[1])) == len(numbers[0])
    else:
        assert sorted(numbers[0]) == sorted(numbers[1])


def fewer(outcome: Any, wanted: int) -> bool:
    return not isinstance(outcome, Exception) and len(outcome[0]) < wanted


def test_the_programs_were_many_and_waited() -> None:
    """Two thousand programs, and waiting is not rare in them."""
    if ran["programs"] < 4 * PROGRAMS:
        pytest.skip("the kinds ran in other processes")
    assert ran["waited"] > ran["operations"] / 10


def cancellable(tf: Any, desk: Desk, operation: Callable[[], Any]) -> tuple[Theirs, Any]:
    """Start an operation of TensorFlow that can be cancelled; return it, and what cancels it."""
    from tensorflow.python.eager import cancellation  # there is no public way

    manager = cancellation.CancellationManager()
    function = tf.function(operation).get_concrete_function()
    return Theirs(manager.get_cancelable_function(function), desk), manager


def test_a_cancelled_batch_is_lost_there_and_not_here(tf: Any, desk: Desk, loop: Any) -> None:
    """A deviation that is written down: should TensorFlow mend it, this fails, and the documents can be shorter."""
    theirs = tf.queue.FIFOQueue(10, [tf.int32], shapes=[()])
    theirs.enqueue_many((np.arange(3, dtype=np.int32),))
    waiting, manager = cancellable(tf, desk, lambda: theirs.dequeue_many(5))
    while int(theirs.size()):  # until it has them
        time.sleep(0)
    manager.start_cancel()
    while not waiting.done:
        time.sleep(0)
    assert isinstance(waiting.outcome, tf.errors.CancelledError)
    assert int(theirs.size()) == 0

    ours = queues.FIFOQueue(10, "int32", shapes=[()])
    ours.enqueue_many_nowait([range(3)])
    task = loop.create_task(ours.dequeue_many(5))
    loop.run_until_complete(idle())
    assert ours.size() == 0
    task.cancel()
    loop.run_until_complete(idle())
    assert ours.dequeue_many_nowait(3).tolist() == [0, 1, 2]


def test_equal_priorities_lose_their_order_there_and_not_here(tf: Any) -> None:
    """As the documents say."""
    batch = (np.zeros(12, np.int64), np.arange(12, dtype=np.int32))
    theirs = tf.queue.PriorityQueue(20, [tf.int32], [()])
    ours = queues.PriorityQueue(20, [tf.int32], [()])  # takes TensorFlow's dtypes, too
    theirs.enqueue_many(batch)
    ours.enqueue_many_nowait(batch)
    assert np.asarray(theirs.dequeue_many(12)[1]).tolist() != list(range(12))
    assert ours.dequeue_many_nowait(12)[1].tolist() == list(range(12))


@pytest.mark.parametrize(
    ("value", "kept"), [(np.array(2**40), 0), (np.array(2.5), 2), ([7, 8], 7)], ids=["wide", "float", "extra"]
)
def test_what_does_not_fit_is_cut_there_and_refused_here(tf: Any, value: Any, kept: int) -> None:
    """Values of arrays, and components beyond the last."""
    theirs = tf.queue.FIFOQueue(1, tf.int32, shapes=tf.TensorShape([]))
    theirs.enqueue(value)
    assert int(theirs.dequeue()) == kept
    ours = queues.FIFOQueue(1, tf.int32, shapes=tf.TensorShape([]))
    with pytest.raises((ValueError, TypeError)):
        ours.enqueue_nowait(value)


def test_tensors_go_in_and_constructors_agree(tf: Any) -> None:
    """A queue of either kind is made from the same arguments, and takes the same values."""
    arguments: dict[str, Any] = {
        "capacity": 5,
        "dtypes": [tf.float32, tf.string],
        "shapes": [tf.TensorShape([2]), ()],
        "names": ["x", "y"],
    }
    for module in (tf.queue, queues):
        made = module.FIFOQueue(**arguments)
        enqueue = made.enqueue if module is tf.queue else made.enqueue_nowait
        dequeue = made.dequeue if module is tf.queue else made.dequeue_nowait
        enqueue({"x": tf.constant([1.0, 2.0]), "y": tf.constant("é")})
        found = {name: np.asarray(value) for name, value in dequeue().items()}
        assert found["x"].tolist() == [1, 2]
        assert found["y"][()] == "é".encode()
