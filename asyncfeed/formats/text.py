"""Files that are one text, and files that are one JSON document."""

from __future__ import annotations

import codecs
import json as standard_json
from dataclasses import dataclass
from typing import Any, overload

from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.base import Data, Decoder
from asyncfeed.reading.file import Bytes, File


@dataclass(frozen=True, repr=False)
class Text(Decoder[str]):
    """A file as one `str`, with its line ends as they are.

    Raises:
        Corrupt: The bytes are not of the encoding. The message says where the first of them is.

    Example:
        >>> text(encoding="latin-1")
        text(encoding='latin-1')
    """

    name = "text"
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding)
        except (LookupError, TypeError, ValueError) as error:
            raise PipelineError(
                f"text: there is no encoding {self.encoding!r}; the usual one is 'utf-8'"
            ) from error

    @overload
    def __call__(self, data: Data, /) -> str: ...
    @overload
    def __call__(self, *, encoding: str) -> Text: ...
    def __call__(self, *data: Any, encoding: str = "utf-8") -> Text | str:
        """Return a decoder for another encoding; with the bytes of a file, return its text.

        Args:
            *data: The bytes of a file, instead of an encoding.
            encoding: The name of the encoding.
        """
        return super().__call__(*data) if data else Text(encoding)

    def decode(self, buffer: Bytes, file: File) -> str:
        """Return the text in `buffer`."""
        try:
            return str(buffer.data, self.encoding)
        except UnicodeDecodeError as error:
            raise _not_text(file, error) from error


@dataclass(frozen=True, repr=False)
class Json(Decoder[Any]):
    """A file as one JSON document: dicts, lists, strings, numbers.

    The encoding is UTF-8, -16 or -32 and is seen from the bytes.

    Raises:
        Corrupt: The file is not JSON.

    Example:
        >>> json
        json
    """

    name = "json"

    def decode(self, buffer: Bytes, file: File) -> Any:
        """Return the document in `buffer`."""
        try:
            return standard_json.loads(buffer.tobytes())
        except UnicodeDecodeError as error:
            raise _not_text(file, error) from error
        except RecursionError as error:
            raise Corrupt(f"{file.path} is JSON nested too deeply to read") from error
        except ValueError as error:  # not only JSONDecodeError: a number of too many digits is one as well
            raise _not_json(file, error) from error


def _not_json(file: File, error: ValueError) -> Corrupt:
    # `msg` names what was expected, and never shows the document.
    if isinstance(error, standard_json.JSONDecodeError):
        if error.msg == "Extra data" and error.doc[: error.pos].rstrip(" \t").endswith("\n"):
            return Corrupt(
                f"{file.path} is not one JSON document: another follows on line {error.lineno}. For one on each "
                "line write files(...).flat_map(json_lines)"
            )
        what = error.msg.partition(":")[0]
        return Corrupt(f"{file.path} is not JSON: {what} at line {error.lineno} column {error.colno}")
    return Corrupt(f"{file.path} is not JSON: it holds a number of too many digits")


text = Text()
json = Json()


def _not_text(file: File, error: UnicodeDecodeError) -> Corrupt:
    return Corrupt(
        f"{file.path} is not {error.encoding}: byte 0x{error.object[error.start]:02x} at offset "
        f"{error.start} ({error.reason}); for another encoding write text(encoding=...)"
    )
