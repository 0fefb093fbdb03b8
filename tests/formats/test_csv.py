"""`csv`: rows as Python's `csv.DictReader` gives them, wherever the blocks of a file end, and errors with the line."""

from __future__ import annotations

import asyncio
import bz2
import csv
import gzip
import io
import pickle
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.reading import ByteStream, File, MemoryStore
from tests.formats.mutations import mutations

Found = tuple[list[dict[str, Any]], str]


async def in_blocks(decoder: Any, blocks: list[bytes]) -> Found:
    """Return the rows of a file that is read in these blocks, and the error that follows them."""

    async def given() -> AsyncGenerator[bytes]:
        for block in blocks:
            if block:
                yield block

    rows: list[Any] = []
    try:
        async for group in decoder.groups(ByteStream(File("a.csv"), given())):
            rows += group
    except Corrupt as error:
        return rows, str(error)
    return rows, ""


def read(data: bytes, decoder: Any = af.csv, size: int = 1 << 16) -> Found:
    blocks = [data[start : start + size] for start in range(0, len(data), size)]
    return asyncio.run(in_blocks(decoder, blocks))


def by_hand(data: bytes, *, encoding: str = "utf-8", **dialect: Any) -> tuple[list[Any], int | None]:
    """Return what Python reads, and the line of the first row that is wrong."""
    reader = csv.reader(
        io.StringIO(data.decode(encoding).removeprefix("\ufeff"), newline=""), strict=True, **dialect
    )
    rows: list[Any] = []
    names: list[str] | None = None
    line = 1
    try:
        for row in reader:
            if row and names is None:
                names = row
                if len(set(names)) < len(names):
                    return rows, line
            elif row and names is not None:
                if len(row) != len(names):
                    return rows, line
                rows.append(dict(zip(names, row, strict=True)))
            line = reader.line_num + 1
    except csv.Error:
        return rows, line
    return rows, None if names is not None else line


def agree(found: Found, expected: tuple[list[Any], int | None]) -> None:
    rows, error = found
    assert rows == expected[0]
    if expected[1] is None:
        assert not error
    else:
        assert error.startswith("a.csv")
        assert f"line {expected[1]}" in error or "is empty" in error


DIALECTS = st.fixed_dictionaries(
    {"delimiter": st.sampled_from(",;\t| é"), "quotechar": st.sampled_from(['"', "'", None])}
)
RAW = st.text(st.sampled_from(",;\t|\"'\r\n abé€😀\ufeff\x85\0"), max_size=60)


@settings(max_examples=300, deadline=None)
@given(RAW, DIALECTS, st.lists(st.integers(0, 200), max_size=5), st.sampled_from(["utf-8", "utf-16", "utf-8-sig"]))
def test_any_text_is_read_as_python_reads_it_wherever_blocks_end(
    text: str, dialect: dict[str, Any], cuts: list[int], encoding: str
) -> None:
    data = text.encode(encoding)
    reading = dict(dialect)
    if reading["quotechar"] is None:
        reading["quoting"] = csv.QUOTE_NONE
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    blocks = [data[start:stop] for start, stop in zip(places, places[1:], strict=False)]
    found = asyncio.run(in_blocks(af.csv(encoding=encoding, **dialect), blocks))
    agree(found, by_hand(data, encoding=encoding, **reading))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.text(max_size=8), min_size=3, max_size=3), max_size=8),
    DIALECTS,
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(1, 40),
    st.booleans(),
)
def test_what_csv_writes_comes_back(
    rows: list[list[str]], dialect: dict[str, Any], end: str, size: int, packed: bool
) -> None:
    dialect = {**dialect, "quotechar": dialect["quotechar"] or '"'}
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL, **dialect)
    writer.writerows([["a", "b", "c"], *rows])
    data = out.getvalue().encode()
    expected = [dict(zip("abc", row, strict=True)) for row in rows]
    assert read(data, af.csv(**dialect), size) == (expected, "")
    if packed:
        assert list(af.items([gzip.compress(data)]).flat_map(af.csv(**dialect))) == expected


def test_small_files_and_large_ones_in_a_pipeline_come_in_order() -> None:
    """Large ones are parsed on threads, in parts."""
    counts = [3, 20_000, 0, 5_000]
    store = MemoryStore(
        {
            f"{file}.csv": "".join(["file,row\r\n", *(f"{file},{row}\r\n" for row in range(count))]).encode()
            for file, count in enumerate(counts)
        }
    )
    decoder = af.csv(types={"file": int, "row": int})
    rows = [[{"file": file, "row": row} for row in range(count)] for file, count in enumerate(counts)]
    files = af.items(store.files())
    assert list(files.flat_map(decoder)) == [row for each in rows for row in each]
    turns = list(files.interleave(decoder, cycle=4))
    assert [row["file"] for row in turns[:7]] == [0, 1, 3, 0, 1, 3, 0]
    assert [row["row"] for row in turns if row["file"] == 1] == list(range(20_000))


