"""How objects are read: how many requests that takes, what they ask for, and that all of them end."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.reading import copies, obstore_reader
from asyncfeed.reading.objects import ObjectStore
from tests.reading.readers import open_reader, streamed
from tests.servers.objects import ObjectServer, serving

pytest.importorskip("obstore")

BIG = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving() as made:
        for number in range(20):
            made.put("bucket", f"{number:02}", bytes([number]) * (number + 1))
        made.put("bucket", "big", BIG)
        yield made


def store_of(server: ObjectServer, **options: Any) -> ObjectStore:
    return ObjectStore("s3://bucket", endpoint=server.url, anonymous=True, **options)


def files_of(store: ObjectStore) -> list[af.File]:
    return [store.file(f"{number:02}", number + 1) for number in range(20)]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an object of 300 KB be a large one."""
    for name, bytes_ in {
        "LARGE": 100_000,
        "PART": 64_000,
        "FIRST_BLOCK": 20_000,
        "BLOCK": 64_000,
        "NEAR": 1_000,
    }.items():
        monkeypatch.setattr(obstore_reader, name, bytes_)


def test_an_object_of_known_size_takes_one_request(server: ObjectServer) -> None:
    store = store_of(server)

    async def main() -> list[Any]:
        async with open_reader(store) as reader:
            return await reader.read(files_of(store))

    assert [each.tobytes() for each in asyncio.run(main())] == [bytes([n]) * (n + 1) for n in range(20)]
    assert dict(server.requests) == {"GET": 20}


def test_requests_are_under_way_at_the_same_time_and_no_more_than_the_limit(server: ObjectServer) -> None:
    server.faults.delay = 0.05
    store = store_of(server, max_requests=7)

    async def main() -> None:
        async with open_reader(store) as reader:
            await asyncio.gather(*(reader.read(files_of(store)) for _ in range(3)))

    asyncio.run(main())
    assert (server.at_once, server.requests["GET"]) == (7, 60)


def test_a_number_of_requests_that_is_given_holds_from_the_first_one_on(server: ObjectServer) -> None:
    """It need not grow: behind a server that hangs, none is answered."""
    server.faults.add("stall")
    store = store_of(server, max_requests=40)

    async def main() -> None:
        async with open_reader(store) as reader:
            reading = asyncio.gather(*(reader.read(files_of(store)) for _ in range(3)))
            assert await asyncio.to_thread(server.wait_until, lambda: server.requests["GET"] == 40)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

    asyncio.run(main())


def test_a_slow_request_does_not_keep_others_from_starting(server: ObjectServer) -> None:
    """The slow one is the first, and all others are answered before it is."""
    server.faults.add("stall", where=lambda key: key == "00")
    store = store_of(server, max_requests=2)

    async def main() -> None:
        async with open_reader(store) as reader:
            reading = asyncio.ensure_future(reader.read(files_of(store)))
            assert await asyncio.to_thread(server.wait_until, lambda: server.requests["GET"] == 20)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

    asyncio.run(main())


@pytest.mark.parametrize("method", ["read", "read_into", "read_ranges", "stream", "look", "waiting"])
def test_a_call_that_is_cancelled_ends_its_requests(server: ObjectServer, method: str) -> None:
    server.faults.add("stall")
    store = store_of(server, max_requests=4)
    files = files_of(store)
    rooms = [bytearray(file.size or 0) for file in files]

    async def main() -> None:
        async with open_reader(store) as reader:
            calls: dict[str, Any] = {
                "read": lambda: reader.read(files),
                "read_into": lambda: reader.read_into(files, [[room] for room in rooms]),
                "read_ranges": lambda: reader.read_ranges(store.file("big"), [(0, 1), (280_000, 280_001)]),
                "stream": lambda: streamed(reader, store.file("big", 300_000)),
                "look": lambda: reader.look(files),
                "waiting": lambda: asyncio.gather(reader.read(files), reader.read(files)),
            }
            asked = {"read_ranges": 2, "stream": 1}.get(method, 4)
            call = asyncio.ensure_future(calls[method]())
            assert await asyncio.to_thread(server.wait_until, lambda: sum(server.requests.values()) == asked)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await asyncio.to_thread(server.wait_closed)
            server.faults.rules.clear()
            found: list[Any] = await reader.read(files)
            assert [len(each) for each in found] == [n + 1 for n in range(20)]

    asyncio.run(main())
    assert not any(map(any, rooms))


@pytest.mark.usefixtures("small_parts")
def test_a_stream_that_is_left_ends_the_request_ahead(server: ObjectServer) -> None:
    server.faults.add("stall", where=lambda key: server.requests["GET"] > 1)
    store = store_of(server)

    async def main() -> None:
        async with open_reader(store) as reader:
            async with aclosing(reader.stream(store.file("big", 300_000))) as blocks:
                await anext(blocks)
                assert await asyncio.to_thread(server.wait_until, lambda: server.requests["GET"] == 2)
                sockets = len(server.sockets)  # the first one may be idle now, or have the second request
            assert await asyncio.to_thread(server.wait_until, lambda: len(server.sockets) < sockets)

    asyncio.run(main())


