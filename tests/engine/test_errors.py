"""A failing item: what the consumer gets, where in the order, and what is never lost or swallowed."""

from __future__ import annotations

import ast
import asyncio
import importlib
import threading
import traceback
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import asyncfeed as af
from asyncfeed.stages import Algorithm, Axes, Node
from asyncfeed.testing import run_virtual
from tests.conftest import Run
from tests.engine.failing import BAD, COUNT, Oops, draw, draw_on_thread, files, kinds, raises, raises_later
from tests.searching import SEEDS, sampled

KINDS = list(kinds(Path("/nowhere"), write=False))
CONCURRENCY = ["auto", 1, 3, 64]
UNLIKE = {"ragged batch", "window", "window by number", "pack", "rows of a pack", "rebatch"}
"""Kinds that fail because samples do not match: no function of the user's raises."""


def test_no_kind_is_left_out(tmp_path: Path) -> None:
    """Each source and stage of the package is in a pipeline that fails, but for those that call no user code."""
    package = Path(af.__file__).parent
    names = "sources.py", "image_source.py", "bridges/pydataset.py", "bridges/share.py", "bridges/torch_feed.py"
    more = (package / name for name in names)
    for path in (*package.glob("stages/*.py"), *more):
        importlib.import_module(".".join(("asyncfeed", *path.relative_to(package).with_suffix("").parts)))
    failing: set[type[Node]] = set()
    for case in kinds(tmp_path).values():
        pipelines = [case.build(1)]
        for pipeline in pipelines:
            failing |= {type(pipeline.source), *map(type, pipeline.stages)}
            pipelines.extend(pipeline.source.inputs)
    pending, every = [Node], set()
    while pending:
        subclasses = pending.pop().__subclasses__()
        every |= {each for each in subclasses if each.__module__.startswith("asyncfeed.")}
        pending += subclasses
    harmless = {"Source", "Table", "Pad", "Prefetch", "Share", "Conversion"}
    of_the_engine = {"Fetch", "Segment", "CachedWork"}  # what runs a sequence, and stages that are called together
    a_run_in_the_run = {"EpochNumbers", "ReadEpochs"}  # of a dataset with hooks: see test_datasets
    assert {each.__name__ for each in every - failing} == harmless | of_the_engine | a_run_in_the_run


