"""A feed with `path` writes its own state: a killed job goes on, and loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.state import file
from asyncfeed.testing import cancel_everywhere, no_leaks, run_virtual
from tests.engine.drawn import pipelines
from tests.engine.inside import InHand, chunks_of
from tests.engine.model import Case
from tests.engine.outside import run_tasks, timers_set
from tests.searching import searched

seeds = st.integers(0, 2**32)
TRAIN = af.items(range(40)).shuffle(seed=1).batch(3)
BATCHES = [batch.tolist() for batch in TRAIN]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "feed.json"


class Killed(Exception):
    """Ends a job while it works on an item."""


def saved(pipeline: af.Pipeline[Any], path: Path) -> list[Any]:
    """Return what a feed that goes on from the file would deliver; all if there is no file."""
    state = path.read_bytes() if path.exists() else None
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in rest(pipeline, state)]


def rest(pipeline: af.Pipeline[Any], state: Any) -> list[Any]:
    """Return what is delivered after a state. The clock is virtual, so functions that sleep take no time."""

    async def main() -> list[Any]:
        async with pipeline.open(state=state) as feed:
            return [each async for each in feed]

    return run_virtual(main())


# -- what the file says


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Yield a file in a new folder; hypothesis runs a test many times with the same fixtures."""
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as name:
        yield Path(name, "feed.json")


async def live(feed: af.Feed[Any], path: Path, end: str, count: int, pauses: list[int]) -> tuple[int, list[bytes]]:
    """Draw `count` items, work on each for a while, and end. Return how many are finished, and the file meanwhile."""
    finished = 0
    looks: list[tuple[int, bytes]] = []
    with contextlib.suppress(Killed, af.ClosedError, asyncio.CancelledError):
        async with feed:
            async for _ in feed:
                if finished == count and end in {"stop", "fail"}:
                    if end == "stop":
                        feed.stop()
                        await asyncio.sleep(1)
                    raise Killed
                if pause := pauses[finished % len(pauses)]:
                    await asyncio.sleep(pause)
                if path.exists() and len(looks) < 3:
                    looks.append((finished, path.read_bytes()))
                finished += 1
                if finished >= count and end == "leave":
                    break
    return finished, looks


@searched(20)
@given(
    case=pipelines(),
    every=st.integers(1, 9) | st.integers(1, 9).map(lambda seconds: timedelta(seconds=seconds)),
    lives=st.lists(
        st.tuples(st.sampled_from(["leave", "stop", "fail"]), st.integers(0, 15)), min_size=1, max_size=4
    ),
    pauses=st.lists(st.sampled_from([0, 0, 1, 4]), min_size=1, max_size=5),
    length=st.sampled_from([1, 2, 17, 512]),
    seed=seeds,
)
def test_a_job_that_ends_anywhere_goes_on_behind_what_it_has_finished(
    case: Case, every: Any, lives: list[tuple[str, int]], pauses: list[int], length: int, seed: int
) -> None:
    """And at each moment the file, which a kill would leave, has nothing that was not finished then."""
    expected = case.run()[0].values
    begun = 0
    with folder() as path, chunks_of(length):
        for number, (end, count) in enumerate([*lives, ("end", -1)]):
            try:
                with pytest.warns(RuntimeWarning) if _at_end(path) else contextlib.nullcontext():
                    feed = case.pipeline.open(path=path, checkpoint_every=every)
                finished, looks = run_virtual(live(feed, path, end, count, pauses), seed=seed + number)
            except af.StateError as error:
                assert "yet" in str(error)  # of this pipeline no state can be taken
                return
            for done, data in looks:
                left = rest(case.pipeline, data)
                assert left == expected[len(expected) - len(left) :]
                assert len(expected) - len(left) <= begun + done
            begun += finished
            assert saved(case.pipeline, path) == expected[begun:]
        assert begun == len(expected)


def _at_end(path: Path) -> bool:
    return path.exists() and bool(file.read(path)["body"].get("ended"))


