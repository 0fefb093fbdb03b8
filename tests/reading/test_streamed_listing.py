"""`files(..., listing="streamed")`: the run lists while it delivers."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.reading.keys import ObjectList, Place
from asyncfeed.reading.listing import Listing
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.obstore_pages import SLICE, Folders
from tests.servers.objects import ObjectServer, serving

pytest.importorskip("obstore")

COUNT = 70
PAGE = 16
KEYS = [f"train/{number:03}.bin" for number in range(COUNT)]
OTHERS = ["train/deep/er/x.bin", "train/.hidden.bin", "other/a.txt", "train-b/a.bin", "a b%20é+.bin"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    monkeypatch.setattr("asyncfeed.reading.obstore_pages.PAGE", PAGE)
    with serving(page=PAGE) as made:
        for number, key in enumerate(KEYS):
            made.put("bucket", key, bytes([number] * 4))
        for key in OTHERS:
            made.put("bucket", key, b"other")
        made.put("bucket", "train/deep/", b"")  # consoles make such objects for folders
        yield made


def reach(server: ObjectServer) -> dict[str, Any]:
    return {"endpoint": server.url, "anonymous": True}


def streamed(server: ObjectServer, *patterns: str) -> af.Pipeline[af.File]:
    urls = [f"s3://bucket/{each}" for each in patterns or ["train/*.bin"]]
    return af.files(urls if len(urls) > 1 else urls[0], listing="streamed", **reach(server))


def keys(items: Any) -> list[str]:
    return [file.path.removeprefix("s3://bucket/") for file in items]


def never_answer_after(server: ObjectServer, pages: int) -> None:
    server.faults.add("stall", where=lambda key: not key and server.requests["LIST"] > pages)


# What is listed


def test_nothing_is_asked_before_the_run(server: ObjectServer) -> None:
    pipeline = streamed(server)
    assert not server.requests
    assert keys(pipeline) == KEYS
    assert server.requests["LIST"] == 5


@pytest.mark.parametrize(
    "patterns",
    [
        ["train/*.bin"],
        ["**"],
        ["train/**/x.bin"],
        ["{other,train/deep}/**"],
        ["train/00?.bin", "train/0[0-3]*.bin"],
        ["train-b/*", "train/**", "train/deep/**"],
        ["train/069.bin", "train/06*.bin", "other/a.txt", "train/0[67]*.bin", "train/069.bin"],
        ["train/001.bin", "train/000.bin", "train/001.bin"],
    ],
)
def test_it_finds_the_same_files_as_a_listing_at_once(server: ObjectServer, patterns: list[str]) -> None:
    eager = af.files([f"s3://bucket/{each}" for each in patterns], **reach(server))
    assert list(streamed(server, *patterns)) == list(eager)


NAMES = st.sampled_from(["a", "b", "a-b", "a.x", "ä", ".h", "b0", "𐀀", "\uffff"])
PARTS = st.sampled_from(["*", "**", "a*", "?", "[ab]", "*.x", "a", "{a,b}", "{a-b,b*}"])


@settings(max_examples=150, deadline=None)
@given(
    made=st.dictionaries(
        st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=2), min_size=1, max_size=12
    ),
    patterns=st.lists(st.lists(PARTS, min_size=1, max_size=3).map("/".join), min_size=1, max_size=3),
)
def test_any_patterns_find_the_same_files_in_the_same_order(made: dict[str, bytes], patterns: list[str]) -> None:
    """An object without bytes may stand for a folder, and its place is then another one. So none is drawn."""
    from obstore.store import MemoryStore

    store = MemoryStore()
    for key, data in made.items():
        store.put(key, data + b"1")
    urls = [f"memory://bucket/{each}" for each in patterns]
    found: list[list[af.File] | None] = []
    for listing in ("eager", "streamed"):
        try:
            found.append(list(af.files(urls, client=store, listing=listing)))
        except (af.PipelineError, FileNotFoundError):  # which of them depends on what is looked for first
            found.append(None)
    assert found[0] == found[1]


def test_objects_without_a_wildcard_are_looked_up_in_groups(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncfeed.reading.obstore_listing.LOOKED_UP", 4)
    files = list(streamed(server, *KEYS[:10]))
    assert keys(files) == KEYS[:10]
    assert {file.size for file in files} == {4}
    assert (server.requests["HEAD"], server.requests["LIST"]) == (10, 0)


def test_urls_of_a_web_server_are_not_asked_for(server: ObjectServer) -> None:
    urls = [f"{server.url}/bucket/train/{number:03}.bin" for number in range(3)]
    assert [file.path for file in af.files(urls, listing="streamed", allow_http=True)] == urls
    assert not server.requests


def test_what_is_wrong_with_a_url_is_said_where_the_pipeline_is_written() -> None:
    for url in ("s3://user:CANARY@bucket/*", "s3://bucket//x", "nowhere://bucket/x"):
        with pytest.raises(af.PipelineError) as caught:
            af.files(url, listing="streamed")
        assert "CANARY" not in str(caught.value)
    with pytest.raises(af.PipelineError, match='must be "eager", "names" or "streamed"'):
        af.files("s3://bucket/*", listing="lazy")  # type: ignore[arg-type]


def test_a_streamed_listing_is_a_value(server: ObjectServer) -> None:
    one, same = streamed(server), streamed(server)
    assert one == same
    assert one != streamed(server, "other/*")
    assert repr(one) == "files('s3://bucket/train/*.bin', listing='streamed')"
    assert list(pickle.loads(pickle.dumps(one))) == list(one)


# While it is listed


def test_the_first_files_are_delivered_before_the_listing_ends(server: ObjectServer) -> None:
    never_answer_after(server, 2)
    with streamed(server).load(af.raw("u1")).batch(8).open() as feed:
        batches = [next(feed)[:, 0].tolist() for _ in range(3)]
    assert batches == [list(range(start, start + 8)) for start in (0, 8, 16)]
    assert server.wait_closed()


def test_a_consumer_that_waits_stops_the_listing(server: ObjectServer) -> None:
    for number in range(100 * PAGE):
        server.put("bucket", f"many/{number:06}.bin", b"1234")
    with streamed(server, "many/*").load(af.raw("u1")).batch(4).prefetch(1).open(memory_limit=4096) as feed:
        for _ in range(5):
            next(feed)
        assert server.wait_until(lambda: server.requests["LIST"] >= 2)
        assert server.requests["LIST"] < 90
    assert server.wait_closed()


@pytest.mark.parametrize("taken", [0, 1, PAGE, COUNT // 2, COUNT])
def test_later_epochs_see_the_files_of_the_first_one(server: ObjectServer, taken: int) -> None:
    """Also if the first epoch is left early: the next one goes on where the listing was."""
    seen = []
    for epoch in streamed(server).epochs(3):
        if epoch.number == 0:
            for _, file in zip(range(taken), epoch, strict=False):
                assert file.path == f"s3://bucket/{KEYS[0]}" or taken > 1
            continue
        seen.append(keys(epoch))
        server.put("bucket", "train/000-new.bin", b"new")  # behind what is delivered by now
    assert seen == [KEYS, KEYS]
    again = keys(streamed(server))
    assert again == sorted([*KEYS, "train/000-new.bin"])


def test_an_epoch_that_is_cut_short_does_not_list_again(server: ObjectServer) -> None:
    assert keys(streamed(server).take(3).repeat(4)) == KEYS[:3] * 4
    starts = [1 for kind, _, _ in server.log if kind == "LIST"]
    assert len(starts) <= 4 * 3
    assert keys(streamed(server).skip(COUNT - 2).repeat(2)) == KEYS[-2:] * 2


def test_a_folder_in_which_an_epoch_stopped_is_not_listed_twice(server: ObjectServer) -> None:
    pipeline = streamed(server, "other/*", "train-b/*", "train/**")
    all_of_them = list(
        af.files(["s3://bucket/other/*", "s3://bucket/train-b/*", "s3://bucket/train/**"], **reach(server))
    )
    for taken in (1, 2, 5, 30):
        seen = []
        for epoch in pipeline.epochs(2):
            if epoch.number == 0:
                for _ in zip(range(taken), epoch, strict=False):
                    pass
            else:
                seen = list(epoch)
        assert seen == all_of_them


@pytest.mark.parametrize("page", [1, 2, 3])
def test_folders_without_anything_in_them_come_once_in_each_epoch(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """The store sorts them with a slash at the end, and shows them without. They may be the last ones of a page."""
    monkeypatch.setattr("asyncfeed.reading.obstore_pages.PAGE", page)
    for key in (
        "m/a",
        "m/deep-1/x",
        "m/deep.x",
        "m/deep/",
        "m/deep0",
        "m/e/",
        "m/e/x",
        "m/f",
        "m/g/",
        "m/h",
        "m/i-1/x",
        "m/i/",
    ):
        server.put("bucket", key, b"" if key.endswith(("/", "f")) else b"1")
    pipeline = streamed(server, "m/**")
    everything = keys(pipeline)
    assert everything == [
        "m/a",
        "m/deep-1/x",
        "m/deep.x",
        "m/deep",
        "m/deep0",
        "m/e/x",
        "m/f",
        "m/g",
        "m/h",
        "m/i-1/x",
        "m/i",
    ]
    assert sorted(everything) == keys(af.files("s3://bucket/m/**", **reach(server)))
    for taken in range(len(everything) + 1):
        listing: Any = pipeline.source.open_at(0)

        async def epochs(listing: Any = listing, taken: int = taken) -> list[af.File]:
            async with aclosing(listing.make()) as files:  # a run reads ahead, and this does not
                for _ in range(taken):
                    await anext(files)
            return [file async for file in listing.make()]

        assert keys(asyncio.run(epochs())) == everything


# What needs all files


def test_what_needs_the_number_of_files_says_what_to_write(server: ObjectServer) -> None:
    pipeline = streamed(server)
    with pytest.raises(TypeError, match='without listing="streamed" knows all its files'):
        len(pipeline)
    with pytest.raises(af.PipelineError, match=r'shuffle\(buffer=10_000\); .*without listing="streamed"'):
        pipeline.shuffle(seed=1)
    assert not server.requests


def test_a_buffer_shuffles_and_a_split_goes_by_the_place(server: ObjectServer) -> None:
    assert sorted(keys(streamed(server).shuffle(seed=1, buffer=20))) == KEYS
    parts = streamed(server).split(0.5, 0.5, seed=3)
    assert sorted(keys(parts[0]) + keys(parts[1])) == KEYS


# On a loop


def test_it_may_be_described_and_run_on_a_loop(server: ObjectServer) -> None:
    async def main() -> list[str]:
        return keys([file async for file in streamed(server)])

    assert asyncio.run(main()) == KEYS
    assert server.wait_closed()


def test_a_listing_at_once_on_a_loop_names_both_ways(server: ObjectServer) -> None:
    async def main() -> None:
        with pytest.raises(af.PipelineError, match=r'listing="streamed".* await asyncio.to_thread'):
            af.files("s3://bucket/*", **reach(server))

    asyncio.run(main())


def test_a_page_is_looked_at_in_several_turns_of_the_loop() -> None:
    from obstore.store import MemoryStore

    store = MemoryStore()
    for number in range(5 * SLICE):
        store.put(f"{number:04}", b"1")
    names = ObjectList(
        [Place("memory://bucket/", ObjectStore("memory://bucket", client=store))], [("*", None, None, 0)]
    )

    async def main() -> list[int]:
        return [len(page) async for page in Folders(names, sorted_only=True).pages(0)]

    assert asyncio.run(main()) == [SLICE] * 5 + [0]


# Failures


def test_a_page_is_asked_for_again(server: ObjectServer) -> None:
    server.faults.add("503", times=2)
    assert keys(streamed(server)) == KEYS


def test_a_page_that_does_not_come_says_how_far_the_listing_was(server: ObjectServer) -> None:
    server.faults.add("503", where=lambda key: not key and server.requests["LIST"] > 2)
    seen: list[af.File] = []
    with streamed(server).open() as feed:
        with pytest.raises(af.Unavailable, match="s3://bucket/train/: the store answered 503") as caught:
            seen.extend(feed)
        assert feed.failure is not None
        assert feed.failure.ordinal == len(seen)
    assert keys(seen) == KEYS[: len(seen)]
    assert f"the listing had {len(seen)} files by then, up to {seen[-1].path}" in "".join(caught.value.__notes__)
    assert server.wait_closed()


def test_a_pattern_without_a_match_fails_at_the_end_of_the_listing(server: ObjectServer) -> None:
    with pytest.raises(af.PipelineError, match=r"'s3://bucket/none/\*' matches no object; it looked in"):
        list(streamed(server, "none/*"))
    seen = []
    with pytest.raises(af.PipelineError, match=r"'s3://bucket/train/\*.txt' matches no object"):
        for file in streamed(server, "train/*.bin", "train/*.txt"):
            seen.append(file)  # noqa: PERF402 - what came before the error counts
    assert keys(seen) == KEYS
    with pytest.raises(FileNotFoundError):
        list(streamed(server, "none.bin"))


def test_a_store_without_an_order_is_refused(server: ObjectServer) -> None:
    server.lists_sorted = False
    assert keys(af.files("s3://bucket/train/00[0-5].bin", **reach(server))) == KEYS[:6]
    with pytest.raises(af.PipelineError, match="in the order of the names"):
        list(streamed(server, "train/00[0-5].bin"))


# The end


@pytest.mark.parametrize("odd", [None, "train//x"])
def test_a_program_that_stops_while_it_lists_says_nothing(server: ObjectServer, odd: str | None) -> None:
    """Also if the pages are not obstore's, as behind an odd key."""
    if odd is not None:
        server.put("bucket", odd, b"1")
    code = f"""
import asyncio, sys
import asyncfeed as af
import asyncfeed.reading.obstore_pages as pages
pages.PAGE = {PAGE}
how = sys.argv[1]
pipeline = af.files("s3://bucket/train/*.bin", endpoint="{server.url}", anonymous=True, listing="streamed")
if how == "break":
    for file in pipeline:
        break
elif how == "exit":
    feed = iter(pipeline.open())
    next(feed)
elif how == "error":
    try:
        for file in pipeline.map(lambda x: 1 / 0):
            pass
    except ZeroDivisionError:
        pass
elif how == "cancel":
    async def main():
        async for file in pipeline:
            asyncio.current_task().cancel()
    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        pass
else:
    async def main():
        feed = pipeline.open()
        await anext(feed)
        return feed
    loop = asyncio.new_event_loop()
    feed = loop.run_until_complete(main())
    loop.close()
"""
    server.faults.add("delay", where=lambda key: server.requests["LIST"] % 5 > 1, value=0.4)
    for how in ("break", "exit", "error", "cancel", "closed"):
        done = subprocess.run(
            [sys.executable, "-c", code, how], capture_output=True, text=True, env=dict(os.environ)
        )
        assert (how, done.returncode, done.stdout, done.stderr) == (how, 0, "", "")
        assert server.wait_closed()
        server.requests.clear()


