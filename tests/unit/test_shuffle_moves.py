"""An exact shuffle may follow stages that work on each item for itself. It then runs before them."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.stages.shuffle import Shuffle
from tests.engine import in_worker
from tests.engine.inside import as_run, reads_batches

NUMBERS = af.items(range(50))


def double(x: int) -> int:
    return 2 * x


async def later(x: int) -> int:
    return x + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        for number in range(5):
            np.save(tmp_path / f"{name}{number}.npy", np.full(3, number))
    return tmp_path


def label_of(file: af.File) -> tuple[af.File, str]:
    return file, Path(file.path).name[0]


def test_files_with_labels_from_their_paths_are_shuffled_exactly(folder: Path) -> None:
    """Without a buffer, and each epoch anew; so are their parts."""
    pairs = af.files(f"{folder}/*.npy").map(label_of)
    shuffled = list(pairs.shuffle(seed=1))
    assert shuffled == [label_of(file) for file in af.files(f"{folder}/*.npy").shuffle(seed=1)]
    assert sorted(file.path for file, _ in shuffled) == sorted(file.path for file, _ in pairs)
    first, second = (list(epoch) for epoch in pairs.shuffle(seed=1).epochs(2))
    assert first == shuffled != second
    train, test = pairs.split(0.8, 0.2, seed=3)
    assert (len(train), len(test), len({file.path for file, _ in [*train.shuffle(), *test.shuffle()]})) == (
        12,
        3,
        15,
    )


def test_what_is_loaded_after_it_is_read_into_the_batch(folder: Path) -> None:
    batches = af.files(f"{folder}/*.npy").map(label_of).load(af.npy).shuffle(seed=1).batch(5)
    assert reads_batches(as_run(batches)[-1])
    expected = af.files(f"{folder}/*.npy").shuffle(seed=1).map(label_of).load(af.npy).batch(5)
    for one, another in zip(batches, expected, strict=True):
        assert one[0].tolist() == another[0].tolist()
        assert one[1].tolist() == another[1].tolist()


@pytest.mark.parametrize(
    ("stages", "moved"),
    [
        (lambda p: p.map(double), lambda p: p),
        (lambda p: p.map(later).map(double), lambda p: p),
        (lambda p: p.map(in_worker.double, on="process", concurrency=1), lambda p: p),
        (lambda p: p.repeat(2).map(double), lambda p: p.repeat(2)),
        (lambda p: p.map(double).take(20), lambda p: p.take(20)),
        (lambda p: p.shuffle(seed=9).map(double), lambda p: p.shuffle(seed=9)),
    ],
)
def test_the_items_are_those_of_a_shuffle_in_front(stages: Any, moved: Any) -> None:
    """Seeds count as where they are written."""
    made = dict(zip(moved(NUMBERS), stages(NUMBERS), strict=True))
    expected = [made[item] for item in moved(NUMBERS).shuffle(seed=4).repeat(2)]
    assert list(stages(NUMBERS).shuffle(seed=4).repeat(2)) == expected


def test_a_function_runs_where_it_would_without_the_shuffle() -> None:
    """A sync function may block, so it runs on threads; the stage keeps its options and its name."""
    threads = set()

    def where(x: int) -> int:
        threads.add(threading.current_thread())
        return x

    pipeline = NUMBERS.map(where, concurrency=3).shuffle(seed=1)
    with pipeline.open() as feed:
        assert sorted(feed) == list(range(50))
        assert "map(where, concurrency=3)" in repr(pipeline)
    assert all("loop" not in thread.name and thread is not threading.main_thread() for thread in threads)
    lines = pipeline.explain().splitlines()
    assert lines[0].startswith("items(range(0, 50)).shuffle(seed=1)  ")
    assert lines[1].startswith("map(where, concurrency=3)  ")


def test_a_failing_item_is_named_with_its_stage_and_its_place_in_the_shuffled_order() -> None:
    def fails(x: int) -> int:
        return 1 // (x - 17) and x

    order = list(NUMBERS.shuffle(seed=1))
    with NUMBERS.map(fails).shuffle(seed=1).open() as feed:
        got = []
        with pytest.raises(ZeroDivisionError):
            got.extend(feed)
        failure = feed.failure
    assert failure is not None
    assert (failure.stage, failure.key, failure.ordinal) == ("map(fails)", "number 17", order.index(17))


@pytest.mark.parametrize(
    "stage",
    [
        lambda p: p.map(lambda x, rng: x, rng=True),
        lambda p: p.map(double, ordered=False),
        lambda p: p.map(double, on_error="skip", skip_limit=3),
        lambda p: p.filter(bool),
        lambda p: p.flat_map(lambda x: [x]),
        lambda p: p.scan(lambda state, x: (state, x), 0),
        lambda p: p.batch(2),
        lambda p: p.shuffle(buffer=3),
        lambda p: p.map(double).repeat(2),
        lambda p: p.map(double).skip(2),
    ],
)
def test_a_shuffle_after_anything_else_needs_a_buffer(stage: Any) -> None:
    """The result of such a stage depends on other items, on the place of an item, or on which items are left."""
    with pytest.raises(af.PipelineError, match=r"shuffle\(buffer="):
        stage(NUMBERS).shuffle()
    assert len(list(stage(NUMBERS).shuffle(buffer=5))) > 0


def test_any_stages_in_between_give_the_items_of_a_list() -> None:
    """Over many pipelines: the same as if all items had been made first, and then shuffled."""
    rng = random.Random(0)
    for _ in range(40):
        pipeline, values, shuffles = af.items(range(23)), list(range(23)), 0
        for _ in range(rng.randrange(1, 5)):
            match rng.randrange(4):
                case 0:
                    pipeline, values = (
                        pipeline.map(double, concurrency=rng.choice([1, 4])),
                        [2 * x for x in values],
                    )
                case 1:
                    pipeline, values = pipeline.map(later), [x + 1 for x in values]
                case 2:
                    count = rng.randrange(30)
                    pipeline, values = pipeline.take(count), values[:count]
                case 3:
                    seed = rng.randrange(5)
                    node = Shuffle(seed=seed).with_stream(shuffles)
                    values = list(af.Pipeline(af.items(values).source, (node,)))
                    pipeline, shuffles = pipeline.shuffle(seed=seed), shuffles + 1
        assert list(pipeline) == values
