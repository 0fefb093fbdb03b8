"""`parquet`: against pyarrow's own reader, and against damaged files."""

from __future__ import annotations

import asyncio
import gc
import io
import pickle
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.reading import AsyncReader, File, MemoryStore
from asyncfeed.reading.memory import MemoryReader
from tests.formats.arrow_tables import Drawn, assert_same, tables
from tests.formats.mutations import mutations

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def written(table: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def read(data: bytes, decoder: Any = af.parquet) -> list[Any]:
    """Return the batches of a file."""

    async def main() -> list[Any]:
        return [batch async for batch in decoder(data)]

    return asyncio.run(main())


def run_async(main: Any) -> None:
    """Run a coroutine, and assert that the loop has nothing to complain about."""
    complaints: list[Any] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await main()
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(watched())
    assert not complaints


def rows(count: int, **more: Any) -> Any:
    return pa.table({"x": np.arange(count, dtype="f4"), "label": np.arange(count) % 7, **more})


OPTIONS = st.fixed_dictionaries(
    {
        "row_group_size": st.integers(1, 5),
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]),
        "use_dictionary": st.booleans(),
        "data_page_size": st.sampled_from([64, 1 << 20]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "write_page_checksum": st.booleans(),
        "store_schema": st.just(True),
    }
)


@settings(max_examples=150, deadline=None)
@given(tables(), OPTIONS, st.integers(1, 6))
def test_all_types_come_as_pyarrow_reads_them(drawn: Drawn, options: dict[str, Any], most: int) -> None:
    data = written(drawn.table, **options)
    count, size = drawn.table.num_rows, options["row_group_size"]
    bounds = [
        (start, min(start + most, first + size, count))
        for first in range(0, count, size)
        for start in range(first, min(first + size, count), most)
    ]
    for batch, (start, stop) in zip(read(data, af.parquet(rows=most)), bounds, strict=True):
        assert_same(batch, drawn.expected(start, stop))


def test_columns_are_read_in_the_order_asked_for_and_fields_of_structs_by_their_path() -> None:
    nested = pa.array([{"a": each, "b": str(each)} for each in range(5)])
    data = written(rows(5, nested=nested))
    (batch,) = read(data, af.parquet(columns=["label", "nested.b", "x"]))
    assert list(batch) == ["label", "nested", "x"]
    assert {name: each.tolist() for name, each in batch["nested"].items()} == {"b": list("01234")}


def test_without_rows_a_batch_has_about_eight_megabytes() -> None:
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(40 << 18, "f4")), 1 << 12)  # rows of 16 KB
    found = read(written(pa.table({"x": wide}), use_dictionary=False, compression="none", row_group_size=2_000))
    assert [len(batch["x"]) for batch in found] == [511, 511, 511, 467, 511, 49]
    assert [len(batch["x"]) for batch in read(written(rows(70_000)))] == [65_536, 4_464]


class Logged(MemoryStore):
    """Notes which bytes were read, on threads or on the loop. Reads of what lies at byte `bad` fail."""

    def __init__(self, data: bytes, way: str = "threads", bad: int = -1) -> None:
        super().__init__({"a.parquet": data})
        self.read: list[tuple[int, int]] = []
        self.way = way
        self.bad = bad

    def reader(self) -> Any:
        return LoggedReader(self) if self.way == "threads" else LoggedOnLoop(self)


class LoggedReader(MemoryReader):
    def __init__(self, store: Logged) -> None:
        super().__init__(store.contents)
        self.store = store

    def read_ranges(self, file: File, ranges: Any) -> list[Any]:
        self.store.read += ranges
        if any(start <= self.store.bad < stop for start, stop in ranges):
            return [OSError(5, "the disk is broken")] * len(ranges)
        return super().read_ranges(file, ranges)


class LoggedOnLoop(AsyncReader):
    def __init__(self, store: Logged) -> None:
        self.inner = LoggedReader(store)

    async def look(self, files: Any) -> list[Any]:
        return self.inner.look(files)

    async def read_ranges(self, file: File, ranges: Any) -> list[Any]:
        await asyncio.sleep(0)
        return self.inner.read_ranges(file, ranges)


