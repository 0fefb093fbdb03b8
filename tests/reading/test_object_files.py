"""`files(...)` over object stores, from the listing to the batch: what users write."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.obstore_client import connect
from asyncfeed.testing import Leaks
from tests.conftest import Run
from tests.servers import moto
from tests.servers.objects import ObjectServer, serving
from tests.servers.running import open_sockets, wait_for_sockets

pytest.importorskip("obstore")

COUNT = 70
QUICK = af.Retry(max_delay=0.02)
"""As many attempts as by default, without long delays."""


def npy(array: Any) -> bytes:
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving(page=16) as made:
        for number in range(COUNT):
            made.put("bucket", f"train/{number:03}.npy", npy(np.full(10, number)))
        for key in ("train/deep/er/x.npy", "train/.hidden.npy", "other/a.txt", "train/notes.txt", "a b%20é+.npy"):
            made.put("bucket", key, npy(np.full(10, -1)))
        made.put("bucket", "train/deep/", b"")  # consoles make such objects for folders
        yield made


def reach(server: ObjectServer) -> dict[str, Any]:
    return {"endpoint": server.url, "anonymous": True}


def keys(pipeline: af.Pipeline[af.File]) -> list[str]:
    return [file.path.removeprefix("s3://bucket/") for file in pipeline]


BATCHES = [list(range(start, min(start + 32, COUNT))) for start in range(0, COUNT, 32)]


# What is listed


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("train/*.npy", [f"train/{number:03}.npy" for number in range(COUNT)]),
        ("train/00?.npy", [f"train/00{number}.npy" for number in range(10)]),
        ("train/**/x.npy", ["train/deep/er/x.npy"]),
        ("{other,train/deep}/**", ["other/a.txt", "train/deep/er/x.npy"]),
        ("train/[.d]*", []),
        ("*/a.*", ["other/a.txt"]),
        ("train/d*", []),
        ("*.npy", ["a b%20é+.npy"]),
        ("train/.h*", ["train/.hidden.npy"]),
    ],
)
def test_a_pattern_lists_what_it_matches_in_order(server: ObjectServer, pattern: str, expected: list[str]) -> None:
    if not expected:
        with pytest.raises(af.PipelineError, match="matches no object; it looked in"):
            af.files(f"s3://bucket/{pattern}", **reach(server))
        return
    listed = af.files(f"s3://bucket/{pattern}", **reach(server))
    assert keys(listed) == expected
    assert len(listed) == len(expected)


def test_files_know_their_size_and_version_without_a_request_for_each(server: ObjectServer) -> None:
    listed = list(af.files("s3://bucket/train/*.npy", **reach(server)))
    assert {file.size for file in listed} == {208}
    assert listed[3].etag == server.etag("bucket", "train/003.npy")
    assert set(server.requests) == {"LIST"}
    assert server.requests["LIST"] == 5


def test_lists_keep_their_order_and_patterns_stand_where_the_first_is(server: ObjectServer) -> None:
    urls = ["train/notes.txt", "train/06*.npy", "other/a.txt", "train/0[67]*.npy", "train/notes.txt"]
    listed = af.files([f"s3://bucket/{each}" for each in urls], **reach(server))
    matches = [f"train/{number:03}.npy" for number in range(60, 70)]
    assert keys(listed) == ["train/notes.txt", *matches, "other/a.txt", "train/notes.txt"]
    assert server.requests["HEAD"] == 2


def test_what_is_not_there_is_an_error_where_the_pipeline_is_written(server: ObjectServer) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        af.files("s3://bucket/none.npy", **reach(server))
    assert caught.value.filename == "s3://bucket/none.npy"
    with pytest.raises(FileNotFoundError, match="NoSuchKey"):
        af.files("s3://nobucket/*.npy", **reach(server))


def test_a_listing_survives_a_store_that_is_busy(server: ObjectServer) -> None:
    server.faults.add("503", times=2)
    assert len(af.files("s3://bucket/train/*.npy", **reach(server))) == COUNT
    server.faults.add("503")
    with pytest.raises(af.Unavailable) as caught:
        af.files("s3://bucket/train/*.npy", **reach(server))
    assert caught.value.kind == "throttled"


def test_a_look_at_one_object_survives_a_store_that_is_busy(server: ObjectServer) -> None:
    server.faults.add("503", times=2)
    url = "s3://bucket/train/0000.npy"
    server.put("bucket", "train/0000.npy", b"1234")
    (file,) = af.files(url, **reach(server))
    assert file.size == 4
    assert server.requests["HEAD"] == 3


def test_a_store_is_not_listed_on_the_thread_of_a_running_loop(server: ObjectServer) -> None:
    async def main() -> None:
        with pytest.raises(af.PipelineError, match="asyncio.to_thread"):
            af.files("s3://bucket/train/*.npy", **reach(server))
        listed = await asyncio.to_thread(af.files, "s3://bucket/train/*.npy", **reach(server))
        assert len(listed) == COUNT

    asyncio.run(main())


def test_urls_of_a_web_server_are_not_asked_for_until_they_are_read(server: ObjectServer) -> None:
    urls = [
        f"{server.url}/bucket/{each}" for each in ("train/000.npy", "a%20b%2520%C3%A9%2B.npy", "train/001.npy")
    ]
    listed = af.files(urls, allow_http=True)
    assert not server.requests
    assert [(file.path, file.size) for file in listed] == [(url, None) for url in urls]
    assert [array[0] for array in listed.load(af.npy)] == [0, -1, 1]
    assert [batch.tolist() for batch in listed.load(af.npy).map(lambda x: x[0]).batch(2)] == [[0, -1], [1]]


def test_a_pipeline_over_a_store_is_a_value(server: ObjectServer) -> None:
    one, same = (af.files("s3://bucket/train/*.npy", **reach(server)).shuffle(seed=1) for _ in range(2))
    assert one == same
    assert repr(one) == "files('s3://bucket/train/*.npy').shuffle(seed=1)"
    copy = pickle.loads(pickle.dumps(one))
    assert copy == one
    assert list(copy.load(af.npy).map(lambda x: int(x[0]))) == list(one.load(af.npy).map(lambda x: int(x[0])))


# What is read


def test_a_plain_loop_gets_batches_that_are_read_straight_into_their_rows(server: ObjectServer) -> None:
    with af.files("s3://bucket/train/*.npy", **reach(server)).load(af.npy).batch(32).open() as feed:
        assert [batch[:, 0].tolist() for batch in feed] == BATCHES
        reasons = dict(feed.stats().slow_paths)
        reasons.pop("request beside a slow one", None)  # a busy machine is slow, too
        assert not reasons
    assert server.wait_closed()


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop", "debug"], indirect=True)
def test_an_async_loop_gets_the_same(server: ObjectServer, run: Run) -> None:
    pipeline = af.files("s3://bucket/train/*.npy", **reach(server)).load(af.npy).batch(32)

    async def main() -> list[Any]:
        return [batch[:, 0].tolist() async for batch in pipeline]

    assert run(main) == BATCHES
    assert server.wait_closed()


@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"], indirect=True)
@pytest.mark.parametrize("taken", [0, 1])
def test_a_loop_that_is_broken_off_leaves_nothing(server: ObjectServer, run: Run, taken: int) -> None:
    """No task, thread, socket or file, while requests are under way that are never answered."""
    pipeline = af.files("s3://bucket/train/*.npy", **reach(server)).load(af.npy).batch(8).repeat()
    if taken == 0:
        server.faults.add("stall")
    else:
        server.faults.add("stall", where=lambda key: key >= "train/040")

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        sockets = await asyncio.to_thread(open_sockets)
        leaks = Leaks()
        async with pipeline.open() as feed:
            if taken:
                assert (await anext(feed))[0, 0] == 0
            assert await asyncio.to_thread(server.wait_until, lambda: server.faulty["stall"] > 0)
        await asyncio.to_thread(wait_for_sockets, sockets)
        assert await asyncio.to_thread(server.wait_closed)
        assert leaks.found() == []

    run(main)
    with pipeline.open() as feed:
        if taken:
            next(iter(feed))
    assert server.wait_closed()


def test_a_program_that_stops_in_the_middle_says_nothing(server: ObjectServer) -> None:
    """Whatever way it stops: break, an error, the end of the program, cancellation, a closed loop."""
    code = f"""
