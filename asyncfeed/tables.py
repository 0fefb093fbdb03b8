"""Tables: the rows of a CSV file.

A column has the type that the user gives. Without one, a column becomes numbers only if no text is lost.

Python's own `csv` reads the file. pyarrow and polars are not used: their type guessing loses text such as "01234",
and each takes hundreds of MB to install.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar

from asyncfeed.axes import Axes, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.formats.cells import as_bool
from asyncfeed.numbered import Numbered, pick_from
from asyncfeed.pipeline import Pipeline
from asyncfeed.reading.given import Pattern
from asyncfeed.reading.keys import ObjectList
from asyncfeed.reading.listing import FileList
from asyncfeed.reading.manifest import Namer
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.remote import OPTIONS
from asyncfeed.stages.base import Source, show
from asyncfeed.stages.steps import Indexed

INT64 = range(-(2**63), 2**63)
"""The range of whole numbers that a batch can hold."""


@dataclass(frozen=True)
class Table(Source):
    """The rows of a CSV file. The columns in `files` hold `File`s."""

    path: str
    files: tuple[str, ...] = ()
    root: str | None = None
    types: Mapping[str, Callable[[str], Any]] = field(default_factory=dict, repr=False)
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)

    method: ClassVar[str] = "table"
    positional: ClassVar[tuple[str, ...]] = ("path",)

    def deciding(self) -> dict[str, object]:
        """Return the columns: the folder of the file does not count."""
        return {"types": self.types} | {f"column {name}": column for name, column in self.columns.items()}

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: a row is a dictionary of cells, and a cell has no axes."""
        return Unknown()

    @property
    def reads_on_loop(self) -> bool:
        """Whether some files are of a store that is read on the loop."""
        found = [self.columns[name] for name in self.files]
        return any(isinstance(each, ObjectList) and each.reads_on_loop for each in found)

    def indexed(self) -> Indexed:
        """Return the rows by number, as dictionaries."""
        columns = self.columns
        count = len(next(iter(columns.values())))

        def fetch(places: Sequence[int]) -> list[dict[str, Any]]:
            picked = [
                column.pick(places) if isinstance(column, FileList | ObjectList) else pick_from(column, places)
                for column in columns.values()
            ]
            return [dict(zip(columns, row, strict=True)) for row in zip(*picked, strict=True)]

        def name(place: int) -> str:
            paths = [columns[each][place].path for each in self.files]
            return ", ".join(paths) if paths else f"row {place} of {self.path}"

        return Numbered(count, fetch, name=name)

    def __str__(self) -> str:
        """Return the call as it is written, with the names of the types."""
        given = ", ".join(f"{name!r}: {show(kind)}" for name, kind in self.types.items())
        text = super().__str__()
        return f"{text[:-1]}, types={{{given}}})" if given else text


def table(
    path: Pattern,
    *,
    files: str | Sequence[str] = (),
    types: Mapping[str, Callable[[str], Any]] | None = None,
    root: Pattern | None = None,
    store: ObjectStore | None = None,
    **options: Any,
) -> Pipeline[dict[str, Any]]:
    r"""Feed the rows of a CSV file as dictionaries, with the names of its header as keys.

    The file must be UTF-8. This call reads it, and no run reads it again.

    Args:
        path: The CSV file.
        files: The name of a column, or several names. The paths or URLs in these columns become `File`s to load.
            A URL is not looked up, so its size is not known until it is read.
        types: The type of each column: int, float, bool (true, false, 1, 0), str, or any function of the text. A
            column without a type becomes numbers only if every number, written back, gives the text of its cell.
            Otherwise the column stays text. So a column stays text if one of its cells is "01234", "1_000", "+5",
            "1.10", "1e5", " 1", "nan", or a whole number beyond int64.
        root: The folder or URL that paths are relative to. A path must not lead out of it. By default it is the
            folder of the CSV file.
        store: What reads the URLs. By default obstore does, see `files`.
        options: How an object store is reached: `endpoint`, `anonymous` and more, see `files`.

    Raises:
        PipelineError: The header is missing, there is no row, rows differ in length, a column is unknown, a type
            refuses a value, or a path leads out of `root`. The message names the line and the column.
        FileNotFoundError: A file does not exist.
        IsADirectoryError: A path is a directory.

    Order:
        The order of the rows.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.csv"
        >>> _ = path.write_text("name,zip,label\na,01234,1\nb,56789,2\n")
        >>> list(table(path))
        [{'name': 'a', 'zip': '01234', 'label': 1}, {'name': 'b', 'zip': '56789', 'label': 2}]
        >>> next(iter(table(path, types={"zip": int, "label": str})))
        {'name': 'a', 'zip': 1234, 'label': '1'}
    """
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise PipelineError(f"table: no option {unknown[0]!r}; for URLs it has {', '.join(OPTIONS)}")
    text = os.fspath(path)
    wanted = (files,) if isinstance(files, str) else tuple(files)
    kinds = dict(types or {})
    read = _read(text)
    for name in (*wanted, *kinds):
        if name not in read.columns:
            raise PipelineError(f"table: {text} has no column {name!r}; it has {', '.join(read.columns)}")
    for name, kind in kinds.items():
        if name in wanted:
            raise PipelineError(f"table: column {name!r} is in `files` and in `types`; remove it from one of them")
        if not callable(kind):
            raise PipelineError(f"table: the type of {name!r} must be int, float or a function, not {kind!r}")
    base = os.path.dirname(text) or "." if root is None else os.fspath(root)  # noqa: PTH120
    columns: dict[str, Sequence[Any]] = {}
    for name, column in read.columns.items():
        if name in wanted:
            columns[name] = _files(read, name, Namer(base, store, options))
        elif name in kinds:
            columns[name] = _convert(read, name, kinds[name])
        else:
            columns[name] = infer(column)
    return Pipeline(Table(text, wanted, None if root is None else base, kinds, columns))


