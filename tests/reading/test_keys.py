"""Many objects in little memory, and patterns of their names."""

from __future__ import annotations

import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.reading.keys import ObjectList, Place, Texts, matcher
from asyncfeed.reading.objects import ObjectStore

STORE = ObjectStore("s3://bucket", anonymous=True)
HERE = Place("s3://bucket/", STORE)
THERE = Place("s3://bucket-2/", ObjectStore("s3://bucket-2"))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a/*.npy", ["a/x.npy", "a/x y.npy"], ["a/b/x.npy", "a/.x.npy", "b/x.npy", "a/x.npyz"]),
        ("a/.*", ["a/.x"], ["a/x"]),
        ("**/*.npy", ["x.npy", "a/b/x.npy"], [".a/x.npy", "a/.b/x.npy"]),
        ("a/**", ["a/x", "a/b/x"], ["a", "b/x"]),
        ("a?.npy", ["ab.npy", "a?.npy"], ["a/.npy", "a.npy"]),
        ("x[0-9].npy", ["x1.npy", "x[0-9].npy"], ["xa.npy", "x/.npy"]),
        ("x[!0-9]y", ["xay"], ["x1y", "x/y"]),
        ("x[]a]y", ["x]y", "xay"], ["xby"]),
        ("x[^a]y", ["x^y", "xay"], ["xby"]),
        ("a+(b).npy", ["a+(b).npy"], ["aab.npy"]),
        ("a\n*", ["a\nb\nc"], ["a"]),
    ],
)
def test_a_pattern_matches_as_for_local_files(pattern: str, yes: list[str], no: list[str]) -> None:
    match = matcher(pattern).fullmatch
    assert [key for key in [*yes, *no] if match(key)] == yes


@given(st.lists(st.text()))
def test_texts_are_kept_as_they_are(texts: list[str]) -> None:
    kept = Texts(texts)
    assert list(kept) == texts
    assert [kept[-1 - at] for at in range(len(texts))] == texts[::-1]
    assert kept == Texts(texts)
    assert list(pickle.loads(pickle.dumps(kept))) == texts


def test_objects_are_made_when_asked_for() -> None:
    listed = ObjectList([HERE], [("a", 1, '"x"', 0), ("b", None, None, 0), ("c", 0, None, 0)])
    assert [(file.path, file.size, file.etag) for file in listed] == [
        ("s3://bucket/a", 1, '"x"'),
        ("s3://bucket/b", None, None),
        ("s3://bucket/c", 0, None),
    ]
    assert listed[1:] == ObjectList([HERE], [("b", None, None, 0), ("c", 0, None, 0)])
    assert listed.pick([2, 0]) == [listed[2], listed[0]]
    assert listed[-1] == listed[2]
    assert (listed.nbytes, repr(listed)) == (1, f"ObjectList(3 objects of {STORE!r})")
    assert pickle.loads(pickle.dumps(listed)) == listed
    assert listed != listed[1:]
    assert listed != 3


def test_objects_of_several_stores_know_theirs() -> None:
    listed = ObjectList([HERE, THERE], [("b", 1, None, 0), ("a", 2, '"x"', 1), ("c", 3, None, 0)])
    assert [(file.path, file.store) for file in listed] == [
        ("s3://bucket/b", STORE),
        ("s3://bucket-2/a", THERE.store),
        ("s3://bucket/c", STORE),
    ]
    assert listed[1] == listed[1:][0] == listed.pick([1])[0]
    assert repr(listed) == f"ObjectList(3 objects of {STORE!r}, ...)"
    assert pickle.loads(pickle.dumps(listed)) == listed
    assert listed != ObjectList([HERE, THERE], [("b", 1, None, 0), ("a", 2, '"x"', 0), ("c", 3, None, 0)])
    assert len({hash(listed), hash(ObjectList([HERE, THERE], listed.found()))}) == 1


def test_objects_that_come_out_of_order_or_twice_are_sorted_and_there_once() -> None:
    listed = ObjectList([HERE], [(key, 1, None, 0) for key in "bacab"])
    assert [file.path[-1] for file in listed.in_order()] == ["a", "b", "c"]
    in_order = listed.in_order()
    assert in_order.in_order() is in_order
    both = ObjectList([HERE, THERE], [(key, 1, None, place) for key in "bab" for place in (0, 1)])
    assert [file.path for file in both.in_order()] == [
        "s3://bucket-2/a",
        "s3://bucket-2/b",
        "s3://bucket/a",
        "s3://bucket/b",
    ]


@pytest.mark.parametrize("width", [40, 100])
def test_an_object_takes_less_than_200_bytes(width: int) -> None:
    """Beside the object itself, nothing of it is held: not even while the list is made."""
    etag = '"0123456789abcdef0123456789abcdef"'
    count = 100_000
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        listed = ObjectList([HERE])
        for start in range(0, count, 1000):
            listed.extend((f"{number:0{width}}", 1000, etag, 0) for number in range(start, start + 1000))
        taken, peak = (each - before for each in tracemalloc.get_traced_memory())
        assert listed.in_order() is listed
        sorted_peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert listed.memory <= taken < 200 * count
    assert max(peak, sorted_peak) < 200 * count
