"""Records by number: the index says where each sample is, so shuffle and split are exact over all files."""

from __future__ import annotations

import io
import os
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats import tar as tar_module
from asyncfeed.reading import MemoryStore

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def archive(samples: dict[str, dict[str, bytes]], kind: int = tarfile.PAX_FORMAT) -> bytes:
    """Return the archive of these samples: the parts of each by the name of the sample."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=kind) as out:
        for name, parts in samples.items():
            for part, data in parts.items():
                member = tarfile.TarInfo(f"{name}.{part}")
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))
    return made.getvalue()


def shards(folder: Path, count: int = 3, each: int = 5) -> str:
    """Write archives of small samples. Return the pattern that finds them."""
    for shard in range(count):
        samples = {f"{shard}-{n}": {"cls": b"%d" % n, "txt": b"x" * (700 * n)} for n in range(each + shard)}
        (folder / f"{shard}.tar").write_bytes(archive(samples))
    return f"{folder}/*.tar"


def keys(samples: Any) -> list[str]:
    return [sample["__key__"] for sample in samples]


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    return shards(tmp_path)


def indexed(pattern: str, **options: Any) -> af.Pipeline[Any]:
    return af.files(pattern).flat_map(af.tar(indexed=True), **options)


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The paths of the files that are scanned."""
    seen: list[str] = []
    real = tar_module.Tar.scan

    def scan(self: tar_module.Tar, path: str, size: int) -> Any:
        seen.append(Path(path).name)
        return real(self, path, size)

    monkeypatch.setattr(tar_module.Tar, "scan", scan)
    return seen


# -- by number


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0."), min_size=1, max_size=120)
SAMPLES = st.dictionaries(
    NAMES,
    st.dictionaries(st.sampled_from(["cls", "jpg", "txt"]), st.binary(max_size=1200), min_size=1),
    max_size=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SAMPLES, min_size=1, max_size=3), st.sampled_from(FORMATS[1:]), st.booleans())
