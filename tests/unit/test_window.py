"""`window`: runs of samples that overlap, by number and as a stream."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.stages.steps import Algorithm
from asyncfeed.stages.window import Window

SIZES = st.integers(1, 6)


def windows(items: list[int], size: int, stride: int, drop: bool) -> list[list[int]]:
    """Return what is expected, in one line of Python."""
    made = [items[start : start + size] for start in range(0, len(items), stride)]
    return [each for each in made if len(each) == size or not drop]


@given(n=st.integers(0, 25), size=SIZES, stride=SIZES, drop=st.booleans(), epochs=st.integers(1, 2))
def test_windows_by_number_and_of_a_stream_are_the_same(
    n: int, size: int, stride: int, drop: bool, epochs: int
) -> None:
    """They begin every `stride` samples and never reach into the next epoch; their number is known before."""
    expected = windows(list(range(n)), size, stride, drop) * epochs
    numbered = af.items(range(n)).window(size, stride=stride, drop_remainder=drop)
    streamed = af.items(lambda: iter(range(n))).window(size, stride=stride, drop_remainder=drop)
    if n:
        assert [each.tolist() for each in streamed.repeat(epochs)] == expected
        assert [each.tolist() for each in numbered.repeat(epochs)] == expected
    assert len(numbered.repeat(epochs)) == len(expected)


@given(st.lists(st.integers(0, 9), max_size=8), SIZES, SIZES, st.booleans())
def test_it_does_not_matter_how_the_stream_is_cut(cuts: list[int], size: int, stride: int, drop: bool) -> None:
    """Each window has the positions of its samples, and what is held is what a later window needs."""
    (algorithm, _) = Window(size, stride, drop).steps()
    assert isinstance(algorithm, Algorithm)
    items = list(range(sum(cuts)))
    out: list[list[int]] = []
    for _ in range(2):  # it begins anew after a flush
        out, place = [], 0
        for cut in cuts:
            made, positions = algorithm.push(items[place : place + cut], range(place, place + cut))
            assert [list(each) for each in positions] == made
            out += made
            place += cut
            assert algorithm.held <= max(size, stride)
        made, positions = algorithm.flush()
        assert [list(each) for each in positions] == made
        assert out + made == windows(items, size, stride, drop)
        assert algorithm.held == 0


def test_windows_can_be_shuffled_exactly() -> None:
    """Where the samples are in memory, a window is stacked when it is asked for."""
    series = af.items(np.arange(20)).window(4)
    assert sorted(each.tolist() for each in series.shuffle(seed=3)) == windows(list(range(20)), 4, 1, True)


def test_windows_are_not_split() -> None:
    """The parts would share samples, as windows overlap."""
    with pytest.raises(af.PipelineError, match=r"split: put it before \.window\(4\)"):
        af.items(np.arange(20)).window(4).split(0.5, 0.5)


def test_samples_that_your_code_reads_are_read_once() -> None:
    """So these windows are a stream: by number, each sample would be read for every window that holds it."""

    class Dataset:
        read: list[int] = []

        def __len__(self) -> int:
            return 8

        def __getitem__(self, number: int) -> int:
            self.read.append(number)
            return number

    assert [each.tolist() for each in af.items(Dataset()).window(3)] == windows(list(range(8)), 3, 1, True)
    assert Dataset.read == list(range(8))


def test_samples_that_do_not_match_are_named() -> None:
    """By number and in a stream."""
    ragged: list[Any] = [np.zeros(2), np.zeros(2), np.zeros(3)]
    for source in (af.items(ragged), af.items(lambda: iter(ragged))):
        with pytest.raises(
            ValueError, match="samples of different shape .* number 1 has .* number 2 has"
        ) as caught:
            list(source.window(2))
        assert "number 1 to number 2" in "\n".join(caught.value.__notes__)


def test_unread_files_make_no_window(tmp_path: Any) -> None:
    """As with `batch`."""
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(af.PipelineError, match="the files are not read"):
        af.files(str(tmp_path / "a")).window(2)


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 2, "stride": 0}, {"size": 2.5}])
def test_sizes_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    """Early, with the name of the option."""
    with pytest.raises(af.PipelineError, match="window: s"):
        af.items(range(3)).window(**options)


# -- within a series


def rows_of(series: int) -> list[tuple[int, int]]:
    """Return the rows of a series: 0 to 6 of them."""
    return [(series, at) for at in range(series * 3 % 7)]


def expected(size: int, stride: int, drop: bool) -> list[list[int]]:
    """Return the numbers of the series of 20, in windows of each series alone."""
    return [
        [at for _, at in window]
        for series in range(20)
        for window in (rows_of(series)[start : start + size] for start in range(0, len(rows_of(series)), stride))
        if len(window) == size or not drop
    ]


SERIES = {
    "file": lambda **how: af.items(range(20)).flat_map(rows_of).window(within="file", **how),
    "key": lambda **how: af.items([row for each in range(20) for row in rows_of(each)]).window(
        within=lambda row: row[0], **how
    ),
    "key of a stream": lambda **how: (
        af.items(range(20)).flat_map(rows_of).window(within=lambda row: np.int64(row[0]), **how)
    ),
    "text": lambda **how: af.items(range(20)).flat_map(rows_of).window(within=lambda row: f"s{row[0]}", **how),
}


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize(("size", "stride"), [(1, 1), (2, 1), (3, 2), (2, 3), (4, 1)])
@pytest.mark.parametrize("kind", SERIES)
def test_no_window_holds_samples_of_two_series(kind: str, size: int, stride: int, drop: bool) -> None:
    pipeline = SERIES[kind](size=size, stride=stride, drop_remainder=drop)
    wanted = expected(size, stride, drop)
    assert [window[1].tolist() for window in pipeline] == wanted
    assert [window[1].tolist() for window in pipeline.repeat(2)] == 2 * wanted
    with pytest.raises(TypeError):
        len(pipeline)


@pytest.mark.parametrize("kind", SERIES)
def test_windows_within_series_go_on_at_any_cut(kind: str) -> None:
    pipeline = SERIES[kind](size=3, stride=2, drop_remainder=False)
    whole = [window[1].tolist() for window in pipeline]
    for cut in range(len(whole) + 1):
        with pipeline.open() as feed:
            before = [next(feed)[1].tolist() for _ in range(cut)]
            state = json.loads(json.dumps(feed.state_dict()))
        assert before + [window[1].tolist() for window in pipeline.open(state=state)] == whole


def test_a_series_has_a_name_or_a_number() -> None:
    with pytest.raises(TypeError, match="within must return a text or a number"):
        list(af.items(range(3)).window(2, within=lambda x: [x]))
    with pytest.raises(af.PipelineError, match="within must be"):
        af.items(range(3)).window(2, within="day")  # type: ignore[arg-type]
    with pytest.raises(af.PipelineError, match="needs a flat_map"):
        af.items(range(3)).map(abs).window(2, within="file")
