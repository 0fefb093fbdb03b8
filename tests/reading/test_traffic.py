"""What the readers of one store share: how many requests it gets at a time, and how many a second after a refusal.

Nothing here has a loop or a clock.
"""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.reading import ObjectStore
from asyncfeed.reading.obstore_client import connected
from asyncfeed.reading.pace import AHEAD_SECONDS, LEAST, Pace
from asyncfeed.reading.traffic import FIRST, Traffic, traffic_of
from asyncfeed.reading.window import MAX_REQUESTS, Window

RTT = 0.02


class Store:
    """Answers at most `limit` requests a second, some of them at once. Its clients ask as often as they may."""

    def __init__(self, limit: float, *, readers: int = 1, fails: float = 0.0) -> None:
        self.limit = limit
        self._fails = fails
        """The share of requests that are refused whatever the rate is."""
        self._random = Random(1)
        self.pace = Pace()
        self.now = 0.0
        self.answered = self.refused = 0
        self._tokens = self.at_once = max(5.0, limit / 10)
        self._due = [0.0] * readers
        """When each reader goes on."""
        self._tickets: list[int | None] = [None] * readers
        self.by_reader = [0] * readers
        self._under_way: list[tuple[float, bool]] = []
        """When each request that is under way began, and whether it will be refused."""

    def run(self, seconds: float) -> None:
        """Let so many seconds pass."""
        until = self.now + seconds
        while self.now < until:
            reader = min(range(len(self._due)), key=self._due.__getitem__)
            self._pass_to(max(self.now, min(self._due[reader], until)))
            if self._due[reader] > self.now:
                continue
            ticket = self._tickets[reader]
            if ticket is not None and self.pace.admits(ticket):
                self._begin(reader)
            wait, self._tickets[reader] = self.pace.ask(self.now)
            self._due[reader] = self.now + max(wait, 1e-3)

    def _pass_to(self, now: float) -> None:
        self._tokens = min(self.at_once, self._tokens + (now - self.now) * self.limit)
        self.now = now
        while self._under_way and self._under_way[0][0] + RTT <= now:
            began, refused = self._under_way.pop(0)
            if refused:
                self.refused += 1
                self.pace.note_refusal(began, now)
            else:
                self.answered += 1
                self.pace.note_answer(began)

    def _begin(self, reader: int) -> None:
        refused = self._tokens < 1 or self._random.random() < self._fails
        self._tokens -= not refused
        self.by_reader[reader] += not refused
        self._under_way.append((self.now, refused))
        self.pace.note_begin(self.now)


def refuse(pace: Pace, began: float, now: float) -> None:
    """Have two requests refused that began together. A single one of many says little."""
    pace.note_refusal(began, now)
    pace.note_refusal(began, now)


@pytest.mark.parametrize(("fails", "share"), [(0.01, 0.3), (0.03, 0.3), (0.1, 0.3)])
def test_refusals_that_do_not_depend_on_the_rate_do_not_bring_it_to_nothing(fails: float, share: float) -> None:
    """Some stores refuse a few requests while they move data. Else 3 % of them left 15 requests a second of 1,000."""
    free, failing = Store(math.inf), Store(math.inf, fails=fails)
    for store in (free, failing):
        store.run(30)
    assert failing.answered >= share * free.answered


def test_nothing_waits_before_a_refusal() -> None:
    pace = Pace()
    for number in range(1000):
        pace.note_begin(number * 1e-4)
        pace.note_answer(number * 1e-4)
        assert pace.ask(number * 1e-4)[0] == 0
    assert not pace.holds


def test_of_requests_that_were_under_way_together_one_refusal_lowers_the_rate() -> None:
    pace = Pace()
    for _ in range(32):
        pace.note_begin(1.0)
    refuse(pace, 1.0, 1.1)
    lowered = pace.rate
    for _ in range(31):
        pace.note_refusal(1.0, 1.1)
    assert pace.rate == lowered < 320
    pace.note_begin(1.2)
    refuse(pace, 1.2, 1.3)
    assert pace.rate < lowered


