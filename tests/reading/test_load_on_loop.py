"""`load` from a store that is read on the loop: the samples and errors are those of local files, without a thread."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.stages import loading
from tests.servers.objects import Faults, ObjectServer, serving

COUNT = 40


def contents(kind: str, number: int) -> bytes:
    array = np.arange(number, number + 6, dtype="<i4").reshape(2, 3)
    made = io.BytesIO()
    if kind == "npy":
        np.save(made, array)
    elif kind == "npz":
        np.savez(made, x=array, y=array[0] + 1)
    elif kind == "packed":
        np.savez_compressed(made, x=array)
    elif kind == "json":
        return json.dumps({"number": number}).encode()
    else:
        return array.tobytes()
    return made.getvalue()


async def summed(data: bytes) -> int:
    return sum(data)


DECODERS: dict[str, tuple[str, Any]] = {
    "npy": ("npy", af.npy),
    "npz": ("npz", af.npz),
    "packed": ("packed", af.npz),
    "raw": ("raw", af.raw("<i4")),
    "json": ("json", af.json),
    "a function": ("raw", len),
    "an async function": ("raw", summed),
}


def both(kind: str, folder: Path, server: ObjectServer) -> tuple[af.Pipeline[af.File], af.Pipeline[af.File]]:
    """Return the same files twice: local ones, and objects of the server."""
    for number in range(COUNT):
        data = contents(kind, number)
        (folder / f"{number:03}").write_bytes(data)
        server.put("bucket", f"{number:03}", data)
    return af.files(f"{folder}/[0-9]*"), af.files("s3://bucket/*", endpoint=server.url, anonymous=True)


def plain(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: plain(value) for key, value in item.items()}
    if isinstance(item, (tuple, list)):
        return [plain(each) for each in item]
    return item.tolist() if isinstance(item, np.ndarray) else item


@pytest.mark.parametrize("name", DECODERS)
def test_samples_and_batches_are_those_of_local_files(name: str, tmp_path: Path) -> None:
    kind, decoder = DECODERS[name]
    with serving() as server:
        local, remote = both(kind, tmp_path, server)
        stages: list[Callable[[af.Pipeline[Any]], af.Pipeline[Any]]] = [
            lambda files: files.load(decoder),
            lambda files: files.load(decoder).batch(7),
            lambda files: files.shuffle(seed=3).load(decoder).batch(1),
            lambda files: files.map(lambda file: (file, {"label": 3})).load(decoder),
            lambda files: files.batch(3, collate=tuple).load(decoder),
        ]
        for each in stages:
            assert plain(list(each(remote))) == plain(list(each(local)))


def test_a_sample_can_be_written_to(tmp_path: Path) -> None:
    with serving() as server:
        _, remote = both("npy", tmp_path, server)
        for sample in remote.load(af.npy):
            sample += 1


def test_local_files_and_objects_of_two_stores_may_be_in_one_item(tmp_path: Path) -> None:
    with serving() as server, serving() as other:
        local, remote = both("raw", tmp_path, server)
        (tmp_path / "other").mkdir()
        _, second = both("raw", tmp_path / "other", other)
        found = af.zip(remote, local, second).load(af.raw("<i4"))
        for first, here, there in found:
            assert (first == here).all()
            assert (first == there).all()


@pytest.mark.parametrize("decoder", ["npy", "an async function"])
def test_objects_of_unknown_size_are_read_as_well(decoder: str, tmp_path: Path) -> None:
    """A web server is not listed, so no size is known before the object is read."""
    with serving() as server:
        local, _ = both(DECODERS[decoder][0], tmp_path, server)
        urls = [f"{server.url}/bucket/{number:03}" for number in range(COUNT)]
        remote = af.files(urls, allow_http=True, endpoint=server.url)
        made = DECODERS[decoder][1]
        assert plain(list(remote.load(made))) == plain(list(local.load(made)))
        if decoder == "npy":
            assert plain(list(remote.load(made).batch(8))) == plain(list(local.load(made).batch(8)))


@pytest.mark.parametrize("batch", [None, 8])
def test_no_thread_waits_for_an_object(batch: int | None, tmp_path: Path) -> None:
    """Forty objects of 50 ms are under way together, and the run has a few threads."""
    with serving(Faults(delay=0.05)) as server:
        _, remote = both("npy", tmp_path, server)
        before = threading.active_count()
        samples = remote.load(af.npy)
        most = 0
        for _ in samples if batch is None else samples.batch(batch):
            most = max(most, threading.active_count() - before)
        assert server.at_once > 16
        assert most <= 8


@pytest.mark.parametrize("batch", [None, 8])
def test_an_object_that_is_gone_is_named_with_its_number(batch: int | None, tmp_path: Path) -> None:
    with serving() as server:
        _, remote = both("npy", tmp_path, server)
        del server.buckets["bucket"]["013"]
        samples = remote.load(af.npy, hedge=None)
        with pytest.raises(FileNotFoundError) as caught:
            list(samples if batch is None else samples.batch(batch))
        assert any("bucket/013 (ordinal 13" in note for note in caught.value.__notes__)
        assert server.requests["GET"] <= COUNT + 1, "it is asked for once: the store has said what there is"


def test_objects_that_cannot_be_read_and_those_that_cannot_be_decoded_are_skipped_together(tmp_path: Path) -> None:
    """Reading and decoding are two steps of one stage, and leave out items of one budget."""
    with serving() as server:
        _, remote = both("npy", tmp_path, server)
        del server.buckets["bucket"]["003"]
        server.put("bucket", "005", b"x" * len(server.buckets["bucket"]["005"]))
        assert len(list(remote.load(af.npy, on_error=af.Skip(max_count=2)))) == COUNT - 2
        with pytest.raises((FileNotFoundError, af.Corrupt), match="003|005"):
            list(remote.load(af.npy, on_error=af.Skip(max_count=1)))


def test_a_huge_batch_is_read_straight_into_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take its memory twice otherwise."""
    monkeypatch.setattr(loading, "BATCH_BYTES", 100)
    with serving() as server:
        local, remote = both("npy", tmp_path, server)
        found = list(remote.load(af.npy).batch(8))
        assert plain(found) == plain(list(local.load(af.npy).batch(8)))


def test_explain_tells_how_objects_are_read(tmp_path: Path) -> None:
    with serving() as server:
        _, remote = both("npy", tmp_path, server)
        assert "1 to 512 calls on the loop, in order; 1 to 256 threads" in remote.load(af.npy).explain()
        assert "1 to 32 calls on the loop" in remote.load(af.npy).batch(32).explain()
