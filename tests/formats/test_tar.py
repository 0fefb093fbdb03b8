"""Tar archives, against `tarfile` and `webdataset`, which wrote them."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import io
import random
import tarfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.formats.tar import Tar
from asyncfeed.reading import MemoryStore
from asyncfeed.reading.file import File
from asyncfeed.reading.stream import ByteStream

Files = list[tuple[str, bytes]]
MEMBERS_ALONE = af.tar(members=True)
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def archive(files: Files, kind: int = tarfile.PAX_FORMAT, **options: Any) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=kind, **options) as out:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))
    return made.getvalue()


def read(data: bytes, decoder: Tar = MEMBERS_ALONE, cuts: list[int] | None = None) -> list[Any]:
    """Return what the decoder yields for an archive that comes in blocks, cut at these places."""
    return asyncio.run(_read(data, decoder, cuts))


async def _read(data: bytes, decoder: Tar, cuts: list[int] | None = None) -> list[Any]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or [])})

    async def blocks() -> AsyncGenerator[bytes]:
        for start, stop in zip(edges, edges[1:], strict=False):
            yield data[start:stop]

    stream = ByteStream(File("a.tar"), blocks())
    return [sample async for group in decoder.groups(stream) for sample in group]


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=130).filter(
    lambda name: name.strip(".")
)
MEMBERS = st.lists(st.tuples(NAMES, st.binary(max_size=1500)), max_size=6)


@given(
    MEMBERS,
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.lists(st.integers(0, 1 << 20), max_size=5),
)
def test_each_member_comes_as_it_was_written(files: Files, kind: int, cuts: list[int]) -> None:
    """Also with long names and names that are not ASCII, wherever the blocks are cut."""
    found = read(archive(files, kind), cuts=cuts)
    assert [tuple(each) for each in found] == files


@pytest.mark.parametrize("kind", FORMATS)
def test_a_path_in_two_fields_and_a_folder_are_read(kind: str) -> None:
    deep = "/".join(["folder" * 3] * 7) + "/1.txt"
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=FORMATS[kind]) as out:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        out.addfile(folder)
        member = tarfile.TarInfo(deep)
        member.size = 3
        out.addfile(member, io.BytesIO(b"abc"))
    assert read(made.getvalue()) == [(deep, b"abc")]


def test_headers_for_all_members_and_sizes_in_pax_are_read() -> None:
    data = archive([("1.txt", b"one"), ("2.txt", b"two")], pax_headers={"comment": "from git"})
    assert read(data) == [("1.txt", b"one"), ("2.txt", b"two")]
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as out:
        member = tarfile.TarInfo("3.txt")
        member.size, member.pax_headers = 5, {"size": "5"}
        out.addfile(member, io.BytesIO(b"three"))
    assert read(made.getvalue(), cuts=[513, 1030, 1600]) == [("3.txt", b"three")]


def test_the_size_in_pax_counts_though_the_header_after_it_claims_more() -> None:
    """What is read because of it holds other members, wherever the blocks are cut."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as out:
        member = tarfile.TarInfo("1.txt")
        member.size, member.pax_headers = 3, {"size": "3"}
        out.addfile(member, io.BytesIO(b"one"))
    member.size = 2000
    claims = member.tobuf(tarfile.USTAR_FORMAT)
    rest = [("2.txt", b"two"), ("3.txt", b"three")]
    data = made.getvalue()[:1024] + claims + made.getvalue()[1536:2048] + archive(rest)
    for cut in range(0, len(data), 256):
        assert read(data, cuts=[cut]) == [("1.txt", b"one"), *rest]


SPARSE = {
    "GNU.sparse.map": "0,4,1000,4", "GNU.sparse.size": "2000", "GNU.sparse.name": "s.bin", "GNU.sparse.numblocks": "2"
}  # fmt: skip


def test_a_sparse_file_is_filled_with_zeros_within_the_limit() -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as out:
        member = tarfile.TarInfo("s.bin")
        member.size, member.pax_headers = 8, SPARSE
        out.addfile(member, io.BytesIO(b"headtail"))
    (found,) = read(made.getvalue())
    assert found == ("s.bin", b"head" + bytes(996) + b"tail" + bytes(996))
    with pytest.raises(af.Corrupt, match=r"'s.bin' has 2,000 bytes \(max_bytes=1,000\)"):
        read(made.getvalue(), af.tar(members=True, max_bytes=1000))


SHARD = [
    ("a/1.JPG", b"j1"), ("a/1.cls", b"1"), ("a/1.seg.png", b"s1"), ("a/._1.jpg", b"apple"), ("a/2.jpg", b"j2"),
    ("b/2.jpg", b"other"), ("__meta__", b"left out"), ("b/2.cls", b"2"),
]  # fmt: skip
SAMPLES = [
    {"__key__": "a/1", "jpg": b"j1", "cls": b"1", "seg.png": b"s1"},
    {"__key__": "a/2", "jpg": b"j2"},
    {"__key__": "b/2", "jpg": b"other", "cls": b"2"},
]


@pytest.mark.parametrize("kind", FORMATS)
def test_members_are_grouped_to_samples(kind: str) -> None:
    data = archive(SHARD, FORMATS[kind])
    for cuts in ([], [600], list(range(0, len(data), 700))):
        assert read(data, af.tar, cuts) == SAMPLES


def test_archives_one_after_the_other_and_compressed_ones_are_read() -> None:
    data = archive(SHARD[:4]) + archive(SHARD[4:])
    assert read(data, af.tar) == SAMPLES
    store = MemoryStore({"0.tar.gz": gzip.compress(archive(SHARD[:4])), "1.tar": archive(SHARD[4:])})
    assert list(af.items(store.files()).flat_map(af.tar)) == SAMPLES
    assert list(af.items(store.files()).interleave(af.tar, cycle=2)) == [SAMPLES[0], SAMPLES[1], SAMPLES[2]]


