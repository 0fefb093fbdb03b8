"""CSV files row by row, for `flat_map`. Python's own `csv` parses them, in parts that end with a line."""

from __future__ import annotations

import codecs
import csv as parsing
import io
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, overload

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.base import StreamDecoder
from asyncfeed.formats.cells import as_bool
from asyncfeed.formats.columns import as_columns, check_options
from asyncfeed.formats.lines import Source
from asyncfeed.reading.compression import Compressed
from asyncfeed.reading.copies import on_thread
from asyncfeed.reading.stream import ByteStream

Row = dict[str, Any]
Kind = Callable[[str], Any]
MAX_ROW: Final = 1 << 20
"""Characters of a row. A row of several lines is parsed again with each block of the file, so a far larger limit
lets a damaged file take seconds."""
INLINE_BYTES: Final = 1 << 12
"""Bytes that are parsed on the loop, in at most about 0.1 ms. A call on a thread takes about 0.05 ms."""


@dataclass(frozen=True, repr=False)
class Csv(StreamDecoder[Row]):
    r"""The rows of a CSV file: dicts by the names in its first row.

    Use it as `files("*.csv.gz").flat_map(csv(types={"x": float, "label": int}))`. The file may be compressed. A
    column without a type stays text: nothing is guessed. Lines end with `\n`, `\r\n` or `\r`. Empty lines are left
    out. Within quotes a field may have line ends, and a quote is written twice.

    `table` reads one small CSV file whole, so that `shuffle` is exact. This decoder reads many files of any size.

    Raises:
        Corrupt: A row has fewer or more fields than the header, or more than `max_row` characters. Or a type
            refuses a value. Or the file has no header, lacks a column, or is not of this encoding. The message
            names the file and the line at which the row begins.

    Memory:
        As for `lines`, and one row. A part of the file is parsed on a thread.

    Example:
        >>> import asyncfeed as af
        >>> data = b'name,x\n"Ada, Countess",1.5\nBob,2\n'
        >>> list(af.items([data]).flat_map(af.csv(types={"x": float})))
        [{'name': 'Ada, Countess', 'x': 1.5}, {'name': 'Bob', 'x': 2.0}]
    """

    name = "csv"
    tuning = ("max_row",)
    columns: tuple[str, ...] | None = None
    types: tuple[tuple[str, Kind], ...] = ()
    header: bool = True
    delimiter: str = ","
    quotechar: str | None = '"'
    encoding: str = "utf-8"
    max_row: int = MAX_ROW
    compression: Compressed = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.name, self.columns, max_row=self.max_row)
        names = self.columns or ()
        if not self.header and not names:
            raise PipelineError("csv: header=False needs the names of all columns: columns=['x', 'label']")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise PipelineError(f"csv: columns has {twice!r} twice")
        for name, kind in self.types:
            if names and name not in names:
                raise PipelineError(f"csv: types has {name!r}, which is not in columns")
            if not callable(kind):
                raise PipelineError(f"csv: the type of {name!r} must be int, float or a function, not {kind!r}")
        for option, mark in (("delimiter", self.delimiter), ("quotechar", self.quotechar)):
            if mark is None and option == "quotechar":
                continue
            if not isinstance(mark, str) or len(mark) != 1 or mark in "\r\n":
                raise PipelineError(f"csv: {option} must be one character, not {mark!r}")
        if self.delimiter == self.quotechar:
            raise PipelineError(f"csv: delimiter and quotechar are both {self.delimiter!r}")
        try:
            "a".encode(self.encoding)
            codecs.getincrementaldecoder(self.encoding)
        except (LookupError, TypeError) as error:
            raise PipelineError(f"csv: {self.encoding!r} is no encoding of text") from error

    @overload
    def __call__(self, file: Source, /) -> AsyncGenerator[Row]: ...
    @overload
    def __call__(
        self, *, columns: Iterable[str] | None = ..., types: Mapping[str, Kind] | None = ..., header: bool = ...,
        delimiter: str = ..., quotechar: str | None = ..., encoding: str = ..., max_row: int = ...,
        compression: Compressed = ...,
    ) -> Csv: ...  # fmt: skip
    def __call__(
        self, *file: Source, columns: Iterable[str] | None = None, types: Mapping[str, Kind] | None = None,
        header: bool = True, delimiter: str = ",", quotechar: str | None = '"', encoding: str = "utf-8",
        max_row: int = MAX_ROW, compression: Compressed = "auto",
    ) -> AsyncGenerator[Row] | Csv:  # fmt: skip
        """Return a decoder with these options; with a file, an async generator of its rows.

        Args:
            *file: A file, its path, or its bytes, instead of options.
            columns: The names of the columns to read, in the order that the dicts have. None reads all columns.
                With `header=False` the names of all columns, in their order in the file.
            types: The type of each column: int, float, `np.float32`, bool (true, false, 1, 0), or any function of
                the text. Other columns stay text.
            header: Whether the first row has the names of the columns.
            delimiter: The character between fields.
            quotechar: The character around fields. None takes it as a part of the text.
            encoding: The encoding of the text. A byte order mark is left out.
            max_row: Number of characters that a row may have. A single field may also not have more than
                `csv.field_size_limit()` of Python's `csv`, which is 131,072 unless you set it.
            compression: As for `lines`.
        """
        if types is not None and not isinstance(types, Mapping):
            raise PipelineError(
                f"csv: types must be functions by column, as in types={{'x': float}}, not {types!r}"
            )
        made = Csv(
            as_columns(self.name, columns), tuple((types or {}).items()), header, delimiter, quotechar, encoding,
            max_row, compression=compression,
        )  # fmt: skip
        if not file:
            return made
        if made != Csv():
            raise PipelineError("csv: give a file or options, not both: write csv(types=...)(file)")
        return super().__call__(*file)

    async def groups(self, stream: ByteStream) -> AsyncGenerator[list[Row]]:
        """Yield the rows that end in one block after the other."""
        reading = _Reading(self, stream.file.path)
        ended = False
        while not ended:
            block = await stream.block()
            ended = not block
            if len(block) > INLINE_BYTES:
                rows, error = await on_thread(reading.feed, block, ended)
            else:
                rows, error = reading.feed(block, ended)
            if rows:
                yield rows
            if error is not None:
                raise error


