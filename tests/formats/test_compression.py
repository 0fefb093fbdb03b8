"""Compressed files: whatever wrote them, however they are cut, their bytes come out, or an error names the file."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import importlib.util
import lzma
import random
import sys
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.reading import MemoryStore, unpacking
from asyncfeed.reading.compression import BY_MAGIC, SUFFIXES, Compression
from asyncfeed.reading.decompressed import INLINE, decompressed
from asyncfeed.reading.unpacking import PIECE, Unpacker

Pack = Callable[[bytes], bytes]
ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


def has(module: str) -> bool:
    with suppress(ModuleNotFoundError):
        return importlib.util.find_spec(module) is not None
    return False


PACKS: dict[str, Pack] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "zlib": zlib.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
}
UNPACKS: dict[str, Pack] = {
    "gzip": gzip.decompress,
    "zlib": zlib.decompress,
    "xz": lzma.decompress,
    "bz2": bz2.decompress,
}
if has(ZSTD):
    PACKS["zstd"], UNPACKS["zstd"] = import_module(ZSTD).compress, import_module(ZSTD).decompress
if has("lz4.frame"):
    PACKS["lz4"], UNPACKS["lz4"] = import_module("lz4.frame").compress, import_module("lz4.frame").decompress
TOLD = sorted({*PACKS} - {"zlib"})
"""The formats that the first bytes tell."""
CHECKED = sorted({*PACKS} - {"zstd", "lz4"})
"""The formats that always end with a checksum."""


@pytest.fixture(params=sorted(PACKS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["isal", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without the faster library for gzip."""
    if request.param == "zlib":
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    elif not has("isal"):
        pytest.skip("needs isal")
    return request.param


def unpack(data: bytes, compression: Any = "auto", sizes: Iterator[int] | None = None, path: str = "a") -> bytes:
    """Return what comes out of a file that is read in blocks of these sizes."""

    async def blocks() -> AsyncGenerator[bytes]:
        start = 0
        while start < len(data):
            size = len(data) if sizes is None else next(sizes)
            yield data[start : start + size]
            start += size

    async def main() -> bytes:
        option = compression if isinstance(compression, Compression) else Compression(compression)
        return b"".join([piece async for piece in decompressed(path, blocks(), option)])

    return asyncio.run(main())


def at_once(data: bytes, name: Any, size: int = 1 << 16) -> tuple[bytes, str]:
    """Return what comes out, and the error that follows it, without a loop."""
    unpacker = Unpacker(name, Compression(name), "a")
    found = []
    try:
        for start in range(0, len(data), size):
            unpacker.give(data[start : start + size])
            while not unpacker.hungry:
                found.append(unpacker.piece())
        unpacker.end()
    except Corrupt as error:
        return b"".join(found), str(error)
    return b"".join(found), ""


@cache
def two_members(name: str, size: int) -> tuple[bytes, bytes]:
    contents = sample(size)
    return contents + b"more", PACKS[name](contents) + PACKS[name](b"more")


def sample(size: int) -> bytes:
    draw = random.Random(size)
    return bytes(draw.choices(b"abcdefgh", k=size))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=200).map(lambda part: part * 50), max_size=4), st.data())
def test_members_come_out_one_after_the_other_however_the_file_is_cut(
    name: str, library: str, members: list[bytes], data: st.DataObject
) -> None:
    packed = b"".join(map(PACKS[name], members or [b""]))
    sizes = iter(lambda: data.draw(st.integers(1, 2 * len(packed))), None)
    assert unpack(packed, name, sizes) == b"".join(members)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, INLINE, INLINE + 1, 1 << 20])
def test_pieces_of_every_size_give_the_same(name: str, library: str, size: int) -> None:
    contents, packed = two_members(name, PIECE + 20_000 if size > 7 else 3000)
    assert unpack(packed, name, iter(lambda: size, None)) == contents
    assert at_once(packed, name, size) == (contents, "")


@pytest.mark.parametrize("told", TOLD)
def test_the_first_bytes_tell_the_format(told: str) -> None:
    packed = PACKS[told](b"some text\n")
    assert BY_MAGIC.format(packed, "a") == told
    for size in (1, 3, 1 << 16):
        assert unpack(packed, sizes=iter(lambda size=size: size, None)) == b"some text\n"


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40))
def test_other_bytes_come_as_they_are(contents: bytes) -> None:
    if BY_MAGIC.format(contents, "a") is None:
        assert unpack(contents, sizes=iter(lambda: 3, None)) == contents