both_ways = pytest.mark.parametrize("way", ["threads", "loop"])


@both_ways
def test_only_the_footer_and_the_wanted_column_chunks_are_read_each_once(way: str) -> None:
    data = written(rows(100_000, other=np.random.default_rng(0).random(100_000)), row_group_size=50_000)
    store = Logged(data, way)
    found = list(af.items(store.files()).flat_map(af.parquet(columns=["label"])))
    assert sum(len(batch["label"]) for batch in found) == 100_000
    metadata = pq.ParquetFile(io.BytesIO(data)).metadata
    chunks = [metadata.row_group(group).column(1) for group in range(2)]
    wanted = [
        (each.dictionary_page_offset, each.dictionary_page_offset + each.total_compressed_size) for each in chunks
    ]
    assert store.read == [(len(data) - (1 << 16), len(data)), *wanted]


def test_a_footer_of_any_size_is_read() -> None:
    wide = pa.table({f"column {number}": [number] for number in range(1000)})
    data = written(wide)
    assert int.from_bytes(data[-8:-4], "little") > 1 << 16
    (batch,) = read(data, af.parquet(columns=["column 7", "column 900"]))
    assert [each.tolist() for each in batch.values()] == [[7], [900]]


def test_files_in_a_pipeline_come_in_order_and_are_rebatched_and_taken_apart(tmp_path: Path) -> None:
    for number in range(3):
        table = pa.table({"x": np.arange(10) + 10 * number, "text": [str(each) for each in range(10)]})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=4)
    batches = af.files(str(tmp_path / "*.parquet")).flat_map(af.parquet)
    assert [batch["x"].tolist() for batch in batches][:4] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [10, 11, 12, 13]]
    assert [batch["x"].tolist() for batch in batches.rebatch(16)] == [list(range(16)), list(range(16, 30))]
    assert [batch["text"].tolist() for batch in batches.rebatch(11)][1] == [*map(str, range(1, 10)), "0", "1"]
    assert [(int(row["x"]), row["text"]) for row in batches.unbatch()] == [(x, str(x % 10)) for x in range(30)]
    turns = af.files(str(tmp_path / "*.parquet")).interleave(af.parquet(columns=["x"]), cycle=3)
    assert [int(batch["x"][0]) for batch in turns] == [0, 10, 20, 4, 14, 24, 8, 18, 28]


def test_lists_of_each_row_are_padded_or_packed_as_other_samples_are() -> None:
    store = MemoryStore({"a": written(pa.table({"tokens": [[1, 2, 3], [], [4]]}))})
    rows_of = af.items(store.files()).flat_map(af.parquet).unbatch().map(lambda row: row["tokens"])
    (batch,) = rows_of.batch(3).pad()
    assert batch.tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]]


# Missing values

GAPS = pa.table(
    {
        "x": pa.array([1.5, None], pa.float32()),
        "age": pa.array([None, 3], pa.uint8()),
        "name": ["a", None],
        "tokens": [[1], None],
        "inner": [[1, None], []],
        "day": pa.array([None, 1], pa.date32()),
        "price": pa.array([None, 1], pa.decimal128(4, 1)),
        "kind": pa.array(["a", None]).dictionary_encode(),
        "point": [{"y": 1}, None],
        "flag": [True, None],
    }
)


