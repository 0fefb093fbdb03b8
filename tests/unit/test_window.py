"""`window`: runs of samples that overlap, by number and as a stream."""

from __future__ import annotations

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
