"""Scan, map_batches and apply."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af


def total(state: int, x: int) -> tuple[int, int]:
    return state + x, state + x


async def total_on_the_loop(state: int, x: int) -> tuple[int, int]:
    await asyncio.sleep(0)
    return state + x, state + x


@pytest.mark.parametrize("fn", [total, total_on_the_loop])
@given(numbers=st.lists(st.integers(-9, 9), max_size=50), epochs=st.integers(1, 3))
def test_it_is_accumulate_in_each_epoch(fn: Any, numbers: list[int], epochs: int) -> None:
    assert list(af.items(numbers).scan(fn, 0).repeat(epochs)) == list(accumulate(numbers)) * epochs
    assert list(af.items(numbers).repeat(epochs).scan(fn, 0)) == list(accumulate(numbers * epochs))


def test_a_state_that_is_changed_in_place_begins_anew_in_each_epoch_and_run() -> None:
    def seen(state: list[int], x: int) -> tuple[list[int], int]:
        state.append(x)
        return state, len(state)

    pipeline = af.items([1, 2, 3]).scan(seen, [])
    assert list(pipeline.repeat(2)) == [1, 2, 3] * 2
    assert list(pipeline) == [1, 2, 3]
    assert len(pipeline) == 3


@pytest.mark.parametrize("made", [None, 5, (1,), [1, 2]])
def test_a_function_must_return_a_pair(made: Any) -> None:
    with pytest.raises(TypeError, match=r"scan: the function must return \(next state, result\), not"):
        list(af.items([1]).scan(lambda state, x: made, 0))


def test_an_error_of_the_function_names_the_item() -> None:
    def fails(state: int, x: int) -> tuple[int, int]:
        return state + 1, 1 // (3 - x)

    with pytest.raises(ZeroDivisionError) as caught:
        list(af.items(range(9)).scan(fails, 0))
    assert any("number 3" in note for note in caught.value.__notes__)


def test_map_batches_calls_a_function_for_many_samples_at_once() -> None:
    sizes: list[int] = []

    def double(batch: Any) -> Any:
        sizes.append(len(batch["x"]))
        return {"y": batch["x"] * 2}

    samples = [{"x": np.float32(number)} for number in range(5)]
    assert [sample["y"] for sample in af.items(samples).map_batches(double, 2)] == [0, 2, 4, 6, 8]
    assert sorted(sizes) == [1, 2, 2]


def test_map_batches_may_return_another_number_of_rows_and_may_be_async() -> None:
    async def keep_odd(batch: Any) -> Any:
        return batch[batch % 2 == 1]

    assert list(af.items(range(7)).map_batches(keep_odd, 3)) == [1, 3, 5]


def test_apply_calls_a_function_of_the_pipeline() -> None:
    assert list(af.items(range(4)).apply(lambda numbers: numbers.skip(1).take(2))) == [1, 2]
    with pytest.raises(af.PipelineError, match="apply: the function must return a pipeline, not 5"):
        af.items([1]).apply(lambda _: 5)  # type: ignore[arg-type, return-value]