@pytest.mark.parametrize(
    ("column", "path", "value", "expected"),
    [
        ("x", "x", float("nan"), [1.5, None]),
        ("x", "x", 0, [1.5, 0.0]),
        ("age", "age", 255, [255, 3]),
        ("name", "name", "", ["a", ""]),
        ("name", "name", None, ["a", None]),
        ("tokens", "tokens", [], [[1], []]),
        ("tokens", "tokens", None, [[1], None]),
        ("inner", "inner.element", -1, [[1, -1], []]),
        ("day", "day", np.datetime64("NaT", "D"), [None, 1]),
        ("price", "price", -1, [-1.0, 1.0]),
        ("kind", "kind", "b", ["a", "b"]),
        ("point", "point.y", 7, [1, 7]),
        ("flag", "flag", False, [True, False]),
    ],
)
def test_a_missing_value_is_an_error_that_says_what_to_write_or_is_replaced(
    column: str, path: str, value: Any, expected: list[Any]
) -> None:
    data = written(GAPS)
    with pytest.raises(
        ValueError, match=rf"column '{path}' has 1 missing values in . rows: write nulls="
    ) as caught:
        read(data, af.parquet(columns=[column]))
    assert f"nulls={{'{path}': value}}" in str(caught.value)
    ((array,),) = [batch.values() for batch in read(data, af.parquet(columns=[column], nulls={path: value}))]
    array = array["y"] if column == "point" else array
    found = array.astype("i8").tolist() if column == "day" else array.tolist()
    found = [each.tolist() if isinstance(each, np.ndarray) else each for each in found]
    if column == "day":
        expected = np.array([value, 1], "M8[D]").astype("i8").tolist()
    np.testing.assert_equal(found, [float("nan") if each is None and column == "x" else each for each in expected])


@pytest.mark.parametrize(
    ("column", "value"), [("x", "a"), ("x", None), ("age", -1), ("age", [1]), ("tokens", 0), ("name", 3)]
)
def test_a_replacement_that_does_not_fit_is_refused(column: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"nulls={{'{column}': .*}} does not fit the column, which has type"):
        read(written(GAPS), af.parquet(columns=[column], nulls={column: value}))


# What is not to be read


