"""`arrow`: IPC files and streams against pyarrow's own reader, and against damaged ones."""

from __future__ import annotations

import asyncio
import io
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.reading import MemoryStore
from tests.formats.arrow_tables import Drawn, assert_same, tables
from tests.formats.mutations import mutations

pa = pytest.importorskip("pyarrow")
ipc = pytest.importorskip("pyarrow.ipc")

WAYS = {"file": ipc.new_file, "stream": ipc.new_stream}


def written(table: Any, way: str = "file", *, batch_rows: int = 5, **options: Any) -> bytes:
    out = io.BytesIO()
    with WAYS[way](out, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        for batch in table.to_batches(max_chunksize=batch_rows):
            writer.write_batch(batch)
    return out.getvalue()


def read(data: bytes, decoder: Any = af.arrow) -> list[Any]:
    """Return the batches of a file."""

    async def main() -> list[Any]:
        return [batch async for batch in decoder(data)]

    return asyncio.run(main())


def rows(count: int, **more: Any) -> Any:
    return pa.table({"x": np.arange(count, dtype="f4"), "label": np.arange(count) % 7, **more})


both = pytest.mark.parametrize("way", sorted(WAYS))


@both
@settings(max_examples=100, deadline=None)
@given(
    drawn=tables(), size=st.integers(1, 5), most=st.integers(1, 6), packed=st.sampled_from([None, "lz4", "zstd"])
)
def test_all_types_come_as_they_were_written(way: str, drawn: Drawn, size: int, most: int, packed: Any) -> None:
    data = written(drawn.table, way, batch_rows=size, compression=packed, emit_dictionary_deltas=way == "stream")
    count = drawn.table.num_rows
    bounds = [
        (start, min(start + most, first + size, count))
        for first in range(0, count, size)
        for start in range(first, min(first + size, count), most)
    ]
    for batch, (start, stop) in zip(read(data, af.arrow(rows=most)), bounds, strict=True):
        assert_same(batch, drawn.expected(start, stop))


@both
def test_columns_come_in_the_order_asked_for_and_record_batches_as_they_are(way: str) -> None:
    data = written(rows(12, text=[str(each) for each in range(12)]), way)
    found = read(data, af.arrow(columns=["text", "x"]))
    assert [list(batch) for batch in found] == [["text", "x"]] * 3
    assert [batch["text"].tolist() for batch in found] == [list("01234"), list("56789"), ["10", "11"]]
    with pytest.raises(Corrupt, match=r"<bytes> has no column 'y'; it has x, label, text"):
        read(data, af.arrow(columns=["y"]))


@both
@pytest.mark.parametrize("count", [0, 1, 40_000])
def test_batches_larger_and_smaller_than_what_is_read_ahead_come_whole(way: str, count: int) -> None:
    table = pa.table(
        {"x": np.random.default_rng(0).random(count), "kind": pa.array(["ab"] * count).dictionary_encode()}
    )
    found = read(written(table, way, batch_rows=max(1, count * 3 // 4)))
    np.testing.assert_array_equal(np.concatenate([np.empty(0), *(batch["x"] for batch in found)]), table["x"])
    assert sum(len(batch["kind"]) for batch in found) == count


@both
def test_dictionaries_that_are_larger_than_what_is_read_ahead_come_whole(way: str) -> None:
    texts = [f"{each:06}" * 3 for each in range(10_000)]
    table = pa.table({"kind": pa.array(texts).dictionary_encode(), "other": pa.array(texts).dictionary_encode()})
    found = read(written(table, way, batch_rows=3_000))
    assert np.concatenate([batch["kind"] for batch in found]).tolist() == texts
    assert len(found) == 4


@both
def test_files_in_a_pipeline_come_in_order_and_are_rebatched(way: str) -> None:
    store = MemoryStore({f"{each}": written(rows(8), way) for each in range(3)})
    batches = af.items(store.files()).flat_map(af.arrow(columns=["x"]))
    expected = np.tile(np.arange(8, dtype="f4"), 3)
    assert [batch["x"].tolist() for batch in batches.rebatch(16)] == [
        expected[:16].tolist(),
        expected[16:].tolist(),
    ]


def test_a_feather_file_is_an_arrow_file() -> None:
    feather = pytest.importorskip("pyarrow.feather")
    out = io.BytesIO()
    feather.write_feather(rows(5), out)
    (batch,) = read(out.getvalue())
    assert batch["x"].tolist() == [0, 1, 2, 3, 4]


def test_a_type_that_makes_no_array_is_an_error_that_names_the_column() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    table = pa.table({"x": [1, 2], "union": union})
    with pytest.raises(ValueError, match="column 'union' is of type sparse_union.*which makes no array"):
        read(written(table))
    assert read(written(table), af.arrow(columns=["x"]))[0]["x"].tolist() == [1, 2]


@both
def test_a_missing_value_is_an_error_or_is_replaced(way: str) -> None:
    data = written(pa.table({"x": pa.array([1, None], pa.int8())}), way)
    with pytest.raises(ValueError, match=r"column 'x' has 1 missing values in 2 rows: write nulls={'x': value}"):
        read(data)
    assert read(data, af.arrow(nulls={"x": -1}))[0]["x"].tolist() == [1, -1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty or cut short"),
        (b"no Arrow file " * 10, "is no Arrow file"),
        (b"FEA1" + bytes(20), "is a Feather file of version 1"),
        (written(rows(100))[:-20], "is cut short"),
        (written(rows(100), "stream")[:-20], "is cut short"),
        (written(rows(100), "stream")[:-900], "is cut short"),
        (b"ARROW1\0\0" + bytes(20) + b"ARROW1", "damaged|cut short"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff" + bytes(20), "no message of Arrow"),
        (b"\xff\xff\xff\xff\x08\0\0\0" + b"\xff" * 20, "damaged message"),
    ],
)
def test_a_file_that_is_no_arrow_file_is_corrupt(data: bytes, message: str) -> None:
    with pytest.raises(Corrupt, match=rf"^<bytes> .*({message})"):
        read(data)


@both
def test_batches_before_the_damage_are_delivered(way: str) -> None:
    data = bytearray(written(rows(40_000), way, batch_rows=20_000))
    second = data.index(np.arange(20_000, 20_002, dtype="f4").tobytes())
    place = data.rindex(b"\xff\xff\xff\xff", 0, second) + 8
    data[place : place + 64] = b"\xff" * 64  # the header of the second batch
    with af.items(MemoryStore({"a.arrow": bytes(data)}).files()).flat_map(af.arrow).open() as feed:
        assert len(next(feed)["x"]) == 20_000
        with pytest.raises(Corrupt, match=r"^a\.arrow"):
            next(feed)


@both
@pytest.mark.parametrize("packed", [None, "lz4"])
def test_thousands_of_mutations_give_arrays_or_corrupt(way: str, packed: str | None) -> None:
    table = rows(
        10,
        text=[str(each) for each in range(10)],
        tokens=[[each] * (each % 3) for each in range(10)],
        kind=pa.array(["a", "b"] * 5).dictionary_encode(),
    )
    data = written(table, way, compression=packed)
    before = pa.default_memory_pool().max_memory()

    async def main() -> int:
        sound = 0
        for mutated in mutations(data, 2_500):
            try:
                sound += len([batch async for batch in af.arrow(max_bytes=1 << 20)(mutated)]) > 0
            except (Corrupt, ValueError):
                continue
        return sound

    assert 0 < asyncio.run(main()) < 2_500
    assert pa.default_memory_pool().max_memory() - before < 1 << 28


@both
def test_a_record_batch_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(way: str) -> None:
    data = written(pa.table({"x": np.zeros(1 << 20)}), way, batch_rows=1 << 20, compression="zstd")
    assert len(data) < 10_000
    with pytest.raises(ValueError, match=r"a record batch of 8388608 bytes, more than the 100000 allowed"):
        read(data, af.arrow(max_bytes=100_000))
    assert len(read(data)[0]["x"]) == 1 << 20


def test_it_is_a_value_and_refuses_what_means_nothing() -> None:
    decoder = af.arrow(columns=["x"], rows=5, nulls={"x": 0})
    assert pickle.loads(pickle.dumps(decoder)) == decoder
    assert repr(decoder) == "arrow(columns=('x',), rows=5, nulls=(('x', 0),))"
    for wrong in ({"columns": "x"}, {"rows": 0}, {"nulls": 3}):
        with pytest.raises(PipelineError, match=f"arrow: {next(iter(wrong))}"):
            af.arrow(**wrong)  # type: ignore[call-overload]
