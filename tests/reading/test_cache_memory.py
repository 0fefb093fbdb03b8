"""`cache("memory")`, and `cache` behind `map`: what functions make of one item is kept."""

from __future__ import annotations

import functools
import pickle
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import asyncfeed as af
from asyncfeed.reading.cached_samples import CachedSamples
from asyncfeed.reading.sample_storage import ENTRY_BYTES, MemorySamples
from asyncfeed.trees import same
from tests.reading.versions import VersionStore, numbered, run

COUNT = 20
MB = "100 MB"


class Made:
    """A function that counts its calls. A failed call counts, too."""

    def __init__(self, bad: frozenset[int] = frozenset()) -> None:
        self.calls: Counter[Any] = Counter()
        self.bad = bad
        self._lock = threading.Lock()

    def __call__(self, number: int) -> Any:
        with self._lock:
            self.calls[number] += 1
        if number in self.bad:
            raise ValueError(f"number {number}")
        return {"x": np.full(10, number), "y": (number, "text", b"bytes", None)}


def storages(tmp_path: Path) -> list[dict[str, Any]]:
    return [{"folder": "memory", "max_bytes": MB}, {"folder": tmp_path / "cache", "version": "1"}]


@pytest.fixture(params=["memory", "folder"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    memory, folder = storages(tmp_path)
    return memory if request.param == "memory" else folder


def test_a_function_is_called_once_for_each_item(options: dict[str, Any]) -> None:
    make = Made()
    kept = af.items(range(COUNT)).map(make).cache(**options)
    plain = af.items(range(COUNT)).map(Made())
    for epoch in range(3):
        items, did = run(kept.shuffle(seed=epoch))
        assert same(items, list(plain.shuffle(seed=epoch)))
        assert did == ({"hits": COUNT} if epoch else {"misses, now kept": COUNT})
    assert set(make.calls.values()) == {1}


def test_epochs_of_one_run_share_it(options: dict[str, Any]) -> None:
    """The first one fills it while the next is read ahead, so some items may be made twice."""
    make = Made()
    batches = af.items(range(COUNT)).shuffle(seed=1).map(make, concurrency=1).cache(**options).batch(4)
    for epoch in batches.epochs(3):
        assert sorted(number for batch in epoch for number in batch["y"][0].tolist()) == list(range(COUNT))
    assert set(make.calls.values()) == {1}


def test_part_of_an_epoch_is_kept(options: dict[str, Any]) -> None:
    make = Made()
    kept = af.items(range(COUNT)).map(make, concurrency=1).cache(**options)
    with kept.open() as feed:
        for _, _ in zip(range(5), feed, strict=False):
            pass
    begun = set(make.calls)
    assert len(list(kept)) == COUNT
    assert begun
    assert set(make.calls.values()) == {1}


def test_several_stages_are_kept_as_one(options: dict[str, Any]) -> None:
    store = VersionStore(numbered(COUNT))
    double = lambda array: array * 2  # noqa: E731
    kept = af.items(store.files()).load(af.npy).map(double).map(np.sum).cache(**options).enumerate()
    expected = [(number, 20 * number) for number in range(COUNT)]
    for reads in (1, 1):
        assert [(at, int(each)) for at, each in kept] == expected
        assert set(store.reads.values()) == {reads}
    assert str(kept.stages[-2]).startswith("cache(")


def test_what_is_between_is_not_kept(options: dict[str, Any]) -> None:
    """Only the stages directly before it, which work on each item for itself."""
    before, behind = Made(), Counter()  # type: ignore[var-annotated]

    def total(sample: Any) -> int:
        behind[sample["y"][0]] += 1
        return int(sample["x"].sum())

    kept = af.items(range(COUNT)).map(before).filter(lambda each: each["y"][0] % 2).map(total).cache(**options)
    for _ in range(2):
        assert list(kept) == [10 * each for each in range(COUNT) if each % 2]
    assert set(before.calls.values()) == {2}
    assert set(behind.values()) == {1}


def test_a_failed_item_is_named_and_not_kept(options: dict[str, Any]) -> None:
    make = Made(frozenset([3]))
    kept = af.items(range(COUNT)).map(make, concurrency=1).cache(**options)
    for _ in range(2):
        with pytest.raises(ValueError, match="number 3") as caught:
            list(kept)
        assert "item number 3 (ordinal 3 of epoch 0)" in caught.value.__notes__[-1]
    make.bad = frozenset()
    assert len(list(kept)) == COUNT
    assert make.calls[3] == 3
    assert {make.calls[each] for each in range(3)} == {1}


def test_a_sample_belongs_to_who_gets_it(options: dict[str, Any]) -> None:
    kept = af.items(range(COUNT)).map(Made()).cache(**options)
    for _ in range(3):
        for number, sample in enumerate(kept):
            assert sample["x"].tolist() == [number] * 10
            sample["x"][:] = -1
            sample["more"] = 1


ITEMS = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=3)
    | st.binary(max_size=3) | npst.arrays(st.sampled_from(["u1", "i2", "f4"]), st.integers(0, 3)),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


@given(st.lists(ITEMS, min_size=2, max_size=6))
def test_items_have_one_sample_if_they_are_the_same_and_only_then(items: list[Any]) -> None:
    """Also 1, True, 1.0 and "1"; (1,) and [1]; and arrays of one value and several dtypes or shapes."""
    made: list[Any] = []
    samples = CachedSamples(lambda item: made.append(item) or len(made), "", MemorySamples(1 << 30))
    numbers = [samples(item) for item in items]
    for one, first in zip(items, numbers, strict=True):
        for other, second in zip(items, numbers, strict=True):
            assert (first == second) == (repr(one) == repr(other) and same(one, other))


def test_files_in_items_are_known_by_their_version(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.txt" for number in range(3)]
    for path in paths:
        path.write_text(path.name)
    calls: list[str] = []

    def read(item: Any) -> str:
        file, label = item
        calls.append(file.path)
        return Path(file.path).read_text() + label

    def labelled() -> list[str]:
        pairs = af.zip(af.files(f"{tmp_path}/*.txt"), af.items(["a", "b", "c"]))
        return list(pairs.map(read, concurrency=1).cache(tmp_path / "cache", version="1"))

    assert labelled() == labelled() == ["0.txta", "1.txtb", "2.txtc"]
    paths[1].write_text("longer")
    assert labelled() == ["0.txta", "longerb", "2.txtc"]
    assert len(calls) == 4


# -- memory


def test_memory_is_bounded_and_the_rest_is_made_again() -> None:
    make = Made()
    room = 5 * (ENTRY_BYTES + 1000)
    kept = af.items(range(COUNT)).map(make, concurrency=1).cache("memory", max_bytes=room)
    items, first = run(kept)
    assert len(items) == COUNT
    assert first["misses, not kept"] > 0
    had = first["misses, now kept"]
    for _ in range(2):
        items, did = run(kept)
        assert did == {"hits": had, "misses, not kept": COUNT - had}
    memory = kept.stages[-1].memory
    assert 0 < memory.nbytes <= room


def test_all_pipelines_that_are_made_of_one_share_its_memory() -> None:
    make = Made()
    kept = af.items(range(COUNT)).map(make).cache("memory", max_bytes=MB)
    run(kept)
    assert run(kept.batch(3))[1] == run(kept.shuffle(seed=1).map(len))[1] == {"hits": COUNT}
    other = af.items(range(COUNT)).map(make).cache("memory", max_bytes=MB)
    assert run(other)[1] == {"misses, now kept": COUNT}
    assert other == kept, "what is kept is no part of the description"


def test_another_process_begins_without_samples() -> None:
    kept = af.items(range(COUNT)).map(len_of).cache("memory", max_bytes=MB)
    run(kept)
    copy = pickle.loads(pickle.dumps(kept))
    assert repr(copy) == repr(kept)
    assert run(copy)[1] == {"misses, now kept": COUNT}
    assert run(kept)[1] == {"hits": COUNT}


def len_of(number: int) -> int:
    return number


def test_threads_that_keep_one_sample_take_its_memory_once() -> None:
    memory = MemorySamples(1 << 20)
    parts = [memoryview(bytes(1000))]
    threads = [threading.Thread(target=memory.keep, args=("name", parts)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert memory.nbytes == 1000 + ENTRY_BYTES


# -- refusals


async def later(item: Any) -> Any:
    return item


@pytest.mark.parametrize(("build", "message"), [
    (lambda each: each.cache("memory"), "say how much memory the samples may take"),
    (lambda each: each.cache("memory", max_bytes=MB, version="1"), "version is for a folder"),
    (lambda each: each.cache("memory", max_bytes=MB), r"items\(range\(len\(dataset\)\)\).map"),
    (lambda each: each.cache("folder", version="1"), r"items\(range\(len\(dataset\)\)\).map"),
    (lambda each: each.map(later).cache("memory", max_bytes=MB), "put it before .map.*this one is async"),
    (lambda each: each.map(abs, on="process").cache("memory", max_bytes=MB), "put it before .map.*on threads"),
    (lambda each: each.map(max, rng=True).cache("memory", max_bytes=MB), "random numbers are new in each epoch"),
    (lambda each: each.map(abs).batch(2).cache("memory", max_bytes=MB), "put it before .batch"),
    (lambda each: each.map(abs).shuffle(buffer=2).cache("memory", max_bytes=MB), "put it before .shuffle"),
    (lambda each: each.map(abs, on_error="skip", skip_limit=1).cache("memory", max_bytes=MB), "put it before .map"),
])  # fmt: skip
def test_what_cannot_be_kept_is_refused_with_what_to_do(build: Any, message: str) -> None:
    with pytest.raises(af.PipelineError, match=f"cache: .*{message}"):
        build(af.items(range(COUNT)))


def test_functions_of_ones_own_need_a_version_in_a_folder(tmp_path: Path) -> None:
    files = af.items(VersionStore(numbered(2)).files())
    for fn in (abs, functools.partial(max, 1), lambda item: item):
        with pytest.raises(af.PipelineError, match=r'cache\(\.\.\., version="1"\)'):
            files.load(af.npy).map(fn).cache(tmp_path)


def test_an_item_that_tells_nothing_of_itself_is_an_error(options: dict[str, Any]) -> None:
    kept = af.items([object()]).map(len_of).cache(**options)
    with pytest.raises(
        TypeError, match="found by|finds a sample by the item that it is made of. This one has a object"
    ):
        list(kept)


def test_what_is_no_sample_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="not set: let the function before it return those"):
        list(af.items([1]).map(lambda number: {number}).cache(**options))


def test_a_function_that_returns_a_coroutine_is_an_error_that_says_so(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="async"):
        list(af.items([1]).map(lambda number: later(number)).map(str).cache(**options))
