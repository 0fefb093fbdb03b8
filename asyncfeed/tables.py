"""Tables: the rows of a CSV file, with the types that are asked for or that cannot lose anything.

Python's own `csv` reads the file. Larger readers (pyarrow, polars) guess types by rules that lose text such as
"01234", and are hundreds of MB to install.
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
from asyncfeed.numbered import Numbered
from asyncfeed.pipeline import Pipeline
from asyncfeed.reading.glob import has_magic
from asyncfeed.reading.listing import FileList, Pattern, expand
from asyncfeed.stages.base import Source, show
from asyncfeed.stages.steps import Indexed

INT64 = range(-(2**63), 2**63)
"""The whole numbers that a batch can hold."""
TRUTH = {"true": True, "false": False, "1": True, "0": False}
"""What `types={...: bool}` reads, in any case: `bool("False")` is True."""


@dataclass(frozen=True)
class Table(Source):
    """The rows of a CSV file, some of whose columns name files."""

    path: str
    files: tuple[str, ...] = ()
    root: str | None = None
    types: Mapping[str, Callable[[str], Any]] = field(default_factory=dict, repr=False)
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)

    method: ClassVar[str] = "table"
    positional: ClassVar[tuple[str, ...]] = ("path",)

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return that nothing is known: cells are no arrays."""
        return Unknown()

    def indexed(self) -> Indexed:
        """Return the rows by number, as dictionaries."""
        columns = self.columns
        count = len(next(iter(columns.values())))

        def fetch(places: Sequence[int]) -> list[dict[str, Any]]:
            return [{name: column[place] for name, column in columns.items()} for place in places]

        def name(place: int) -> str:
            paths = [columns[each][place].path for each in self.files]
            return ", ".join(paths) if paths else f"row {place} of {self.path}"

        return Numbered(count, fetch, name=name)

    def __str__(self) -> str:
        """Return the call, with the types by their names."""
        given = ", ".join(f"{name!r}: {show(kind)}" for name, kind in self.types.items())
        text = super().__str__()
        return f"{text[:-1]}, types={{{given}}})" if given else text


def table(
    path: Pattern,
    *,
    files: str | Sequence[str] = (),
    types: Mapping[str, Callable[[str], Any]] | None = None,
    root: Pattern | None = None,
) -> Pipeline[dict[str, Any]]:
    r"""Feed the rows of a CSV file with a header as dictionaries.

    The file is UTF-8. Python's `csv` reads it here, once, as `files` is listed.

    Args:
        path: The CSV file.
        files: The columns, one name or several, whose paths become `File`s to load.
        types: What each column becomes: int, float, bool (true, false, 1, 0), str, or any function of the text. A
            column that is not named becomes numbers only if that loses nothing: written back, they are the same
            text in every row. So "01234", "1_000", "+5", "1.10", "1e5", " 1", "nan" and whole numbers beyond int64
            keep their column text.
        root: The folder that paths are relative to and must not lead out of. By default it is the folder of the
            CSV file.

    Raises:
        PipelineError: There is no header or row, rows differ in length, a column is unknown, a type refuses its
            value, or a path leads out of `root`. The message names line and column.
        FileNotFoundError: A file does not exist.
        IsADirectoryError: A path is a directory.

    Order:
        That of the rows.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.csv"
        >>> _ = path.write_text("name,zip,label\na,01234,1\nb,56789,2\n")
        >>> list(table(path))
        [{'name': 'a', 'zip': '01234', 'label': 1}, {'name': 'b', 'zip': '56789', 'label': 2}]
        >>> next(iter(table(path, types={"zip": int, "label": str})))
        {'name': 'a', 'zip': 1234, 'label': '1'}
    """
    text = os.fspath(path)
    wanted = (files,) if isinstance(files, str) else tuple(files)
    kinds = dict(types or {})
    read = _read(text)
    for name in (*wanted, *kinds):
        if name not in read.columns:
            raise PipelineError(f"table: {text} has no column {name!r}; it has {', '.join(read.columns)}")
    for name, kind in kinds.items():
        if name in wanted:
            raise PipelineError(f"table: column {name!r} is one of files; it has no other type")
        if not callable(kind):
            raise PipelineError(f"table: the type of {name!r} must be int, float or a function, not {kind!r}")
    base = os.path.dirname(text) or "." if root is None else os.fspath(root)  # noqa: PTH120
    columns: dict[str, Sequence[Any]] = {}
    for name, column in read.columns.items():
        if name in wanted:
            columns[name] = _files(read, name, base)
        elif name in kinds:
            columns[name] = _convert(read, name, kinds[name])
        else:
            columns[name] = infer(column)
    return Pipeline(Table(text, wanted, None if root is None else base, kinds, columns))


@dataclass(frozen=True, eq=False)
class _Read:
    """What is in a CSV file: text, and the line that each row starts at."""

    path: str
    columns: dict[str, list[str]]
    lines: list[int]

    def where(self, row: int, name: str) -> str:
        return f"line {self.lines[row]} of {self.path}, column {name!r}"


def _read(path: str) -> _Read:
    import csv  # noqa: PLC0415 - whoever reads no table need not wait for it

    rows: list[list[str]] = []
    lines: list[int] = []
    with open(path, newline="", encoding="utf-8-sig") as source:  # noqa: PTH123
        # Strict: a quote in the wrong place is an error, not a value with a quote in it.
        reader = csv.reader(source, strict=True)
        start = 1
        try:
            for row in reader:
                if row:  # and no blank line
                    rows.append(row)
                    lines.append(start)
                start = reader.line_num + 1
        except csv.Error as error:
            raise PipelineError(f"table: line {start} of {path} is no CSV: {error}") from error
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
            raise PipelineError(f"table: line {line} of {path} has {len(row)} fields, the header {len(header)}")
    columns = dict(zip(header, map(list, zip(*rows[1:], strict=True)), strict=True))
    return _Read(path, columns, lines[1:])


def infer(column: list[str]) -> Sequence[Any]:
    """Return a column as ints or floats if they say all that the text says, or as the text.

    A number says it if writing it gives the text. Whole numbers among floats may be written without ".0", if
    none of the column has it.

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
    convert = _truth if kind is bool else kind
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


def _truth(text: str) -> bool:
    try:
        return TRUTH[text.lower()]
    except KeyError:
        raise ValueError("it is none of true, false, 1 and 0") from None


def _files(read: _Read, name: str, base: str) -> FileList:
    """Return the files that a column names; an error gets a note that says where it stands."""
    paths = [os.path.join(base, each) for each in read.columns[name]]  # noqa: PTH118
    try:
        for path in filter(has_magic, paths):  # it may be one file, and must not be several
            os.stat(path)  # noqa: PTH116
        return expand(paths, base)
    except (OSError, PipelineError):
        for row, path in enumerate(paths):
            try:
                os.stat(path)  # noqa: PTH116
                expand([path], base)
            except (OSError, PipelineError) as error:
                error.add_note(f"table: {read.where(row, name)}")
                raise
        raise
