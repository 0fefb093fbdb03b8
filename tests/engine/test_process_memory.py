"""How the feeds of a process share a limit of memory."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed import PipelineError
from tests.engine.inside import Part, ProcessMemory, process_memory

LIMIT = 1000


class Memory:
    """Feeds that take and give back bytes, and ask before."""

    def __init__(self) -> None:
        self.memory = ProcessMemory(LIMIT)
        self.parts: list[Part] = []

    def step(self, what: str, which: int, nbytes: int) -> None:
        if what == "join":
            self.parts.append(self.memory.join())
        elif self.parts:
            part = self.parts[which % len(self.parts)]
            if what == "leave":
                self.parts.remove(part)
                self.memory.leave(part)
            elif what == "free":
                part.note(max(0, part.told - nbytes))
            elif part.told + nbytes <= part.limit:
                part.note(part.told + nbytes)


steps = st.lists(
    st.tuples(
        st.sampled_from(["join", "take", "take", "take", "free", "leave"]),
        st.integers(0, 9),
        st.integers(0, LIMIT),
    ),
    max_size=60,
)


@given(steps)
def test_feeds_together_never_take_more_than_the_limit(drawn: list[tuple[str, int, int]]) -> None:
    """Whatever they held before another one joined."""
    shared = Memory()
    for each in drawn:
        shared.step(*each)
        assert shared.memory.used == sum(part.told for part in shared.parts) <= LIMIT


@given(steps)
def test_feeds_that_take_what_they_may_leave_an_eighth_to_those_that_have_little(
    drawn: list[tuple[str, int, int]],
) -> None:
    shared = Memory()
    for each in drawn:
        shared.step(*each)
    begins = shared.memory.join()
    fair = LIMIT // (len(shared.parts) + 2)
    if all(part.told > fair for part in shared.parts):
        assert begins.limit >= min(fair, LIMIT - shared.memory.used)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_feeds_that_draw_come_to_equal_parts(count: int) -> None:
    """The first had all it could get when the others began."""
    memory = ProcessMemory(LIMIT)
    parts = [memory.join()]
    parts[0].note(parts[0].limit)
    assert parts[0].told == LIMIT - LIMIT // 8
    parts += [memory.join() for _ in range(count)]
    for _ in range(3000):
        for part in parts:
            part.note(max(0, part.told - 1))
            part.note(max(part.told, min(part.told + 3, part.limit)))
    fair = LIMIT // (count + 2)
    assert all(part.told >= fair - 2 for part in parts)


def test_many_threads_count_right() -> None:
    memory = ProcessMemory(LIMIT)
    parts = [memory.join() for _ in range(4)]

    def use(part: Part) -> None:
        for number in range(3000):
            part.note(number % 700)
        part.note(5)

    threads = [threading.Thread(target=use, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.used == 20
    memory.leave(parts[0])
    memory.leave(parts[0])
    parts[0].note(500)
    assert memory.used == 15


def test_a_feed_may_end_while_its_thread_counts_for_another_one() -> None:
    """The garbage collector closes the run of a loop that was closed, at any line."""
    memory = ProcessMemory(LIMIT)
    for at in range(1, 9):
        part, other = memory.join(), memory.join()
        other.note(100)
        left = at

        def trace(frame: Any, event: str, _: object, other: Part = other) -> Any:
            nonlocal left
            if frame.f_code is ProcessMemory.use.__code__ and event == "line":
                left -= 1
                if left == 0:
                    sys.settrace(None)
                    memory.leave(other)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            part.note(300)
        finally:
            sys.settrace(before)
        memory.leave(part)
        memory.leave(other)
        assert memory.used == 0


def test_the_default_limit_is_asked_of_the_machine_and_can_be_set() -> None:
    default = process_memory.limit
    assert f"{default:,} bytes in flight in all feeds of this process together" in af.items([1]).explain()
    try:
        af.limits(memory="5 MB")
        with af.items(range(1000)).open() as feed:
            next(feed)
            assert feed.stats().memory_limit == 5_000_000 // 8 * 7
        assert "5,000,000 bytes in flight in all feeds of this process together" in af.items([1]).explain()
        assert af.items([1]).open(memory_limit=70).stats().memory_limit == 70
        with pytest.raises(PipelineError, match="limits: memory must be at least 1 byte"):
            af.limits(memory=0)
    finally:
        af.limits(memory="default")
    assert process_memory.limit == default


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_feeds_of_a_forked_process_are_its_own() -> None:
    with af.items(range(3)).open() as feed:
        assert next(feed) == 0
        pid = os.fork()
        if not pid:
            try:
                part = process_memory.join()
                os._exit(0 if part.limit >= process_memory.limit // 8 * 7 else 1)
            except BaseException:  # noqa: BLE001 - the parent must not go on in the child
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