def test_local_files_compressed_or_not_give_batches(tmp_path: Path) -> None:
    text = "x,label\n" + "".join(f"{row / 2},{row % 3}\n" for row in range(100))
    (tmp_path / "a.csv").write_text(text)
    (tmp_path / "b.csv.bz2").write_bytes(bz2.compress(text.encode()))
    rows = af.files(str(tmp_path / "*")).flat_map(af.csv(types={"x": np.float32, "label": int}))
    batches = list(rows.batch(50))
    assert [batch["x"].dtype for batch in batches] == [np.float32] * 4
    assert [batch["label"].dtype for batch in batches] == [np.int64] * 4
    assert batches[0]["x"].tolist() == batches[2]["x"].tolist() == [row / 2 for row in range(50)]


def test_columns_have_the_types_that_are_given_and_no_others() -> None:
    data = b"a,b,c,d\n1,2.5,True,007\n-3,nan,0,1e5\n"
    rows, _ = read(data, af.csv(types={"a": int, "b": float, "c": bool}))
    assert str(rows) == str(
        [{"a": 1, "b": 2.5, "c": True, "d": "007"}, {"a": -3, "b": float("nan"), "c": False, "d": "1e5"}]
    )
    assert read(data, af.csv(columns=["d", "a"], types={"a": int}))[0] == [
        {"d": "007", "a": 1},
        {"d": "1e5", "a": -3},
    ]
    kinds = {"x": 0, "y": 1}
    assert read(b"k\ny\nx\n", af.csv(types={"k": kinds.__getitem__}))[0] == [{"k": 1}, {"k": 0}]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_byte_order_mark_is_left_out(size: int) -> None:
    assert read('\ufeff"a",b\n1,2\n'.encode(), size=size) == ([{"a": "1", "b": "2"}], "")
    assert read("\ufeffa\n\ufeff1\n".encode(), size=size) == ([{"a": "\ufeff1"}], "")
    assert read("a,b\n1,2\n".encode("utf-16"), af.csv(encoding="utf-16"), size)[0] == [{"a": "1", "b": "2"}]