@pytest.mark.parametrize("readers", [1, 10, 100])
@pytest.mark.parametrize("limit", [10, 100, 700])
def test_the_limit_of_a_store_is_found_and_few_requests_are_refused(limit: float, readers: int) -> None:
    store = Store(limit, readers=readers)
    store.run(10)
    store.answered = store.refused = 0
    store.run(30)
    assert store.answered >= 0.9 * 30 * limit
    assert store.refused <= max(30, 0.03 * 30 * limit)


def test_readers_come_to_equal_parts() -> None:
    store = Store(200, readers=10)
    store.run(30)
    assert min(store.by_reader) >= 0.9 * max(store.by_reader)


def test_a_store_that_allows_more_is_used_after_some_seconds() -> None:
    store = Store(100)
    store.run(10)
    store.limit = 500
    store.run(6)
    store.answered = 0
    store.run(4)
    assert store.answered >= 0.85 * 4 * 500


def test_a_store_that_refuses_everything_for_a_while_is_used_again_when_it_does_not() -> None:
    store = Store(300)
    store.run(5)
    store.limit, store.refused = 1e-9, 0
    store.run(20)
    assert store.refused <= 150
    assert store.pace.rate >= LEAST
    store.limit = 300
    store.run(2)
    store.answered = 0
    store.run(5)
    assert store.answered >= 0.9 * 5 * 300


def test_in_the_end_nothing_waits_if_nothing_is_refused() -> None:
    store = Store(50)
    store.run(5)
    assert store.pace.holds
    store.limit = math.inf
    store.run(20)
    assert not store.pace.holds


def test_a_moment_in_which_readers_asked_for_little_does_not_lower_the_rate() -> None:
    """They waited for something else. The rate before was one that the store took."""
    pace = Pace()
    for number in range(64):
        pace.note_begin(number * 1e-3)
    refuse(pace, 0.063, 0.064)
    before = pace.rate
    for _ in range(64):
        pace.note_begin(1.0)
        pace.note_answer(1.0)
    refuse(pace, 1.3, 1.4)
    assert pace.rate > 0.9 * before


def test_a_time_that_was_given_before_the_rate_was_lowered_is_not_kept() -> None:
    pace = Pace()
    for number in range(64):
        pace.note_begin(number * 1e-3)
    refuse(pace, 0.063, 0.064)
    wait, ticket = pace.ask(0.064)
    assert wait
    assert pace.admits(ticket)
    refuse(pace, 0.065, 0.066)
    assert not pace.admits(ticket)


def test_a_reader_whose_loop_was_busy_makes_up_for_a_little() -> None:
    """Else each turn of a loop that takes a millisecond would cost a store of thousands a second most of them."""
    pace = Pace()
    for number in range(64):
        pace.note_begin(number * 1e-3)
    refuse(pace, 0.063, 0.064)
    waits = [pace.ask(0.2)[0] for _ in range(50)]
    assert 5 <= waits.count(0.0) <= 20
    assert waits == sorted(waits)


@given(
    acts=st.lists(
        st.tuples(st.sampled_from(["ask", "begin", "refuse", "answer"]), st.floats(0, 0.5)), max_size=300
    )
)
def test_who_asks_waits_for_a_second_at_most_and_is_never_sent_away_without_a_wait(
    acts: list[tuple[str, float]],
) -> None:
    pace, now, began = Pace(), 100.0, 100.0
    for act, seconds in acts:
        now += seconds
        if act == "begin":
            pace.note_begin(now)
            began = now
        elif act == "refuse":
            pace.note_refusal(began, now)
        elif act == "answer":
            pace.note_answer(began)
        else:
            wait, ticket = pace.ask(now)
            assert 0 <= wait <= AHEAD_SECONDS
            assert wait or pace.admits(ticket)
        assert pace.rate >= LEAST


# -- how many at a time


@pytest.fixture
def traffic() -> Iterator[Traffic]:
    yield Traffic()
    af.limits(requests="default")


def fill(traffic: Traffic, *windows: Window) -> list[int]:
    """Begin requests in turn as long as there is room. Return how many each reader has under way."""
    begun = True
    while begun:
        begun = False
        for window in windows:
            if window.is_open and traffic.has_room(window):
                window.begin(0)
                begun = True
    return [window.under_way for window in windows]


def readers(traffic: Traffic, count: int, *, known: bool = False) -> list[Window]:
    windows = [Window(MAX_REQUESTS) for _ in range(count)]
    for window in windows:
        traffic.join(window, known=known)
    return windows


