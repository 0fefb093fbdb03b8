"""The algorithm of the queues, against a model that moves one element at a time and keeps plain lists."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncfeed.errors import ClosedError
from asyncfeed.queues.attempts import Attempt, Attempts, Close, Dequeue, Enqueue, OutOfRangeError
from asyncfeed.queues.stores import First, Shuffled, Sorted


class Model:
    """The same rules, written as slowly as possible. An element is `(priority, number)`."""

    def __init__(self, capacity: int | None, keep: int, ordered: bool) -> None:
        self.capacity, self.keep, self.ordered = capacity, keep, ordered
        self.store: list[Any] = []
        self.closed = False
        self.enqueues: list[dict[str, Any]] = []
        self.dequeues: list[dict[str, Any]] = []

    def settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for step in (self.step_enqueue, self.step_dequeue):
                while step():
                    moved = True

    def step_enqueue(self) -> bool:
        if not self.enqueues:
            return False
        head = self.enqueues[0]
        if self.closed:
            head["state"] = "closed"
        elif head["kind"] == "close":
            self.closed, head["state"] = True, "done"
        elif self.capacity is not None and len(self.store) >= self.capacity:
            return False
        else:
            self.store.append(head["left"].pop(0))
            if self.ordered:
                self.store.sort(key=lambda element: element[0])  # stable: equals stay in order
            if not head["left"]:
                head["state"] = "done"
        if head["state"]:
            self.enqueues.pop(0)
        return True

    def step_dequeue(self) -> bool:
        if not self.dequeues:
            return False
        head = self.dequeues[0]
        if self.closed and len(self.store) < head["n"] - len(head["got"]):
            self.put_back(head)
            if head["up_to"] and self.store:
                head["n"] = len(self.store)
            else:
                head["state"] = "end"
                self.dequeues.pop(0)
                return True
        if self.ordered and len(head["got"]) == 0 and len(self.store) < head["n"]:
            return False
        if len(self.store) <= (0 if self.closed else self.keep):
            return False
        head["got"].append(self.store.pop(0))
        if len(head["got"]) == head["n"]:
            head["state"] = "done"
            self.dequeues.pop(0)
        return True

    def put_back(self, attempt: dict[str, Any]) -> None:
        self.store[:0] = attempt["got"]
        if self.ordered:
            self.store.sort(key=lambda element: element[0])
        attempt["got"] = []


KINDS = st.sampled_from(["first", "sorted", "shuffled"])
COUNT = st.integers(1, 5)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.lists(st.integers(0, 2), min_size=1, max_size=5)),
        st.tuples(st.sampled_from(["dequeue", "up_to"]), COUNT),
        st.tuples(st.just("withdraw"), st.integers(0, 30)),
        st.tuples(st.just("close"), st.just(0)),
        st.tuples(st.just("cut"), st.just(0)),
    ),
    max_size=25,
)


def state(attempt: Attempt) -> str:
    if not attempt.finished:
        return ""
    return {type(None): "done", ClosedError: "closed", OutOfRangeError: "end"}[type(attempt.error)]


@settings(max_examples=1500)
@given(kind=KINDS, capacity=st.none() | st.integers(1, 4), keep=st.integers(0, 3), operations=OPERATIONS)
def test_it_does_what_the_rules_say(kind: str, capacity: int | None, keep: int, operations: list[Any]) -> None:
    """Who has finished how, with what, and what is left: after every operation. No element is lost or doubled."""
    keep = keep if kind == "shuffled" and (capacity is None or keep < capacity) else 0
    store = {"first": First, "sorted": Sorted, "shuffled": lambda: Shuffled(1)}[kind]()
    queue = Attempts(store, name="q", capacity=capacity, keep=keep, whole=kind == "sorted")
    model = Model(capacity, keep, kind == "sorted")
    pairs: list[tuple[Attempt, dict[str, Any]]] = []
    numbers = iter(range(10_000))
    entered: set[int] = set()

    def push(attempt: Attempt, twin: dict[str, Any]) -> None:
        pairs.append((attempt, twin))
        foreseen = queue.would_finish(attempt)
        assert (attempt in queue.push(attempt)) == foreseen
        (model.dequeues if isinstance(attempt, Dequeue) else model.enqueues).append(twin)

    for name, argument in operations:
        if name == "enqueue":
            elements = [(priority, next(numbers)) for priority in argument]
            entered |= {number for _, number in elements}
            push(Enqueue(elements), {"kind": "enqueue", "left": list(elements), "state": ""})
        elif name in ("dequeue", "up_to"):
            up_to = name == "up_to"
            push(Dequeue(argument, up_to=up_to), {"n": argument, "up_to": up_to, "got": [], "state": ""})
        elif name == "close":
            push(Close(), {"kind": "close", "state": ""})
        elif name == "cut":
            queue.cut()
            model.closed = True
            for twin in model.enqueues:
                twin["state"] = "closed"
            model.enqueues.clear()
        else:
            waiting = [pair for pair in pairs if not pair[0].finished]
            if not waiting:
                continue
            attempt, twin = waiting[argument % len(waiting)]
            pairs[:] = [pair for pair in pairs if pair[0] is not attempt]
            queue.withdraw(attempt)
            if isinstance(attempt, Dequeue):
                model.dequeues = [each for each in model.dequeues if each is not twin]
                model.put_back(twin)
            else:
                model.enqueues = [each for each in model.enqueues if each is not twin]
                entered -= {number for _, number in twin.get("left", [])}
        model.settle()
        assert queue.flush() == []
        assert (len(store), queue.closed) == (len(model.store), model.closed)
        for attempt, twin in pairs:
            assert state(attempt) == twin["state"]
            if isinstance(attempt, Dequeue):
                assert len(attempt.taken) == len(twin["got"])
                assert kind == "shuffled" or attempt.taken == twin["got"]
    held = [e for a, _ in pairs if isinstance(a, Dequeue) for e in a.taken]
    left = [e for a, _ in pairs if isinstance(a, Enqueue) for e in a.elements[a.entered :]]
    rest = [store.take() for _ in range(len(store))]
    assert kind == "shuffled" or rest == model.store
    assert sorted(number for _, number in [*held, *left, *rest]) == sorted(entered)


@pytest.mark.parametrize("make", [First, Sorted], ids=["first", "sorted"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_finished_dequeue_that_nobody_heard_of_puts_everything_back_in_order(make: Any, n: int) -> None:
    queue = Attempts(make(), name="q")
    elements = [(1, 0), (1, 1), (1, 2), (1, 3)]
    queue.push(Enqueue(elements))
    taken = Dequeue(n)
    queue.push(taken)
    assert taken.finished
    queue.withdraw(taken)
    everything = Dequeue(4)
    queue.push(everything)
    assert everything.taken == elements


def test_what_goes_back_serves_those_who_wait() -> None:
    queue = Attempts(First(), name="q")
    several, one = Dequeue(3), Dequeue(1)
    queue.push(Enqueue([(1,), (2,)]))
    queue.push(several)
    queue.push(one)
    assert queue.withdraw(several) == [one]
    assert one.taken == [(1,)]


def test_more_may_go_back_than_the_capacity() -> None:
    queue = Attempts(First(), name="q", capacity=2)
    several, late = Dequeue(5), Enqueue([(5,)])
    queue.push(several)
    queue.push(Enqueue([(1,), (2,), (3,), (4,)]))
    queue.withdraw(several)
    assert len(queue.store) == 4
    assert queue.push(late) == []
    queue.push(Dequeue(3))
    assert late.finished


@pytest.mark.parametrize("make", [First, Sorted, lambda: Shuffled(0)], ids=["first", "sorted", "shuffled"])
def test_one_enqueued_element_that_nobody_heard_of_leaves_again(make: Any) -> None:
    queue = Attempts(make(), name="q", capacity=3)
    attempts = [Enqueue([(1, "a")]), Enqueue([(1, "a")]), Enqueue([(1, "b")])]
    for attempt in attempts:
        queue.push(attempt)
    waiting = Enqueue([(1, "c")])
    assert queue.push(waiting) == []
    assert queue.withdraw(attempts[1]) == [waiting]
    assert sorted(queue.store.take()[1] for _ in range(3)) == ["a", "b", "c"]


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_shuffling_is_uniform_and_repeats_with_its_seed(seed: int) -> None:
    def order() -> list[int]:
        store = Shuffled(seed)
        for number in range(100):
            store.put((number,))
        return [store.take()[0] for _ in range(100)]

    drawn = order()
    assert drawn == order()
    assert sorted(drawn) == list(range(100))
    assert abs(sum(drawn[:50]) / 50 - 49.5) < 25  # six standard deviations
