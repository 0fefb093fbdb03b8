"""A format of records in a stream: what its author writes, and what it then gets from everybody else."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.formats.base import StreamDecoder
from asyncfeed.reading.file import File
from asyncfeed.reading.stream import ByteStream
from tests.reading.readers import KINDS, Folder
from tests.searching import sampled


@dataclass(frozen=True, repr=False)
class Records(StreamDecoder[bytes]):
    """Records behind their length in four bytes, as TFRecord files have them without the checksums."""

    name = "records"
    max_bytes: int = 1 << 30

    async def samples(self, stream: ByteStream) -> AsyncGenerator[bytes]:
        """Yield the records."""
        while head := await stream.read(4):
            size = int.from_bytes(head, "little")
            if size > self.max_bytes:
                raise af.Corrupt(f"{stream.file.path} has a record of {size} bytes at offset {stream.offset}")
            record = await stream.read(size)
            if len(record) < size:
                raise af.Corrupt(f"{stream.file.path} is cut short: no record follows its length")
            yield record


records = Records()


def packed(*found: bytes) -> bytes:
    return b"".join(len(each).to_bytes(4, "little") + each for each in found)


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, moto_server: None, tmp_path: Path) -> Iterator[Folder]:
    made = KINDS[request.param](tmp_path)
    yield made
    made.close()


def test_the_records_of_many_files_come_in_order(folder: Folder) -> None:
    for number in range(5):
        folder.write(f"{number}", packed(*(b"%d-%d" % (number, each) for each in range(number))))
    files = af.items([folder.file(f"{number}") for number in range(5)])
    assert list(files.flat_map(records)) == [b"%d-%d" % (file, each) for file in range(5) for each in range(file)]
    shuffled = files.shuffle(seed=1).flat_map(records).batch(3, collate=list)
    assert sum(map(len, shuffled)) == 10


@sampled(16)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(0, 3 << 16), max_size=6))
def test_records_of_any_size_come_whole_across_blocks(folder: Folder, sizes: list[int]) -> None:
    expected = [bytes([number]) * size for number, size in enumerate(sizes)]
    folder.write("a", packed(*expected))
    assert list(af.items([folder.file("a")]).flat_map(records)) == expected


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (packed(b"one") + b"\1\0", r"a is cut short: 2 of 4 bytes are there at offset 7"),
        (packed(b"one", b"second")[:-2], r"a is cut short: 4 of 6 bytes are there at offset 11"),
        (packed(b"one") + b"\5\0\0\0", r"a is cut short: no record follows its length"),
        (packed(b"one") + b"\xff\xff\xff\xff", r"a has a record of 4294967295 bytes at offset 11"),
    ],
)
def test_a_broken_file_is_named_and_what_was_before_is_delivered(
    folder: Folder, contents: bytes, message: str
) -> None:
    folder.write("a", contents)
    with af.items([folder.file("a")]).flat_map(records).open() as feed:
        assert next(feed) == b"one"
        with pytest.raises(af.Corrupt, match=message):
            next(feed)
        failure = feed.failure
        assert failure is not None
        assert failure.key.endswith("a")
        assert failure.stage == "flat_map(records)"


def test_a_missing_file_is_an_error_of_its_own_and_can_be_skipped(folder: Folder) -> None:
    folder.write("a", packed(b"one"))
    files = af.items([folder.file("none"), folder.file("a")])
    with pytest.raises(FileNotFoundError, match="none"):
        list(files.flat_map(records))
    assert list(files.flat_map(records, on_error="skip", skip_limit=1)) == [b"one"]


@sampled(16)
def test_a_file_is_read_no_further_than_it_is_wanted(folder: Folder, seed: int) -> None:
    """A hundred megabytes are in the file, and a few records of it are taken."""
    record = bytes(100_000)
    folder.write("a", packed(*[record] * 1000))

    async def main() -> int:
        async with af.items([folder.file("a")]).flat_map(records).open(memory_limit=1 << 20) as feed:
            _ = [await anext(feed) for _ in range(3)]
            return feed.stats().memory_peak

    if seed == 0:  # once, and by the real clock: servers answer in real time
        assert asyncio.run(main()) <= 1 << 20


def is_open(path: str) -> bool:
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor that listed them
            if str(fd.readlink()) == path:
                return True
    return False


@pytest.mark.parametrize("way", ["aclose", "error", "cancel"])
def test_alone_it_is_an_async_generator_that_closes_its_file(tmp_path: Path, way: str) -> None:
    path = str(tmp_path / "a")
    Path(path).write_bytes(packed(b"one", b"two") + b"\1")

    async def main() -> None:
        found = records(path)
        assert await anext(found) == b"one"
        assert is_open(path)
        if way == "aclose":
            await found.aclose()
        elif way == "error":
            assert await anext(found) == b"two"
            with pytest.raises(af.Corrupt):
                await anext(found)
        else:
            task = asyncio.ensure_future(anext(found))
            task.cancel()
            await asyncio.wait([task])
            await found.aclose()
        assert not is_open(path)

    asyncio.run(main())


def test_it_takes_the_contents_of_a_file_that_was_read_elsewhere() -> None:
    async def main() -> list[bytes]:
        return [record async for record in records(packed(b"one", b"two"))]

    assert asyncio.run(main()) == [b"one", b"two"]


def test_it_is_a_value_and_shows_itself() -> None:
    assert pickle.loads(pickle.dumps(Records(7))) == Records(7) != records
    assert (repr(records), repr(Records(7))) == ("records", "records(max_bytes=7)")


def test_a_load_says_where_a_decoder_of_many_samples_goes() -> None:
    with pytest.raises(af.PipelineError, match=r"load.* flat_map"):
        af.items([File("a")]).load(records)  # type: ignore[arg-type]


def test_a_stream_gives_blocks_and_records_in_any_order() -> None:
    async def blocks() -> AsyncGenerator[bytes]:
        for block in (b"012", b"3", b"456789"):
            yield block

    async def main() -> list[Any]:
        stream = ByteStream(File("a"), blocks())
        found = [await stream.read(1), await stream.block(), await stream.read(0), await stream.read(3)]
        return [*found, stream.offset, await stream.block(), await stream.block(), await stream.read(2)]

    assert asyncio.run(main()) == [b"0", b"12", b"", b"345", 6, b"6789", b"", b""]
