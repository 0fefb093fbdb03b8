"""Reading from an object store, beside the bare client and others: `python benchmarks/objects.py [row ...]`.

A server in a process of its own speaks S3 on 127.0.0.1. Client and server share the cores, so only ratios mean
something. All contenders of a row take turns. Each row says the median rate of its contenders, the ratio to the
first one, and the processor time of the client for each object.
"""

from __future__ import annotations

import asyncio
import io
import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import uvloop

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.obstore_client import connect
from asyncfeed.reading.scope import new_reader
from asyncfeed.stats import SlowPaths

TURNS = 3
SERVER = """
import asyncio, json, random, sys
import uvloop
from tests.servers.objects import Faults, ObjectServer

async def main():
    size, count, delay, tail = json.loads(sys.argv[1])
    server = ObjectServer(Faults(delay=delay))
    server.log = type("None", (), {"append": lambda self, each: None})()
    server.etag = lambda bucket, key: '"0123456789abcdef0123456789abcdef"'
    server.notify = lambda: None
    if tail:
        draw = random.Random(0).random
        server.faults.add("delay", rate=tail, value=1.0)
    data = sys.stdin.buffer.read(size)
    server.buckets["bucket"] = {f"{number:05}": data for number in range(count)}
    await server.start()
    print(server.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    print(server.requests["GET"], flush=True)

uvloop.run(main())
"""
Contender = Callable[[], int]
"""Reads objects, and returns how many."""


class Bucket:
    """A served bucket of equal objects, which are .npy files."""

    def __init__(self, port: int, count: int, size: int) -> None:
        self.options: dict[str, Any] = {"endpoint": f"http://127.0.0.1:{port}", "anonymous": True}
        self.store = ObjectStore("s3://bucket", **self.options)
        self.files = [self.store.file(f"{number:05}", size) for number in range(count)]
        self.keys = [f"{number:05}" for number in range(count)]
        self.size = size

    def pipeline(self, epochs: int) -> af.Pipeline[Any]:
        """Return a pipeline of single samples."""
        return af.items(self.files).repeat(epochs).load(af.npy)


