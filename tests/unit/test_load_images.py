"""Images of one size are decoded straight into the rows of a batch: the same pixels, and the same errors."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.formats import Row
from asyncfeed.reading import MemoryStore
from tests.engine.inside import as_run, reads_batches
from tests.servers.objects import serving

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")

COUNT = 10
DECODERS = [
    af.image(size=24),
    af.image(size=(20, 30), resize="pad", dtype="float32"),
    af.image(size=(37, 53), resize="stretch", mode="L"),
]


def contents(number: int) -> bytes:
    """Return an image: JPEG, PNG and WebP in turns, of several sizes and orientations."""
    shape = (37, 53) if number % 4 else (61 + number, 40)
    base = np.random.default_rng(number).integers(0, 255, (4, 5, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = number % 8 + 1
    out = BytesIO()
    made = Image.fromarray(base).resize(shape[::-1], Image.Resampling.BICUBIC)
    made.save(out, ("JPEG", "JPEG", "PNG", "WEBP")[number % 4], exif=exif)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(COUNT):
        (tmp_path / f"{number:02}.img").write_bytes(contents(number))
    return tmp_path


def one_by_one(decoder: Any, size: int) -> list[Any]:
    rows = [decoder(contents(number)) for number in range(COUNT)]
    return [np.stack(rows[at : at + size]) for at in range(0, COUNT, size)]


def equal(batches: list[Any], expected: list[Any]) -> None:
    assert len(batches) == len(expected)
    for one, another in zip(batches, expected, strict=True):
        assert one.dtype == another.dtype
        np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
def test_the_rows_of_batches_are_the_images(folder: Path, decoder: Any) -> None:
    batches = af.files(f"{folder}/*.img").load(decoder).batch(4)
    assert reads_batches(as_run(batches)[-1])
    with batches.open() as feed:
        equal(list(feed), one_by_one(decoder, 4))
        assert not feed.stats().slow_paths


@pytest.mark.parametrize("decoder", DECODERS[:1], ids=repr)
def test_images_beside_labels_and_names(folder: Path, decoder: Any) -> None:
    samples = af.files(f"{folder}/*.img").map(lambda file: {"x": file, "y": int(Path(file.path).stem), "s": "t"})
    batches = list(samples.load(decoder).batch(4))
    equal([batch["x"] for batch in batches], one_by_one(decoder, 4))
    assert [batch["y"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("decoder", DECODERS, ids=repr)
def test_images_of_a_store_that_threads_read(decoder: Any) -> None:
    store = MemoryStore({f"{number}.img": contents(number) for number in range(COUNT)})
    equal(list(af.items(store.files()).load(decoder).batch(3)), one_by_one(decoder, 3))


def test_images_of_a_store_that_the_loop_reads() -> None:
    """Alone, in batches, beside labels, and in a batch that is padded, which is loaded one by one."""
    decoder = DECODERS[0]
    with serving() as server:
        for number in range(COUNT):
            server.put("bucket", f"{number:02}.img", contents(number))
        files = af.files("s3://bucket/*.img", endpoint=server.url, anonymous=True)
        equal(list(files.load(decoder)), [row for batch in one_by_one(decoder, 1) for row in batch])
        equal(list(files.load(decoder).batch(4)), one_by_one(decoder, 4))
        pairs = files.map(lambda file: (file, 7)).load(decoder).batch(5)
        equal([images for images, _ in pairs], one_by_one(decoder, 5))
        equal(list(files.load(decoder).batch(4).pad()), one_by_one(decoder, 4))
        equal(list(files.load(af.image).take(2)), [af.image(contents(number)) for number in range(2)])


@pytest.mark.parametrize("size", [1, 4])
def test_a_damaged_image_is_named_and_those_before_it_are_delivered(folder: Path, size: int) -> None:
    whole = (folder / "06.img").read_bytes()
    (folder / "06.img").write_bytes(whole[: len(whole) // 2])
    pipeline = af.files(f"{folder}/*.img").load(af.image(size=24)).batch(size)
    with pipeline.open() as feed:
        for _ in range(6 // size):
            next(feed)
        with pytest.raises(af.Corrupt, match=r"06\.img is a PNG image that is damaged or cut short"):
            next(feed)
        failure = feed.failure
    assert failure is not None
    assert failure.key.endswith("06.img")
    assert (failure.ordinal, failure.stage) == (6, "load(image(size=(24, 24)))")


def test_a_damaged_image_can_be_left_out(folder: Path) -> None:
    (folder / "06.img").write_bytes(b"")
    pipeline = af.files(f"{folder}/*.img").load(af.image(size=24), on_error="skip", skip_limit=1).batch(4)
    left = [number for number in range(COUNT) if number != 6]
    rows = [af.image(size=24)(contents(number)) for number in left]
    equal(list(pipeline), [np.stack(rows[at : at + 4]) for at in range(0, 9, 4)])


def test_a_missing_file_is_named(folder: Path) -> None:
    pipeline = af.files(f"{folder}/*.img").load(af.image(size=24)).batch(4)
    (folder / "06.img").unlink()
    with pytest.raises(FileNotFoundError, match=re.escape("06.img")):
        list(pipeline)


def test_images_are_counted_with_the_size_they_have_in_memory(folder: Path) -> None:
    """Those of one size need no look at their files; of the others, the header is read first."""
    files = af.files(f"{folder}/*.img")
    (work,) = files.load(af.image(size=100, dtype="float32")).stages[-1].steps()
    assert work.cost(af.File("a.jpg")) == 100 * 100 * 3 * 4
    assert work.cost((af.File("a.jpg"), af.File("b.jpg"), 3)) == 2 * 100 * 100 * 3 * 4
    assert work.measure is None
    (work,) = files.load(af.image).stages[-1].steps()
    assert work.measure(af.File(str(folder / "01.img"))) == 37 * 53 * 3


def test_samples_of_one_shape_are_cached_as_they_are(folder: Path) -> None:
    pipeline = af.files(f"{folder}/*.img").load(DECODERS[0]).cache(folder / "kept").batch(4)
    for _ in range(2):
        equal(list(pipeline), one_by_one(DECODERS[0], 4))


class Ones(af.Decoder[Any]):
    """A decoder of one's own, for files that hold one number."""

    name = "ones"
    row = Row((2,), np.dtype(np.int64))

    def decode(self, buffer: Any, file: af.File) -> Any:
        out = np.empty(2, np.int64)
        self.decode_into(buffer, file, out)
        return out

    def decode_into(self, buffer: Any, file: af.File, row: Any) -> None:
        row[:] = int(buffer.tobytes())


def test_a_decoder_of_ones_own_fills_rows_and_its_errors_name_the_file() -> None:
    """Whatever it raises."""
    store = MemoryStore({"a": b"1", "b": b"2", "c": b"x", "d": b"4"})
    files = af.items(store.files())
    assert [batch.tolist() for batch in files.take(2).load(Ones()).batch(2)] == [[[1, 1], [2, 2]]]
    with files.load(Ones()).batch(2).open() as feed:
        next(feed)
        with pytest.raises(ValueError, match="invalid literal"):
            next(feed)
        failure = feed.failure
    assert failure is not None
    assert (failure.key, failure.ordinal) == ("c", 2)
