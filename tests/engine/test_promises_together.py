"""Where two promises meet: each holds alone, and these tests ask for several at once."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.stages import Algorithm, Arranging, Held, Node, Unknown, Work
from asyncfeed.testing import run_virtual
from tests.engine.inside import LATE, groups_that_end_after
from tests.reading.readers import SlowStore


class Bad(Exception):
    """What the functions here fail with."""


def fails_for_every_fifth(number: int) -> int:
    if number % 5 == 4:
        raise Bad(number)
    return number


def outcome(pipeline: af.Pipeline[Any], each: int | None) -> tuple[list[Any], str]:
    """Return what a pipeline delivers, and how it ends. With `each`, it is resumed after so many items, always."""
    items: list[Any] = []
    state = None
    while True:
        with pipeline.open(state=state) as feed:
            try:
                for count, item in enumerate(feed, start=1):
                    items.append(item.tolist() if hasattr(item, "tolist") else item)
                    if count == each:
                        break
                else:
                    return items, "end"
            except Bad as error:
                return items, str(error)
            state = feed.state_dict()


NUMBERS = af.items(range(400))
RATE = {"on_error": "skip", "skip_limit": 0.19}


@pytest.mark.parametrize("each", [1, 2, 7])
@pytest.mark.parametrize("pipeline", [
    NUMBERS.filter(lambda x: fails_for_every_fifth(x) >= 0, **RATE).flat_map(lambda x: [x] * 3),
    NUMBERS.map(fails_for_every_fifth, **RATE).batch(3),
    NUMBERS.map(fails_for_every_fifth, **RATE).window(4, stride=2),
    NUMBERS.map(fails_for_every_fifth, **RATE).shuffle(seed=3, buffer=9),
    NUMBERS.map(fails_for_every_fifth, **RATE).map(lambda x: [x] * 3).flat_map(lambda x: x).batch(4),
    NUMBERS.repeat(2).map(fails_for_every_fifth, on_error="skip", skip_limit=0.21).batch(7),
    NUMBERS.flat_map(lambda x: [x] * 2).map(fails_for_every_fifth, **RATE).batch(3),
], ids=["filter, flat_map", "map, batch", "window", "shuffle", "flat_map", "enough", "behind flat_map"])  # fmt: skip
def test_a_rate_of_failures_survives_resumes(pipeline: af.Pipeline[Any], each: int) -> None:
    """What later stages hold is sent again after a resume. It is counted once."""
    assert outcome(pipeline, each) == outcome(pipeline, None)


def cut_short(limit: int) -> dict[str, af.Pipeline[Any]]:
    """Return pipelines whose epochs end behind 50 good items. Before these, 12 fail."""
    bad = NUMBERS.map(fails_for_every_fifth, on_error="skip", skip_limit=limit)
    return {
        "zip": af.zip(af.items(range(50)).map(abs), bad, strict=False),
        "take": bad.take(50),
        "batch": bad.batch(5).take(10),
        "mix": af.mix(af.items(range(25)).map(abs), bad, stop="first", seed=3),
        "inner": af.zip(af.items(range(100)).map(abs), bad.take(25).repeat(4), strict=False),
        "outer": af.zip(af.items(range(50)).map(abs), af.concat(bad, bad), strict=False),
    }


@pytest.mark.parametrize("each", [None, 1, 7])
@pytest.mark.parametrize("limit", [3, 11, 12, 17])
@pytest.mark.parametrize("kind", cut_short(1))
def test_what_fails_behind_the_end_of_an_epoch_does_not_count(
    kind: str, limit: int, each: int | None, seed: int
) -> None:
    """How far a stage reads ahead depends on time. So each epoch is counted by itself, up to its last item."""

    once = outcome(cut_short(limit)[kind], None)
    pipeline = cut_short(limit)[kind].repeat(3)
    found = outcome(pipeline, each) if each else run_virtual(lambda: drawn(pipeline), seed=seed)
    assert found == (once if once[1] != "end" else (once[0] * 3, "end"))
    if kind in ("zip", "take"):
        assert (once[1] == "end") == (limit >= 12)


async def drawn(pipeline: af.Pipeline[Any]) -> tuple[list[Any], str]:
    """Return what a pipeline delivers, and how it ends."""
    items: list[Any] = []
    async with pipeline.open() as feed:
        try:
            async for item in feed:
                items.append(item.tolist() if hasattr(item, "tolist") else item)
        except Bad as error:
            return items, str(error)
    return items, "end"


def test_files_that_cannot_be_read_or_decoded_count_in_the_order_of_the_files(seed: int) -> None:
    """A store is read on the loop, by a step before the one that decodes. Both count together, in one order."""
    contents = {f"{number:03}": b"bad" if number % 7 == 3 else b"%d" % number for number in range(100)}
    store = SlowStore(contents)
    files = store.files()
    for number in (5, 50, 51, 52):
        del contents[f"{number:03}"]

    async def ends(limit: int, *, wait: bool) -> tuple[int, str]:
        async def decoded(data: bytes) -> int:
            await asyncio.sleep(0.001)
            return int(data)

        pipeline = af.items(files).load(decoded if wait else int, on_error="skip", skip_limit=limit)
        delivered = 0
        with pytest.raises((ValueError, OSError)) as caught:
            async with pipeline.open() as feed:
                async for _ in feed:
                    delivered += 1
        return delivered, str(caught.value)

    for wait in (False, True):
        for limit, delivered, which in ((1, 4, "005"), (2, 8, "b'bad'"), (8, 42, "050"), (10, 42, "052")):
            found, text = run_virtual(lambda: ends(limit, wait=wait), seed=seed)  # noqa: B023 - called at once
            assert (found, which in text) == (delivered, True), (limit, wait, text)


@pytest.mark.parametrize("late", [-1, LATE])
@pytest.mark.parametrize("each", [None, 7])
def test_a_scan_calls_in_order_though_a_call_takes_long(late: float, each: int | None) -> None:
    """A slow call ends its group early. A group behind it that is ready must not overtake the rest."""

    def add(state: int, number: int) -> tuple[int, int]:
        if late > 0 and number % 97 == 13:
            time.sleep(0.012)
        state = (31 * state + number) % 1_000_003
        return state, state

    with groups_that_end_after(late):
        found, _ = outcome(af.items(range(200)).filter(lambda _: True).scan(add, 0), each)
    assert found == list(itertools.accumulate(range(200), lambda state, x: add(state, x)[0]))


def test_calls_come_in_the_order_of_the_items_if_there_is_one_at_a_time() -> None:
    called: list[int] = []

    def note(number: int) -> None:
        called.append(number)
        time.sleep(0.012 if number % 97 == 13 else 0)

    list(af.items(range(300)).filter(lambda _: True).map(note, concurrency=1))
    assert called == list(range(300))


# -- algorithms of one's own, and states


class Keeps(Algorithm):
    """An algorithm with a state, which holds nothing."""

    def state(self) -> Held:
        return Held([], (), {})

    def restore(self, held: Held) -> None:
        pass


class Undo(Keeps):
    """Takes pairs apart. It does not say how a result is made again."""

    def push(self, items: list[Any], positions: Any) -> Any:
        return [item for _, item in items], positions

    def stand_in(self, fact: Any = None) -> Any:
        return None, None


class DropsFive(Arranging):
    """Looks at the items, and does not say so."""

    def push(self, items: list[Any], positions: Any) -> Any:
        kept = [(item, at) for item, at in zip(items, positions, strict=True) if item != 5]
        return [item for item, _ in kept], [at for _, at in kept]

    def state(self) -> Held:
        return Held([], (), {})

    def restore(self, held: Held) -> None:
        pass


class DropsFiveAndSaysSo(DropsFive):
    looks = True

    def fact(self, item: Any) -> Any:
        return item

    def stand_in(self, fact: Any = None) -> Any:
        return fact


@dataclass(frozen=True)
class Own(Node):
    """A stage with these steps."""

    made: Any
    method: ClassVar[str] = "own"

    def steps(self) -> Any:
        return self.made()

    def axes(self, upstream: Any, *, endless: bool) -> Any:
        return Unknown()


def own(*steps: Any) -> Own:
    return Own(lambda: [step() if isinstance(step, type) else step for step in steps])


def test_a_stage_that_does_not_say_how_results_are_made_again_has_no_state() -> None:
    judge = Work(lambda x: (x % 2 == 0, x), "thread")
    with af.items(range(12)).then(own(judge, Undo)).batch(4).open() as feed:
        assert next(feed).tolist() == [0, 1, 2, 3]
        with pytest.raises(af.StateError, match=r"algorithm Undo lacks `looks`, `inputs`, `remake`; .*Arranging"):
            feed.state_dict()
        assert [batch.tolist() for batch in feed] == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_stage_that_drops_by_value_and_does_not_say_so_has_no_state() -> None:
    """Its twin, which gets stand-ins, makes another number of results. The run goes on."""
    with af.items(range(12)).repeat(1).then(own(DropsFive)).batch(4).open() as feed:
        assert [batch.tolist() for batch in (next(feed), next(feed))] == [[0, 1, 2, 3], [4, 6, 7, 8]]
        with pytest.raises(af.StateError, match=r"DropsFive looks at the items, so it must set `looks`"):
            feed.state_dict()
        assert next(feed).tolist() == [9, 10, 11]


@pytest.mark.parametrize("cut", range(4))
def test_a_stage_that_drops_by_value_and_says_so_resumes(cut: int) -> None:
    pipeline = af.items(range(12)).repeat(1).then(own(DropsFiveAndSaysSo)).batch(4)
    with pipeline.open() as feed:
        before = [next(feed).tolist() for _ in range(cut)]
        state = feed.state_dict()
    after = [batch.tolist() for batch in pipeline.open(state=state)]
    assert before + after == [[0, 1, 2, 3], [4, 6, 7, 8], [9, 10, 11]]


# -- merges, states and small limits


def counted_up(number: int) -> Iterator[int]:
    yield from range(number % 3)


MERGES = {
    "mix": af.mix(af.items(range(20)).map(lambda x: x), af.items(range(20, 43)), seed=5),
    "mix of streams": af.mix(af.items(range(20)).flat_map(counted_up), af.items(range(23)), seed=5),
    "concat": af.concat(af.items(range(9)).filter(bool), af.items(range(20)).map(lambda x: x)),
    "zip": af.zip(af.items(range(20)).filter(lambda _: True), af.items(range(20)).map(lambda x: x)),
}
BEHIND = {
    "items": lambda merged: merged,
    "batches": lambda merged: merged.batch(4, collate=list),
    "shuffled": lambda merged: merged.shuffle(seed=1, buffer=5).batch(3, collate=list),
}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("kind", MERGES)
@pytest.mark.parametrize("limit", [1, 100, 1_000, 100_000])
def test_a_merge_goes_on_under_any_memory_limit(kind: str, behind: str, limit: int, seed: int) -> None:
    """Items that come again have no room beside each other. The next one of each input is always let in."""
    pipeline = BEHIND[behind](MERGES[kind])
    whole = list(pipeline)

    async def main(count: int) -> None:
        async with pipeline.open(memory_limit=limit) as feed:
            before = [await anext(feed) for _ in range(count)]
            state = feed.state_dict()
        async with pipeline.open(state=state, memory_limit=limit) as feed:
            assert before + [item async for item in feed] == whole

    for count in range(0, len(whole) + 1, 3):
        run_virtual(main(count), seed=seed)


# -- the user's arrays


def in_place(row: Any) -> Any:
    row += 1
    return row


@pytest.mark.parametrize("source", [
    lambda data: af.arrays(data),
    lambda data: af.items(data),
    lambda data: af.arrays(data, data).map(lambda pair: pair[0]),
    lambda data: af.arrays({"x": data}).map(lambda tree: tree["x"]),
    lambda data: af.arrays(data).shuffle(seed=1),
    lambda data: af.arrays(data).window(1).shuffle(seed=1).map(lambda window: window[0]),
    lambda data: af.arrays({"x": data}).window(1).map(lambda tree: tree["x"][0]),
], ids=["arrays", "items", "tuple", "dict", "shuffled", "windows", "windows of a dict"])  # fmt: skip
def test_a_map_in_place_does_not_change_the_users_arrays(source: Any) -> None:
    data = np.zeros((3, 2))
    with pytest.raises(ValueError, match="read-only") as caught:
        list(source(data).map(in_place))
    assert "write item.copy() and change the copy" in "\n".join(caught.value.__notes__)
    assert not data.any() and data.flags.writeable
    assert [row.tolist() for row in source(data).map(lambda row: in_place(row.copy()))] == [[1, 1]] * 3


@pytest.mark.parametrize("stage", [
    lambda rows: rows.batch(2),
    lambda rows: rows.window(1).batch(2),
    lambda rows: rows.repeat(1).window(2),
], ids=["batches", "batches of windows", "windows of a stream"])  # fmt: skip
def test_batches_of_the_users_arrays_are_copies(stage: Any) -> None:
    data = np.zeros((4, 2))
    assert all(batch.sum() == 4 for batch in stage(af.arrays(data)).map(in_place))
    assert not data.any()


@pytest.mark.parametrize("kind", ["f4", "i8", "?", "c16", "M8[s]", "U3", "O"])
def test_a_window_right_behind_arrays_equals_the_stack_of_its_rows(kind: str) -> None:
    """It is a view if the rows hold numbers. Rows of text are narrower than their array."""
    data = np.arange(14).astype("i8").astype(kind).reshape(7, 2)
    for size, stride, drop in [(3, 2, False), (2, 1, True), (9, 1, True)]:
        windows = af.arrays(data).window(size, stride=stride, drop_remainder=drop)
        stacked = af.arrays(data).repeat(1).window(size, stride=stride, drop_remainder=drop)
        for window, stack in zip(windows, stacked, strict=True):
            assert window.dtype == stack.dtype
            np.testing.assert_array_equal(window, stack)
            assert np.shares_memory(window, data) is (kind not in {"U3", "O"})


# -- feeds and the loops around them


def test_a_function_of_a_feed_cannot_draw_from_it() -> None:
    """Its loop would wait for itself, and no stop could reach it."""
    box: list[af.Feed[Any]] = []

    begun: list[int] = []

    async def draws(number: int) -> int:
        while number and not begun:  # the consumer's thread has drawn first
            await asyncio.sleep(0)
        return number + next(box[0]) if number else 0

    feed = af.items(range(100)).map(draws).open()
    box.append(feed)
    with feed:
        begun.append(next(feed))
        with pytest.raises(RuntimeError, match="its event loop would wait for itself"):
            list(feed)
        box.clear()


def test_a_process_without_descriptors_gets_one_error_and_no_other_word() -> None:
    code = """