@contextmanager
def served(size: int, count: int, delay: float = 0.0, tail: float = 0.0) -> Iterator[Bucket]:
    """Serve objects of about `size` bytes. An answer takes `delay` seconds, and a share `tail` a second more."""
    made = io.BytesIO()
    np.save(made, np.zeros(size // 4, np.float32))
    data = made.getvalue()
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, json.dumps([len(data), count, delay, tail])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(data)
    server.stdin.flush()
    try:
        yield Bucket(int(server.stdout.readline()), count, len(data))
    finally:
        server.stdin.close()
        server.wait()


def bare(bucket: Bucket, epochs: int, in_flight: int) -> Contender:
    """The client alone: whole objects, one request each, nothing done with them."""

    async def main() -> int:
        client = connect(bucket.store)
        keys = iter(bucket.keys * epochs)

        async def work() -> None:
            for key in keys:
                await obstore.get_range_async(client, key, start=0, length=bucket.size)

        await asyncio.gather(*(work() for _ in range(in_flight)))
        return epochs * len(bucket.keys)

    return lambda: uvloop.run(main())


def ours(pipeline: af.Pipeline[Any], *, batch: int | None = 32) -> Contender:
    """A whole pipeline, on uvloop."""
    batches = pipeline if batch is None else pipeline.batch(batch)

    async def main() -> int:
        count = 0
        async with batches.open() as feed:
            async for each in feed:
                count += 1 if batch is None else len(each)
        return count

    return lambda: uvloop.run(main())


def aiobotocore(bucket: Bucket, in_flight: int) -> Contender:
    from aiobotocore.session import get_session
    from botocore import UNSIGNED
    from botocore.config import Config

    async def main() -> int:
        config = Config(
            signature_version=UNSIGNED, s3={"addressing_style": "path"}, max_pool_connections=in_flight
        )
        keys = iter(bucket.keys)
        async with get_session().create_client(
            "s3", region_name="us-east-1", endpoint_url=bucket.options["endpoint"], config=config
        ) as client:

            async def work() -> None:
                for key in keys:
                    answer = await client.get_object(Bucket="bucket", Key=key)
                    await answer["Body"].read()

            await asyncio.gather(*(work() for _ in range(in_flight)))
        return len(bucket.keys)

    return lambda: uvloop.run(main())


def s3fs(bucket: Bucket, in_flight: int) -> Contender:
    import s3fs

    async def main() -> int:
        files = s3fs.S3FileSystem(
            anon=True, asynchronous=True, endpoint_url=bucket.options["endpoint"], skip_instance_cache=True
        )
        session = await files.set_session()
        keys = iter(bucket.keys)

        async def work() -> None:
            for key in keys:
                await files._cat_file(f"bucket/{key}")

        await asyncio.gather(*(work() for _ in range(in_flight)))
        await session.close()
        return len(bucket.keys)

    return lambda: uvloop.run(main())


def ranges(bucket: Bucket, size: int, *, alone: bool) -> Contender:
    """Records of `size` bytes, every second one, 32 in a call; `alone` asks the client for each of them."""
    places = [(start, start + size) for start in range(0, bucket.size - size, 2 * size)]
    groups = [places[at : at + 32] for at in range(0, len(places), 32)]

    async def main() -> int:
        client = connect(bucket.store)
        reader: Any = new_reader(bucket.store)
        await reader.open()
        left = iter(groups)

        async def work() -> None:
            for group in left:
                if alone:
                    for start, stop in group:
                        await obstore.get_range_async(client, bucket.keys[0], start=start, end=stop)
                else:
                    await reader.read_ranges(bucket.files[0], group)

        await asyncio.gather(*(work() for _ in range(16)))
        await reader.close()
        return len(places)

    return lambda: uvloop.run(main())


def measure(title: str, contenders: dict[str, Contender], turns: int = TURNS) -> None:
    """Let the contenders take turns, and print their rates."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    costs: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, contender in contenders.items():
            cpu, began = _cpu(), time.perf_counter()
            count = contender()
            rates[name].append(count / (time.perf_counter() - began))
            costs[name].append(1e6 * (_cpu() - cpu) / count)
    first = statistics.median(next(iter(rates.values())))
    print(f"\n{title}")
    for name in contenders:
        rate, cost = statistics.median(rates[name]), statistics.median(costs[name])
        print(f"  {name:<34}{rate:10,.1f}/s {rate / first:6.2f} {cost:10,.0f} us", flush=True)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def small() -> None:
    with served(100_000, 2000) as bucket:
        measure(
            "100 KB, no latency",
            {
                "bare obstore, 64 in flight": bare(bucket, 5, 64),
                "asyncfeed, batch(32)": ours(bucket.pipeline(5)),
                "asyncfeed, single samples": ours(bucket.pipeline(5), batch=None),
                "aiobotocore, 64 in flight": aiobotocore(bucket, 64),
                "s3fs, 64 in flight": s3fs(bucket, 64),
            },
        )


def latency() -> None:
    with served(100_000, 2000, delay=0.03) as bucket:
        fixed = {
            f"asyncfeed, concurrency={number}": ours(
                af.items(bucket.files).repeat(8).load(af.npy, concurrency=number).batch(32), batch=None
            )
            for number in (1, 2, 4, 8, 16)
        }
        found = ours(bucket.pipeline(8).batch(32), batch=None)
        measure("30 ms, batches of 32: nothing configured, and a sweep", {"asyncfeed, auto": found, **fixed})


def tail() -> None:
    with served(10_000, 2000, delay=0.02) as even, served(10_000, 2000, delay=0.02, tail=0.02) as uneven:
        measure(
            "20 ms, and 2 % at one second more",
            {
                "without the tail": ours(even.pipeline(5)),
                "with it": ours(uneven.pipeline(5)),
                "with it, hedge=None": ours(af.items(uneven.files).repeat(5).load(af.npy, hedge=None)),
            },
        )
        reads(uneven, 64)


def reads(bucket: Bucket, in_flight: int) -> None:
    """Print the 99th percentile of single reads, and how many requests were made beside slow ones."""
    again = SlowPaths()
    seconds: list[float] = []

    async def main() -> None:
        reader: Any = new_reader(bucket.store, again=again)
        await reader.open()
        left = iter(bucket.files * 5)

        async def work() -> None:
            for file in left:
                began = time.perf_counter()
                await reader.read([file])
                seconds.append(time.perf_counter() - began)

        await asyncio.gather(*(work() for _ in range(in_flight)))
        await reader.close()

    uvloop.run(main())
    slow = sorted(seconds)[int(0.99 * len(seconds))]
    more = sum(count for _, count in again.counts()) / len(seconds)
    print(f"  99 % of single reads within {1000 * slow:.0f} ms, {100 * more:.1f} % more requests")


def large() -> None:
    for size, count, in_flight in ((8 << 20, 64, 8), (256 << 20, 4, 2)):
        with served(size, count) as bucket:
            measure(
                f"{size >> 20} MB",
                {
                    "bare obstore": bare(bucket, 2, in_flight),
                    "asyncfeed, single samples": ours(bucket.pipeline(2), batch=None),
                },
            )


def records() -> None:
    with served(64 << 20, 1) as bucket:
        measure(
            "4 KB records of a 64 MB object",
            {
                "asyncfeed, read_ranges": ranges(bucket, 4096, alone=False),
                "bare obstore, one by one": ranges(bucket, 4096, alone=True),
            },
        )


def busy() -> None:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(100))

    with served(100_000, 2000) as bucket:
        thread = threading.Thread(target=spin, daemon=True)
        thread.start()
        measure(
            "100 KB beside a thread that runs Python all the time",
            {"bare obstore, 64 in flight": bare(bucket, 1, 64), "asyncfeed, batch(32)": ours(bucket.pipeline(1))},
        )
        stop.set()
        thread.join()


ROWS: dict[str, Callable[[], None]] = {
    "small": small, "latency": latency, "tail": tail, "large": large, "records": records, "busy": busy,
}  # fmt: skip


if __name__ == "__main__":
    for name in sys.argv[1:] or ROWS:
        ROWS[name]()