import asyncio, sys
import asyncfeed as af
how = sys.argv[1]
pipeline = af.files("s3://bucket/train/*.npy", endpoint="{server.url}", anonymous=True).load(af.npy).batch(4).repeat()
if how == "break":
    for batch in pipeline:
        break
elif how == "exit":
    feed = iter(pipeline.open())
    next(feed)
elif how == "error":
    try:
        for batch in pipeline.map(lambda x: 1 / 0):
            pass
    except ZeroDivisionError:
        pass
elif how == "cancel":
    async def main():
        async for batch in pipeline:
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
    server.faults.add("delay", rate=0.5, value=0.3)
    for how in ("break", "exit", "error", "cancel", "closed"):
        done = subprocess.run(
            [sys.executable, "-c", code, how], capture_output=True, text=True, env=dict(os.environ)
        )
        assert (how, done.returncode, done.stdout, done.stderr) == (how, 0, "", "")
        assert server.wait_closed()


def test_a_failure_names_the_object_and_keeps_its_type(server: ObjectServer) -> None:
    pipeline = af.files("s3://bucket/train/*.npy", **reach(server)).load(af.npy, retry=QUICK)
    for fault, error in (("503", af.Unavailable), ("404", FileNotFoundError), ("wrong range", af.Corrupt)):
        server.faults.rules.clear()
        server.faults.add(fault, where=lambda key: key == "train/005.npy")
        for batched in (pipeline, pipeline.batch(4)):
            with batched.open() as feed, pytest.raises(error) as caught:
                list(feed)
            assert "s3://bucket/train/005.npy" in str(caught.value)
            assert feed.failure is not None
            assert feed.failure.key == "s3://bucket/train/005.npy"


