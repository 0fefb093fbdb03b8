"""TFRecord files: each record between its checksums, as a stream and by number."""

from __future__ import annotations

import asyncio
import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed import extras
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats import tfrecord as module
from asyncfeed.formats.tfrecord import TFRecord
from asyncfeed.reading import MemoryStore
from asyncfeed.reading.file import File
from asyncfeed.reading.stream import ByteStream
from tests.formats.tfrecords import example_of, file_of, frame

RECORDS = st.lists(st.binary(max_size=300), max_size=8)


def read(data: bytes, decoder: TFRecord = af.tfrecord, cuts: list[int] | None = None) -> list[Any]:
    """Return what the decoder yields for a file that comes in blocks, cut at these places."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or [])})

    async def blocks() -> AsyncGenerator[bytes]:
        for start, stop in zip(edges, edges[1:], strict=False):
            yield data[start:stop]

    async def main() -> list[Any]:
        stream = ByteStream(File("a.tfrecord"), blocks())
        return [sample async for group in decoder.groups(stream) for sample in group]

    return asyncio.run(main())


@given(RECORDS, st.lists(st.integers(0, 1 << 20), max_size=6))
def test_records_come_as_they_were_written_wherever_the_blocks_are_cut(
    records: list[bytes], cuts: list[int]
) -> None:
    assert read(file_of(records), cuts=cuts) == records


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_records_by_number_are_those_of_the_stream(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    for number, records in enumerate(shards):
        (folder / f"{number}.tfrecord").write_bytes(file_of(records))
    files = af.files(f"{folder}/*.tfrecord")
    everything = [record for records in shards for record in records]
    for _ in range(2):  # the index is made, and then read
        found = files.flat_map(af.tfrecord(indexed=True))
        assert found.size() == len(everything)
        assert list(found) == everything
    assert sorted(found.shuffle(seed=1)) == sorted(everything)


def test_a_scan_skips_what_is_in_large_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncfeed.reading.local import LocalReader

    path = tmp_path / "a.tfrecord"
    path.write_bytes(file_of([bytes(100_000)] * 30))
    read_: list[int] = []
    real = LocalReader.read_ranges

    def read_ranges(self: LocalReader, file: File, ranges: Any) -> Any:
        read_.extend(stop - start for start, stop in ranges)
        return real(self, file, ranges)

    monkeypatch.setattr(LocalReader, "read_ranges", read_ranges)
    assert af.files(path).flat_map(af.tfrecord(indexed=True)).size() == 30
    assert sum(read_) < 200_000


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_compressed_files_are_read_as_tensorflow_writes_them(pack: Any) -> None:
    records = [b"one", b"", b"three" * 100]
    store = MemoryStore({"a": pack(file_of(records))})
    assert list(af.items(store.files()).flat_map(af.tfrecord)) == records
    name = "gzip" if pack is gzip.compress else "zlib"
    assert list(af.items(store.files()).flat_map(af.tfrecord(compression=name))) == records


def test_a_length_that_looks_like_a_compressed_file_is_a_length() -> None:
    record = bytes(0x88B1F)  # the first bytes of the file are those of gzip
    data = file_of([record])
    assert data[:3] == b"\x1f\x8b\x08"
    assert list(af.items([data]).flat_map(af.tfrecord)) == [record]


def test_many_files_are_read_through_a_pipeline() -> None:
    files = {f"{n}": file_of([f"{n}-{k}".encode() for k in range(200)]) for n in range(5)}
    store = MemoryStore(files)
    found = list(af.items(store.files()).flat_map(af.tfrecord))
    assert found == [f"{n}-{k}".encode() for n in range(5) for k in range(200)]
    assert sorted(af.items(store.files()).interleave(af.tfrecord, cycle=3)) == sorted(found)


# -- damage


RECORD = frame(b"hello")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (RECORD + RECORD[:5], r"cut short: 5 bytes of a record are there at offset 21"),
        (RECORD + RECORD[:-1], r"cut short: 20 bytes of a record are there at offset 21"),
        (RECORD + b"\x06" + RECORD[1:], r"checksum of the record's length is wrong, at offset 21"),
        (RECORD + RECORD[:14] + b"X" + RECORD[15:], r"checksum of the record is wrong, at offset 21"),
        (RECORD + frame(bytes(101)), r"a record of 101 bytes is longer than max_bytes=100, at offset 21"),
    ],
)
def test_what_is_before_the_damage_comes_and_then_the_error_names_the_place(data: bytes, says: str) -> None:
    decoder = af.tfrecord(max_bytes=100)
    for cuts in ([], [3, 8, 24], list(range(len(data)))):
        with pytest.raises(Corrupt, match=says) as caught:
            read(data, decoder, cuts)
        assert "a.tfrecord" in str(caught.value)
    store = MemoryStore({"a.tfrecord": data})
    got = []
    with pytest.raises(Corrupt, match=says):
        for record in af.items(store.files()).flat_map(decoder):
            got.append(record)
    assert got == [b"hello"]


def test_a_hostile_length_asks_for_no_memory(tmp_path: Path) -> None:
    length = struct.pack("<Q", 1 << 62)
    data = length + struct.pack("<I", module.length_sum(1 << 62))
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data + bytes(100))
    tracemalloc.start()
    with pytest.raises(Corrupt, match="is longer than max_bytes"):
        list(af.files(path).flat_map(af.tfrecord))
    with pytest.raises(Corrupt, match="is longer than max_bytes"):
        af.files(path).flat_map(af.tfrecord(indexed=True))
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_a_file_that_is_cut_short_has_no_index(tmp_path: Path) -> None:
    data = file_of([b"one", bytes(9000), b"three"])
    path = tmp_path / "a.tfrecord"
    for stop in (5, 12, 18, 25, 9000, len(data) - 1):
        path.write_bytes(data[:stop])
        with pytest.raises(Corrupt, match=r"a\.tfrecord is cut short"):
            af.files(path).flat_map(af.tfrecord(indexed=True))


def test_a_record_by_number_is_compared_with_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(file_of([b"one", b"two", b"three"]))
    af.files(path).flat_map(af.tfrecord(indexed=True))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"two", b"tWo"))
    (tmp_path / ".a.tfrecord.index").touch()
    found = af.files(path).flat_map(af.tfrecord(indexed=True))
    with pytest.raises(Corrupt, match=r"checksum of the record is wrong, at offset 19") as caught:
        list(found)
    assert "a.tfrecord, record 1" in str(caught.value.__notes__)
    unchecked = af.files(path).flat_map(af.tfrecord(indexed=True, verify=False))
    assert list(unchecked) == [b"one", b"tWo", b"three"]


def test_ten_thousand_mutations_give_records_or_a_clear_error() -> None:
    """A record that comes is one of those that were written."""
    rng = random.Random(0)
    records = [rng.randbytes(rng.randrange(60)) for _ in range(6)]
    known, data = set(records), file_of(records)
    loop = asyncio.new_event_loop()

    async def one(mutated: bytes) -> None:
        async def blocks() -> AsyncGenerator[bytes]:
            yield mutated

        got = []
        try:
            async for group in af.tfrecord.groups(ByteStream(File("a"), blocks())):
                got += group
        except Corrupt as error:
            assert "a" in str(error)
        assert known.issuperset(got)

    for _ in range(10_000):
        mutated = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(mutated))
            match rng.randrange(3):
                case 0:
                    mutated[at] ^= 1 << rng.randrange(8)
                case 1:
                    del mutated[at : at + rng.randrange(1, 20)]
                case 2:
                    mutated[at:at] = rng.randbytes(rng.randrange(1, 20))
            if not mutated:
                break
        loop.run_until_complete(one(bytes(mutated)))
    loop.close()


# -- features


FEATURES = {"x": af.feature("float32", (2,)), "label": "int64", "name": bytes}


def samples(count: int) -> list[bytes]:
    return [
        example_of({"x": [float(n), 0.5], "label": [n], "name": [b"%d" % n], "other": [b"left out"]})
        for n in range(count)
    ]


@pytest.mark.parametrize("count", [1, 3, 50, 3000])
def test_features_make_samples(tmp_path: Path, count: int) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(file_of(samples(count)))
    for indexed in (False, True):
        found = list(af.files(path).flat_map(af.tfrecord(features=FEATURES, indexed=indexed)))
        assert [(s["x"].tolist(), s["label"], s["name"]) for s in found] == [
            ([n, 0.5], n, b"%d" % n) for n in range(count)
        ]
        assert found[0]["x"].dtype == "float32"
        assert all(set(sample) == {"x", "label", "name"} for sample in found)
    batch = next(iter(af.files(path).flat_map(af.tfrecord(features=FEATURES)).batch(4)))
    assert batch["x"].shape == (min(4, count), 2)
    assert batch["label"].dtype == "int64"


def test_a_record_without_a_feature_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(file_of([*samples(9), example_of({"x": [1.0, 2.0], "name": [b""]}), *samples(3)]))
    for indexed, options in ((False, {}), (True, {})):
        got = []
        with pytest.raises(Corrupt, match=r"a\.tfrecord, record 9: feature 'label': the record does not have it"):
            for sample in af.files(path).flat_map(af.tfrecord(features=FEATURES, indexed=indexed, **options)):
                got.append(sample)
        assert len(got) == 9


def test_what_makes_no_sense_is_refused_in_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineError, match="features must be a dict"):
        af.tfrecord(features=["x"])  # type: ignore[call-overload]
    with pytest.raises(PipelineError, match=r"feature 'x': the dtype must be bytes, or"):
        af.tfrecord(features={"x": "int63"})
    with pytest.raises(PipelineError, match="max_bytes must be a whole number"):
        af.tfrecord(max_bytes=0)
    with pytest.raises(PipelineError, match="no records by number"):
        af.tfrecord(indexed=True, compression="gzip")
    assert repr(af.tfrecord(features={"x": "int64"})) == "tfrecord(features=example(['x']))"
    assert af.tfrecord(features={"x": "int64"}) == af.tfrecord(features={"x": "int64"})


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(extras, "import_module", missing)
    module.checksum_library.cache_clear()
    try:
        with pytest.raises(PipelineError, match=r"asyncfeed\[tfrecord\].*tfrecord\(verify=False\)"):
            read(file_of([b"one"]))
    finally:
        module.checksum_library.cache_clear()
    assert read(file_of([b"one"]), af.tfrecord(verify=False)) == [b"one"]


@pytest.mark.parametrize("size", [0, 3, 12, 15, 16, 18, 20])
def test_a_record_that_is_not_where_its_index_says_is_an_error(size: int) -> None:
    data = memoryview(file_of([b"one", b"three"]))
    with pytest.raises(Corrupt, match=r"(x: record 0 is not where its index says: remove the index|checksum)"):
        af.tfrecord.record(data[:size], "x", 0, 0)
    assert af.tfrecord.record(data[:19], "x", 0, 0) == b"one"
