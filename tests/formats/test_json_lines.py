"""`json_lines`: one JSON value on each line, as a plain loop with Python's `json` reads it."""

from __future__ import annotations

import asyncio
import gzip
import json
import pickle
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.reading import MemoryStore

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def read(data: bytes, **options: Any) -> tuple[list[Any], str]:
    """Return the values, and the error that follows them."""
    found: list[Any] = []

    async def main() -> str:
        try:
            async for value in af.json_lines(data, **options):
                found.append(value)
        except Corrupt as error:
            return str(error)
        return ""

    return found, asyncio.run(main())


def by_hand(data: bytes) -> tuple[list[Any], int | None]:
    """Return what a plain loop reads, and the number of the line that it fails at."""
    found: list[Any] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            text = line.decode()
            if text.strip():
                found.append(json.loads(text))
        except (ValueError, RecursionError):
            return found, number
    return found, None


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(VALUES, max_size=8), st.sampled_from(["\n", "\r\n", "\n\n", " \n\t"]), st.booleans())
def test_what_was_written_comes_back(values: list[Any], end: str, packed: bool) -> None:
    data = "".join(json.dumps(each, ensure_ascii=packed) + end for each in values).encode()
    assert read(gzip.compress(data) if packed else data) == (values, "")


def test_small_files_and_large_ones_in_a_pipeline_come_in_order() -> None:
    """Large ones are parsed on threads, in parts."""
    rows = [
        [{"file": file, "row": row} for row in range(count)] for file, count in enumerate([3, 20_000, 0, 5_000])
    ]
    store = MemoryStore({f"{file}": "\n".join(map(json.dumps, each)).encode() for file, each in enumerate(rows)})
    files = af.items(store.files())
    assert list(files.flat_map(af.json_lines)) == [row for each in rows for row in each]
    turns = list(files.interleave(af.json_lines, cycle=4))
    assert [row["row"] for row in turns if row["file"] == 1] == list(range(20_000))
    assert [row["file"] for row in turns[:7]] == [0, 1, 3, 0, 1, 3, 0]


@pytest.mark.parametrize(
    ("data", "values", "message"),
    [
        (b'1\n{"secret": }\n3', [1], r"<bytes>: line 2 is not JSON: Expecting value at column 12"),
        (b"\n\n1 2\n", [], r"<bytes>: line 3 is not JSON: Extra data at column 3"),
        (b"1\n" + b"[" * 100_000, [1], r"<bytes>: line 2 is not JSON: it is nested too deeply"),
        (b"9" * 5000, [], r"<bytes>: line 1 is not JSON: it holds a number of too many digits"),
        (b'1\n"\xff"', [1], r"<bytes> is not utf-8: byte 0xff at offset 1 of line 2"),
        (b"1\n" + b"2" * 100, [1], r"<bytes>: line 2 is longer than 50 bytes"),
    ],
)
def test_an_error_names_the_file_and_the_line_and_shows_no_text(
    data: bytes, values: list[Any], message: str
) -> None:
    found, error = read(data, **({"max_line": 50} if "longer" in message else {}))
    assert found == values
    assert error.startswith(message)
    assert "secret" not in error


def test_a_byte_order_mark_is_no_part_of_the_first_value() -> None:
    assert read(b"\xef\xbb\xbf1\n2") == ([1, 2], "")
    assert read(b"1\n\xef\xbb\xbf2")[1].startswith("<bytes>: line 2 is not JSON")


def test_ten_thousand_mutations_give_what_a_plain_loop_reads() -> None:
    """In parts of any size: the lines before the first damaged one, and the number of that line."""
    data = "".join(json.dumps({"id": each, "t": ["é", None, 1.5e3, True]}) + "\n" for each in range(6)).encode()
    draw = random.Random(0)
    decoder = af.json_lines(compression=None)
    for _ in range(10_000):
        mutated = bytearray(data)
        for _ in range(draw.choice([1, 1, 2, 4])):
            where = draw.randrange(len(mutated))
            match draw.randrange(3):
                case 0:
                    mutated[where] = draw.choice(b'\n\r "[]{},:0\\\xff\xc3')
                case 1:
                    del mutated[where : where + draw.randrange(1, 9)]
                case _:
                    mutated[where:where] = mutated[: draw.randrange(1, 30)]
        values, line = by_hand(bytes(mutated))
        found = decoder.decode(bytes(mutated), "a", 1)
        assert (found.samples, found.error is None) == (values, line is None)
        assert line is None or f"line {line}" in str(found.error)


def test_it_is_a_value_and_refuses_what_means_nothing() -> None:
    assert pickle.loads(pickle.dumps(af.json_lines)) == af.json_lines == af.json_lines(compression="auto")
    assert repr(af.json_lines(max_line=10, compression="gzip")) == "json_lines(compression='gzip', max_line=10)"
    with pytest.raises(PipelineError, match="json_lines: max_line must be a whole number of at least 1, not 0"):
        af.json_lines(max_line=0)
