"""The decompressed bytes of a file, as a stream of blocks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from asyncfeed.reading.compression import BY_MAGIC, Compression, Magic
from asyncfeed.reading.copies import on_thread
from asyncfeed.reading.unpacking import Unpacker

INLINE: Final = 1 << 11
"""Bytes of a block that are decompressed on the loop, in up to 0.1 ms. A call on a thread takes half of that."""


async def decompressed(
    path: str, blocks: AsyncGenerator[bytes], compression: Compression, magic: Magic = BY_MAGIC
) -> AsyncGenerator[bytes]:
    """Yield the decompressed bytes of a file; the bytes as they are if it is not compressed.

    `magic` tells the format if it is "auto". A large block is decompressed on a thread, a piece of it at a time.
    The caller closes `blocks`.
    """
    block, name = b"", compression.format
    if name == "auto":
        while magic.undecided(block) and (more := await anext(blocks, b"")):
            block = block + more if block else more
        found = magic.format(block, path)
        if found is None:
            if block:
                yield block
            async for block in blocks:
                yield block
            return
        name = found
    unpacker = Unpacker(name, compression, path)
    block = block or await anext(blocks, b"")
    while block:
        unpacker.give(block)
        threaded = len(block) > INLINE
        while not unpacker.hungry:
            piece = await on_thread(unpacker.piece) if threaded else unpacker.piece()
            if piece:
                yield piece
        block = await anext(blocks, b"")
    unpacker.end()