@pytest.mark.skipif(importlib.util.find_spec("webdataset") is None, reason="needs webdataset")
def test_webdataset_finds_the_same_samples_in_what_it_wrote(tmp_path: Path) -> None:
    """Random samples, in several shards."""
    import webdataset
    from webdataset.tariterators import group_by_keys, tar_file_expander

    random_ = random.Random(0)
    shards = [str(tmp_path / f"{number}.tar") for number in range(3)]
    for shard in shards:
        with webdataset.TarWriter(shard) as out:
            for number in range(20):
                key = f"{random_.choice(['', 'x/', 'x/y/'])}{number:04}"
                parts = random_.sample(["jpg", "cls", "TXT", "seg.png", "json"], random_.randint(1, 5))
                out.write(
                    {"__key__": key, **{part: random_.randbytes(random_.randint(0, 3000)) for part in parts}}
                )
    theirs = []
    for shard in shards:
        with open(shard, "rb") as stream:  # its own reader leaves the file open
            theirs += list(group_by_keys(tar_file_expander([{"url": shard, "stream": stream}])))
    theirs = [{name: value for name, value in sample.items() if name != "__url__"} for sample in theirs]
    assert list(af.files(shards).flat_map(af.tar)) == theirs


def link() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as out:
        member = tarfile.TarInfo("1.jpg")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        out.addfile(member)
    return made.getvalue()


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


PLAIN = archive([("1.jpg", b"x" * 600), ("1.cls", b"1")], tarfile.USTAR_FORMAT)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (archive([("/etc/passwd", b"")]), "'/etc/passwd' leads out of the archive, at offset 0"),
        (archive([("a/../../b.jpg", b"")]), "leads out of the archive"),
        (archive([("README", b"")]), r"'README' has no dot.*tar\(members=True\)"),
        (archive([("1.jpg", b""), ("1.JPG", b"")]), "a second 'jpg' of sample '1', at offset 512"),
        (link(), "'1.jpg' is a link or a device"),
        (changed(PLAIN, 0, b"2"), "a header whose checksum is wrong, at offset 0"),
        (changed(PLAIN, 1536, b"2"), "a header whose checksum is wrong, at offset 1536"),
        (changed(PLAIN, 124, b"zz"), "no header of a tar archive is there, at offset 0"),
        (PLAIN[:900], "cut short: no end of an archive is there at offset 900"),
        (PLAIN[:1536], "cut short"),
        (b"", "cut short"),
        (b"no archive" * 100, "no header of a tar archive"),
        (PLAIN + b"more" * 200, "no header of a tar archive"),
    ],
    ids=str,
)  # fmt: skip
def test_an_archive_that_is_damaged_or_hostile_is_an_error_that_says_where(data: bytes, words: str) -> None:
    with pytest.raises(af.Corrupt, match=f"a.tar.*{words}"):
        read(data, af.tar)


def test_the_samples_before_an_error_come_first() -> None:
    found: list[Any] = []
    store = MemoryStore({"a.tar": archive([*SHARD, ("x/../y.jpg", b"")])})

    with pytest.raises(af.Corrupt, match="leads out"):
        for sample in af.items(store.files()).flat_map(af.tar):
            found.append(sample)
    assert found == SAMPLES[:2]


def test_a_member_above_the_limit_is_refused_before_it_is_read() -> None:
    header = PLAIN[:512]
    with pytest.raises(af.Corrupt, match=r"'1.jpg' has 600 bytes \(max_bytes=599\), at offset 0"):
        read(header, af.tar(max_bytes=599))


def test_every_cut_of_an_archive_is_noticed() -> None:
    data = archive(SHARD[:3], tarfile.GNU_FORMAT)
    end = 2 * 3 * 512

    async def main() -> None:
        for stop in range(0, end + 1, 16):
            with pytest.raises(af.Corrupt, match="cut short"):
                await _read(data[:stop], af.tar)

    asyncio.run(main())
    assert read(data[: end + 512], af.tar) == SAMPLES[:1]


def test_mutated_archives_give_members_or_an_error() -> None:
    """10,000 mutations: never another exception, and never more bytes than the archive has."""
    originals = [archive(SHARD, kind) for kind in FORMATS.values()] + [archive([("ä" * 150 + ".x", b"1")])]
    random_ = random.Random(0)

    async def main() -> None:
        for number in range(10_000):
            data = bytearray(originals[number % len(originals)].rstrip(b"\0") + bytes(1024))
            for _ in range(random_.randint(1, 4)):
                at = random_.randrange(len(data))
                data[at] = random_.choice([0, 1, 32, 48, 55, 57, 128, 255, random_.randrange(256)])
            if random_.random() < 0.5:  # with a right checksum, so that what is behind it is reached
                head = bytes(data[:148]) + b" " * 8 + bytes(data[156:512])
                data[148:156] = b"%06o\0 " % sum(head)
            try:
                found = await _read(bytes(data), af.tar(members=True, max_bytes=1 << 16))
            except af.Corrupt:
                continue
            assert sum(len(each.data) for each in found) <= len(originals) * (1 << 16)

    asyncio.run(main())


def test_options_are_in_the_repr() -> None:
    assert repr(af.tar(members=True, compression=None)) == "tar(compression=None, members=True)"
    assert af.tar(max_bytes=5) == af.tar(max_bytes=5) != af.tar
