"""Records that are a `tf.train.Example`, parsed without TensorFlow: one, or a whole batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.features import Feature, as_dtype, feature
from asyncfeed.formats.wire import WireError, fields, floats, varints

MESSAGE: Final = 1 << 3 | 2
"""The tag of field 1 if its value is a message, bytes, or a packed list."""
ENTRY_VALUE: Final = 2 << 3 | 2
KINDS: Final = {1 << 3 | 2: "bytes", 2 << 3 | 2: "float", 3 << 3 | 2: "int64"}
"""The kind of a feature by the tag of its list."""
MAX_LAYOUTS: Final = 256
"""Number of layouts that are remembered. Records of any lengths would fill memory with them."""
FEW: Final = 3
"""Number of records of one layout that are parsed one by one. Arrays take a start of about 10 us."""

Features: TypeAlias = "Mapping[str, Any] | Example"
"""What to take from a record, by name: a `Feature`, or the dtype of one value."""
Range = tuple[int, int]


class Layout(NamedTuple):
    """Where the values are in a record, and in all records that are like it.

    A record is like it if it is as long, and has the same bytes outside of the values.
    """

    fixed: tuple[tuple[int, int, bytes], ...]
    """The bytes outside of the values: where they start and stop."""
    values: dict[str, Range]
    """The values of the features, if their lists are packed and have values. Other features do not have any."""


class Parsed(NamedTuple):
    """The lists of a record."""

    lists: dict[str, Sequence[Any]]
    layout: Layout | None


class Example:
    """Parses records. It keeps the layouts it has seen, and may be used by many threads. Made by `example`."""

    def __init__(self, features: Mapping[str, Feature]) -> None:
        self.features = dict(features)
        self._keys = {name.encode(): name for name in features}
        self._layouts: dict[int, Layout] = {}
        """The last layout for each length of a record."""

    @overload
    def __call__(self, record: bytes, /) -> dict[str, Any]: ...
    @overload
    def __call__(self, record: list[bytes], /) -> dict[str, npt.NDArray[Any]]: ...
    def __call__(self, record: bytes | list[bytes], /) -> dict[str, Any]:
        """Return the features of a record by name. For a list of records, return arrays with one row for each.

        Raises:
            Corrupt: A record is not an `Example`, or does not have what the features say.
        """
        if isinstance(record, list):
            return self._batch(record)
        if isinstance(record, bytes):
            return self._one(record)
        raise TypeError(f"example takes a record as bytes, or a list of records, not {type(record).__name__}")

    def __repr__(self) -> str:
        return f"example([{', '.join(map(repr, self.features))}])"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Example) and repr(self.features) == repr(other.features)

    def __hash__(self) -> int:
        return hash(tuple(self.features))

    def __reduce__(self) -> tuple[Callable[..., Example], tuple[dict[str, Feature]]]:
        return Example, (self.features,)

    # -- one record

    def _one(self, record: bytes) -> dict[str, Any]:
        layout = self._layouts.get(len(record))
        try:
            if layout is not None and all(record[start:stop] == same for start, stop, same in layout.fixed):
                return {name: self._value(name, record, layout.values.get(name)) for name in self.features}
            return {name: self._made(name, found) for name, found in self._lists(record).items()}
        except WireError as error:
            raise Corrupt(f"the record is not a tf.train.Example: {error}") from error

    def _value(self, name: str, record: bytes, where: Range | None) -> Any:
        wanted = self.features[name]
        if where is None:
            return self._made(name, None)
        start, stop = where
        if wanted.kind == "float" and wanted.shape:
            return self._made(name, np.frombuffer(record, "<f4", (stop - start) // 4, start))
        return self._made(name, values_at(wanted.kind, record, start, stop))

    def _made(self, name: str, values: Sequence[Any] | npt.NDArray[Any] | None) -> Any:
        wanted = self.features[name]
        try:
            return wanted.missing() if values is None else wanted.array(values)
        except (ValueError, OverflowError) as error:
            raise Corrupt(f"feature {name!r}: {error}") from error

    def _lists(self, record: bytes) -> dict[str, Sequence[Any] | None]:
        """Return the values of each feature, None if there are none, and remember the layout of the record."""
        found: dict[str, Range] = {}
        holes: list[Range] = []
        for tag, start, stop in fields(record, 0, len(record)):
            if tag != MESSAGE:
                continue
            for inner, begin, end in fields(record, start, stop):
                if inner == MESSAGE:
                    self._entry(record, begin, end, found, holes)
        lists: dict[str, Sequence[Any] | None] = {}
        places: dict[str, Range] | None = {}
        for name in self.features:
            values, where = self._feature(record, name, found.get(name))
            lists[name] = values
            if values is not None and where is None:
                places = None
            elif places is not None and where is not None:
                places[name] = where
                holes.append(where)
        if places is not None and len(self._layouts) < MAX_LAYOUTS:
            self._layouts[len(record)] = Layout(_outside(record, sorted(holes)), places)
        return lists

    def _entry(self, record: bytes, start: int, stop: int, found: dict[str, Range], holes: list[Range]) -> None:
        """Note where the feature of one entry of the map is. The last one of a name counts."""
        key, value = b"", (stop, stop)
        for tag, begin, end in fields(record, start, stop):
            if tag == MESSAGE:
                key = record[begin:end]
            elif tag == ENTRY_VALUE:
                value = begin, end
        name = self._keys.get(key)
        if name is None:
            holes.append(value)
        else:
            found[name] = value

    def _feature(self, record: bytes, name: str, where: Range | None) -> tuple[Sequence[Any] | None, Range | None]:
        """Return the values of a feature, and where they are if they can be found there in similar records."""
        if where is None:
            return None, None
        kind = ""
        lists: list[Range] = []
        for tag, start, stop in fields(record, *where):
            if tag in KINDS:
                if KINDS[tag] != kind:
                    kind, lists = KINDS[tag], []
                lists.append((start, stop))
        if not kind:
            return None, None
        wanted = self.features[name]
        if kind != wanted.kind:
            raise Corrupt(f"feature {name!r}: it has values of {kind}, and not of {wanted.kind}")
        values: list[Any] = []
        places: list[Range] = []
        for begin, end in lists:
            for tag, start, stop in fields(record, begin, end):
                if tag == MESSAGE:
                    values += values_at(wanted.kind, record, start, stop)
                    places.append((start, stop))
                elif tag == 1 << 3 | 5 and kind == "float":
                    values += floats(record, start, stop)
                    places.append((start, start))
                elif tag == 1 << 3 and kind == "int64":
                    values += varints(record, start, stop)
                    places.append((start, start))
        alone = len(places) == 1 and places[0][0] < places[0][1]
        return values, places[0] if alone else None

    def rows(self, records: list[bytes], path: str, first: int) -> tuple[list[dict[str, Any]], Corrupt | None]:
        """Return the samples of consecutive records, and the error after them, which names the record."""
        if len(records) > FEW and not any(wanted.ragged for wanted in self.features.values()):
            try:
                columns = self._batch(records)
            except Corrupt:
                pass  # found below
            else:
                names = list(columns)
                return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)], None
        samples: list[dict[str, Any]] = []
        for number, record in enumerate(records, first):
            try:
                samples.append(self._one(record))
            except Corrupt as error:
                return samples, Corrupt(f"{path}, record {number}: {error}")
        return samples, None

    # -- a batch

    def _batch(self, records: list[bytes]) -> dict[str, npt.NDArray[Any]]:
        for name, wanted in self.features.items():
            if wanted.ragged:
                raise PipelineError(
                    f"example: feature {name!r} has any length, so a list of records makes no array: "
                    "write .map(example(...)).batch(...).pad()"
                )
        count = len(records)
        out = {
            name: np.empty((count, *(each or 0 for each in wanted.shape)), wanted.dtype)
            for name, wanted in self.features.items()
        }
        alike: dict[int, list[int]] = {}
        for place, record in enumerate(records):
            alike.setdefault(len(record), []).append(place)
        for length, places in alike.items():
            rest = places
            if len(places) > FEW:
                if length not in self._layouts:
                    self._one(records[places[0]])
                if length in self._layouts:
                    rest = self._together(records, places, self._layouts[length], out)
            for place in rest:
                for name, value in self._one(records[place]).items():
                    out[name][place] = value
        return out

    def _together(
        self, records: list[bytes], places: list[int], layout: Layout, out: dict[str, npt.NDArray[Any]]
    ) -> list[int]:
        """Parse records of one length that have this layout. Return the places of the others."""
        whole = len(places) == len(records)
        alike = records if whole else [records[place] for place in places]
        joined = b"".join(alike)
        table = np.frombuffer(joined, np.uint8).reshape(len(places), -1)
        same = np.ones(len(places), bool)
        for start, stop, fixed in layout.fixed:
            same &= (table[:, start:stop] == np.frombuffer(fixed, np.uint8)).all(axis=1)
        columns: dict[str, npt.NDArray[Any]] = {}
        for name, wanted in self.features.items():
            if name in layout.values:
                start, stop = layout.values[name]
                if wanted.kind == "bytes":
                    column = _texts([record[start:stop] for record in alike], wanted)
                else:
                    column = _column(table[:, start:stop], wanted)
                if column is None:
                    return places
                columns[name] = column
            elif whole and same.all():
                out[name][:] = self._made(name, None)
            else:
                return places
        if same.all() and whole:
            for name, column in columns.items():
                out[name][:] = column
            return []
        chosen = np.array(places)[same]
        for name, column in columns.items():
            out[name][chosen] = column[same]
        return [place for place, like in zip(places, same.tolist(), strict=True) if not like]


def example(features: Features) -> Example:
    """Return a function that parses a record that is a `tf.train.Example`, or a list of such records.

    Use it as `.batch(32, collate=example(...))` after `flat_map(tfrecord)`: it then parses a batch at once, which
    is fastest. Or as `.map(example(...))` for single records. TensorFlow is not needed.

    Args:
        features: What to take from a record, by name: a dtype for one value, or `feature(dtype, shape)`. Other
            features are left out.

    Returns:
        The function. It returns a dict of arrays, with one row for each record if it got a list. Features of the
        shape () are scalars; those of bytes are objects.

    Raises:
        Corrupt: While the pipeline runs: a record is not an `Example`, or does not have what `features` say.

    Memory:
        The arrays are new. They are not views of the records.

    Example:
        >>> import asyncfeed as af
        >>> record = bytes.fromhex("0a100a0e0a056c6162656c12051a030a010a")
        >>> parse = af.example({"label": af.feature("int64"), "weight": af.feature("float32", default=1.0)})
        >>> [(int(each["label"]), float(each["weight"])) for each in af.items([record]).map(parse)]
        [(10, 1.0)]
        >>> [batch["label"].tolist() for batch in af.items([record] * 3).batch(2, collate=parse)]
        [[10, 10], [10]]
    """
    if isinstance(features, Example):
        return features
    if not isinstance(features, Mapping) or not features:
        raise PipelineError("example: features must be a dict, as in example({'label': 'int64'})")
    made: dict[str, Feature] = {}
    for name, wanted in features.items():
        if not isinstance(name, str):
            raise PipelineError(f"example: the name of a feature must be text, not {name!r}")
        try:
            made[name] = wanted if isinstance(wanted, Feature) else feature(wanted)
        except PipelineError as error:
            raise PipelineError(f"example: feature {name!r}: {str(error).removeprefix('feature: ')}") from None
    return Example(made)


def values_at(kind: str, record: bytes, start: int, stop: int) -> Sequence[Any]:
    """Return the values of a packed list, or the one value of bytes."""
    if kind == "bytes":
        return (record[start:stop],)
    return floats(record, start, stop) if kind == "float" else varints(record, start, stop)


def _outside(record: bytes, holes: list[Range]) -> tuple[tuple[int, int, bytes], ...]:
    """Return the bytes between the holes."""
    found, at = [], 0
    for start, stop in [*holes, (len(record), len(record))]:
        if start > at:
            found.append((at, start, record[at:start]))
        at = max(at, stop)
    return tuple(found)


def _texts(values: list[bytes], wanted: Feature) -> npt.NDArray[Any] | None:
    """Return one value of many records. None if a record must have another number of values."""
    if wanted.count != 1:
        return None
    column = np.empty(len(values), object)
    column[:] = values
    return column.reshape(len(values), *(each or 0 for each in wanted.shape))


def _column(cells: npt.NDArray[np.uint8], wanted: Feature) -> npt.NDArray[Any] | None:
    """Return the values in the same bytes of many records. None if each record must be parsed."""
    rows, width = cells.shape
    if wanted.kind == "float":
        if width != 4 * wanted.count:
            return None
        return cells.view("<f4").reshape(rows, *(each or 0 for each in wanted.shape))
    if wanted.kind != "int64" or wanted.shape or width > 9:
        return None
    bits = (cells & 0x7F).astype(np.int64) << (7 * np.arange(width))
    if not ((cells >= 0x80) == (np.arange(width) < width - 1)).all():
        return None
    try:
        return as_dtype(bits.sum(axis=1), wanted.dtype)
    except ValueError:
        return None