def test_all_readers_together_begin_with_some_requests_and_soon_have_all(traffic: Traffic) -> None:
    windows = readers(traffic, 4)
    assert sum(fill(traffic, *windows)) == FIRST
    for _ in range(32 + 64 + 128 + 256 + 512):
        traffic.note_answer(0.0)
    assert 200 < sum(fill(traffic, *windows)) <= MAX_REQUESTS


def test_a_number_that_was_given_holds_from_the_first_request_on(traffic: Traffic) -> None:
    (window,) = readers(traffic, 1, known=True)
    assert fill(traffic, window) == [MAX_REQUESTS]
    more = Window(1000)
    other = Traffic()
    other.join(more, known=True)
    assert fill(other, more) == [1000]


def test_a_reader_that_begins_beside_a_greedy_one_gets_its_part(traffic: Traffic) -> None:
    """It waits for no other one."""
    greedy, late = readers(traffic, 2, known=True)
    assert fill(traffic, greedy) == [MAX_REQUESTS]
    assert fill(traffic, late) == [MAX_REQUESTS // 3]
    for _ in range(100):
        greedy.end(0)
    traffic.leave(greedy)
    assert fill(traffic, late) == [MAX_REQUESTS]


def test_the_limit_of_the_process_holds_for_all_readers_and_each_may_have_one(traffic: Traffic) -> None:
    af.limits(requests=6)
    assert fill(traffic, *readers(traffic, 3)) == [2, 2, 2]
    many = Traffic()
    assert fill(many, *readers(many, 10)) == [1] * 10
    af.limits(memory=None)
    alone = Traffic()
    assert fill(alone, *readers(alone, 1)) == [6]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "many"])
def test_a_limit_of_requests_is_a_whole_number(wrong: object) -> None:
    with pytest.raises(af.PipelineError, match="requests must be a whole number"):
        af.limits(requests=wrong)  # type: ignore[arg-type]


# -- which readers


def s3(bucket: str = "a", **options: object) -> ObjectStore:
    return ObjectStore(f"s3://{bucket}", **{"anonymous": True, "options": {"region": "r"}, **options})  # type: ignore[arg-type]


def test_readers_share_what_they_reach_alike() -> None:
    own = traffic_of(s3())
    assert traffic_of(s3(verify="etag", max_requests=3)) is own
    assert traffic_of(s3("b")) is not own
    assert traffic_of(s3(options={"region": "other"})) is not own
    server = traffic_of(s3(endpoint="http://127.0.0.1:1"))
    assert traffic_of(s3("b", endpoint="http://127.0.0.1:1")) is server
    assert traffic_of(s3(endpoint="http://127.0.0.1:2")) is not server
    web = traffic_of(ObjectStore("https://example.org"))
    assert traffic_of(ObjectStore("https://example.org")) is web
    assert traffic_of(ObjectStore("https://example.com")) is not web


def test_readers_share_a_client_until_the_last_one_has_gone() -> None:
    pytest.importorskip("obstore")
    first = connected(s3())
    assert connected(s3(verify="etag")) is first
    assert connected(s3("b")) is not first
    assert connected(s3(client_options={"timeout": "3s"})) is not first
    other = first.client
    del first
    gc.collect()
    assert connected(s3()).client is not other


def test_readers_that_begin_on_several_threads_share_it_too() -> None:
    found: list[Traffic] = []
    store = s3("many-threads")
    threads = [threading.Thread(target=lambda: found.append(traffic_of(store))) for _ in range(20)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(map(id, found))) == 1


def test_a_fork_waits_for_no_lock_of_its_parent() -> None:
    """Another thread may look a store up at that moment."""
    code = """
        import os, threading
        from asyncfeed.reading import ObjectStore, traffic
        held, over = threading.Event(), threading.Event()

        class Slow(ObjectStore):
            def __hash__(self):  # called while the store is looked up
                held.set()
                over.wait()
                return 0

        thread = threading.Thread(target=traffic.traffic_of, args=(Slow("s3://a"),))
        thread.start()
        held.wait()
        child = os.fork()
        if not child:
            traffic.traffic_of(ObjectStore("s3://a"))
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        over.set()
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (told.stdout, told.stderr) == ("7\n", "")