def test_nothing_that_can_fail_is_defined_for_nothing() -> None:
    """Each function and class that `failing` offers is used there, or by a test."""
    folder = Path(__file__).parent
    names = {
        node.name
        for node in ast.parse((folder / "failing.py").read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    used = Counter(
        node.id
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name)
    )
    assert [name for name in names if not used[name]] == []


# -- where in the order


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_before_a_failure_is_delivered_first_in_order(kind: str, tmp_path: Path) -> None:
    """The same items and then the same failure, for any concurrency and schedule."""
    case = kinds(tmp_path)[kind]
    for seed in SEEDS:
        drawn = run_virtual(draw(case.build(CONCURRENCY[seed % len(CONCURRENCY)])), seed=seed)
        assert drawn.items == case.before
        assert type(drawn.error) is (ValueError if kind in UNLIKE else Oops)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_for_fails_at_the_same_place(kind: str, tmp_path: Path) -> None:
    """A background thread delivers what the caller's loop does."""
    case = kinds(tmp_path)[kind]
    drawn = draw_on_thread(case.build(3))
    assert drawn.items == case.before
    assert drawn.failure is not None
    assert drawn.error is drawn.failure.error


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_says_stage_key_ordinal_and_epoch(kind: str, tmp_path: Path) -> None:
    """As a note on the exception, and as data in `feed.failure`."""
    case = kinds(tmp_path)[kind]
    drawn = run_virtual(draw(case.build(3)))
    failure = drawn.failure
    assert failure is not None
    assert failure.error is drawn.error
    assert failure.stage.startswith(case.stage)
    assert (failure.key, failure.epoch) == (case.key, 0)
    assert case.ordinal is None or failure.ordinal == case.ordinal
    assert drawn.error.__notes__ == [failure.note()]
    for part in (failure.stage, case.key, f"ordinal {failure.ordinal}", "epoch 0"):
        assert part in failure.note()


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("fn", [raises, raises_later])
def test_the_earliest_failure_in_order_wins(fn: Any, ordered: bool, seed: int) -> None:
    """Whatever fails first in time: every item fails from `BAD` on."""

    def each(x: int) -> Any:
        return fn(lambda: Oops(x), x if x >= BAD else -1)(x)

    async def each_later(x: int) -> Any:
        return await each(x)

    stage = each if fn is raises else each_later
    pipeline = af.items(range(COUNT)).map(stage, concurrency=16, ordered=ordered)
    drawn = run_virtual(draw(pipeline), seed=seed)
    if ordered:
        assert (drawn.items, drawn.error.args) == (list(range(BAD)), (BAD,))
    else:
        assert drawn.error.args[0] >= BAD
        assert len(set(drawn.items)) == len(drawn.items)


def test_a_failure_in_a_later_epoch_is_counted_in_its_epoch(seed: int) -> None:
    """The ordinal is the place within the epoch."""
    seen: list[int] = []

    def fails_the_third_time(x: int) -> int:
        seen.append(x)
        if seen.count(5) == 3:
            raise Oops
        return x

    drawn = run_virtual(draw(af.items(range(10)).repeat(4).map(fails_the_third_time, concurrency=1)), seed=seed)
    assert len(drawn.items) == 25
    assert (drawn.failure.epoch, drawn.failure.ordinal) == (2, 5)


def test_no_short_batch_is_made_of_what_came_before_a_failure() -> None:
    """A batch in the middle of an epoch has its size or does not exist."""
    drawn = run_virtual(draw(af.items(range(COUNT)).map(raises(Oops)).batch(4)))
    assert [len(batch) for batch in drawn.items] == [4] * (BAD // 4)


def test_what_fails_after_the_last_wanted_item_fails_nobody(seed: int) -> None:
    """Reading ahead of a `take` or of the shorter side of a `zip` is not the consumer's affair."""
    failing = af.items(range(COUNT)).map(raises_later(Oops))
    assert run_virtual(draw(failing.take(BAD)), seed=seed).error is None
    assert run_virtual(draw(failing.filter(lambda _: True).take(BAD)), seed=seed).error is None
    for shorter in (range(BAD), range(3)):
        pair = af.zip(af.items(shorter).filter(lambda _: True), failing, strict=False)
        drawn = run_virtual(draw(pair), seed=seed)
        assert (len(drawn.items), drawn.error) == (len(shorter), None)


# -- the exception itself


@pytest.mark.parametrize("stage", ["async", "thread"])
def test_the_traceback_leads_to_the_users_line(run: Run, stage: str) -> None:
    """The frames of the function that raised are there, and do not grow with each draw."""

    def deep(x: int) -> int:
        raise Oops(x)

    async def deep_async(x: int) -> int:
        return deep(x)

    async def main() -> tuple[list[str], list[str]]:
        frames = []
        async with af.items([1]).map(deep if stage == "thread" else deep_async).open() as feed:
            for _ in range(2):
                with pytest.raises(Oops) as caught:
                    await anext(feed)
                frames.append([frame.name for frame in traceback.extract_tb(caught.value.__traceback__)])
        return frames[0], frames[1]

    first, second = run(main)
    assert "deep" in first
    assert first == second


def test_an_exception_that_takes_no_notes_is_still_the_one_raised() -> None:
    """A frozen dataclass refuses every attribute."""

    @dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    drawn = run_virtual(draw(af.items([1, 2]).map(raises(lambda: Frozen(7), 2), on_error="skip", skip_limit=1)))
    assert (drawn.items, drawn.error) == ([1], None)
    drawn = run_virtual(draw(af.items([1, 2]).map(raises(lambda: Frozen(7), 2))))
    assert (drawn.items, drawn.error) == ([1], Frozen(7))


def test_a_failure_comes_again_for_every_later_draw(run: Run) -> None:
    """Never the end of the data after an error."""

    async def main() -> None:
        feed = af.items(range(3)).map(raises(Oops, 1)).open()
        assert await anext(feed) == 0
        for _ in range(3):
            with pytest.raises(Oops):
                await anext(feed)
        assert isinstance(feed.failure.error, Oops)
        await feed.aclose()
        with pytest.raises(af.ClosedError):
            await anext(feed)
        assert isinstance(feed.failure.error, Oops)

    run(main)


def test_every_drawing_thread_sees_the_failure() -> None:
    """All of those that wait, and those that come later; each item goes to one of them."""
    gate = threading.Barrier(4)
    errors: list[BaseException] = []
    items: list[int] = []

    def consume(feed: af.Feed[int]) -> None:
        gate.wait()
        try:
            for item in feed:
                items.append(item)
        except Oops as error:
            errors.append(error)

    with af.items(range(COUNT)).map(raises(Oops)).open() as feed:
        threads = [threading.Thread(target=consume, args=(feed,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(errors) == 4
        assert set(errors) == {feed.failure.error}
    assert sorted(items) == list(range(BAD))


def test_every_drawing_task_sees_the_failure(seed: int) -> None:
    """The same on one loop."""

    async def main() -> list[Any]:
        async with af.items(range(COUNT)).map(raises_later(Oops)).open() as feed:

            async def consume() -> None:
                async for _ in feed:
                    await asyncio.sleep(0)

            return await asyncio.gather(*(consume() for _ in range(4)), return_exceptions=True)

    assert [type(each) for each in run_virtual(main, seed=seed)] == [Oops] * 4


# -- exceptions that mean something to Python


OWN = [asyncio.CancelledError, StopIteration, StopAsyncIteration, GeneratorExit, SystemExit, KeyboardInterrupt]
ENDS = {("iterable", StopIteration), ("async iterable", StopAsyncIteration)}
"""What the iterator's own protocol takes for its end."""
BY_THEIR_NAME = [
    (kind, error)
    for kind in KINDS
    for error in OWN
    if kind not in UNLIKE and (kind.partition(",")[0], error) not in ENDS
]


@sampled(90)
@pytest.mark.parametrize(("kind", "error"), BY_THEIR_NAME)
def test_no_exception_of_the_users_own_vanishes_or_hangs(
    kind: str, error: type[BaseException], tmp_path: Path
) -> None:
    """Ctrl-C and exits come as they are; what would end a loop or a task silently comes as its cause."""
    case = kinds(tmp_path, error)[kind]
    for drawn in (run_virtual(draw(case.build(3)), seed=1), draw_on_thread(case.build(1))):
        assert drawn.items == case.before
        assert drawn.failure is not None
        assert drawn.failure.key == case.key
        if error in (SystemExit, KeyboardInterrupt):
            assert type(drawn.error) is error
        else:
            assert type(drawn.error) is RuntimeError
            assert error.__name__ in str(drawn.error)
            assert isinstance(drawn.error.__cause__, error)


def test_a_worker_cancelled_by_its_own_function_stops_the_run(run: Run) -> None:
    """`current_task().cancel()` in a function must not leave the consumer waiting for the item."""

    async def suicidal(x: int) -> int:
        if x == 5:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        return x

    drawn = run(draw(af.items(range(10)).map(suicidal, concurrency=2)))
    assert isinstance(drawn.error, af.ClosedError)
    assert "cancelled from outside" in str(drawn.error)


def test_a_timeout_inside_a_function_is_the_functions_own(seed: int) -> None:
    """`asyncio.timeout` works where it is caught, and fails the item where it is not."""

    async def patient(x: int) -> int:
        try:
            async with asyncio.timeout(0.5):
                await asyncio.sleep(10 if x % 2 else 0.1)
        except TimeoutError:
            return -x
        return x

    async def impatient(x: int) -> int:
        async with asyncio.timeout(0.5):
            await asyncio.sleep(10 if x == 4 else 0.1)
        return x

    numbers = af.items(range(6))
    assert run_virtual(draw(numbers.map(patient, concurrency=3)), seed=seed).items == [0, -1, 2, -3, 4, -5]
    drawn = run_virtual(draw(numbers.map(impatient, concurrency=3)), seed=seed)
    assert (drawn.items, type(drawn.error)) == ([0, 1, 2, 3], TimeoutError)


async def _coroutine(x: Any) -> Any:
    return x


class _Request:
    """What is awaited and is no coroutine, as the request of an HTTP client or what Cython compiles."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __await__(self) -> Any:
        yield from ()
        return [self.x]


def _future(x: Any) -> asyncio.Future[Any]:
    loop = asyncio.SelectorEventLoop()
    loop.close()
    return asyncio.Future(loop=loop)


AWAITABLES = pytest.mark.parametrize("awaitable", [_coroutine, _Request, _future])


@AWAITABLES
@pytest.mark.parametrize(
    "build",
    [
        lambda numbers, awaitable: numbers.map(lambda x: awaitable(x)),
        lambda numbers, awaitable: numbers.map(lambda x: x if x == 0 else awaitable(x)).skip(1),
        lambda numbers, awaitable: numbers.filter(lambda x: awaitable(x)),
        lambda numbers, awaitable: numbers.batch(1).map(lambda x: awaitable(x), concurrency=1),
        lambda numbers, awaitable: numbers.batch(1, collate=lambda samples: awaitable(samples)),
        lambda numbers, awaitable: numbers.bucket(boundaries=[2], size=1, length_of=lambda x: awaitable(x)),
    ],
)
def test_a_sync_function_that_returns_an_awaitable_is_told_what_to_write(build: Any, awaitable: Any) -> None:
    """A lambda around an async function is the usual way to get there; nothing is left un-awaited."""
    drawn = run_virtual(draw(build(af.items(range(3)), awaitable)))
    assert (drawn.items, type(drawn.error)) == ([], TypeError)
    assert "async def" in str(drawn.error)


@AWAITABLES
@pytest.mark.parametrize("tree", [lambda file: file, lambda file: (file, file), lambda file: {"x": file}])
def test_a_decoder_that_returns_an_awaitable_is_told_the_same(tree: Any, awaitable: Any, tmp_path: Path) -> None:
    """Also for a file in a tree; with a function, and with a `Decoder`."""

    class Mine(af.Decoder[Any]):
        name = "mine"

        def decode(self, data: Any, file: af.File) -> Any:
            return awaitable(data)

    for decoder in (lambda data: awaitable(data), Mine()):
        drawn = run_virtual(draw(files(tmp_path).map(tree).load(decoder)))
        assert (drawn.items, type(drawn.error)) == ([], TypeError)
        assert "async def" in str(drawn.error)


def test_flat_map_awaits_whatever_can_be_awaited(seed: int) -> None:
    """Its function may return an awaitable of an iterable."""
    assert run_virtual(draw(af.items(range(3)).flat_map(lambda x: _Request(x))), seed=seed).items == [0, 1, 2]


class _Cursor(_Request):
    """What can be awaited and iterated, as drivers of databases have."""

    async def __aiter__(self) -> AsyncIterator[Any]:
        yield self.x
        yield -self.x


def test_flat_map_iterates_what_can_be_awaited_and_iterated(seed: int) -> None:
    """Awaiting a cursor of a database gives no rows."""
    drawn = run_virtual(draw(af.items(range(1, 4)).flat_map(lambda x: _Cursor(x))), seed=seed)
    assert (drawn.items, drawn.error) == ([1, -1, 2, -2, 3, -3], None)


@dataclass(frozen=True)
class Forgetful(Node):
    """A stage of the user's own, whose algorithm returns items without their positions."""

    method: ClassVar[str] = "forgetful"

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        return upstream

    def length(self, upstream: int | None) -> int | None:
        return upstream

    def steps(self) -> list[Algorithm]:
        algorithm = Algorithm()
        algorithm.push = lambda items, positions: (items, ())  # type: ignore[method-assign]
        return [algorithm]


@pytest.mark.parametrize("further", [lambda numbers: numbers, lambda numbers: numbers.map(abs)])
def test_a_stage_that_loses_positions_is_told_so(further: Any) -> None:
    """Whatever comes after it."""
    drawn = run_virtual(draw(further(af.items(range(3)).then(Forgetful()))))
    assert (drawn.items, type(drawn.error)) == ([], af.PipelineError)
    assert "3 items with 0 positions" in str(drawn.error)
