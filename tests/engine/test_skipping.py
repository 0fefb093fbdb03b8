"""`on_error="skip"`: what it leaves out is counted and listed, and more than its budget raises."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.conftest import Run
from tests.engine.failing import BAD, COUNT, Oops, draw, files, raises


def fails_at(*bad: int) -> Any:
    def fn(x: int) -> int:
        if x in bad:
            raise Oops(x)
        return x

    return fn


def fails_later_at(*bad: int) -> Any:
    async def fn(x: int) -> int:
        await asyncio.sleep((x * 7919) % 13 / 1000)
        return fails_at(*bad)(x)  # type: ignore[no-any-return]

    return fn


def expands(*bad: int) -> Any:
    def fn(x: int) -> Any:
        yield fails_at(*bad)(x)

    return fn


class Lookup:
    """A dataset whose `[number]` calls a function of the number."""

    def __init__(self, count: int, fn: Any) -> None:
        self._count = count
        self._fn = fn

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Any:
        return self._fn(number)


STAGES = {
    "items": lambda p, bad, **how: af.items(Lookup(len(p), fails_at(*bad)), **how),
    "map": lambda p, bad, **how: p.map(fails_at(*bad), **how),
    "async map": lambda p, bad, **how: p.map(fails_later_at(*bad), **how),
    "filter": lambda p, bad, **how: p.filter(lambda x: fails_at(*bad)(x) >= 0, **how),
    "flat_map": lambda p, bad, **how: p.flat_map(expands(*bad), **how),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_failing_item_is_left_out_and_listed(stage: str, concurrency: int, run: Run) -> None:
    """With its own exception and place; everything else comes, in order."""

    async def main() -> None:
        pipeline = STAGES[stage](
            af.items(range(30)), (3, 4, 20), concurrency=concurrency, on_error="skip", skip_limit=3
        )
        async with pipeline.open() as feed:
            assert [item async for item in feed] == [x for x in range(30) if x not in (3, 4, 20)]
            assert feed.stats().skipped == 3
            assert feed.failure is None
            assert [(each.ordinal, each.error.args, each.key) for each in feed.skipped] == [
                (x, (x,), f"number {x}") for x in (3, 4, 20)
            ]

    run(main)


@pytest.mark.parametrize("stage", STAGES)
def test_one_failure_more_than_the_count_raises(stage: str, seed: int) -> None:
    """The run fails at that item, after everything before it; the note says why it was not skipped."""
    pipeline = STAGES[stage](af.items(range(30)), (3, 4, 20, 25), concurrency=4, on_error="skip", skip_limit=3)
    drawn = run_virtual(draw(pipeline), seed=seed)
    assert drawn.items == [x for x in range(25) if x not in (3, 4, 20)]
    assert (type(drawn.error), drawn.failure.ordinal) == (Oops, 25)
    assert any("more than skip_limit=3 allows" in note for note in drawn.error.__notes__)


@pytest.mark.parametrize("stage", STAGES)
def test_a_rate_is_of_the_items_so_far_in_the_order_of_the_stream(stage: str, seed: int) -> None:
    """So the same item exhausts it, whatever finishes first."""
    pipeline = STAGES[stage](af.items(range(100)), (0, 15, 18, 99), concurrency=8, on_error="skip", skip_limit=0.1)
    drawn = run_virtual(draw(pipeline), seed=seed)
    # One of 1, two of 16 (1.6, rounded up); the third among 19 would be 1.9, rounded up to two.
    assert drawn.items == [x for x in range(18) if x not in (0, 15)]
    assert (type(drawn.error), drawn.failure.ordinal) == (Oops, 18)


def test_a_batch_is_filled_up_with_the_items_that_follow(seed: int) -> None:
    """What is left out leaves no hole."""
    pipeline = af.items(range(9)).map(fails_at(1), on_error="skip", skip_limit=1).batch(4)
    drawn = run_virtual(draw(pipeline), seed=seed)
    assert [batch.tolist() for batch in drawn.items] == [[0, 2, 3, 4], [5, 6, 7, 8]]


def test_the_budget_is_one_for_all_epochs() -> None:
    """A file that cannot be read counts each time it is tried."""
    pipeline = af.items(range(3)).repeat(3).map(fails_at(1), on_error="skip", skip_limit=2)
    drawn = run_virtual(draw(pipeline))
    assert drawn.items == [0, 2, 0, 2, 0]
    assert drawn.failure.epoch == 2
    assert any("3 items of this run failed" in note for note in drawn.error.__notes__)


def test_each_method_with_a_skip_limit_says_what_it_counts() -> None:
    """In the same words, also where the option is left out by mistake."""
    places = [
        *(getattr(af, name) for name in af.__all__),
        *(getattr(af.Pipeline, name) for name in dir(af.Pipeline)),
    ]
    methods = [
        each for each in places if inspect.isfunction(each) and "skip_limit" in str(inspect.signature(each))
    ]
    names = {"items", "pydataset", "load", "map", "filter", "flat_map", "interleave"}
    assert {each.__name__ for each in methods} == names
    for each in methods:
        text = " ".join(str(each.__doc__).split())
        _, _, told = text.partition(" skip_limit: ")
        assert "It counts over the whole run, all epochs together." in told, each.__name__
    with pytest.raises(af.PipelineError, match="may be left out in the whole run"):
        af.items([1]).map(str, on_error="skip")


def test_a_broken_file_is_left_out_by_name(tmp_path: Path) -> None:
    """`load` skips what it cannot read or decode, and says which."""
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", np.full(2, number))
    (tmp_path / "2.npy").write_bytes(b"")
    with af.files(f"{tmp_path}/*.npy").load(af.npy, on_error="skip", skip_limit=0.3).batch(3).open() as feed:
        assert [batch[:, 0].tolist() for batch in feed] == [[0, 1, 3]]
        assert [each.key for each in feed.skipped] == [f"{tmp_path}/2.npy"]
        assert isinstance(feed.skipped[0].error, af.Corrupt)


def test_nothing_is_skipped_unasked(tmp_path: Path) -> None:
    """Every error ends the run by default."""
    assert isinstance(run_virtual(draw(files(tmp_path).load(af.npy))).error, af.Corrupt)


def test_skipped_exceptions_are_kept_up_to_a_bound() -> None:
    """All are counted; a thousand are listed."""
    pipeline = af.items(range(1500)).map(fails_at(*range(1400)), on_error="skip", skip_limit=1500)
    with pipeline.open() as feed:
        assert len(list(feed)) == 100
        assert (feed.stats().skipped, len(feed.skipped)) == (1400, 1000)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_skipping_bad_items_skips_no_exit(error: type[BaseException]) -> None:
    """`on_error="skip"` is for items, not for Ctrl-C."""
    drawn = run_virtual(draw(af.items(range(COUNT)).map(raises(error), on_error="skip", skip_limit=5)))
    assert (drawn.items, type(drawn.error)) == (list(range(BAD)), error)


@pytest.mark.parametrize("stage", ["map", "filter", "flat_map"])
def test_failures_are_items_like_any_other(stage: str) -> None:
    """What a feed has skipped can go through a pipeline: nothing of ours is mistaken for an item of the user's."""

    def bad(x: int) -> int:
        raise ValueError(x)

    with af.items(range(4)).map(bad, on_error="skip", skip_limit=9).open() as feed:
        assert list(feed) == []
        skipped = list(feed.skipped)
    assert len(skipped) == 4
    fn: Any = {"map": lambda x: x, "filter": lambda _: True, "flat_map": lambda x: [x]}[stage]

    async def waiting(x: Any) -> Any:
        return fn(x)

    for each in (fn, waiting):
        assert list(getattr(af.items(skipped), stage)(each)) == skipped