@dataclass(frozen=True, eq=False)
class _Read:
    """The columns of a CSV file as text, and the line that each row starts at."""

    path: str
    columns: dict[str, list[str]]
    lines: list[int]

    def where(self, row: int, name: str) -> str:
        return f"line {self.lines[row]} of {self.path}, column {name!r}"


def _read(path: str) -> _Read:
    import csv  # noqa: PLC0415 - a program without tables does not wait for this import

    rows: list[list[str]] = []
    lines: list[int] = []
    with open(path, newline="", encoding="utf-8-sig") as source:  # noqa: PTH123
        # With `strict`, a quote in the wrong place is an error. Without it, the quote would be part of the value.
        reader = csv.reader(source, strict=True)
        start = 1
        try:
            for row in reader:
                if row:  # a blank line gives an empty list
                    rows.append(row)
                    lines.append(start)
                start = reader.line_num + 1
        except csv.Error as error:
            raise PipelineError(f"table: line {start} of {path} is not valid CSV: {error}") from error
        except UnicodeDecodeError as error:
            raise PipelineError(f"table: {path} is not UTF-8 ({error.reason}); save it as UTF-8") from error
    if len(rows) < 2:
        raise PipelineError(f"table: {path} needs a header and at least one row")
    header = rows[0]
    for place, name in enumerate(header):
        if name in header[:place]:
            raise PipelineError(f"table: {path} has two columns {name!r}; rename one of them")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            raise PipelineError(
                f"table: line {line} of {path} has {len(row)} fields, the header has {len(header)}; "
                "a comma within a value needs quotes around the value"
            )
    columns = dict(zip(header, map(list, zip(*rows[1:], strict=True)), strict=True))
    return _Read(path, columns, lines[1:])


def infer(column: list[str]) -> Sequence[Any]:
    """Return a column as ints or floats if no text is lost, otherwise as text.

    No text is lost if `str` or `repr` of each number gives the text of its cell. In a column of floats, whole
    numbers may lack ".0" if no cell of the column has it.

    >>> infer(["1", "-20"]), infer(["0.5", "1"]), infer(["1", "1.0"]), infer(["007"])
    ([1, -20], [0.5, 1.0], ['1', '1.0'], ['007'])
    """
    with suppress(ValueError):
        whole = list(map(int, column))
        if list(map(str, whole)) == column and all(number in INT64 for number in whole):
            return whole
    with suppress(ValueError):
        real = list(map(float, column))
        written = list(map(repr, real))
        short = [text.removesuffix(".0") for text in written]
        if column in (written, short) and all(map(isfinite, real)):
            return real
    return column


def _convert(read: _Read, name: str, kind: Callable[[str], Any]) -> list[Any]:
    convert = as_bool if kind is bool else kind
    converted = []
    for row, value in enumerate(read.columns[name]):
        try:
            converted.append(convert(value))
        except Exception as error:
            shown = value if len(value) <= 40 else f"{value[:37]}..."
            raise PipelineError(
                f"table: {read.where(row, name)}: {show(kind)} refuses {shown!r} ({type(error).__name__}: {error})"
            ) from error
    return converted


def _files(read: _Read, name: str, namer: Namer) -> Sequence[Any]:
    """Return the files that a column names. An error names the line and the column."""
    entries = ((row, text, None, None) for row, text in enumerate(read.columns[name]))
    return namer.files(entries, lambda row: read.where(row, name))