def test_contents_that_were_decompressed_on_the_way_are_taken_whatever_the_name() -> None:
    """A store may decompress a file while it sends it."""
    assert unpack(b"plain text", path="a.gz") == b"plain text"


@pytest.mark.parametrize("suffix", sorted(SUFFIXES))
def test_a_named_file_that_lost_its_contents_is_cut_short(suffix: str) -> None:
    if SUFFIXES[suffix] in PACKS:
        with pytest.raises(Corrupt, match=rf"a\.{suffix} is cut short: its \w+ data goes on"):
            unpack(b"", path=f"a.{suffix}")


def test_a_file_that_is_cut_at_any_byte_is_corrupt_and_named(name: str, library: str) -> None:
    contents = sample(200)
    packed = PACKS[name](contents)
    for length in range(len(packed)):
        out, error = at_once(packed[:length], name, 50)
        assert contents.startswith(out)
        assert error == f"a is cut short: its {name} data goes on after its last byte, {length}"
    two = packed + packed
    for length in range(len(packed) + 1, len(two)):
        out, error = at_once(two[:length], name, 50)
        assert (contents * 2).startswith(out)
        assert error


def test_bytes_after_the_end_are_corrupt(name: str, library: str) -> None:
    packed = PACKS[name](b"contents")
    out, error = at_once(packed + b"rubbish that is long enough to be seen", name)
    assert out == b"contents"
    assert error.startswith(f"a has other bytes after its {name} data, before byte ")


@pytest.mark.parametrize("padded", ["gzip", "xz"])
def test_zeros_may_follow_a_member(padded: str) -> None:
    packed = PACKS[padded](b"contents") + bytes(512)
    assert at_once(packed, padded, 7) == (b"contents", "")
    assert at_once(packed + PACKS[padded](b"!"), padded) == (b"contents!", "")


def test_a_file_of_another_format_is_corrupt(name: str, library: str) -> None:
    assert at_once(b"plain text, and not a little of it", name)[1].startswith(f"a is not {name}: ")


@pytest.mark.parametrize("size", [1 << 16, 100])
def test_damaged_bytes_give_the_contents_or_an_error(name: str, library: str, size: int) -> None:
    """10,000 mutations in all. A format with a checksum never gives other contents without an error."""
    contents = sample(400)
    packed = PACKS[name](contents) * 2
    draw = random.Random(0)
    for _ in range(10_000 // (4 * len(PACKS))):
        mutated = bytearray(packed)
        for _ in range(draw.choice([1, 1, 2, 5])):
            where = draw.randrange(len(mutated))
            match draw.randrange(4):
                case 0:
                    mutated[where] ^= 1 << draw.randrange(8)
                case 1:
                    mutated[where] = draw.randrange(256)
                case 2:
                    del mutated[where : where + draw.randrange(1, 9)]
                case _:
                    mutated[where:where] = mutated[draw.randrange(len(mutated)) :][: draw.randrange(1, 9)]
            if not mutated:
                break
        out, error = at_once(bytes(mutated), name, size)
        if error:
            assert error.startswith("a ")
        elif name in CHECKED:
            with suppress(Exception):  # ours knows more of what may follow a member
                assert out == UNPACKS[name](bytes(mutated))


def test_members_before_the_damage_come_out(name: str) -> None:
    packed = PACKS[name](b"one") + PACKS[name](sample(1000))
    damaged = packed[:-20] + bytes(20)
    out, error = at_once(damaged, name)
    assert out.startswith(b"one")
    assert error or name not in CHECKED


def test_a_bomb_is_refused_by_its_ratio_and_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "FREE_BYTES", 1 << 16)
    bomb = PACKS["bz2"](bytes(10 << 20))
    with pytest.raises(Corrupt, match=r"a: \d+ bytes came out of \d+ bytes of bz2 data, more than 1100 times"):
        unpack(bomb)
    assert len(unpack(bomb, Compression("bz2", max_ratio=1e6))) == 10 << 20
    with pytest.raises(Corrupt, match=r"a: more than 1000 bytes come out of its bz2 data"):
        unpack(bomb, Compression(max_bytes=1000))
    assert len(unpack(PACKS["gzip"](bytes(10 << 20)))) == 10 << 20, "gzip reaches 1,032"


