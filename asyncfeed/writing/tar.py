"""Samples as members of a tar archive, as WebDataset stores them."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any, Final

import numpy as np

from asyncfeed.formats.tar_archive import BLOCK, KEY
from asyncfeed.writing.encoder import Encoder


class TarEncoder(Encoder):
    """Writes each sample as one member for each of its parts: see `Pipeline.to_shards`."""

    suffix = ".tar"
    kind = "tar"
    overhead = 2 * BLOCK

    def encode(self, sample: Any, number: int) -> bytes:
        """Return the members of a sample."""
        if not isinstance(sample, dict) or not all(isinstance(name, str) for name in sample):
            raise TypeError(
                f"a tar archive holds dicts of parts by name, not {type(sample).__name__}: write "
                'map(lambda sample: {"jpg": ..., "cls": ...}) before it'
            )
        parts = {name: data for name, data in sample.items() if name != KEY}
        if not parts:
            raise TypeError("a sample must have parts, and this one has none")
        key = sample.get(KEY, f"{number:09}")
        if not isinstance(key, str) or not _is_key(key):
            raise TypeError(f"{KEY} must be a name without a dot, below the folder of the archive, not {key!r}")
        return b"".join(_member(key, name, data) for name, data in parts.items())

    def finish(self) -> tuple[bytes, bytes]:
        """Return the end of an archive."""
        return b"", bytes(2 * BLOCK)


def _is_key(key: str) -> bool:
    folder, _, name = key.rpartition("/")
    inside = not key.startswith("/") and ".." not in folder.split("/") and "\0" not in key
    hidden = not folder and name.startswith("__") and name.endswith("__")
    return bool(name) and "." not in name and inside and not hidden


def _member(key: str, name: str, part: Any) -> bytes:
    if isinstance(part, np.ndarray) and not name.endswith("npy"):
        name = f"{name}.npy"
    if not name or name != name.lower() or "/" in name or "\0" in name:
        raise TypeError(f"the name of a part is the end of a file name, in lower case, not {name!r}")
    data = _contents(name, part)
    info = tarfile.TarInfo(f"{key}.{name}")
    info.size = len(data)
    head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return head + data + bytes(-len(data) % BLOCK)


JSON: Final = dict, list


def _contents(name: str, part: Any) -> bytes:
    if isinstance(part, bytes | bytearray | memoryview):
        return bytes(part)
    if isinstance(part, str):
        return part.encode()
    if isinstance(part, np.ndarray) and not part.dtype.hasobject:
        out = io.BytesIO()
        np.lib.format.write_array(out, part, allow_pickle=False)
        return out.getvalue()
    if isinstance(part, int | float | np.integer | np.floating | np.bool_):
        return str(part.item() if isinstance(part, np.generic) else part).encode()
    if isinstance(part, JSON) and name.rpartition(".")[2] == "json":
        return json.dumps(part).encode()
    raise TypeError(
        f"part {name!r} is {type(part).__name__}: a part is bytes, text, a number or an array; a dict or a list "
        'may be a part whose name ends with "json"'
    )