@searched(12)
@given(
    epochs=st.integers(1, 4),
    every=st.integers(1, 5),
    lives=st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4), min_size=1, max_size=3),
    seed=seeds,
)
def test_epochs_go_on_in_their_epoch(epochs: int, every: int, lives: list[list[int]], seed: int) -> None:
    """Each life leaves epochs early after so many batches, and then ends in the middle of one."""

    async def live(path: Path, counts: list[int]) -> None:
        with contextlib.suppress(Killed):
            async with TRAIN.epochs(epochs, path=path, checkpoint_every=every) as run:
                async for epoch in run:
                    batches = got.setdefault(epoch.number, [])
                    count, last = (counts.pop(0), not counts) if counts else (len(BATCHES) + 1, False)
                    drawn = 0
                    while count and (batch := await anext(epoch, None)) is not None:
                        if drawn == count and last:
                            raise Killed
                        batches.append(batch.tolist())
                        await asyncio.sleep(drawn % 2)
                        drawn += 1
                        if drawn == count and not last:
                            break
                    left[epoch.number] = len(batches)

    got: dict[int, list[Any]] = {}
    left: dict[int, int] = {}
    with folder() as path, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a life may have delivered everything
        for number, counts in enumerate([*lives, []]):
            run_virtual(live(path, [*counts]), seed=seed + number)
    assert [*left] == [*got] == [*range(epochs)]
    for number, batches in got.items():
        expected = [batch.tolist() for batch in TRAIN.open(epoch=number)]
        assert batches == expected[: left[number]]


@searched(12)
@given(
    consumers=st.integers(1, 5),
    every=st.integers(1, 6),
    fail_at=st.lists(st.integers(0, 13), min_size=1, max_size=3),
    pauses=st.lists(st.sampled_from([0, 1, 3, 11]), min_size=1, max_size=5),
    seed=seeds,
)
def test_of_several_consumers_each_has_its_batch_in_hand(
    consumers: int, every: int, fail_at: list[int], pauses: list[int], seed: int
) -> None:
    """One of them fails: what it and the others worked on comes again, however far the others were."""

    async def work(feed: af.Feed[Any], fail: int | None) -> None:
        async for batch in feed:
            number = BATCHES.index(batch.tolist())
            await asyncio.sleep(pauses[number % len(pauses)])
            if number == fail:
                raise Killed
            finished.add(number)

    async def live(path: Path, fail: int | None) -> None:
        with contextlib.suppress(BaseExceptionGroup):
            async with TRAIN.open(path=path, checkpoint_every=every) as feed, asyncio.TaskGroup() as group:
                for _ in range(consumers):
                    group.create_task(work(feed, fail))

    finished: set[int] = set()
    unfinished = {0}
    with folder() as path:
        for number, fail in enumerate([*fail_at, None]):
            if _at_end(path):
                break
            finished = {*range(min(unfinished))}
            run_virtual(live(path, fail), seed=seed + number)
            unfinished = set(range(len(BATCHES))) - finished
            assert saved(TRAIN, path) == BATCHES[min(unfinished, default=len(BATCHES)) :]
        assert len(finished) == len(BATCHES)


def test_the_last_batch_of_an_epoch_that_one_consumer_works_on_comes_again(path: Path) -> None:
    """Another one has gone on to the next epoch meanwhile, and fails there."""

    async def rest(epoch: af.Epoch[Any], count: int) -> None:
        for _ in range(count):
            await anext(epoch)
        await asyncio.sleep(1000)

    async def main() -> None:
        async with TRAIN.epochs(2, path=path, checkpoint_every=1) as epochs, asyncio.TaskGroup() as group:
            group.create_task(rest(await anext(epochs), len(BATCHES)))
            await asyncio.sleep(1)
            group.create_task(rest(await anext(epochs), 3))
            await asyncio.sleep(1)
            raise Killed

    with pytest.raises(BaseExceptionGroup):
        run_virtual(main())
    epochs = TRAIN.epochs(2, path=path)
    assert [batch.tolist() for batch in next(epochs)] == BATCHES[-1:]
    assert [len([*epoch]) for epoch in epochs] == [len(BATCHES)]


consumers = st.integers(0, 3)