def test_a_small_file_never_fills_memory(name: str) -> None:
    """All that a block makes is not there at once: each piece is bounded."""
    unpacker = Unpacker(name, Compression(name), "a")  # type: ignore[arg-type]
    unpacker.give(PACKS[name](bytes(8 << 20)))
    total = 0
    while not unpacker.hungry:
        piece = unpacker.piece()
        total += len(piece)
        assert len(piece) <= PIECE
    assert total == 8 << 20


def test_ten_thousand_tiny_members_take_no_time_to_cut_apart(library: str) -> None:
    packed = PACKS["gzip"](b"x") * 10_000
    assert at_once(packed, "gzip", 1 << 20) == (b"x" * 10_000, "")


def test_an_xz_file_that_wants_a_huge_dictionary_is_corrupt() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 28}]
    assert "Memory usage limit" in at_once(lzma.compress(b"x", filters=filters), "xz")[1]


@pytest.mark.parametrize("wrong", ["rar", 3, "GZIP", ""])
def test_an_unknown_format_is_refused_when_it_is_written(wrong: Any) -> None:
    with pytest.raises(PipelineError, match="compression must be 'auto', None, 'gzip', 'zlib'"):
        af.lines(compression=wrong)


@pytest.mark.parametrize("options", [{"max_ratio": 0}, {"max_ratio": "x"}, {"max_bytes": 0}, {"max_bytes": True}])
def test_limits_that_mean_nothing_are_refused(options: Any) -> None:
    with pytest.raises(PipelineError, match="Compression: max_"):
        Compression(**options)


@pytest.mark.parametrize(("module", "name"), [(ZSTD, "zstd"), ("lz4.frame", "lz4")])
def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
    monkeypatch.setitem(sys.modules, module, None)
    if sys.version_info < (3, 14) or name != "zstd":
        with pytest.raises(PipelineError, match=r"not installed: pip install 'asyncfeed\[compression\]'"):
            unpack(b"\x28\xb5\x2f\xfd", name)


# -- through decoders


def test_files_of_every_format_come_in_one_pipeline() -> None:
    """A decoder does not know: also a file that is not compressed."""
    texts = {f"{each}": f"{each}\n{'line' * 50_000}\n".encode() for each in TOLD}
    store = MemoryStore({"0": b"plain\n", **{each: PACKS[each](text) for each, text in texts.items()}})
    found = list(af.items(store.files()).flat_map(af.lines))
    assert found == ["plain", *(line for each in TOLD for line in texts[each].decode().splitlines())]


def test_shards_that_are_interleaved_come_in_the_exact_order() -> None:
    counts = [7, 3, 5]
    store = MemoryStore(
        {
            f"{shard}": gzip.compress("".join(f"{shard}.{each}\n" for each in range(count)).encode())
            for shard, count in enumerate(counts)
        }
    )
    turns = [
        f"{shard}.{each}"
        for start in range(0, 8, 2)
        for shard, count in enumerate(counts)
        for each in range(start, min(start + 2, count))
    ]
    assert list(af.items(store.files()).interleave(af.lines, cycle=3, block=2)) == turns


def test_lines_before_the_damage_are_delivered_and_the_error_names_the_file() -> None:
    store = MemoryStore({"a.gz": gzip.compress(b"one\n") + b"damage that is long enough"})
    with af.items(store.files()).flat_map(af.lines).open() as feed:
        assert next(feed) == "one"
        with pytest.raises(Corrupt, match=r"a\.gz has other bytes after its gzip data"):
            next(feed)


def is_open(path: Path) -> bool:
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor that listed them
            if fd.readlink() == path:
                return True
    return False


def test_the_file_is_closed_when_the_lines_are_left(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(sample(1 << 20).replace(b"a", b"\n")))

    async def main() -> None:
        found = af.lines(path)
        await anext(found)
        assert is_open(path)
        await found.aclose()
        assert not is_open(path)

    asyncio.run(main())
    with af.items([str(path)]).flat_map(af.lines).open() as feed:
        next(feed)
    assert not is_open(path)