def test_a_column_that_is_not_there_is_corrupt_and_names_those_there_are() -> None:
    with pytest.raises(Corrupt, match=r"<bytes> has no column 'y'; it has x, label"):
        read(written(rows(2)), af.parquet(columns=["x", "y"]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not a Parquet file, or is cut short"),
        (b"PAR1", "is not a Parquet file, or is cut short"),
        (b"not a Parquet file " * 10, "is not a Parquet file, or is cut short"),
        (written(rows(100))[:-20], "is not a Parquet file, or is cut short"),
        (b"PAR1" + bytes(100) + b"PARE", "is an encrypted Parquet file"),
        (b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1", "has a footer of 2147483647 bytes, and the file has 12"),
        (b"PAR1" + bytes(100) + b"\x10\0\0\0PAR1", "cannot be read by pyarrow"),
        (written(rows(100))[50:], "outside of its data|points outside|cannot be read"),
    ],
)
def test_a_file_that_is_no_parquet_file_is_corrupt(data: bytes, message: str) -> None:
    with pytest.raises(Corrupt, match=rf"^<bytes> .*({message})"):
        read(data)


def test_the_error_of_a_text_that_is_not_utf_8_does_not_show_it() -> None:
    data = written(pa.table({"x": pa.array([b"secret\xff"]).view(pa.string())}))
    with pytest.raises(Corrupt, match="^<bytes> cannot be read by pyarrow: a text is not UTF-8$") as caught:
        read(data)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


def damaged() -> bytes:
    """Return a file of which the second row group is damaged."""
    data = bytearray(written(rows(100_000), row_group_size=30_000, write_page_checksum=True))
    column = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(1).column(0)
    data[column.dictionary_page_offset + column.total_compressed_size // 2] ^= 1
    return bytes(data)


@both_ways
def test_batches_before_the_damage_are_delivered_and_the_error_names_the_file(way: str) -> None:
    with af.items(Logged(damaged(), way).files()).flat_map(af.parquet).open() as feed:
        assert len(next(feed)["x"]) == 30_000
        with pytest.raises(Corrupt, match=r"a\.parquet cannot be read by pyarrow: .*CRC"):
            next(feed)


@both_ways
def test_a_read_that_fails_comes_after_the_batches_before_it(way: str) -> None:
    data = written(rows(100_000), row_group_size=30_000)
    bad = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(2).column(0).data_page_offset
    with af.items(Logged(data, way, bad).files()).flat_map(af.parquet(rows=20_000)).open() as feed:
        assert [len(next(feed)["x"]) for _ in range(4)] == [20_000, 10_000, 20_000, 10_000]
        with pytest.raises(OSError, match="the disk is broken"):
            next(feed)


@both_ways
def test_a_row_group_is_read_while_the_one_before_it_is_decoded_and_no_further(way: str) -> None:
    """Local files are not read ahead: the call that decodes reads. Nothing is left behind when it is left."""
    store = Logged(written(rows(100_000), row_group_size=10_000), way)

    async def main() -> None:
        batches = af.parquet(rows=100)(store.files()[0])
        await anext(batches)
        before = len(store.read)
        for _ in range(20):
            await anext(batches)
        assert len(store.read) == before
        await batches.aclose()

    run_async(main)
    footer, *chunks = store.read
    assert len(chunks) == {"threads": 2, "loop": 4}[way]


@both_ways
def test_a_description_of_a_row_group_that_is_damaged_comes_after_the_batches_before_it(way: str) -> None:
    data = bytearray(written(rows(40), row_group_size=10, use_dictionary=False))
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    last = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(3).column(0)
    varint = bytes([last.data_page_offset * 2 & 127 | 128, last.data_page_offset * 2 >> 7])
    place = data.index(varint, footer)  # the row group has it once more, behind its columns
    data[place : place + 2] = b"\xff\x7f"
    with af.items(Logged(bytes(data), way).files()).flat_map(af.parquet).open() as feed:
        assert [len(next(feed)["x"]) for _ in range(3)] == [10, 10, 10]
        with pytest.raises(Corrupt, match="outside of its data"):
            next(feed)


def test_a_row_group_that_is_too_large_is_refused_before_it_is_read() -> None:
    store = Logged(written(rows(100_000), compression="none", use_dictionary=False))
    with pytest.raises(
        ValueError, match=r"a row group of \d+ bytes .* more than the 100000 allowed: .*max_bytes=\d+"
    ):
        list(af.items(store.files()).flat_map(af.parquet(max_bytes=100_000)))
    assert len(store.read) == 1


def test_without_pyarrow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(rows(2))
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(PipelineError, match=r"pip install 'asyncfeed\[parquet\]'"):
        read(data)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_thousands_of_mutations_give_arrays_or_corrupt(version: str) -> None:
    table = rows(40, text=[str(each) for each in range(40)], tokens=[[each] * (each % 3) for each in range(40)])
    data = written(
        table, row_group_size=20, write_page_checksum=True, data_page_version=version, compression="zstd"
    )
    decoder = af.parquet(rows=16)
    before = pa.default_memory_pool().max_memory()

    async def main() -> int:
        sound = 0
        for mutated in mutations(data, 3_000):
            try:
                found = [batch async for batch in decoder(mutated)]
            except (Corrupt, ValueError):
                continue
            assert all(isinstance(batch, dict) for batch in found)
            sound += 1
        return sound

    assert asyncio.run(main()) < 3_000
    assert pa.default_memory_pool().max_memory() - before < 1 << 28


# The decoder


def test_it_is_a_value_and_shows_itself() -> None:
    decoder = af.parquet(columns=["x"], rows=5, nulls={"x": 0})
    assert pickle.loads(pickle.dumps(decoder)) == decoder == af.parquet(columns=("x",), rows=5, nulls={"x": 0})
    assert repr(decoder) == "parquet(columns=('x',), rows=5, nulls=(('x', 0),))"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"columns": "x"}, r"columns must be several names: write columns=\['x'\]"),
        ({"columns": []}, "columns must be names"),
        ({"columns": [3]}, "columns must be names"),
        ({"rows": 0}, "rows must be a whole number of at least 1, not 0"),
        ({"rows": True}, "rows must be a whole number"),
        ({"max_bytes": 0.5}, "max_bytes must be a whole number"),
        ({"nulls": 0}, "nulls must be values by column"),
    ],
)
def test_options_that_mean_nothing_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=f"parquet: {message}"):
        af.parquet(**wrong)