@pytest.mark.parametrize("method", ["read_into", "read_ranges"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_call_does_not_end_while_a_thread_still_copies(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, method: str, cancelled: bool
) -> None:
    """Nothing may be written into the caller's memory later."""
    begun, go_on = threading.Event(), threading.Event()
    copy = copies.copy

    def slowly(some: Any) -> None:
        begun.set()
        go_on.wait(20)
        copy(some)

    monkeypatch.setattr(copies, "copy", slowly)
    store = store_of(server)
    room = bytearray(300_000)

    async def main() -> None:
        async with open_reader(store) as reader:
            file = store.file("big", 300_000)
            call: asyncio.Future[Any] = asyncio.ensure_future(
                reader.read_into([file], [[room]])
                if method == "read_into"
                else reader.read_ranges(file, [(0, 300_000)])
            )
            assert await asyncio.to_thread(begun.wait, 20)
            if cancelled:
                call.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not call.done()
            go_on.set()
            await asyncio.wait([call])
            assert call.cancelled() == cancelled
            if method == "read_into":
                assert room == BIG
            elif not cancelled:
                assert call.result()[0].tobytes() == BIG

    asyncio.run(main())


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [300_000, None])
def test_a_large_object_is_read_in_parts_at_the_same_time(server: ObjectServer, size: int | None) -> None:
    server.faults.delay = 0.05
    store = store_of(server)
    rooms = [memoryview(bytearray(200_001)), memoryview(bytearray(99_999))]

    async def main() -> None:
        async with open_reader(store) as reader:
            (listed,) = await reader.look([store.file("big", size)])
            assert isinstance(listed, af.File)
            server.at_once = 0
            file = listed if size else store.file("big")
            (whole,) = await reader.read([file])
            assert whole.tobytes() == BIG  # type: ignore[union-attr]
            assert await reader.read_into([file], [rooms]) == [None]

    asyncio.run(main())
    assert b"".join(rooms) == BIG
    assert server.at_once == 5
    ranges = [headers["range"] for kind, _, headers in server.log if "range" in headers]
    assert "bytes=64000-127999" in ranges
    if size:
        assert all("if-match" in headers for kind, _, headers in server.log if kind == "GET")


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("fault", ["changed", "wrong length", "404", "cut"])
def test_one_bad_part_is_the_error_of_a_large_object(server: ObjectServer, fault: str) -> None:
    store = store_of(server)

    async def main() -> Any:
        async with open_reader(store) as reader:
            listed: Any = await reader.look([store.file("big"), store.file("03")])
            server.faults.add(fault, times=1, where=lambda key: key == "big")
            return await reader.read(listed)

    bad, good = asyncio.run(main())
    expected = {"404": FileNotFoundError, "cut": af.Unavailable}.get(fault, af.Corrupt)
    assert type(bad) is expected
    assert good.tobytes() == b"\3\3\3\3"


@pytest.mark.usefixtures("small_parts")
def test_parts_that_are_near_each_other_are_one_request(server: ObjectServer) -> None:
    store = store_of(server)
    draw = random.Random(0)
    ranges = [(start, start + draw.randrange(500)) for start in draw.sample(range(1000, 299_000), 50)]
    ranges += [(10, 10), (0, 100), (50, 100), (100, 100)]

    async def main() -> Any:
        async with open_reader(store) as reader:
            (listed,) = await reader.look([store.file("big")])
            assert isinstance(listed, af.File)
            server.requests.clear()
            near = await reader.read_ranges(listed, [(5, 10), (0, 5), (900, 1000), (7, 8)])
            assert server.requests["GET"] == 1
            assert [each.tobytes() for each in near] == [BIG[5:10], BIG[:5], BIG[900:1000], BIG[7:8]]  # type: ignore[union-attr]
            return await reader.read_ranges(listed, ranges)

    found = asyncio.run(main())
    assert [each.tobytes() for each in found] == [BIG[start:stop] for start, stop in ranges]


@pytest.mark.parametrize("method", ["read_ranges", "read_into"])
@pytest.mark.usefixtures("small_parts")
def test_parts_of_two_versions_are_never_mixed(server: ObjectServer, method: str) -> None:
    """Also if the version was not known before."""
    store = store_of(server, max_requests=1)
    file = store.file("big")

    async def main() -> Any:
        async with open_reader(store) as reader:
            server.faults.add("changed", times=1, where=lambda key: server.requests["GET"] == 2)
            if method == "read_into":
                return await reader.read_into([file], [[bytearray(300_000)]])
            return await reader.read_ranges(file, [(0, 10), (280_000, 280_010)])

    found = asyncio.run(main())
    assert type(found[-1]) is af.Corrupt
    assert "big changed while it was read" in str(found[-1])


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("how", ["without quotes", "weak", "answered without quotes"])
def test_etags_are_the_same_version_however_they_are_written(server: ObjectServer, how: str) -> None:
    """A listing of Azure has them without quotes. A weak one never matches in a request, and is compared later.

    Some stores answer without quotes.
    """
    server.lists_quotes = how != "without quotes"
    server.answers_quotes = how != "answered without quotes"
    if how == "weak":
        server.etags["bucket", "big"] = 'W/"1"'
    store = store_of(server, verify="etag")
    (listed,) = af.files("s3://bucket/b*", store=store)

    async def main() -> None:
        async with open_reader(store) as reader:
            (whole,) = await reader.read([listed])
            (part,) = await reader.read_ranges(listed, [(5, 10)])
            assert whole.tobytes() == await streamed(reader, listed) == BIG  # type: ignore[union-attr]
            assert part.tobytes() == BIG[5:10]  # type: ignore[union-attr]
            server.etags["bucket", "big"] = 'W/"2"'
            (changed,) = await reader.read([listed])
            assert type(changed) is af.Corrupt

    asyncio.run(main())


@pytest.mark.usefixtures("small_parts")
def test_a_stream_reads_ahead_and_asks_for_larger_parts(server: ObjectServer) -> None:
    store = store_of(server)

    async def main() -> None:
        async with open_reader(store) as reader:
            assert await streamed(reader, store.file("big", 300_000)) == BIG
            ranges = [headers["range"] for _, _, headers in server.log]
            assert ranges[:3] == ["bytes=0-19999", "bytes=20000-59999", "bytes=60000-123999"]
            async with aclosing(reader.stream(store.file("big"))) as blocks:
                assert (await anext(blocks)) == BIG[:20_000]
            server.requests.clear()
            server.faults.add("changed", times=1, where=lambda key: server.requests["GET"] == 2)
            with pytest.raises(af.Corrupt, match="changed since it was listed"):
                await streamed(reader, store.file("big"))

    asyncio.run(main())


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("wrong length", af.Corrupt),
        ("503", af.Unavailable),
        ("404", FileNotFoundError),
        ("wrong range", af.Corrupt),
    ],
)
def test_a_stream_that_fails_in_the_middle_raises_after_what_came(
    server: ObjectServer, fault: str, error: type[Exception]
) -> None:
    server.faults.add(fault, where=lambda key: server.requests["GET"] > 1)
    store = store_of(server)

    async def main() -> None:
        async with open_reader(store) as reader, aclosing(reader.stream(store.file("big", 300_000))) as blocks:
            assert await anext(blocks) == BIG[:20_000]
            with pytest.raises(error, match="bucket/big"):
                await anext(blocks)

    asyncio.run(main())