@given(st.lists(st.tuples(st.sampled_from(["draws", "ends"]), consumers), max_size=40))
def test_the_first_item_in_hand_is_that_of_the_slowest_consumer(steps: list[tuple[str, int]]) -> None:
    """By threads that stand for consumers. One that has ended has finished its item when another one asks."""
    drawn, hands = 0, InHand()
    model: dict[int, int] = {}
    threads = {}
    for step, who in steps:
        if who not in threads:
            release = threading.Event()
            threads[who] = threading.Thread(target=release.wait, name=f"consumer-{who}"), release
            threads[who][0].start()
        if step == "draws":
            hands.asks(threads[who][0])
            hands.takes(threads[who][0], (drawn, 0))
            model = {each: number for each, number in model.items() if each in threads}
            model[who] = drawn
            drawn += 1
        else:
            thread, release = threads.pop(who)
            release.set()
            thread.join()
        first = hands.first()
        assert (None if first is None else first[0]) == min(model.values(), default=None)
    for thread, release in threads.values():
        release.set()
        thread.join()


@pytest.mark.parametrize("fails", [True, False])
def test_a_task_that_has_returned_has_finished_its_batch_and_one_that_failed_has_not(
    path: Path, fails: bool
) -> None:
    reported: list[Any] = []

    async def draw(feed: af.Feed[Any], fails: bool) -> None:
        await anext(feed)
        if fails:
            raise Killed

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with TRAIN.open(path=path, checkpoint_every=1) as feed:
            await asyncio.wait([asyncio.create_task(draw(feed, fails))])
            await asyncio.create_task(draw(feed, fails=False))
            await asyncio.sleep(0)
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(main())
    gc.collect()
    assert saved(TRAIN, path) == BATCHES[0 if fails else 1 :]
    assert [type(each["exception"]) for each in reported] == [Killed] * fails  # asyncio still reports it


def test_a_task_that_is_dropped_in_the_middle_of_its_batch_lets_go_of_the_feed(path: Path) -> None:
    """Nothing else refers to it or to the feed, so the run ends."""

    async def work(feed: af.Feed[Any]) -> None:
        await anext(feed)
        await anext(feed)
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        task = asyncio.create_task(work(TRAIN.open(path=path, checkpoint_every=1)))
        await asyncio.sleep(1)
        dropped = weakref.ref(task)
        del task
        gc.collect()
        assert dropped() is None
        while run_tasks():
            await asyncio.sleep(0)
        assert "destroyed but it is pending" in loop.complaints.pop()["message"]  # as asyncio reports such tasks

    run_virtual(main())
    assert saved(TRAIN, path) == BATCHES[1:]


def test_a_draw_in_a_task_of_its_own_is_one_of_the_consumer_that_waits_for_it(path: Path) -> None:
    """Before Python 3.12, `asyncio.wait_for` draws so."""

    async def main() -> None:
        async with TRAIN.open(path=path, checkpoint_every=1) as feed:
            for number in range(5):
                await asyncio.create_task(feed.__anext__())
                await asyncio.sleep(1)
                assert len(saved_in_a_thread(path)) == len(BATCHES) - number
            raise Killed

    def saved_in_a_thread(path: Path) -> list[Any]:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(saved(TRAIN, path)))
        thread.start()
        thread.join()
        return found

    with pytest.raises(Killed):
        run_virtual(main())
    assert saved(TRAIN, path) == BATCHES[4:]


# -- when it is written


class Disk:
    """Stands in for the disk: counts the writes, and holds them up or fails if it is told to."""

    def __init__(self) -> None:
        self.writes: list[dict[str, Any]] = []
        self.free = threading.Event()
        self.free.set()
        self.begun = threading.Event()
        self.error: Exception | None = None
        self.slow: threading.Event | None = None

    def write(self, path: Path, state: dict[str, Any]) -> None:
        self.begun.set()
        self.free.wait(10)
        if self.slow is not None:
            self.slow.wait(0.3)  # nobody sets it
        if self.error is not None:
            raise self.error
        self.writes.append(state)
        path.write_bytes(b"")


@pytest.fixture
def disk() -> Iterator[Disk]:
    found = Disk()
    with mock.patch.object(file, "write", found.write):
        yield found
        found.free.set()


def places(disk: Disk) -> list[int]:
    """Return how many batches each write had."""
    return [len(BATCHES) - len([*TRAIN.open(state=state)]) for state in disk.writes]


def test_every_n_batches(path: Path, disk: Disk) -> None:
    async def main() -> None:
        async with TRAIN.open(path=path, checkpoint_every=3) as feed:
            async for _ in feed:
                await asyncio.sleep(1)

    run_virtual(main())
    assert places(disk) == [3, 6, 9, 12, 14]


