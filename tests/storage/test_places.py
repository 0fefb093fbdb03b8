"""One pipeline in several loops, threads and processes, and what a program says when it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import uvloop

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
from tests.servers.faults import Faults
from tests.servers.objects import ObjectServer, serving
from tests.storage.buckets import PATIENT, SIZE, files, fill, total

pytest.importorskip("obstore")

COUNT = 60


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving(Faults(seed=4)) as made:
        yield made


async def read(pipeline: af.Pipeline[Any]) -> list[bytes]:
    return [row.tobytes() async for batch in pipeline for row in batch]


def test_one_pipeline_runs_in_two_loops_at_once(server: ObjectServer) -> None:
    """Each thread has a loop of its own kind. Both runs are in the middle at the same time, and requests fail."""
    bodies = fill(server, COUNT)
    pipeline = files(server).load(af.raw("uint8"), retry=PATIENT).batch(10)
    for kind in ("503", "reset", "cut"):
        server.faults.add(kind, rate=0.05)
    both = threading.Barrier(2, timeout=20)

    async def main() -> list[bytes]:
        found = []
        async with pipeline.open() as feed:
            async for batch in feed:
                if not found:
                    await asyncio.to_thread(both.wait)
                found += [row.tobytes() for row in batch]
        return found

    def run(factory: Any) -> list[bytes]:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(main()) + runner.run(read(pipeline))

    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(run, [asyncio.SelectorEventLoop, uvloop.new_event_loop]):
            assert found == bodies * 2
    assert server.wait_closed()


def test_two_runs_in_one_loop_and_one_outside_of_it(server: ObjectServer) -> None:
    bodies = fill(server, COUNT)
    pipeline = files(server).load(af.raw("uint8")).batch(10)

    async def main() -> list[list[bytes]]:
        outside = asyncio.to_thread(lambda: [row.tobytes() for batch in pipeline for row in batch])
        return await asyncio.gather(read(pipeline), read(pipeline), outside)

    assert asyncio.run(main()) == [bodies] * 3


def test_a_process_that_is_spawned_runs_the_same_pipeline(server: ObjectServer) -> None:
    """After this process has used the store, too."""
    bodies = fill(server, COUNT)
    pipeline = files(server).load(af.raw("uint8"))
    expected = int(np.frombuffer(b"".join(bodies), np.uint8).sum(dtype=np.int64))
    assert total(pipeline) == expected
    code = """
    import multiprocessing, sys
    from concurrent.futures import ProcessPoolExecutor
    from tests.storage.buckets import total
    pipeline = af.files("s3://bucket/*.raw", endpoint=sys.argv[1], anonymous=True).load(af.raw("uint8"))
    expected = total(pipeline)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(total, pipeline).result(60) == expected == int(sys.argv[2])
    """
    assert program(code, server.url, str(expected)) == (0, "")


def test_a_run_in_a_forked_process_is_an_error_that_says_what_to_do(server: ObjectServer) -> None:
    """Not only a new client: the pipeline itself, which its parent has run."""
    fill(server, 3)
    code = """
    import os, sys
    pipeline = af.files("s3://bucket/*.raw", endpoint=sys.argv[1], anonymous=True).load(af.raw("uint8"))
    assert len(list(pipeline)) == 3
    child = os.fork()
    if child == 0:
        for use in (pipeline, pipeline.batch(2)):
            try:
                list(use)
            except af.StoreError as error:
                if "'spawn' or 'forkserver'" not in str(error):
                    os._exit(2)
            else:
                os._exit(3)
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert program(code, server.url) == (0, "")


# What is said at an end


def program(code: str, *arguments: str) -> tuple[int, str]:
    """Run a program, and return its status and what it wrote to stderr."""
    text = "import asyncfeed as af\n" + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ),
    )
    return done.returncode, done.stderr


ENDS = {
    "at the end of the program": "keep = feed",
    "by an exit": "sys.exit(0)",
    "dropped": "del feed",
    "closed": "feed.close()",
    "on another thread": "threading.Thread(target=feed.close).start()",
}


@pytest.mark.parametrize(
    "shape", [".load(af.raw('uint8'))", ".load(af.raw('uint8')).batch(4)", ".flat_map(af.lines)"]
)
@pytest.mark.parametrize("how", ENDS)
def test_a_program_that_ends_in_the_middle_says_nothing(server: ObjectServer, how: str, shape: str) -> None:
    """Some requests are answered late, some with errors, and some wait for their next attempt."""
    for number in range(COUNT):
        server.put("bucket", f"{number:05}.raw", b"line\n" * (SIZE // 5))
    server.faults.add("delay", rate=0.3, value=0.2, where=lambda key: key > "00010.raw")
    server.faults.add("503", rate=0.3, where=lambda key: key > "00010.raw")
    code = f"""
    import sys, threading
    pipeline = af.files("s3://bucket/*.raw", endpoint=sys.argv[1], anonymous=True){shape}.repeat()
    feed = pipeline.open()
    next(feed)
    {ENDS[how]}
    """
    assert program(code, server.url) == (0, "")
    assert server.wait_closed()


def test_a_program_that_is_interrupted_shows_the_interrupt_alone(server: ObjectServer) -> None:
    fill(server, COUNT)
    code = """
    import signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    pipeline = af.files("s3://bucket/*.raw", endpoint=sys.argv[1], anonymous=True).load(af.raw("uint8"))
    try:
        list(pipeline)
    except KeyboardInterrupt:
        sys.exit(7)
    """
    server.faults.add("stall", where=lambda key: key.endswith(".raw"))
    text = "import asyncfeed as af\n" + textwrap.dedent(code)
    with subprocess.Popen([sys.executable, "-c", text, server.url], stderr=subprocess.PIPE, text=True) as running:
        assert server.wait_until(lambda: server.faulty["stall"] > 0)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=30)
    assert (running.returncode, said) == (7, "")
    assert server.wait_closed()


@pytest.mark.parametrize("fault", ["503", None])
@pytest.mark.parametrize("factory", [asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_an_answer_on_its_way_to_a_loop_that_closes_says_nothing(
    server: ObjectServer, capfd: pytest.CaptureFixture[str], fault: str | None, factory: Any
) -> None:
    """A reader is stopped again and again while its requests are answered, and its loop is closed at once."""
    for number in range(64):
        server.put("bucket", f"{number}", b"1")
    if fault is not None:
        server.faults.add(fault)
    store = ObjectStore("s3://bucket", endpoint=server.url, anonymous=True)

    async def main(wanted: int) -> None:
        reader = store.reader()
        await reader.open()
        before = server.requests["GET"]
        reading = asyncio.ensure_future(reader.read([store.file(f"{number}", 1) for number in range(64)]))
        while server.requests["GET"] < before + wanted:
            await asyncio.sleep(0)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        await reader.close()

    for round_ in range(64):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main(round_ + 1))
    assert capfd.readouterr().err == ""
