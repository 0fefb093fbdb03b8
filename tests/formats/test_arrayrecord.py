"""`arrayrecord`: what the library has written, by number."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError

module = pytest.importorskip("array_record.python.array_record_module")


def written(path: Path, records: list[bytes]) -> Path:
    writer = module.ArrayRecordWriter(str(path), "group_size:4")
    for record in records:
        writer.write(record)
    writer.close()
    return path


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    counts = [30, 0, 1, 19]
    starts = [sum(counts[:number]) for number in range(4)]
    return [
        written(tmp_path / f"{number}.array_record", [b"%d" % each for each in range(start, start + count)])
        for number, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]


def test_records_are_read_by_number_over_all_files(paths: list[Path]) -> None:
    records = af.arrayrecord(paths)
    assert len(records) == 50
    assert records.read([49, 0, 30, 31, 0]) == [b"49", b"0", b"30", b"31", b"0"]
    assert records[29] == b"29"
    assert records.read([]) == []
    for wrong in (-1, 50):
        with pytest.raises(IndexError, match=rf"there is no record {wrong}: the files have 50"):
            records[wrong]


def test_many_records_are_read_in_one_call_and_shuffled_exactly(paths: list[Path]) -> None:
    records = pickle.loads(pickle.dumps(af.arrayrecord(paths)))
    numbers = af.items(range(len(records)))
    assert list(numbers.batch(8).flat_map(records.read)) == [b"%d" % each for each in range(50)]
    shuffled = list(numbers.shuffle(seed=1).batch(8).flat_map(records.read))
    assert sorted(map(int, shuffled)) == list(range(50))
    assert shuffled == list(af.items(records).shuffle(seed=1)) != sorted(shuffled)


def test_items_reads_many_records_in_one_call(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(self: Any, places: Any) -> list[bytes]:
        sizes.append(len(places))
        return self.read(places)

    records = af.arrayrecord(paths)
    monkeypatch.setattr(type(records), "__getitems__", counted)
    assert sorted(map(int, af.items(records).shuffle(seed=1))) == list(range(50))
    assert (sum(sizes), max(sizes) > 4) == (50, True)


def test_it_is_a_value_and_shows_itself(paths: list[Path]) -> None:
    records: Any = af.arrayrecord(str(paths[0]))
    assert repr(records) == "arrayrecord(1 files, 30 records)"
    assert records == af.arrayrecord(paths[:1]) != af.arrayrecord(paths)


def test_a_file_that_is_not_there_or_is_no_arrayrecord_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        af.arrayrecord(tmp_path / "none")
    for contents in (b"", b"no records" * 100):
        (tmp_path / "a").write_bytes(contents)
        with pytest.raises(Corrupt, match="a is no ArrayRecord file, or is damaged"):
            af.arrayrecord(tmp_path / "a")


def test_a_damaged_file_is_corrupt_and_gives_no_other_records(tmp_path: Path) -> None:
    expected = [bytes([each]) * 1000 for each in range(60)]
    data = written(tmp_path / "a", expected).read_bytes()
    faults = 0
    for place in range(0, len(data), 97):
        (tmp_path / "a").write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        try:
            assert af.arrayrecord(tmp_path / "a").read(range(60)) == expected
        except Corrupt:
            faults += 1
    assert faults


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, paths: list[Path]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "array_record.python.array_record_module", None)
    with pytest.raises(PipelineError, match=r"pip install 'asyncfeed\[arrayrecord\]'"):
        af.arrayrecord(paths)