# -- limits as a value, and a function that decides


def fails_for(*bad: int) -> Callable[[int], int]:
    def fn(x: int) -> int:
        if x in bad:
            raise (KeyError if x % 2 else ValueError)(x)
        return x

    return fn


@pytest.mark.parametrize(
    ("skip", "same"),
    [(af.Skip(max_count=2), {"skip_limit": 2}), (af.Skip(max_rate=0.25), {"skip_limit": 0.25})],
    ids=repr,
)
@pytest.mark.parametrize("bad", [(1, 4), (1, 4, 9), (0,), ()], ids=str)
def test_a_limit_as_a_value_is_the_limit_as_a_number(skip: af.Skip, same: Any, bad: tuple[int, ...]) -> None:
    results = [
        run_virtual(draw(af.items(range(12)).map(fails_for(*bad), **options)))
        for options in ({"on_error": skip}, {"on_error": "skip", **same})
    ]
    assert results[0].items == results[1].items
    assert type(results[0].error) is type(results[1].error)


def test_of_two_limits_both_hold() -> None:
    def result(**limits: Any) -> list[int] | None:
        drawn = run_virtual(draw(af.items(range(100)).map(fails_for(50, 60, 70), on_error=af.Skip(**limits))))
        return drawn.items if drawn.error is None else None

    kept = [x for x in range(100) if x not in (50, 60, 70)]
    assert result(max_count=3, max_rate=0.5) == kept
    assert result(max_count=2, max_rate=0.5) is None
    assert result(max_count=3, max_rate=0.01) is None


def test_the_error_that_goes_beyond_a_limit_says_so() -> None:
    drawn = run_virtual(draw(af.items(range(9)).map(fails_for(1, 2), on_error=af.Skip(max_count=1))))
    assert "2 items of this run failed, which is more than Skip(max_count=1) allows" in str(drawn.error.__notes__)


def test_a_function_decides_for_each_failure_in_order() -> None:
    seen: list[af.Failure] = []

    def decide(failure: af.Failure) -> bool:
        seen.append(failure)
        return isinstance(failure.error, KeyError)

    drawn = run_virtual(draw(af.items(range(12)).map(fails_for(1, 3, 6, 7), on_error=decide)))
    assert drawn.items == [0, 2, 4, 5]
    assert isinstance(drawn.error, ValueError)
    assert [each.ordinal for each in seen] == [1, 3, 6]


def test_a_function_that_fails_to_decide_lets_the_failure_end_the_run() -> None:
    def decide(failure: af.Failure) -> bool:
        raise RuntimeError("no idea")

    drawn = run_virtual(draw(af.items(range(3)).map(fails_for(1), on_error=decide)))
    assert isinstance(drawn.error, KeyError)
    assert "raised RuntimeError: no idea" in str(drawn.error.__notes__)


async def decide_later(failure: af.Failure) -> bool:
    return True


@pytest.mark.parametrize("on_error", [decide_later, af.Skip, 3, None, "ignore"], ids=type)
def test_what_cannot_decide_is_refused(on_error: Any) -> None:
    with pytest.raises(af.PipelineError, match="map: on_error must be"):
        af.items([1]).map(abs, on_error=on_error)
    with pytest.raises(af.PipelineError, match="skip_limit has no effect without"):
        af.items([1]).map(abs, on_error=af.Skip(max_count=1), skip_limit=2)


@pytest.mark.parametrize(
    "limits", [{}, {"max_count": 0}, {"max_count": 1.5}, {"max_rate": 1}, {"max_rate": 0.0}], ids=str
)
def test_a_limit_that_cannot_be_is_refused(limits: Any) -> None:
    with pytest.raises(af.PipelineError, match="Skip: "):
        af.Skip(**limits)