def test_without_a_header_the_columns_have_the_names_that_are_given() -> None:
    decoder = af.csv(header=False, columns=["x", "y"], types={"y": int})
    assert read(b"a,1\nb,2", decoder) == ([{"x": "a", "y": 1}, {"x": "b", "y": 2}], "")
    assert read(b"", decoder) == ([], "")
    assert read(b"a,1\nb", decoder)[1] == "a.csv: the row at line 2 has 1 fields, not 2"


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
@pytest.mark.parametrize(
    ("data", "count", "message"),
    [
        (b"", 0, "a.csv is empty: it has no header"),
        (b"\n\r\n", 0, "a.csv is empty: it has no header"),
        (b"a,b,a\n", 0, "a.csv: line 1, the header, has 2 columns 'a'"),
        (b"y\n1\n", 0, "a.csv has no column 'x'; it has y"),
        (b"x\n1\n2,3\n", 1, "a.csv: the row at line 3 has 2 fields, not 1"),
        (b'x,y\n1,"a\n\nb"\n\n2\n', 1, "a.csv: the row at line 6 has 1 fields, not 2"),
        (b"x\n1\nno\n2", 1, "a.csv: line 3, column 'x': float refuses 'no' (ValueError: could not convert"),
        (b"x\n1\n" + b"9" * 60 + b"?\n", 1, f"a.csv: line 3, column 'x': float refuses '{'9' * 37}...'"),
        (b'x\n1\n"2" 3\n', 1, "a.csv: line 3 is no CSV: ',' expected after '\"'"),
        (b'x\n1\n"2\n3\n', 1, "a.csv: line 3 is no CSV: unexpected end of data"),
        (b"x\n1\n2\xff\n", 1, "a.csv: line 3 is not utf-8 ("),
        (b"x\n1\n2\xc3", 1, "a.csv: line 3 is not utf-8 ("),
        (b'x\n1\n"\n' + b"2" * 200 + b'"\n', 1, "a.csv: the row at line 3 has more than 100 characters (max_row=...)"),
        (b"x\n1\n" + b"2" * 200, 1, "a.csv: the row at line 3 has more than 100 characters (max_row=...)"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_and_the_line_and_comes_after_the_rows_before_it(
    data: bytes, count: int, message: str, size: int
) -> None:
    rows, error = read(data, af.csv(types={"x": float}, max_row=100), size)
    assert error.startswith(message)
    assert rows[:1] == [{"x": 1.0, "y": "a\n\nb"} if b"y" in data else {"x": 1.0}][:count]
    assert len(rows) == count


def test_the_first_wrong_row_is_the_error_whichever_column_is_wrong() -> None:
    decoder = af.csv(types={"a": int, "b": int})
    assert read(b"a,b\n1,2\n3,x\ny,4\n", decoder)[1].startswith("a.csv: line 3, column 'b': int refuses 'x'")
    assert read(b"a,b\n1,2\nx,x\n", decoder)[1].startswith("a.csv: line 3, column 'a'")
    assert read(b"a,b\n1,2\nx,3\n4\n", decoder)[1].startswith("a.csv: line 3, column 'a'")

    def ends(text: str) -> int:
        raise StopIteration

    rows, error = read(b"a\n1\n", af.csv(types={"a": ends}))
    assert (rows, error.startswith("a.csv: line 2, column 'a': ends refuses '1'")) == ([], True)


def test_a_field_beyond_the_limit_of_pythons_csv_says_what_sets_it() -> None:
    limit = csv.field_size_limit()
    rows, error = read(b"x\n1\n" + b"2" * (limit + 1) + b"\n")
    assert rows == [{"x": "1"}]
    assert error.startswith(
        f"a.csv: line 3 is no CSV: field larger than field limit ({limit}); csv.field_size_limit"
    )
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("encoding", "bad"),
    [
        ("utf-8", b"\xe9\n"), ("utf-16", b"\0\xdc\n\0"), ("utf-32", b"\xff" * 4), ("ascii", b"\xff"), ("cp1252", b"\x81"),
        ("shift_jis", b"\x81\xff"), ("gbk", b"\xff\xff"), ("iso2022_jp", b"\xff"), ("utf-7", b"+\xff"),
    ],
)  # fmt: skip
def test_what_is_not_of_the_encoding_is_corrupt_after_the_rows_before_it(encoding: str, bad: bytes) -> None:
    text = "x\nか\n" if encoding not in ("ascii", "cp1252") else "x\nk\n"
    data = text.encode(encoding) + bad
    for size in (*range(1, len(data)), 1 << 16):
        rows, error = read(data, af.csv(encoding=encoding), size)
        assert rows == [{"x": text[2]}]
        assert error.startswith(f"a.csv: line 3 is not {encoding} (")


def test_damage_in_the_compressed_data_comes_after_the_rows_before_it() -> None:
    data = b"x\n" + b"".join(b"%d\n" % row for row in range(100_000))
    rows: list[Any] = []
    with pytest.raises(Corrupt, match="cut short"):
        rows.extend(af.items(MemoryStore({"a": gzip.compress(data)[:-100]}).files()).flat_map(af.csv))
    assert [row["x"] for row in rows[:3]] == ["0", "1", "2"]
    assert len(rows) > 10_000


def test_ten_thousand_mutations_give_what_python_reads() -> None:
    """In blocks of any size: the rows before the first damaged one, and its line."""
    data = b'id,text,"a b"\r\n' + b"".join(f'{row},"é ""{row}""\n,",x\r\n'.encode() for row in range(5))
    draw = random.Random(0)

    async def main() -> int:
        sound = 0
        for mutated in mutations(data, 10_000, bytes_of=b'\n\r ",'):
            cut = draw.randrange(len(mutated))
            found = await in_blocks(af.csv, [mutated[:cut], mutated[cut:]])
            try:
                expected = by_hand(mutated)
            except UnicodeDecodeError as error:
                whole, line = by_hand(mutated[: error.start])  # the row that is damaged may look whole
                rows = found[0]
                assert rows == whole[: len(rows)] and len(whole) - len(rows) <= 1
                assert "is not utf-8" in found[1] or line is not None
            else:
                agree(found, expected)
                sound += expected[1] is None
        return sound

    assert 0 < asyncio.run(main()) < 10_000


def test_it_is_a_value_and_refuses_what_means_nothing() -> None:
    decoder = af.csv(types={"x": float}, delimiter=";", compression="gzip")
    assert pickle.loads(pickle.dumps(decoder)) == decoder != af.csv
    assert af.csv() == af.csv
    assert repr(af.csv(columns=["x"], quotechar=None)) == "csv(columns=('x',), quotechar=None)"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"columns": "x"}, r"write columns=\['x'\]"),
        ({"columns": []}, "columns must be names"),
        ({"columns": ["x", "x"]}, "columns has 'x' twice"),
        ({"header": False}, "header=False needs the names of all columns"),
        ({"types": {"x": 3}}, "the type of 'x' must be int, float or a function, not 3"),
        ({"types": [int]}, "types must be functions by column"),
        ({"types": {"y": int}, "columns": ["x"]}, "types has 'y', which is not in columns"),
        ({"delimiter": ",,"}, "delimiter must be one character, not ',,'"),
        ({"delimiter": "\n"}, "delimiter must be one character"),
        ({"quotechar": ""}, "quotechar must be one character"),
        ({"delimiter": '"'}, "delimiter and quotechar are both '\"'"),
        ({"encoding": "no"}, "'no' is no encoding of text"),
        ({"encoding": "hex"}, "'hex' is no encoding of text"),
        ({"max_row": 0}, "max_row must be a whole number of at least 1, not 0"),
        ({"compression": "rar"}, "compression"),
    ]
    for options, message in wrong:
        with pytest.raises(PipelineError, match=message):
            af.csv(**options)
    with pytest.raises(PipelineError, match="a file or options, not both"):
        af.csv(b"x\n", delimiter=";")  # type: ignore[call-overload]
