"""The index of a file of records: where each record is. It is made once, and kept in a small file.

The index of a local file is beside it, in a hidden file, so that patterns such as `data/*` do not match it. With a
folder, the indexes of all files are there, named by a hash of the store and the path.

An index counts if it is of the same kind and format, and of a file of the same size and version. Beside a local
file it counts, too, if it is not older than the file. So files can be copied together with their indexes.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np

from asyncfeed.formats.records import Edges, RecordDecoder
from asyncfeed.reading.file import File
from asyncfeed.reading.record_scan import scanned
from asyncfeed.writing.whole import write_whole

MAGIC: Final = b"asyncfeed index 1\n"


def edges_of(files: Sequence[File], decoder: RecordDecoder[Any]) -> list[Edges]:
    """Return the edges of the records in each file. Make and keep the indexes that are missing. This blocks."""
    found: dict[int, Edges] = {}
    missing: list[int] = []
    for at, file in enumerate(files):
        kept = _load(_place(file, decoder), file, decoder.kind)
        if kept is None:
            missing.append(at)
        else:
            found[at] = kept
    _make(files, missing, decoder, found)
    return [found[at] for at in range(len(files))]


def _make(files: Sequence[File], missing: list[int], decoder: RecordDecoder[Any], found: dict[int, Edges]) -> None:
    unkept = ""
    for at, edges in zip(missing, scanned([files[at] for at in missing], decoder), strict=True):
        found[at] = edges
        unkept = unkept or _keep(files[at], decoder, edges)
    if unkept:
        warnings.warn(
            f"asyncfeed: the index cannot be kept ({unkept}), so each program makes it again: give a folder, "
            f"as in {decoder.name}(indexed='folder')",
            RuntimeWarning,
            stacklevel=2,
        )


# -- keeping


def _place(file: File, decoder: RecordDecoder[Any]) -> Path | None:
    """Return where the index of a file is kept; None if it is not kept."""
    if isinstance(decoder.indexed, bool):
        if file.store is not None:
            return None
        return _beside(Path(file.path))
    store = "" if file.store is None else file.store.identity
    if store is None:
        return None
    path = file.path if file.store is not None else str(Path(file.path).absolute())
    digest = blake2b(json.dumps([store, path, decoder.kind]).encode(), digest_size=16).hexdigest()
    return Path(decoder.indexed, f"{digest}.index")


def _load(place: Path | None, file: File, kind: str) -> Edges | None:
    """Return the edges in an index; None if there is none, or if it is of something else."""
    if place is None:
        return None
    try:
        data = place.read_bytes()
        head, _, body = data.removeprefix(MAGIC).partition(b"\n")
        known = json.loads(head)
        edges = np.frombuffer(body, "<u8").astype(np.uint64)
        whole = data.startswith(MAGIC) and known["kind"] == kind and known["crc"] == zlib.crc32(body)
        if not whole or not len(edges) or (edges[1:] < edges[:-1]).any() or int(edges[-1]) > known["size"]:
            return None
        if file.size is None:  # the file was not listed
            listed = Path(file.path).stat()
            file = File(file.path, listed.st_size, listed.st_mtime_ns)
        same = file.version is not None and known["version"] == file.version
        newer = file.store is None and place.parent == Path(file.path).parent and _is_newer(place, file)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return edges if known["size"] == file.size and (same or newer) else None


def _is_newer(place: Path, file: File) -> bool:
    return place.stat().st_mtime_ns >= (file.mtime_ns or Path(file.path).stat().st_mtime_ns)


def _keep(file: File, decoder: RecordDecoder[Any], edges: Edges) -> str:
    """Write an index. Return why it cannot be kept, else an empty text."""
    place = _place(file, decoder)
    if place is None:
        return f"{file.store!r} has no name"
    if file.size is None or (file.store is None and file.version is None):
        listed = Path(file.path).stat()
        file = File(file.path, listed.st_size, listed.st_mtime_ns)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, _as_bytes(decoder.kind, edges, file))
    except OSError as error:
        return f"{place.parent}: {error.strerror or error}"
    return ""


def index_beside(path: Path, kind: str, edges: Edges) -> None:
    """Write the index of a local file that has just been written."""
    listed = path.stat()
    write_whole(_beside(path), _as_bytes(kind, edges, File(str(path), listed.st_size, listed.st_mtime_ns)))


def _beside(path: Path) -> Path:
    return path.parent / f".{path.name}.index"


def _as_bytes(kind: str, edges: Edges, file: File) -> bytes:
    body = edges.astype("<u8").tobytes()
    head = {"kind": kind, "size": file.size, "version": file.version, "crc": zlib.crc32(body)}
    return MAGIC + json.dumps(head).encode() + b"\n" + body
