"""Tar archives, for `flat_map`: the members of each sample together, as WebDataset stores them, or each member."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from asyncfeed.errors import Corrupt
from asyncfeed.formats.lines import Source
from asyncfeed.formats.records import RecordDecoder, Scan
from asyncfeed.formats.tar_archive import BLOCK, Archive, More
from asyncfeed.reading.compression import Compressed
from asyncfeed.reading.stream import ByteStream


@dataclass(frozen=True, repr=False)
class Tar(RecordDecoder[Any]):
    r"""The samples of a tar archive, as WebDataset stores them.

    Use it as `files("*.tar").flat_map(tar)`. Consecutive members whose paths are equal up to the first dot of the
    file name are one sample: a dict with the rest of the name, in lower case, and the bytes of each member.
    `"__key__"` has the common part. So `a/1.jpg` and `a/1.cls` make `{"__key__": "a/1", "jpg": b"...", "cls":
    b"7"}`. Folders are left out, and so are files whose name begins with a dot, or begins and ends with `__`.

    Raises:
        Corrupt: The archive is damaged or cut short. Or a member is a link or a device, has more than `max_bytes`,
            has a path that leads out of the archive, or makes no part of a sample. The message names it.

    Memory:
        One sample at a time, and a block of the file.

    Example:
        >>> import asyncfeed as af, io, tarfile
        >>> with tarfile.open(fileobj=(made := io.BytesIO()), mode="w") as archive:
        ...     for name, data in [("1.cls", b"7"), ("1.txt", b"one"), ("2.cls", b"8")]:
        ...         (member := tarfile.TarInfo(name)).size = len(data)
        ...         archive.addfile(member, io.BytesIO(data))
        >>> list(af.items([made.getvalue()]).flat_map(af.tar))
        [{'__key__': '1', 'cls': b'7', 'txt': b'one'}, {'__key__': '2', 'cls': b'8'}]
        >>> next(iter(af.items([made.getvalue()]).flat_map(af.tar(members=True))))
        TarMember(path='1.cls', data=b'7')
    """

    name = "tar"
    tuning = ("max_bytes",)
    compression: Compressed = "auto"
    members: bool = False
    max_bytes: int = 1 << 30

    @overload
    def __call__(
        self, file: Source, /, *, members: bool | None = ..., max_bytes: int | None = ...,
        compression: Compressed = ..., indexed: bool | str | os.PathLike[str] = ...,
    ) -> AsyncGenerator[Any]: ...  # fmt: skip
    @overload
    def __call__(
        self, *, members: bool | None = ..., max_bytes: int | None = ..., compression: Compressed = ...,
        indexed: bool | str | os.PathLike[str] = ...,
    ) -> Tar: ...  # fmt: skip
    def __call__(
        self, *file: Source, members: bool | None = None, max_bytes: int | None = None,
        compression: Compressed = "auto", indexed: bool | str | os.PathLike[str] = False,
    ) -> AsyncGenerator[Any] | Tar:  # fmt: skip
        """Return a decoder with these options; with a file, an async generator of its samples.

        Args:
            *file: An archive, its path, or its bytes.
            members: True yields each file of the archive by itself, as a pair of its path and its bytes.
            max_bytes: Number of bytes that a file of the archive may have.
            compression: As for `lines`.
            indexed: True reaches the samples by number, see `flat_map`. The index is kept beside the archive, or
                in the folder that is given here.
        """
        decoder = replace(
            self,
            members=self.members if members is None else members,
            max_bytes=self.max_bytes if max_bytes is None else max_bytes,
            compression=compression,
            indexed=indexed,
        )
        return super(Tar, decoder).__call__(*file) if file else decoder

    async def groups(self, stream: ByteStream) -> AsyncGenerator[list[Any]]:
        """Yield the samples that end in one block after the other."""
        reading = self._archive(stream.file.path)
        ended = False
        while not ended:
            block = await stream.block()
            ended = not block
            found, error = reading.end() if ended else reading.feed(block)
            if found:
                yield found
            if error is not None:
                raise error

    @property
    def kind(self) -> str:
        """What the records are, for an index."""
        return "tar, members" if self.members else "tar"

    def scan(self, path: str, size: int) -> Scan:
        """Find where the samples are, by the headers of the members."""
        reading = self._archive(path)
        starts: list[int] = []
        at = end = 0
        while at < size:
            least = BLOCK
            while True:
                reading.offset = at
                data = yield at, least
                try:
                    head = reading.head(bytes(data[:least]), 0)
                    break
                except More as more:
                    least = more.args[0]
                    if at + least > size:
                        raise reading.cut_short(size) from None
            if head is not None and reading.begins_sample(head):
                starts.append(at)
            at += BLOCK if head is None else head.stop
            end = end if head is None else at
        if at > size or not reading.is_over:
            raise reading.cut_short(size)
        if reading.pax:
            raise Corrupt(f"{path} has headers of pax for all members, which an index lacks: leave out indexed=")
        return np.array([*starts, end], np.uint64)

    def record(self, data: memoryview, path: str, number: int, offset: int) -> Any:
        """Return the sample in the bytes of its members."""
        reading = self._archive(path)
        reading.offset = offset
        found, error = reading.feed(bytes(data))
        if error is not None:
            raise error
        found += reading.rest()
        if len(found) != 1:
            raise Corrupt(f"{path}: sample {number} is not where its index says: remove the index")
        return found[0]

    def _archive(self, path: str) -> Archive:
        return Archive(path, members=self.members, max_bytes=self.max_bytes)


tar = Tar()
