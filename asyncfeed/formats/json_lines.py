"""JSON lines: files with one JSON value on each line, for `flat_map`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, overload

from asyncfeed.errors import Corrupt
from asyncfeed.formats.lines import Found, LineDecoder, Source, split
from asyncfeed.reading.compression import Compressed

_JSON = json.JSONDecoder()


@dataclass(frozen=True, repr=False)
class JsonLines(LineDecoder[Any]):
    r"""The values of a file with one JSON value on each line, as Python's `json` reads them.

    Use it as `files("*.jsonl.gz").flat_map(json_lines)`. The file is UTF-8, and may be compressed. Lines that are
    blank are left out.

    Raises:
        Corrupt: A line is not one JSON value. The message names the file and the line, and does not show its text.

    Memory:
        As for `lines`. A part of the file is parsed on a thread.

    Example:
        >>> import asyncfeed as af
        >>> list(af.items([b'{"a": 1}', b'[2]\n\n"c"']).flat_map(af.json_lines))
        [{'a': 1}, [2], 'c']
    """

    name = "json_lines"
    together = 1 << 16

    @overload
    def __call__(
        self, file: Source, /, *, max_line: int | None = ..., compression: Compressed = ...
    ) -> AsyncGenerator[Any]: ...
    @overload
    def __call__(self, *, max_line: int | None = ..., compression: Compressed = ...) -> JsonLines: ...
    def __call__(
        self, *file: Source, max_line: int | None = None, compression: Compressed = "auto"
    ) -> AsyncGenerator[Any] | JsonLines:
        """Return a decoder with these options; with a file, an async generator of its values.

        Args:
            *file: A file, its path, or its bytes.
            max_line: Number of bytes that a line may have. A longer one is `Corrupt`.
            compression: As for `lines`.
        """
        decoder = self.with_options(max_line, compression)
        return super(JsonLines, decoder).__call__(*file) if file else decoder

    def decode(self, part: bytes, path: str, number: int) -> Found:
        """Return the values of lines."""
        texts, error = split(part, path, number, self.max_line)
        if number == 1 and texts:
            texts[0] = texts[0].removeprefix("\ufeff")
        values: list[Any] = []
        scan = _JSON.raw_decode
        for at, text in enumerate(texts):
            try:
                value, end = scan(text)
                if end != len(text):
                    value = json.loads(text)  # it may end with blanks
            except (ValueError, RecursionError):
                if not text or text.isspace():
                    continue
                try:
                    value = json.loads(text)  # it may begin with blanks
                except (ValueError, RecursionError) as wrong:
                    return Found(values, at, _not_json(wrong, path, number + at))
            values.append(value)
        return Found(values, len(texts), error)


json_lines = JsonLines()


def _not_json(error: Exception, path: str, number: int) -> Corrupt:
    if isinstance(error, json.JSONDecodeError):  # `msg` names what was expected, and never shows the text
        what = f"{error.msg.partition(':')[0]} at column {error.colno}"
    elif isinstance(error, RecursionError):
        what = "it is nested too deeply to read"
    else:
        what = "it holds a number of too many digits"
    found = Corrupt(f"{path}: line {number} is not JSON: {what}")
    found.__cause__ = error
    return found
