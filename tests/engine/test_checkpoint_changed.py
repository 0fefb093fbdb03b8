"""A source that has other items than when the state was taken: an error, and nothing that is lost in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import asyncfeed as af


def listed(folder: Path) -> af.Pipeline[Any]:
    return af.files(f"{folder}/*.txt", listing="streamed").map(lambda file: Path(file.path).stem)


def cut(pipeline: af.Pipeline[Any], count: int) -> tuple[list[Any], dict[str, Any]]:
    with pipeline.open() as feed:
        return [next(feed) for _ in range(count)], feed.state_dict()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(1, 7):
        (tmp_path / f"{number}.txt").touch()
    return tmp_path


@pytest.mark.parametrize("build", [
    lambda names: names,
    lambda names: names.shuffle(buffer=3, seed=1),
    lambda names: names.repeat(2),
    lambda names: names.map(lambda name: name, ordered=False),
])  # fmt: skip
@pytest.mark.parametrize("count", range(7))
def test_a_listing_that_has_not_changed_goes_on(folder: Path, build: Any, count: int) -> None:
    pipeline = build(listed(folder))
    whole = list(pipeline)
    before, state = cut(pipeline, count)
    assert sorted(before + list(pipeline.open(state=state))) == sorted(whole)


def test_a_file_that_came_before_the_place_is_an_error(folder: Path) -> None:
    before, state = cut(listed(folder), 2)
    assert before == ["1", "2"]
    (folder / "0.txt").touch()
    with listed(folder).open(state=state) as feed, pytest.raises(af.StateError, match="lists other files"):
        next(feed)


def test_a_file_that_went_before_the_place_is_an_error(folder: Path) -> None:
    _, state = cut(listed(folder), 2)
    (folder / "1.txt").unlink()
    with listed(folder).open(state=state) as feed, pytest.raises(af.StateError, match="lists other files"):
        next(feed)


def test_a_file_that_came_behind_the_place_is_delivered(folder: Path) -> None:
    _, state = cut(listed(folder), 2)
    (folder / "9.txt").touch()
    assert list(listed(folder).open(state=state)) == ["3", "4", "5", "6", "9"]


def test_other_folders_may_hold_the_same_files(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    _, state = cut(af.files(f"{folder}/*.txt", listing="streamed"), 2)
    moved = tmp_path_factory.mktemp("other") / folder.name
    folder.rename(moved)
    rest = [file.path for file in af.files(f"{moved}/*.txt", listing="streamed").open(state=state)]
    assert rest == [str(moved / f"{number}.txt") for number in range(3, 7)]


@pytest.mark.parametrize("left", [0, 1, 3])
def test_an_iterable_with_fewer_items_than_were_delivered_is_an_error(left: int) -> None:
    count = [6]

    def numbers() -> Any:
        return iter(range(count[0]))

    pipeline = af.items(numbers)
    _, state = cut(pipeline, 4)
    count[0] = left
    with pipeline.open(state=state) as feed, pytest.raises(af.StateError, match="fewer items"):
        next(feed)
    count[0] = 4
    assert list(pipeline.open(state=state)) == []