def test_the_samples_by_number_are_those_of_the_stream(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[dict[str, dict[str, bytes]]], kind: int, members: bool
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    for number, samples in enumerate(drawn):
        (folder / f"{number}.tar").write_bytes(archive(samples, kind))
    files = af.files(f"{folder}/*.tar")
    stream = list(files.flat_map(af.tar(members=members)))
    by_number = files.flat_map(af.tar(members=members, indexed=True))
    assert by_number.size() == len(stream)
    assert list(by_number) == stream
    assert list(files.flat_map(af.tar(members=members, indexed=True))) == stream  # the index was read


def test_shuffle_is_a_permutation_of_all_records_and_another_one_in_each_epoch(pattern: str) -> None:
    everything = keys(af.files(pattern).flat_map(af.tar))
    shuffled = indexed(pattern).shuffle(seed=3)
    orders = [keys(epoch) for epoch in shuffled.epochs(3)]
    assert all(sorted(order) == sorted(everything) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert everything not in orders


def test_split_gives_parts_that_share_no_record(pattern: str) -> None:
    first, second = indexed(pattern).split(0.5, 0.5, seed=1)
    assert len(keys(first)) == 9
    assert sorted(keys(first) + keys(second)) == keys(af.files(pattern).flat_map(af.tar))


def test_the_files_may_be_split_before(pattern: str) -> None:
    first, second = af.files(pattern).split(0.34, 0.66, seed=1)
    parts = [keys(part.flat_map(af.tar(indexed=True)).shuffle(seed=1)) for part in (first, second)]
    assert sorted(parts[0] + parts[1]) == keys(af.files(pattern).flat_map(af.tar))
    assert {key[0] for key in parts[0]}.isdisjoint({key[0] for key in parts[1]})


def test_records_are_counted_joined_and_paired_by_number(pattern: str) -> None:
    everything = keys(af.files(pattern).flat_map(af.tar))
    by_number = indexed(pattern)
    assert [(n, sample["__key__"]) for n, sample in by_number.enumerate().skip(4).take(2)] == [
        (4, everything[4]),
        (5, everything[5]),
    ]
    assert sorted(keys(af.concat(by_number, by_number).shuffle(seed=1))) == sorted(everything * 2)
    pairs = list(af.zip(by_number, af.items(range(18))).shuffle(seed=2))
    assert all(everything[n] == sample["__key__"] for sample, n in pairs)


def test_a_failed_record_is_named_and_may_be_left_out(pattern: str, tmp_path: Path) -> None:
    by_number = indexed(pattern)
    left = indexed(pattern, on_error="skip", skip_limit=5)
    damaged = bytearray((tmp_path / "1.tar").read_bytes())
    at = damaged.index(b"1-2.cls")
    damaged[at : at + 3] = b"9-9"  # so that the checksum of the header is wrong
    before = os.stat(tmp_path / "1.tar")
    (tmp_path / "1.tar").write_bytes(damaged)
    os.utime(tmp_path / "1.tar", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(Corrupt, match=r"1\.tar: a header whose checksum is wrong") as caught:
        list(by_number)
    assert "1.tar, record 2" in str(caught.value.__notes__)
    assert "1-2" not in keys(left)
    assert len(keys(left)) == 17


def test_a_file_that_changed_after_it_was_listed_is_an_error(pattern: str, tmp_path: Path) -> None:
    by_number = indexed(pattern)
    (tmp_path / "0.tar").write_bytes(archive({"new": {"cls": b"1"}}))
    with pytest.raises(Corrupt, match="changed since it was listed"):
        list(by_number)


# -- the index


def test_the_index_is_made_once_and_kept_beside_the_file(pattern: str, tmp_path: Path, scans: list[str]) -> None:
    first = list(indexed(pattern))
    assert scans == ["0.tar", "1.tar", "2.tar"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == [
        ".0.tar.index",
        ".1.tar.index",
        ".2.tar.index",
    ]
    scans.clear()
    assert list(indexed(f"{tmp_path}/*")) == first  # the pattern does not match an index
    assert scans == []


def test_the_index_of_a_file_that_changed_is_made_again(pattern: str, tmp_path: Path, scans: list[str]) -> None:
    indexed(pattern)
    scans.clear()
    (tmp_path / "1.tar").write_bytes(archive({"new": {"cls": b"1"}}))
    assert "new" in keys(indexed(pattern))
    assert scans == ["1.tar"]


def test_an_index_that_was_copied_with_its_file_counts(pattern: str, tmp_path: Path, scans: list[str]) -> None:
    first = list(indexed(pattern))
    scans.clear()
    copies = tmp_path / "copies"
    copies.mkdir()
    for path in sorted(tmp_path.glob("*.tar")):
        for name in (path.name, f".{path.name}.index"):
            (copies / name).write_bytes((tmp_path / name).read_bytes())
    assert list(indexed(f"{copies}/*.tar")) == first
    assert scans == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other kind", "text"])
def test_an_index_that_is_not_right_is_made_again(
    pattern: str, tmp_path: Path, scans: list[str], damage: str
) -> None:
    first = list(indexed(pattern))
    scans.clear()
    place = tmp_path / ".1.tar.index"
    data = place.read_bytes()
    if damage == "other kind":
        list(af.files(pattern).flat_map(af.tar(members=True, indexed=True)))
        scans.clear()
        scanned = ["0.tar", "1.tar", "2.tar"]
    else:
        flipped = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
        place.write_bytes({"cut": data[:-8], "flipped": flipped, "empty": b"", "text": b"hello\nyou\n"}[damage])
        scanned = ["1.tar"]
    assert list(indexed(pattern)) == first
    assert scans == scanned


def test_the_index_is_kept_in_a_folder(pattern: str, tmp_path: Path, scans: list[str]) -> None:
    folder = tmp_path / "deep" / "indexes"
    for expected in (["0.tar", "1.tar", "2.tar"], []):
        scans.clear()
        assert len(keys(af.files(pattern).flat_map(af.tar(indexed=folder)).shuffle())) == 18
        assert scans == expected
    assert len(list(folder.iterdir())) == 3
    assert not (tmp_path / ".0.tar.index").exists()


def test_an_index_that_cannot_be_kept_is_a_warning_that_says_what_to_write(pattern: str, tmp_path: Path) -> None:
    (tmp_path / "a_file").write_bytes(b"")
    with pytest.warns(RuntimeWarning, match=r"cannot be kept \(.*a_file.*tar\(indexed='folder'\)"):
        found = af.files(pattern).flat_map(af.tar(indexed=tmp_path / "a_file"))
    assert len(keys(found.shuffle())) == 18


def test_a_scan_reads_little_of_large_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncfeed.reading.local import LocalReader

    (tmp_path / "a.tar").write_bytes(archive({str(n): {"jpg": bytes(100_000)} for n in range(40)}))
    read: list[int] = []
    real = LocalReader.read_ranges

    def read_ranges(self: LocalReader, file: af.File, ranges: Any) -> Any:
        read.extend(stop - start for start, stop in ranges)
        return real(self, file, ranges)

    monkeypatch.setattr(LocalReader, "read_ranges", read_ranges)
    assert indexed(f"{tmp_path}/a.tar").size() == 40
    assert sum(read) < 400_000


def test_records_of_a_store_are_reached_by_number(tmp_path: Path) -> None:
    store = MemoryStore({f"{n}.tar": archive({f"{n}-{k}": {"cls": b"1"} for k in range(4)}) for n in range(3)})
    files = af.items(store.files())
    with pytest.warns(RuntimeWarning, match="MemoryStore.* has no name"):  # so no other program could find it
        found = files.flat_map(af.tar(indexed=str(tmp_path)))
    assert keys(found) == keys(files.flat_map(af.tar))
    assert sorted(keys(found.shuffle(seed=1))) == keys(found)


# -- errors that teach


def test_a_file_that_was_cut_short_is_named(tmp_path: Path) -> None:
    data = archive({str(n): {"cls": b"1" * 900} for n in range(4)})
    for stop in (1024, 2000, 4096):
        (tmp_path / "a.tar").write_bytes(data[:stop])
        with pytest.raises(Corrupt, match=r"a\.tar is cut short"):
            indexed(f"{tmp_path}/a.tar")
    assert not (tmp_path / ".a.tar.index").exists()


def test_what_cannot_be_reached_by_number_is_refused_in_the_line_that_says_so(
    pattern: str, tmp_path: Path
) -> None:
    import gzip

    (tmp_path / "a.tgz").write_bytes(gzip.compress(archive({"1": {"cls": b"1"}})))
    store = MemoryStore({"a.tar": archive({})})
    decoder = af.tar(indexed=True)
    with pytest.raises(PipelineError, match=r"compressed \(gzip\)"):
        af.files(f"{tmp_path}/a.tgz").flat_map(decoder)
    with pytest.raises(PipelineError, match="known in advance"):
        af.files(pattern, listing="streamed").flat_map(decoder)
    with pytest.raises(PipelineError, match=r"put \.repeat\(2\) behind it"):
        af.files(pattern).repeat(2).flat_map(decoder)
    with pytest.raises(PipelineError, match="put shuffle behind flat_map"):
        af.files(pattern).shuffle().flat_map(decoder)
    with pytest.raises(PipelineError, match="needs files"):
        af.items([1, 2]).flat_map(decoder)
    with pytest.raises(PipelineError, match=r"interleave: .*flat_map\(tar\(indexed=True\)\)\.shuffle\(\)"):
        af.files(pattern).interleave(decoder, cycle=2)
    with pytest.raises(PipelineError, match=r"tar\(indexed='folder'\)"):
        af.items(store.files()).flat_map(decoder)
    with pytest.raises(PipelineError, match="no records by number"):
        af.tar(indexed=True, compression="gzip")
    with pytest.raises(PipelineError, match="indexed must be True"):
        af.tar(indexed=3)  # type: ignore[call-overload]


def test_a_stream_without_an_index_needs_a_buffer_to_shuffle(pattern: str) -> None:
    with pytest.raises(PipelineError, match="needs a buffer"):
        af.files(pattern).flat_map(af.tar).shuffle()


def test_a_description_with_an_index_writes_no_warning(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(indexed(pattern).shuffle().batch(4, collate=list))