def test_an_object_that_is_gone_is_missing_whatever_was_listed(server: ObjectServer) -> None:
    """Also if it was empty, or is asked for by a version."""
    server.put("bucket", "empty", b"")
    store = store_of(server)

    async def main() -> None:
        async with open_reader(store) as reader:
            listed: Any = await reader.look([store.file("empty"), store.file("big")])
            assert [len(each) for each in await reader.read(listed)] == [0, 300_000]  # type: ignore[arg-type]
            server.buckets["bucket"].clear()
            for outcomes in (
                await reader.read(listed),
                await reader.read_into(listed, [[], [bytearray(300_000)]]),
                await reader.read_ranges(listed[1], [(0, 1)]),
                await reader.read_ranges(listed[1], [(5, 5)]),
            ):
                assert {type(each) for each in outcomes} == {FileNotFoundError}
            with pytest.raises(FileNotFoundError):
                await streamed(reader, listed[1])

    asyncio.run(main())


def test_a_redirect_is_followed_without_the_signature(server: ObjectServer) -> None:
    """obstore has no option to refuse it: `docs/storage.md` says what that means."""
    secret = {"access_key_id": "id", "secret_access_key": "CANARY"}
    store = ObjectStore("s3://bucket", endpoint=server.url, options=secret)
    with serving() as other:
        other.put("bucket", "03", b"else")
        server.faults.add("redirect", times=1, value=f"{other.url}/bucket/03")

        async def main() -> None:
            async with open_reader(store) as reader:
                (found,) = await reader.read([store.file("03", 4)])
                assert found.tobytes() == b"else"  # type: ignore[union-attr]

        asyncio.run(main())
        assert "authorization" in server.log[0][2]
        assert "authorization" not in other.log[0][2]


def test_a_loop_that_is_closed_hears_nothing_of_requests_under_way(server: ObjectServer) -> None:
    """obstore would print a traceback for each answer that comes after the end of its loop."""
    code = f"""
import asyncio, sys, time
from asyncfeed.reading.objects import ObjectStore
store = ObjectStore("s3://bucket", endpoint="{server.url}", anonymous=True)
reader = store.reader()
loop = asyncio.new_event_loop()
async def begin():
    await reader.open()
    task = asyncio.ensure_future(reader.read([store.file(f"{{n:02}}", n + 1) for n in range(20)]))
    await asyncio.sleep(0.02)
    return task
task = loop.run_until_complete(begin())
task._log_destroy_pending = False
loop.close()
reader.abandon()
time.sleep(0.5)
"""
    server.faults.delay = 0.2
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert server.requests["GET"] == 20
