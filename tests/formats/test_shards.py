"""MDS and LitData: shards written here as their libraries write them, and damaged ones.

The libraries need torch with CUDA, so they are not installed for the tests. The writers below follow their format,
which `MDSWriter` and `BinaryWriter` have in their source.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import pickle
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.reading import MemoryStore
from tests.formats.mutations import mutations


def u32(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


def shard(samples: list[bytes], head: bytes = b"") -> bytes:
    """Return the number of samples, their offsets, a head, and the samples."""
    ends = np.cumsum([0, *map(len, samples)]) + 4 + 4 * (len(samples) + 1) + len(head)
    return u32(len(samples), *ends) + head + b"".join(samples)


def read(decoder: Any, data: bytes) -> list[Any]:
    async def main() -> list[Any]:
        return [sample async for sample in decoder(data)]

    return asyncio.run(main())


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        for left, right in zip(one, other, strict=True):
            same(left, right)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.flags.writeable
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


# MDS


def array(values: Any, dtype: int | None = None) -> bytes:
    """Return an array as MDS writes it: the number of its dtype, its shape in bytes, its values."""
    first = b"" if dtype is None else bytes([dtype])
    return first + bytes([values.ndim << 2, *values.shape]) + values.tobytes()


X = np.arange(6, dtype="f4").reshape(2, 3)
COLUMNS: dict[str, tuple[str, int | None, bytes, Any]] = {
    "n": ("int", 8, (-5).to_bytes(8, "little", signed=True), -5),
    "text": ("str", None, "é".encode(), "é"),
    "raw": ("bytes", None, b"\0\1", b"\0\1"),
    "f": ("float32", 4, np.float32(1.5).tobytes(), np.float32(1.5)),
    "u": ("uint16", 2, np.uint16(7).tobytes(), np.uint16(7)),
    "any": ("ndarray", None, array(X, 34), X),
    "of dtype": ("ndarray:float32", None, array(X), X),
    "of shape": ("ndarray:float32:2,3", 24, X.tobytes(), X),
    "wide": ("ndarray", None, bytes([8, 1 << 2 | 1]) + np.array([300], "<u2").tobytes() + bytes(300), np.zeros(300, "u1")),
    "json": ("json", None, b'{"a": [1]}', {"a": [1]}),
    "digits": ("str_int", None, b"12345678901234567890", 12345678901234567890),
    "float": ("str_float", None, b"0.5", 0.5),
    "decimal": ("str_decimal", None, b"0.10", Decimal("0.10")),
    "image": ("jpeg", None, b"\xff\xd8...", b"\xff\xd8..."),
}  # fmt: skip
EXPECTED = {name: value for name, (_, _, _, value) in COLUMNS.items()}


def mds_head(columns: dict[str, Any] = COLUMNS, **more: Any) -> dict[str, Any]:
    return {
        "column_encodings": [each[0] for each in columns.values()],
        "column_names": list(columns),
        "column_sizes": [each[1] for each in columns.values()],
        "compression": None,
        "format": "mds",
        "version": 2,
        **more,
    }


def mds_sample(**changed: bytes) -> bytes:
    parts = {name: changed.get(name, each[2]) for name, each in COLUMNS.items()}
    varying = [len(parts[name]) for name, each in COLUMNS.items() if each[1] is None]
    return u32(*varying) + b"".join(parts.values())


def mds_shard(count: int = 2, start: int = 0) -> bytes:
    numbers = [(start + each).to_bytes(8, "little") for each in range(count)]
    return shard([mds_sample(n=each) for each in numbers], json.dumps(mds_head(), sort_keys=True).encode())


def mds_folder(folder: Path, counts: list[int], *, zipped: bool = False) -> Path:
    start, shards = 0, []
    for number, count in enumerate(counts):
        name = f"shard.{number:05}.mds"
        data = mds_shard(count, start)
        (folder / (name + ".gz" * zipped)).write_bytes(gzip.compress(data) if zipped else data)
        raw = {"basename": name, "bytes": len(data), "hashes": {}}
        packed = {"basename": f"{name}.gz", "bytes": 1, "hashes": {}} if zipped else None
        shards.append(mds_head(raw_data=raw, zip_data=packed, samples=count))
        start += count
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return folder


def test_all_encodings_of_mds_are_read() -> None:
    same(read(af.mds, shard([mds_sample()], json.dumps(mds_head()).encode())), [EXPECTED])


@pytest.mark.parametrize("zipped", [False, True])
def test_shards_of_mds_in_a_pipeline_come_in_order(tmp_path: Path, zipped: bool) -> None:
    mds_folder(tmp_path, [3, 0, 2000], zipped=zipped)
    samples = af.files(str(tmp_path / "*.mds*")).flat_map(af.mds)
    assert [sample["n"] for sample in samples] == list(range(2003))


def test_samples_of_mds_by_number_are_shuffled_exactly_and_pickled(tmp_path: Path) -> None:
    dataset = af.mds.by_number(mds_folder(tmp_path, [3, 0, 20]))
    assert len(dataset) == 23
    shuffled = [sample["n"] for sample in af.items(pickle.loads(pickle.dumps(dataset))).shuffle(seed=1)]
    assert sorted(shuffled) == list(range(23)) != shuffled
    same(dataset[22], {**EXPECTED, "n": 22})
    with pytest.raises(IndexError):
        dataset[23]


def test_several_samples_of_shards_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    samples = af.litdata(lit_folder(tmp_path, [3, 0, 4])).by_number()
    assert samples.__getitems__([6, 0, 3, 0, 2]) == [6, 0, 3, 0, 2]
    assert samples.__getitems__([]) == []
    for wrong in (-1, 7):
        with pytest.raises(IndexError):
            samples.__getitems__([0, wrong])
        with pytest.raises(IndexError):
            samples[wrong]


def test_a_damaged_sample_among_several_is_named_and_the_others_come(tmp_path: Path) -> None:
    folder = lit_folder(tmp_path, [5, 5])
    chunk = next(folder.glob("*-1.bin"))
    data = bytearray(chunk.read_bytes())
    at = int.from_bytes(data[12:16], "little")
    data[at] = 255  # the size of its only leaf
    chunk.write_bytes(data)
    samples = af.items(af.litdata(folder).by_number(), on_error="skip", skip_limit=1)
    assert sorted(samples.shuffle(seed=1)) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    with pytest.raises(Corrupt, match=r"-1\.bin: sample 2 is damaged"):
        list(af.items(af.litdata(folder).by_number()))


def test_compressed_shards_of_mds_by_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"are compressed: write files\(...\).flat_map\(mds\)"):
        af.mds.by_number(mds_folder(tmp_path, [3], zipped=True))


@pytest.mark.parametrize("encoding", ["pkl", "unknown"])
def test_pickles_and_unknown_encodings_of_mds_are_refused(encoding: str) -> None:
    head = mds_head({"x": (encoding, None)})
    with pytest.raises(PipelineError, match=f"column 'x'.*{'pickle' if encoding == 'pkl' else 'not read'}"):
        read(af.mds, shard([u32(1) + b"x"], json.dumps(head).encode()))


@pytest.mark.parametrize("name", ["../a.mds", "/a.mds", "", 3], ids=["up", "root", "empty", "number"])
def test_an_index_that_leads_out_of_its_folder_is_corrupt(tmp_path: Path, name: Any) -> None:
    entry = mds_head(raw_data={"basename": name}, samples=1)
    (tmp_path / "index.json").write_text(json.dumps({"shards": [entry]}))
    with pytest.raises(Corrupt, match=r"index\.json names the shard"):
        af.mds.by_number(tmp_path)


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"shards": [{}]}', '{"shards": 3}'])
def test_a_damaged_index_of_mds_is_corrupt(tmp_path: Path, index: str) -> None:
    with pytest.raises(PipelineError, match="give the folder that holds index.json"):
        af.mds.by_number(tmp_path)
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(Corrupt, match=r"index\.json"):
        af.mds.by_number(tmp_path)


# LitData


def leaf(kind: str | None = None, context: Any = None, *children: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "context": None if context is None else json.dumps(context),
        "children_spec": list(children),
    }


def lit_array(values: Any, dtype: int) -> bytes:
    return u32(dtype, values.ndim, *values.shape) + values.tobytes()


LEAVES: list[tuple[str, bytes, Any]] = [
    ("int", (-5).to_bytes(8, "little", signed=True), -5),
    ("float", np.float64(0.5).tobytes(), 0.5),
    ("bool", b"\1", True),
    ("str", "é".encode(), "é"),
    ("bytes", b"\0\1", b"\0\1"),
    ("numpy", lit_array(X, 9), X),
    ("numpy", lit_array(X[:0], 9), X[:0]),
    ("tensor", lit_array(X.astype("f8"), 2), X.astype("f8")),
    ("tensor", np.array([2, 2, 2, 3], ">u4").tobytes() + X.astype("f8").tobytes(), X.astype("f8")),
    ("no_header_numpy:3", np.arange(3).tobytes(), np.arange(3)),
    ("no_header_tensor:15", np.arange(3, dtype="i4").tobytes(), np.arange(3, dtype="i4")),
    ("jpeg", b"\xff\xd8...", b"\xff\xd8..."),
    ("file:png", b"png", b"png"),
]
SPEC = leaf(
    "builtins.dict",
    ["a", "b", "c"],
    leaf("builtins.list", None, *[leaf()] * 4),
    leaf("builtins.tuple", None, *[leaf()] * 5),
    leaf("collections.OrderedDict", ["w", "x", "y", "z"], *[leaf()] * 4),
)
LIT_EXPECTED = {
    "a": [each[2] for each in LEAVES[:4]],
    "b": tuple(each[2] for each in LEAVES[4:9]),
    "c": dict(zip("wxyz", [each[2] for each in LEAVES[9:]], strict=True)),
}


def lit_index(formats: list[str], spec: Any, chunks: Any = (), **more: Any) -> dict[str, Any]:
    config = {"compression": None, "data_format": formats, "data_spec": json.dumps([1, spec]), **more}
    return {"chunks": list(chunks), "config": config}


def lit_sample(*parts: bytes) -> bytes:
    return u32(*map(len, parts)) + b"".join(parts)


WHOLE = lit_index([each[0] for each in LEAVES], SPEC)
LIT_CHUNK = shard([lit_sample(*[each[1] for each in LEAVES])] * 2)


def test_all_formats_of_litdata_are_read_into_the_structure_that_was_written() -> None:
    same(read(af.litdata(WHOLE), LIT_CHUNK), [LIT_EXPECTED] * 2)


def lit_folder(folder: Path, counts: list[int], suffix: str = "") -> Path:
    start, chunks = 0, []
    for number, count in enumerate(counts):
        name = f"chunk-0-{number}{suffix}.bin"
        (folder / name).write_bytes(
            shard([lit_sample((start + each).to_bytes(8, "little")) for each in range(count)])
        )
        chunks.append({"chunk_bytes": 1, "chunk_size": count, "dim": None, "filename": name})
        start += count
    (folder / "index.json").write_text(json.dumps(lit_index(["int"], leaf(), chunks)))
    return folder


def test_chunks_of_litdata_come_in_order_and_by_number(tmp_path: Path) -> None:
    chunks = af.litdata(lit_folder(tmp_path, [3, 1000]))
    assert list(af.files(str(tmp_path / "*.bin")).flat_map(chunks)) == list(range(1003))
    assert sorted(af.items(chunks.by_number()).shuffle(seed=1)) == list(range(1003))
    assert repr(chunks) == f"litdata({str(tmp_path)!r})"
    assert pickle.loads(pickle.dumps(chunks)) == chunks


def test_lists_that_litdata_stores_in_a_form_of_its_own_are_refused() -> None:
    lists = af.litdata(lit_index(["json"], leaf()))
    assert read(lists, shard([lit_sample(b"[1, 2]")])) == [[1, 2]]
    with pytest.raises(PipelineError, match="which is not read: store arrays"):
        read(lists, shard([lit_sample(b"\1\0\0\0\0")]))


@pytest.mark.parametrize("tokens", [False, True])
def test_an_array_of_litdata_alone_has_its_size_before_it_unless_chunks_are_tokens(tokens: bool) -> None:
    arrays = [np.arange(count, dtype="i4") for count in (2, 0, 3)]
    chunk = shard([each.tobytes() if tokens else lit_sample(each.tobytes()) for each in arrays])
    info = {"filename": "a.bin", "chunk_size": 3, "dim": 5 if tokens else None}
    same(read(af.litdata(lit_index(["no_header_tensor:16"], leaf(), [info])), chunk), arrays)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (lit_index(["pickle"], leaf()), "a pickle, which is never read"),
        (lit_index(["new"], leaf()), "'new', which is not read"),
        (lit_index(["no_header_numpy:14"], leaf()), "'no_header_numpy:14', which is not read"),
        (lit_index(["int"], leaf("my.Type", None, leaf())), "are of type my.Type"),
        (lit_index(["int"], leaf(), encryption={"level": "chunk"}), "are encrypted"),
        (
            lit_index(["int"], leaf(), [{"filename": "0.bin", "chunk_size": 1}], compression="zstd"),
            "are compressed in parts, which is not read",
        ),
    ],
)
def test_what_litdata_is_not_read_as_is_refused_when_it_is_described(index: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        af.litdata(index)


def test_rows_of_arrow_in_a_chunk_of_litdata_are_refused() -> None:
    """The samples before the table have no bytes."""
    with pytest.raises(PipelineError, match="the samples are an Arrow table at the end of the chunk"):
        read(af.litdata(lit_index(["int"], leaf())), shard([b"", b""]) + b"ARROW1")


def test_litdata_by_number_needs_a_folder_of_plain_chunks(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"need a local folder: write litdata\('folder'\)"):
        af.litdata(WHOLE).by_number()
    with pytest.raises(PipelineError, match=r"is compressed: write files\(...\).flat_map"):
        af.litdata(lit_folder(tmp_path, [1], ".zstd")).by_number()


@pytest.mark.parametrize(
    "index",
    [{}, {"config": {}}, lit_index([], leaf()), lit_index(["int", "int"], leaf()), lit_index(["int"], {"type": None}, [{}]),
     lit_index(["int"], leaf(), data_spec="[1]"), lit_index([1], leaf()), lit_index(["int"], leaf(), [{"filename": "a.bin", "chunk_size": -1}])],
)  # fmt: skip
def test_a_damaged_index_of_litdata_is_corrupt(index: Any) -> None:
    with pytest.raises(Corrupt, match=r"index\.json is damaged"):
        af.litdata(index)


# Both


@pytest.mark.parametrize(
    ("decoder", "data"),
    [(af.mds, mds_shard()), (af.litdata(WHOLE), LIT_CHUNK)],
    ids=["mds", "litdata"],
)
class TestDamaged:
    def test_a_shard_that_is_cut_short_is_corrupt_after_the_samples_before_the_cut(
        self, decoder: Any, data: bytes
    ) -> None:
        with af.items(MemoryStore({"a": data[:-3]}).files()).flat_map(decoder).open() as feed:
            for _ in range(int.from_bytes(data[:4], "little") - 1):
                next(feed)
            with pytest.raises(Corrupt, match=r"^a is cut short"):
                next(feed)

    @pytest.mark.parametrize("contents", [b"", b"\1", b"\1\0\0\0", b"no shard" * 20, b"\0\0\0\0\4\0\0\0"])
    def test_what_is_no_shard_is_corrupt(self, decoder: Any, data: bytes, contents: bytes) -> None:
        with pytest.raises(Corrupt, match="<bytes>"):
            read(decoder, contents)

    def test_thousands_of_mutations_give_samples_or_corrupt(self, decoder: Any, data: bytes) -> None:
        async def main() -> int:
            sound = 0
            for mutated in mutations(data, 5_000):
                with suppress(Corrupt, PipelineError):
                    sound += len([sample async for sample in decoder(mutated)]) > 0
            return sound

        assert 0 < asyncio.run(main()) < 5_000


def test_a_damaged_sample_is_named_and_comes_after_those_before_it(tmp_path: Path) -> None:
    head = json.dumps(mds_head()).encode()
    data = shard([mds_sample(), mds_sample(text=b"\xff")], head)
    (tmp_path / "a.mds").write_bytes(data)
    with af.files(str(tmp_path / "a.mds")).flat_map(af.mds).open() as feed:
        same(next(feed), EXPECTED)
        with pytest.raises(Corrupt, match=r"a\.mds: sample 1 is damaged \(UnicodeDecodeError\)"):
            next(feed)