import os, resource
import asyncfeed as af
list(af.items(range(3)).map(abs))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for left in range(12):
    try:
        list(af.items(range(3)).map(abs))
        print("enough with", left)
        break
    except OSError as error:
        assert error.errno == 24, error
        os.close(held.pop())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.startswith("enough with")


def test_trio_is_told_to_draw_on_a_thread() -> None:
    trio = pytest.importorskip("trio")
    pipeline = af.items(range(3))

    async def plain() -> None:
        for _ in pipeline:
            pass

    async def with_async_for() -> None:
        async for _ in pipeline:
            pass

    async def on_a_thread() -> list[int]:
        with pipeline.open() as feed:
            return [await trio.to_thread.run_sync(next, feed) for _ in range(3)]

    with pytest.raises(RuntimeError, match=r"blocks trio's loop: .*to_thread"):
        trio.run(plain)
    with pytest.raises(RuntimeError, match=r"need asyncio's event loop: .*to_thread"):
        trio.run(with_async_for)
    assert trio.run(on_a_thread) == [0, 1, 2]


def test_a_feed_may_be_closed_while_another_thread_starts_it() -> None:
    """`close` waits for a run that has just begun, and the thread that starts it gets `ClosedError`, or its items."""
    for _ in range(100):
        feed = af.items(range(3)).map(abs).open()
        raised: list[BaseException] = []

        def start(feed: af.Feed[int] = feed, raised: list[BaseException] = raised) -> None:
            try:
                list(feed)
            except af.ClosedError:
                pass
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=start)
        thread.start()
        feed.close()
        thread.join()
        feed.close()
        assert raised == []