# Elsewhere


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b/1", "b/2", "b-c/1", "a.x", "b.x", "b/c/1", "z/1", "z/2"):
        path = tmp_path / f"{name}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path


@pytest.fixture
def closed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The directories that cannot be listed."""
    scandir = os.scandir
    refused: list[str] = []

    def refuse(path: str) -> Any:
        if path.removeprefix(str(tree)).strip("/") in refused:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    yield refused


@pytest.mark.parametrize(
    "patterns",
    [
        ["**/*.bin"],
        ["*/*.bin"],
        ["{z,b}/*.bin"],
        ["{b,b-c}/**", "*.bin", "b/**/*"],
        ["z/2.bin", "b*/*", "a.x.bin", "b/*", "z/2.bin"],
    ],
)
def test_local_files_are_the_same_in_the_same_order(tree: Path, patterns: list[str]) -> None:
    given = [f"{tree}/{each}" for each in patterns]
    streamed = af.files(given, listing="streamed")
    assert list(streamed) == list(af.files(given))
    assert list(streamed.load(af.text)) == list(af.files(given).load(af.text))
    if all("*" in each for each in patterns):
        paths = [file.path for file in streamed]
        assert paths == sorted(set(paths))


def test_local_files_are_delivered_before_the_next_directory_is_listed(tree: Path, closed: list[str]) -> None:
    closed.append("z")
    seen = []
    with pytest.raises(PermissionError, match="z"):
        for file in af.files(f"{tree}/**/*.bin", listing="streamed"):
            seen.append(file.path.removeprefix(f"{tree}/"))  # noqa: PERF401 - what came before the error counts
    assert seen == ["a.x.bin", "b-c/1.bin", "b.x.bin", "b/1.bin", "b/2.bin", "b/c/1.bin"]


@pytest.mark.parametrize("taken", range(9))
def test_local_epochs_that_are_left_early_see_the_same_files(tree: Path, taken: int) -> None:
    pipeline = af.files(f"{tree}/**/*.bin", listing="streamed")
    everything = list(pipeline)
    seen = []
    for epoch in pipeline.epochs(2):
        for _, file in zip(range(taken if epoch.number == 0 else 99), epoch, strict=False):
            if epoch.number:
                seen.append(file)
        (tree / "a.bin").write_bytes(b"it comes before what was delivered")
    assert seen[:1] == everything[:1] or taken == 0
    assert [file for file in seen if not file.path.endswith("/a.bin")] == everything


def test_a_directory_that_failed_after_the_end_of_an_epoch_fails_in_the_next_one(
    closed: list[str], tree: Path
) -> None:
    """An epoch that needs fewer files does not see the failure. The next one must not end there without a word."""
    closed.append("z")
    listing = Listing(f"{tree}/**/*.bin", None)
    for _ in range(2):
        found = []
        with pytest.raises(PermissionError):
            found.extend(listing.files())
        assert len(found) == 6
    closed.clear()
    assert len(list(listing.files())) == 8
    closed.append("z")
    assert len(list(listing.files())) == 8


def test_local_files_are_listed_on_a_thread_when_the_run_begins(tmp_path: Path) -> None:
    pipeline = af.files(f"{tmp_path}/*.bin", listing="streamed")
    for number in range(5):
        (tmp_path / f"{number}.bin").write_bytes(b"x")
    eager = list(af.files(f"{tmp_path}/*.bin"))
    assert list(pipeline) == eager
    seen = []
    for epoch in pipeline.epochs(2):
        seen.append(list(epoch))
        (tmp_path / "new.bin").write_bytes(b"x")
    assert seen == [eager, eager]
    with pytest.raises(af.PipelineError, match="matches no file"):
        list(af.files(f"{tmp_path}/*.none", listing="streamed"))


def test_fsspec_lists_on_a_thread_when_the_run_begins() -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    pipeline = af.files("memory://streamed/*.txt", store="fsspec", listing="streamed")
    memory.pipe("/streamed/a.txt", b"A")
    try:
        assert list(pipeline.load(af.text)) == ["A"]
    finally:
        memory.rm("/streamed", recursive=True)
