"""Tables of Arrow with many types, drawn by hypothesis, and what asyncfeed makes of them, written down once more."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")


class Kind(NamedTuple):
    """A type of columns."""

    type: Any
    values: st.SearchStrategy[Any]
    expected: Callable[[list[Any]], Any]
    """Turns the Python values of a column into what asyncfeed makes of it."""


def array_of(dtype: Any) -> Callable[[list[Any]], Any]:
    return lambda values: np.array(values, dtype).reshape(len(values), *np.shape(values)[1:])


def objects(values: list[Any]) -> Any:
    out = np.empty(len(values), object)
    for place, each in enumerate(values):
        out[place] = each
    return out


def ragged(inner: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    return lambda values: objects([inner(each) for each in values])


def fixed(inner: Callable[[list[Any]], Any], width: int) -> Callable[[list[Any]], Any]:
    def expected(values: list[Any]) -> Any:
        flat = inner([each for row in values for each in row])
        return flat.reshape(len(values), width, *flat.shape[1:])

    return expected


def struct(**fields: Kind) -> Kind:
    return Kind(
        pa.struct([(name, each.type) for name, each in fields.items()]),
        st.fixed_dictionaries({name: each.values for name, each in fields.items()}),
        lambda rows: {name: each.expected([row[name] for row in rows]) for name, each in fields.items()},
    )


def list_of(kind: Kind) -> Kind:
    return Kind(pa.list_(kind.type), st.lists(kind.values, max_size=3), ragged(kind.expected))


def whole(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)) if signed else 0, 2 ** (bits - signed) - 1)


NUMBERS = {f"int{bits}": Kind(getattr(pa, f"int{bits}")(), whole(bits, signed=True), array_of(f"i{bits // 8}")) for bits in (8, 16, 32, 64)}  # fmt: skip
UNSIGNED = {f"uint{bits}": Kind(getattr(pa, f"uint{bits}")(), whole(bits, signed=False), array_of(f"u{bits // 8}")) for bits in (8, 16, 32, 64)}  # fmt: skip
FLOATS = {
    "float16": Kind(
        pa.float16(), st.floats(width=16).map(np.float16), array_of("f2")
    ),  # pyarrow 18 takes no other
    "float32": Kind(pa.float32(), st.floats(width=32), array_of("f4")),
    "float64": Kind(pa.float64(), st.floats(width=64), array_of("f8")),
}
INT = NUMBERS["int32"]
TEXT = Kind(pa.string(), st.text(max_size=5), objects)
TIMES = {
    "date32": Kind(pa.date32(), st.dates(), array_of("M8[D]")),
    "timestamp[us]": Kind(pa.timestamp("us"), st.datetimes(dt.datetime(1800, 1, 1)), array_of("M8[us]")),
    "timestamp[ms, UTC]": Kind(
        pa.timestamp("ms", tz="UTC"),
        st.integers(-(10**12), 10**12),
        array_of("M8[ms]"),
    ),
    "time64[us]": Kind(pa.time64("us"), st.integers(0, 86_399_999_999), array_of("m8[us]")),
    "duration[s]": Kind(pa.duration("s"), st.integers(-(10**9), 10**9), array_of("m8[s]")),
}
OTHERS = {
    "bool": Kind(pa.bool_(), st.booleans(), array_of(np.bool_)),
    "string": TEXT,
    "large_string": Kind(pa.large_string(), st.text(max_size=5), objects),
    "binary": Kind(pa.binary(), st.binary(max_size=5), objects),
    "binary[3]": Kind(
        pa.binary(3),
        st.binary(min_size=3, max_size=3),
        lambda values: np.frombuffer(b"".join(values), np.uint8).reshape(len(values), 3),
    ),
    "decimal128": Kind(
        pa.decimal128(9, 2),
        st.integers(-(10**8), 10**8).map(lambda each: decimal.Decimal(each).scaleb(-2)),
        lambda values: np.array([float(each) for each in values], np.float64),
    ),
    "dictionary": Kind(pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b", ""]), objects),
    "list<int32>": list_of(INT),
    "large_list<string>": Kind(pa.large_list(pa.string()), st.lists(TEXT.values, max_size=3), ragged(objects)),
    "list<list<int32>>": list_of(list_of(INT)),
    "fixed list": Kind(
        pa.list_(pa.float32(), 2), st.lists(st.floats(width=32), min_size=2, max_size=2), fixed(array_of("f4"), 2)
    ),  # fmt: skip
    "struct": struct(a=INT, b=list_of(TEXT)),
    "list<struct>": Kind(
        pa.list_(pa.struct([("a", pa.int32())])),
        st.lists(st.fixed_dictionaries({"a": INT.values}), max_size=3),
        lambda rows: {"a": ragged(INT.expected)([[each["a"] for each in row] for row in rows])},
    ),
    "map": Kind(
        pa.map_(pa.string(), pa.int32()),
        st.lists(st.tuples(TEXT.values, INT.values), max_size=3),
        lambda rows: {
            "key": ragged(objects)([[key for key, _ in row] for row in rows]),
            "value": ragged(INT.expected)([[value for _, value in row] for row in rows]),
        },
    ),
}
KINDS = {**NUMBERS, **UNSIGNED, **FLOATS, **TIMES, **OTHERS}


class Drawn(NamedTuple):
    """A table, and the columns that asyncfeed makes of its rows from `start` to `stop`."""

    table: Any
    values: dict[str, list[Any]]
    kinds: dict[str, Kind]

    def expected(self, start: int, stop: int) -> dict[str, Any]:
        return {name: kind.expected(self.values[name][start:stop]) for name, kind in self.kinds.items()}


@st.composite
def tables(draw: st.DrawFn) -> Drawn:
    rows = draw(st.integers(0, 12))
    kinds = {
        f"{place}": KINDS[name]
        for place, name in enumerate(draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4)))
    }
    values = {name: [draw(kind.values) for _ in range(rows)] for name, kind in kinds.items()}
    table = pa.table({name: pa.array(values[name], kind.type) for name, kind in kinds.items()})
    return Drawn(table, values, kinds)


def assert_same(found: Any, expected: Any) -> None:
    """Assert that two trees of arrays have the same dtypes, shapes and values."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.flags.writeable
        if expected.dtype == object:
            for one, other in zip(found.flat, expected.flat, strict=True):
                assert_same(one, other)
        else:
            np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected or (math.isnan(found) and math.isnan(expected))