def test_every_n_seconds_if_something_was_received(path: Path, disk: Disk) -> None:
    times = []

    async def main() -> None:
        async with TRAIN.open(path=path, checkpoint_every=timedelta(seconds=10)) as feed:
            for pause in (0, 1, 1, 9, 1, 1000, 1, 3):
                await anext(feed)
                await asyncio.sleep(pause)
                times.append((asyncio.get_running_loop().time(), len(disk.writes)))
            assert len(timers_set()) <= 2  # nothing looks again and again while nothing is received

    run_virtual(main())
    assert times == [(0, 0), (1, 0), (2, 0), (11, 1), (12, 1), (1012, 2), (1013, 3), (1016, 3)]
    assert places(disk) == [3, 5, 6, 8]


def test_no_draw_waits_for_a_slow_disk(path: Path, disk: Disk) -> None:
    """All are drawn while the first write still goes on; then the last state is written."""
    disk.free.clear()
    with TRAIN.open(path=path, checkpoint_every=1) as feed:
        drawn = [next(feed).tolist() for _ in BATCHES]
        assert disk.writes == []
        disk.free.set()
    assert drawn == BATCHES
    assert places(disk)[-1] == len(BATCHES)


def test_a_disk_that_hangs_is_left_behind_after_the_grace(
    path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        async with TRAIN.open(path=path, checkpoint_every=1, grace=3) as feed:
            await anext(feed)
            await anext(feed)
            await asyncio.to_thread(disk.begun.wait, 10)
            assert (await anext(feed)).tolist() == BATCHES[2]
            loop.threads_busy = lambda: False  # so the clock reaches the end of the grace

    disk.free.clear()
    run_virtual(main())
    assert f"is still in writing {path}" in caplog.text
    disk.free.set()


def test_a_write_that_fails_is_reported_once_and_tried_again(
    path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with TRAIN.open(path=path, checkpoint_every=1) as feed:
            for number in range(9):
                disk.error = OSError(28, "No space left on device") if 2 < number < 6 else None
                await anext(feed)
                await asyncio.sleep(1)

    caplog.set_level(logging.WARNING, "asyncfeed")
    run_virtual(main())
    assert places(disk) == [1, 2, 6, 7, 8, 9]
    assert [each.getMessage() for each in caplog.records] == [
        f"the state of the run could not be written to {path}, which keeps the state before it: "
        "[Errno 28] No space left on device"
    ]


def test_a_last_write_that_fails_is_reported_again(
    path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.error = PermissionError(13, "Permission denied")
    with TRAIN.open(path=path, checkpoint_every=1) as feed:
        assert len([*feed]) == len(BATCHES)
    assert 1 <= len(caplog.records) <= 3
    assert feed.failure is None


def test_the_file_is_complete_when_the_loop_over_the_feed_has_ended(path: Path) -> None:
    """Also if nobody closes the feed."""
    feed = TRAIN.open(path=path, checkpoint_every=1000)
    for _ in feed:
        assert not path.exists()
    assert file.read(path)["body"]["ended"]

    async def main() -> None:
        path.unlink()
        with mock.patch.object(Path, "exists", os.path.exists):
            feed = TRAIN.open(path=path, checkpoint_every=1000)
            async for _ in feed:
                pass
            assert path.exists()

    run_virtual(main())


@pytest.mark.parametrize("drawn", [1, len(BATCHES)])
def test_the_end_of_the_epochs_comes_after_the_last_write(path: Path, disk: Disk, drawn: int) -> None:
    """Also if the last one was left early."""
    disk.slow = threading.Event()
    for epoch in TRAIN.epochs(2, path=path, checkpoint_every=1000):
        for number, _ in enumerate(epoch, start=1):
            if number == drawn:
                break
    assert len(disk.writes) == 1


def test_a_state_that_is_taken_between_two_batches_counts_what_was_drawn(path: Path) -> None:
    """Whoever saves it beside a model has trained on it. The file then says no less."""
    with pytest.raises(Killed), TRAIN.open(path=path, checkpoint_every=1000) as feed:
        for _ in range(3):
            next(feed)
        state = feed.state_dict()
        raise Killed
    assert saved(TRAIN, path) == [batch.tolist() for batch in TRAIN.open(state=state)] == BATCHES[3:]


def test_a_failing_item_comes_again_and_what_was_before_it_does_not(path: Path) -> None:
    broken = True

    def fn(number: int) -> int:
        if broken and number == 20:
            raise Killed
        return number

    train = af.items(range(40)).map(fn).batch(3)
    with pytest.raises(Killed):
        for _ in train.open(path=path, checkpoint_every=1000):
            pass
    broken = False
    assert [batch.tolist() for batch in train.open(path=path)][0] == [18, 19, 20]


# -- whose file it is


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_every": 3}, "checkpoint_every needs path"),
        ({"path": "a.json", "checkpoint_every": 0}, "checkpoint_every must be a number of batches"),
        ({"path": "a.json", "checkpoint_every": True}, "checkpoint_every must be a number of batches"),
        ({"path": "a.json", "checkpoint_every": 2.5}, "checkpoint_every must be a number of batches"),
        ({"path": "a.json", "checkpoint_every": "30 s"}, "checkpoint_every must be a number of batches"),
        ({"path": "a.json", "checkpoint_every": timedelta(0)}, "checkpoint_every must be longer"),
        ({"path": "a.json", "state": {}}, "state and path both say where to go on"),
        ({"path": "s3://bucket/a.json"}, "path must name a local file"),
        ({"path": 3}, "path must name a local file"),
        ({"path": ""}, "path must name a local file"),
        ({"path": b"a.json"}, "path must name a local file"),
        ({"path": "a\0.json"}, "path must name a local file"),
        ({"path": "pipe"}, "is a pipe or a device"),
        ({"path": "/dev/null"}, "is a pipe or a device"),
        ({"path": "."}, "is a folder"),
        ({"path": "no/such/folder/a.json"}, "in a folder that is there"),
    ],
)
@pytest.mark.parametrize("method", ["open", "epochs"])
def test_options_that_are_wrong_raise_where_they_are_written(
    method: str, options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(af.PipelineError, match=f"^{method}: .*{message}"):
        getattr(TRAIN, method)(**options)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """The state lies where the link leads, perhaps on another disk."""
    (tmp_path / "disk").mkdir()
    link, real = tmp_path / "state.json", tmp_path / "disk" / "real.json"
    link.symlink_to(real)
    for _ in range(2):
        with TRAIN.open(path=link, checkpoint_every=1) as feed:
            next(feed)
        assert link.is_symlink() and real.is_file()
    assert [each.name for each in tmp_path.iterdir() if each.suffix != ".json"] == ["disk"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_raises_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(af.PipelineError, match="may not write"):
        TRAIN.open(path=tmp_path / "feed.json")


def test_the_place_of_the_file_does_not_move_with_the_folder_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    feed = TRAIN.open(path="feed.json")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    list(feed)
    assert os.listdir(tmp_path / "other") == []
    assert (tmp_path / "feed.json").exists()


def test_a_run_that_had_delivered_everything_is_not_repeated_and_says_so(path: Path) -> None:
    assert len([*TRAIN.open(path=path)]) == len(BATCHES)
    with pytest.warns(RuntimeWarning, match=r"^open: the run in .*feed.json has delivered everything") as warned:
        feed = TRAIN.open(path=path)
    assert warned[0].filename == __file__
    assert list(feed) == []
    path.unlink()
    for epoch in TRAIN.epochs(2, path=path):
        list(epoch)
    with pytest.warns(RuntimeWarning, match=r"^epochs: the run in .* has delivered everything") as warned:
        assert list(TRAIN.epochs(2, path=path)) == []
    assert warned[0].filename == __file__
    assert [(epoch.number, len([*epoch])) for epoch in TRAIN.epochs(3, path=path)] == [(2, len(BATCHES))]


@pytest.mark.parametrize("content", ["", "{}", "[]", "nonsense"])
def test_a_file_that_is_no_state_is_an_error_that_names_it(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(af.StateError, match=r"feed\.json"):
        TRAIN.open(path=path)
    assert path.read_text() == content


def test_the_file_of_another_pipeline_is_an_error_that_says_what_differs(path: Path) -> None:
    list(TRAIN.open(path=path))
    with pytest.raises(af.StateError, match=r"feed\.json: .*shuffle\(seed=1\), and is shuffle\(seed=2\).*remove"):
        af.items(range(40)).shuffle(seed=2).batch(3).open(path=path)
    with pytest.raises(af.StateError, match=r"feed\.json: .*epochs"):
        TRAIN.epochs(2, path=path)


def test_a_pipeline_without_states_is_refused_before_its_first_batch(path: Path) -> None:
    late = af.items(range(4)).map(lambda x: x, ordered=False)
    feed = late.scan(lambda total, x: (total + x, total), 0).open(path=path)
    with pytest.raises(af.StateError, match="scan"):
        next(feed)
    assert not path.exists()


def test_what_a_killed_process_was_writing_is_removed(path: Path) -> None:
    left = path.with_name(f".{path.name}.0123456789ab.part")
    others = [path.with_name(".other.json.0123456789ab.part"), path.with_name(f".{path.name}.swp")]
    for each in (left, *others):
        each.touch()
    list(TRAIN.open(path=path))
    assert not left.exists()
    assert all(each.exists() for each in others)


# -- nothing is left


@pytest.mark.parametrize("every", [1, 1000, timedelta(seconds=1)])
def test_a_cancelled_consumer_leaves_nothing_and_a_file_that_goes_on(path: Path, every: Any) -> None:
    finished = 0

    async def job() -> None:
        nonlocal finished
        path.unlink(missing_ok=True)
        finished = 0
        async with TRAIN.open(path=path, checkpoint_every=every) as feed:
            async for _ in feed:
                await asyncio.sleep(0.3)
                finished += 1

    def check(turn: int) -> None:
        assert saved(TRAIN, path) == BATCHES[finished:]
        assert not any(each.name.endswith(".part") for each in path.parent.iterdir())

    with no_leaks(types=(af.Feed,)):
        assert cancel_everywhere(job, check, seed=3) > 20


def test_a_feed_that_is_dropped_writes_its_last_state(path: Path) -> None:
    with no_leaks(types=(af.Feed,)):
        for number, _ in enumerate(TRAIN.open(path=path, checkpoint_every=1000)):
            if number == 5:
                break
    assert saved(TRAIN, path) == BATCHES[5:]


def test_a_loop_that_is_closed_under_the_run_leaves_the_last_file(path: Path) -> None:
    async def draw(feed: af.Feed[Any]) -> None:
        for _ in range(5):
            await anext(feed)
        while not path.exists():
            await asyncio.sleep(0)

    with no_leaks(types=(af.Feed,)):
        loop = asyncio.new_event_loop()
        feed = TRAIN.open(path=path, checkpoint_every=2)
        loop.run_until_complete(draw(feed))
        loop.close()
        del feed
    assert saved(TRAIN, path) in (BATCHES[2:], BATCHES[3:], BATCHES[4:])


@pytest.mark.parametrize("end", ["", "raise SystemExit", "os._exit(0)", "raise KeyboardInterrupt"])
def test_a_process_that_ends_in_the_middle(path: Path, end: str) -> None:
    """The program is at its end, or leaves, in the middle of a batch. Nothing hangs."""
    program = (
        "import asyncfeed as af, os, sys\n"
        "feed = af.items(range(40)).shuffle(seed=1).batch(3).open(path=sys.argv[1], checkpoint_every=1000)\n"
        f"for _ in range(5): next(feed)\n{end}"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, timeout=60, check=False)  # noqa: S603
    assert (b"KeyboardInterrupt" in done.stderr) == (end == "raise KeyboardInterrupt")
    assert saved(TRAIN, path) == BATCHES[0 if end == "os._exit(0)" else 4 :]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_writes_nothing_and_does_not_hang(path: Path) -> None:
    program = (
        "import asyncfeed as af, os, sys\n"
        "with af.items(range(40)).shuffle(seed=1).batch(3).open(path=sys.argv[1], checkpoint_every=1000) as feed:\n"
        "    for _ in range(5): next(feed)\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        assert os.waitpid(child, 0)[1] == 0\n"
        "        assert not os.path.exists(sys.argv[1])\n"
        "    else:\n"
        "        try: next(feed)\n"
        "        except af.ClosedError: pass\n"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "ignore", "-c", program, path], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert saved(TRAIN, path) == BATCHES[5:]