def test_items_that_fail_can_be_left_out(server: ObjectServer) -> None:
    server.faults.add("503", where=lambda key: key == "train/005.npy")
    pipeline = af.files("s3://bucket/train/*.npy", **reach(server)).load(
        af.npy, on_error="skip", skip_limit=1, retry=QUICK
    )
    assert [int(array[0]) for array in pipeline] == [number for number in range(COUNT) if number != 5]


def test_records_are_read_as_a_stream(server: ObjectServer) -> None:
    text = "".join(f"line {number}\n" for number in range(100_000))
    server.put("bucket", "lines/a.txt", text.encode())
    listed = af.files("s3://bucket/lines/*.txt", **reach(server))
    assert list(listed.flat_map(af.lines)) == text.splitlines()
    assert list(listed.flat_map(af.lines).take(3)) == text.splitlines()[:3]
    assert server.wait_closed()


def test_a_store_of_ones_own_settings_is_used_as_given(server: ObjectServer) -> None:
    store = ObjectStore("s3://bucket", **reach(server), verify="etag", max_requests=3)
    server.faults.delay = 0.01
    # A second request beside a slow one is one more.
    batches = list(af.files("s3://bucket/train/*.npy", store=store).load(af.npy, hedge=None).batch(32))
    assert [batch[:, 0].tolist() for batch in batches] == BATCHES
    assert server.at_once <= 3
    assert all("if-match" in headers for kind, _, headers in server.log if kind == "GET")


@pytest.mark.usefixtures("moto_server")
def test_the_same_program_runs_on_moto() -> None:
    before = open_sockets()
    bucket = moto.new_bucket()
    options = {"endpoint": moto.endpoint(), "options": moto.CREDENTIALS}
    client = connect(ObjectStore(f"s3://{bucket}", **options))  # type: ignore[arg-type]
    for number in range(20):
        client.put(f"a b/{number:02}.npy", npy(np.full(3, number)))
    client.put("a b/empty.txt", b"")
    for verify in ("size", "etag"):
        pipeline = af.files(f"s3://{bucket}/a b/*.npy", verify=verify, **options).load(af.npy).batch(8)
        assert [batch[:, 0].tolist() for batch in pipeline] == [[*range(8)], [*range(8, 16)], [*range(16, 20)]]
    assert list(af.files(f"s3://{bucket}/**/*.txt", **options).load(af.text)) == [""]
    del client
    wait_for_sockets(before)


# Several stores


def test_one_list_may_name_objects_of_several_buckets_and_hosts(server: ObjectServer) -> None:
    for number in range(3):
        server.put("other", f"b/{number}.npy", npy(np.full(10, 100 + number)))
    urls = [
        "s3://other/b/2.npy",
        "s3://bucket/train/00[01].npy",
        "s3://other/b/[01].npy",
        "s3://bucket/train/069.npy",
    ]
    listed = af.files(urls, **reach(server))
    assert [file.path for file in listed] == [
        "s3://other/b/2.npy",
        "s3://bucket/train/000.npy",
        "s3://bucket/train/001.npy",
        "s3://other/b/0.npy",
        "s3://other/b/1.npy",
        "s3://bucket/train/069.npy",
    ]
    for pipeline in (listed, af.files(urls, listing="streamed", **reach(server))):
        rows = pipeline.load(af.npy).batch(4)
        assert [batch[:, 0].tolist() for batch in rows] == [[102, 0, 1, 100], [101, 69]]
    assert list(af.files(urls, listing="streamed", **reach(server))) == list(listed)
    assert pickle.loads(pickle.dumps(listed)) == listed
    assert server.wait_closed()


def test_each_web_server_of_a_list_is_asked_itself(server: ObjectServer) -> None:
    with serving() as second:
        second.put("bucket", "x.npy", npy(np.full(10, 7)))
        urls = [f"{server.url}/bucket/train/003.npy", f"{second.url}/bucket/x.npy"]
        listed = af.files(urls, allow_http=True).load(af.npy)
        assert [int(array[0]) for array in listed] == [3, 7]


def test_options_that_one_of_the_stores_cannot_have_are_refused(server: ObjectServer) -> None:
    urls = ["s3://bucket/train/003.npy", "https://example.org/a.npy"]
    with pytest.raises(af.PipelineError, match="the endpoint of a web server is the server itself"):
        af.files(urls, **reach(server))
    with pytest.raises(af.PipelineError, match="https://example.org is not s3://bucket, which store= names"):
        af.files(urls, store=ObjectStore("s3://bucket", **reach(server)))


def test_a_pattern_without_a_match_in_one_of_the_stores_is_an_error(server: ObjectServer) -> None:
    server.put("other", "a.npy", b"x")
    with pytest.raises(
        af.PipelineError, match=r"'s3://other/b/\*' matches no object; it looked in 's3://other/b/'"
    ):
        af.files(["s3://bucket/train/*.npy", "s3://other/b/*"], **reach(server))