csv = Csv()


class _MoreError(Exception):
    """The text ends, and the file does not."""


def _more() -> Iterator[str]:
    raise _MoreError
    yield ""


class _Reading:
    """What is known of one file while it is read."""

    def __init__(self, options: Csv, path: str) -> None:
        self.options = options
        self.path = path
        self.decoder = codecs.getincrementaldecoder(options.encoding)()
        self.begun = False
        """Whether the first character was read."""
        self.rest = ""
        """The text behind the last whole row."""
        self.lines = 0
        """Number of lines before that text."""
        self.names: list[str] | None = None
        """The columns of the file. None: the header was not read."""
        self.places: list[int] | None = None
        """Where the wanted columns are. None: all of them are wanted."""
        if not options.header:
            self.names = list(options.columns or ())

    def feed(self, block: bytes, ended: bool) -> tuple[list[Row], Exception | None]:
        """Return the rows that end in this block, and what is wrong after them."""
        text, fault = self.decoded(block, ended)
        if text and not self.begun:
            self.begun, text = True, text.removeprefix("\ufeff")
        text = self.rest + text
        final = ended and fault is None
        # "\r" at the end may be the first half of a line end.
        whole = len(text) if final else max(text.rfind("\n"), text.rfind("\r", 0, len(text) - 1)) + 1
        rows, starts, used, error = self.parsed(text[:whole], final)
        found, wrong = self.samples(rows, starts)
        error = wrong or error
        self.rest = text[used:]
        if error is None and len(self.rest) > self.options.max_row:
            error = self.too_long(self.lines)
        if error is None and fault is not None:
            line = self.lines + self.rest.count("\n") + 1
            error = Corrupt(f"{self.path}: line {line} is not {self.options.encoding} ({fault})")
            error.__cause__ = fault
        if error is None and final and self.names is None:
            error = Corrupt(f"{self.path} is empty: it has no header")
        return found, error

    def decoded(self, block: bytes, ended: bool) -> tuple[str, UnicodeError | None]:
        """Return the text of a block up to a damaged place, and what is damaged."""
        pending, state = self.decoder.getstate()
        try:
            return self.decoder.decode(block, ended), None
        except UnicodeError as error:
            fault = error
        good = max(0, getattr(fault, "start", 0) - len(pending))
        with suppress(UnicodeError):
            self.decoder.setstate((pending, state))
            return self.decoder.decode(block[:good]), fault
        return "", fault

    def parsed(self, text: str, final: bool) -> tuple[list[tuple[str, ...]], list[int], int, Exception | None]:
        """Return whole rows, the lines before each of them, how many characters they take, and what is wrong."""
        options = self.options
        source = io.StringIO(text, newline="")
        reader = parsing.reader(
            source if final else chain(source, _more()),
            delimiter=options.delimiter,
            quotechar=options.quotechar,
            quoting=parsing.QUOTE_NONE if options.quotechar is None else parsing.QUOTE_MINIMAL,
            strict=True,
        )
        rows: list[tuple[str, ...]] = []
        starts: list[int] = []
        error: Exception | None = None
        width = len(self.names) if self.names is not None else -1
        used, line, first = 0, self.lines, self.lines
        try:
            for row in reader:
                stop = source.tell()
                if stop - used > options.max_row:
                    raise self.too_long(line)
                if len(row) == width:
                    rows.append(tuple(row))  # the garbage collector ignores tuples of text, and no lists
                    starts.append(line)
                elif row:  # an empty line gives an empty list
                    if width >= 0:
                        raise self.ragged(line, len(row))
                    width = self.read_header(row, line)
                used, line = stop, first + reader.line_num
        except _MoreError:
            pass
        except Corrupt as wrong:
            error = wrong
        except parsing.Error as wrong:
            what = str(wrong)
            if "field limit" in what:
                what = f"{what}; csv.field_size_limit(n) of Python's csv sets it"
            error = Corrupt(f"{self.path}: line {line + 1} is no CSV: {what}")
            error.__cause__ = wrong
        self.lines = line
        return rows, starts, used, error

    def read_header(self, row: list[str], line: int) -> int:
        """Take the names of the columns. Return their number."""
        name, count = Counter(row).most_common(1)[0]
        if count > 1:
            raise Corrupt(f"{self.path}: line {line + 1}, the header, has {count} columns {name!r}")
        for name in (*(self.options.columns or ()), *dict(self.options.types)):
            if name not in row:
                raise Corrupt(f"{self.path} has no column {name!r}; it has {', '.join(row)}")
        if self.options.columns is not None:
            self.places = [row.index(name) for name in self.options.columns]
        self.names = row
        return len(row)

    def samples(self, rows: list[tuple[str, ...]], starts: list[int]) -> tuple[list[Row], Exception | None]:
        """Return the rows as dicts, up to the first value that a type refuses, and the error of that value."""
        if not rows:
            return [], None
        names = self.names or []
        if self.places is None and not self.options.types:
            return [dict(zip(names, row, strict=True)) for row in rows], None
        columns: list[Any] = list(zip(*rows, strict=True))
        if self.places is not None:
            names, columns = [names[place] for place in self.places], [columns[place] for place in self.places]
        error: Exception | None = None
        count = len(rows)
        for name, kind in self.options.types:
            place = names.index(name)
            texts = columns[place][:count]
            values: list[Any] = []
            cause: Exception | None = None
            try:
                values.extend(map(as_bool if kind is bool else kind, texts))
            except Exception as refused:  # noqa: BLE001 - it is raised after the rows before it
                cause = refused
            if len(values) < count:
                count = len(values)
                error = self.refused(starts[count], name, kind, texts[count], cause)
            columns[place] = values
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=False)], error

    # Errors of the row before which there are `line` lines.

    def too_long(self, line: int) -> Corrupt:
        limit = self.options.max_row
        return Corrupt(f"{self.path}: the row at line {line + 1} has more than {limit} characters (max_row=...)")

    def ragged(self, line: int, count: int) -> Corrupt:
        names = self.names or []
        return Corrupt(f"{self.path}: the row at line {line + 1} has {count} fields, not {len(names)}")

    def refused(self, line: int, name: str, kind: Any, text: str, cause: Exception | None) -> Corrupt:
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        what = f"{getattr(kind, '__name__', kind)} refuses {shown!r}"
        error = Corrupt(f"{self.path}: line {line + 1}, column {name!r}: {what} ({type(cause).__name__}: {cause})")
        error.__cause__ = cause
        return error
