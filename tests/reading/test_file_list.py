"""Lists of files are held compactly, and a span of one behaves as a list of its files."""

from __future__ import annotations

import pickle
import sys
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.reading.file import File
from asyncfeed.reading.listing import FileList, FileSpan

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.just("\udcff"), min_size=1)
entries = st.lists(st.tuples(names, st.integers(0, 2**62), st.integers(0, 2**62)), max_size=12)


def listed(of: list[tuple[str, int, int]]) -> FileList:
    return FileList(*zip(*of, strict=True)) if of else FileList([], [], [])


@given(entries, st.data())
def test_a_list_of_files_is_a_sequence_of_them(of: list[tuple[str, int, int]], data: st.DataObject) -> None:
    """Also if their names are no text."""
    files, found = [File(*each) for each in of], listed(of)
    assert list(found) == files
    assert found.paths() == [each.path for each in files]
    part = data.draw(st.slices(len(files)))
    assert list(found[part]) == files[part]
    assert found == listed(of)
    assert hash(found) == hash(listed(of))
    assert pickle.loads(pickle.dumps(found)) == found
    grown = listed([])
    for each in of:
        grown.append(*each)
    assert grown == found
    places = data.draw(st.lists(st.integers(0, len(of) - 1))) if of else []
    assert found.pick(places) == [files[at] for at in places]
    if of:
        at = data.draw(st.integers(-len(of), len(of) - 1))
        assert found[at] == files[at]
    with pytest.raises(IndexError):
        found[len(of)]


@given(entries.filter(bool), st.data())
def test_a_span_is_a_sequence_of_its_files(of: list[tuple[str, int, int]], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(of) - 1), min_size=1))
    files, span = [File(*of[at]) for at in places], FileSpan(listed(of), places)
    assert list(span) == [span[at] for at in range(len(span))] == files
    assert span.sizes() == [each.size for each in files]
    part = data.draw(st.slices(len(files)))
    assert list(span[part]) == files[part]
    cut = data.draw(st.integers(0, len(files)))
    assert list(FileSpan.joined([span[:cut], span[cut:]])) == files


@given(st.lists(entries, max_size=3))
def test_files_may_be_added_one_by_one_or_together(parts: list[list[tuple[str, int, int]]]) -> None:
    """The list is the same as one that is made at once."""
    grown, one_by_one = listed([]), listed([])
    for part in parts:
        grown.extend(part)
        for each in part:
            one_by_one.append(*each)
    assert grown == one_by_one == listed([each for part in parts for each in part])
    assert list(grown) == list(one_by_one)
    many = [(f"{at}é", at, -at) for at in range(10_000)]
    grown.extend(iter(many))
    assert list(grown[len(one_by_one) :]) == [File(*each) for each in many]


@given(entries.filter(bool), st.data())
def test_a_span_is_sent_with_its_files_alone(of: list[tuple[str, int, int]], data: st.DataObject) -> None:
    """To another process, which does not have the list."""
    places = data.draw(st.lists(st.integers(0, len(of) - 1), min_size=1, max_size=20))
    span = FileSpan(listed(of), places)
    sent = pickle.loads(pickle.dumps(span))
    assert list(sent) == list(span)
    assert sent.sizes() == span.sizes()
    assert len(sent.files) == len(places)


def test_a_file_of_a_list_takes_little_memory() -> None:
    """Less than 60 bytes beside its name."""
    count = 100_000
    paths = [f"folder/{number:08}.npy" for number in range(count)]
    found = FileList(paths, range(count), range(count))
    for each in range(1000):  # a list that grows keeps some room
        found.append(f"folder/new{each:05}.npy", 1, 1)
    held = [getattr(found, name) for name in FileList.__slots__]
    assert all(isinstance(each, array | bytearray | tuple) for each in held)
    assert sum(map(sys.getsizeof, held)) < (60 + len(paths[0])) * len(found) * 0.75


def test_the_size_that_all_files_have_is_known_once_none_is_added() -> None:
    found = FileList(["a", "b"], [7, 7], [0, 0])
    assert found.equal_size == 7
    assert FileSpan(found, [1, 0, 1]).sizes() == [7, 7, 7]
    found.append("c", 8, 0)
    assert found.equal_size is None
    assert FileSpan(found, [2, 0]).sizes() == [8, 7]
    assert FileList(["a", "b"], [1, 2], [0, 0]).equal_size is None


def test_an_error_names_the_file_whose_number_came(tmp_path: Any) -> None:
    """Files that go to `load` and `batch` by their numbers are named as if they were files."""
    for number in range(20):
        (tmp_path / f"{number:02}.bin").write_bytes(bytes(8))
    pipeline = af.files(f"{tmp_path}/*.bin").shuffle(seed=1).load(af.raw("float32")).batch(5)
    (tmp_path / "07.bin").write_bytes(bytes(7))
    with pipeline.open() as feed, pytest.raises(af.Corrupt, match=r"07\.bin"):
        list(feed)
    assert feed.failure is not None
    assert feed.failure.key.endswith("07.bin")
