"""Files: what a file is, how files are listed, and what reads them.

Each thing has one place:

* `file.py`: a `File` is listed and not read. It names its store and the version that was listed.
* `listing.py`, `glob.py`: from paths and patterns to files of the local disk.
* `reader.py`: what a `Store`, a `Reader` and an `AsyncReader` are.
* `local.py`, `opener.py`: the local disk. `memory.py`: bytes that are in memory already.
* `urls.py`, `objects.py`: from a URL to the store that it names. `keys.py`: many objects, and patterns of them.
* `obstore_*.py`: object stores through obstore: its client, its errors, the reader, the listing.
* `cached.py`: a store behind a cache. `cached_samples.py`, `sample_storage.py`, `samples.py`: samples
  that are kept.
  `cache_folder.py`: the folder of both.
* `scope.py`: which reader the code of a run gets for a file. `stream.py`: the bytes of a file, read in order.
  `ranges.py`: parts of a file, read in any order.

Ownership, and when each thing is closed:

* A store is a value. It opens nothing, so it is never closed.
* A run makes one reader for each store of its files, when it reads the first file of that store. All stages of the
  run share the reader. The run closes it once, however the run ends, after all reads have ended or were given up.
* Outside a run, the function that reads makes a reader for that one use and closes it.
* A reader owns what it opens beyond one call: connections, caches. If it opens something for one call, it closes
  that in the same call, whatever happens. The caller of `open` or `stream` closes what it gets.
* The memory that is read into belongs to the caller. A reader keeps no reference to it after the call. Memory that
  a reader returns belongs to the caller, too.
* A decoder gets bytes. It opens nothing.

`docs/extending.md` shows how to write a store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.memory import MemoryStore
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.reading.reader import AsyncReader, Buffers, Range, Reader, Store

if TYPE_CHECKING:
    from asyncfeed.reading.ranges import ByteRanges
    from asyncfeed.reading.stream import ByteStream

__all__ = [
    "AsyncReader",
    "Buffers",
    "ByteRanges",
    "ByteStream",
    "Bytes",
    "File",
    "MemoryStore",
    "ObjectStore",
    "Range",
    "Reader",
    "Store",
]


# These know asyncio. Descriptions import this package, and must not bring asyncio.
_LATER = {"ByteRanges": "asyncfeed.reading.ranges", "ByteStream": "asyncfeed.reading.stream"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module 'asyncfeed.reading' has no attribute {name!r}")
        return getattr(import_module(_LATER[name]), name)
