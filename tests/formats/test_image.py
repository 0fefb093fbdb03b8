"""`image`: any image as an array, upright, of the size that is wanted; and nothing but `Corrupt` for bad bytes."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zlib
from io import BytesIO
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats import image_resize
from asyncfeed.formats.image import ImageDecoder, image
from asyncfeed.formats.image_fit import Fit, as_stored, turned
from asyncfeed.formats.image_header import exif_orientation, jpeg_orientation
from asyncfeed.formats.image_resize import resized
from asyncfeed.reading.file import Bytes, File
from tests.searching import SEARCH, SEED

Image = pytest.importorskip("PIL.Image")
simplejpeg = pytest.importorskip("simplejpeg")
from PIL import ImageOps  # noqa: E402 - it is there only if Pillow is

FILE = File("a.jpg")
LOSSLESS = ["PNG", "BMP", "TIFF", "PPM", "GIF"]


def picture(height: int = 37, width: int = 53, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return pixels like those of a photograph: smooth, with some noise."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 255, (5, 7, 3), np.uint8)).resize((width, height), Image.BICUBIC)
    return (np.asarray(small) + rng.normal(0, 4, (height, width, 3))).clip(0, 255).astype(np.uint8)


def saved(pixels: Any, kind: str = "JPEG", mode: str | None = None, **options: Any) -> bytes:
    made = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    out = BytesIO()
    (made.convert(mode) if mode else made).save(out, kind, **options)
    return out.getvalue()


def rotated(pixels: Any, orientation: int, kind: str = "JPEG", **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(pixels, kind, exif=exif, **options)


def of(contents: bytes) -> Bytes:
    return np.frombuffer(bytearray(contents), np.uint8)


def by_pillow(data: bytes, mode: str = "RGB") -> np.ndarray[Any, Any]:
    made = np.asarray(ImageOps.exif_transpose(Image.open(BytesIO(data))).convert(mode))
    return made[..., np.newaxis] if mode == "L" else made


def away(one: Any, another: Any) -> int:
    """Return the largest difference of two images."""
    assert one.shape == another.shape
    return int(np.abs(one.astype(int) - another.astype(int)).max())


# -- pixels


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_jpeg_is_what_simplejpeg_decodes(progressive: bool, subsampling: int) -> None:
    data = saved(picture(), progressive=progressive, subsampling=subsampling)
    np.testing.assert_array_equal(image(data), simplejpeg.decode_jpeg(data))
    assert away(image(data), by_pillow(data)) <= 2
    assert image(data).flags.writeable


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("kind", LOSSLESS)
def test_other_formats_are_what_pillow_decodes(kind: str, mode: Any) -> None:
    data = saved(picture(), kind)
    np.testing.assert_array_equal(image(mode=mode)(data), by_pillow(data, mode))


@pytest.mark.parametrize("kind", ["WEBP", "AVIF"])
def test_formats_with_losses_are_what_pillow_decodes(kind: str) -> None:
    data = saved(picture(), kind)
    np.testing.assert_array_equal(image(data), by_pillow(data))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_pixels_of_any_kind_become_those_of_the_mode(mode: str) -> None:
    if mode == "I;16":
        data = saved(Image.fromarray((np.arange(600, dtype=np.uint16) * 100).reshape(20, 30)), "PNG")
        assert image(mode="L")(data)[0, :3, 0].tolist() == [0, 0, 0]
        assert image(mode="L")(data)[-1, -1, 0] == 59_900 >> 8
        return
    data = saved(picture(), "PNG", mode)
    for wanted in ("RGB", "L", "RGBA"):
        np.testing.assert_array_equal(image(mode=wanted)(data), by_pillow(data, wanted))


def test_a_palette_with_transparency_needs_no_warning() -> None:
    made = Image.fromarray(picture()).convert("P")
    data = saved(made, "PNG", transparency=bytes(range(256)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(image(data), np.asarray(made.convert("RGB")))
        assert image(mode="RGBA")(data)[..., 3].max() > 200


def test_jpeg_of_kinds_that_simplejpeg_does_not_convert_goes_to_pillow() -> None:
    data = saved(picture(), mode="CMYK")
    np.testing.assert_array_equal(image(data), by_pillow(data))
    gray = saved(picture(), mode="L")
    assert away(image(gray), by_pillow(gray)) <= 1
    assert away(image(mode="L")(saved(picture())), by_pillow(saved(picture()), "L")) <= 3
    assert image(mode="RGBA")(saved(picture()))[..., 3].min() == 255


def test_a_few_bytes_too_many_between_two_segments_do_no_harm() -> None:
    """Many programs write such files, and all pixels are there."""
    data = saved(picture())
    at = 2 + 2 + struct.unpack_from(">H", data, 4)[0]
    assert away(image(data[:at] + b"\0\0" + data[at:]), image(data)) <= 2


def test_the_first_picture_of_several_is_read() -> None:
    frames = [Image.fromarray(picture(seed=seed)).quantize(64) for seed in (1, 2)]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(image(data), by_pillow(data))
    assert away(image(data), np.asarray(frames[0].convert("RGB"))) == 0


def test_float32_is_the_same_from_0_to_1() -> None:
    for size in (None, (20, 20)):
        for data in (saved(picture()), saved(picture(), "PNG")):
            exact, scaled = image(size=size)(data), image(size=size, dtype="float32")(data)
            assert scaled.dtype == np.float32
            np.testing.assert_array_equal(scaled, exact.astype(np.float32) / np.float32(255))


# -- orientation


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_an_image_is_upright(orientation: int, kind: str) -> None:
    data = rotated(picture(), orientation, kind)
    made = image(data)
    assert made.shape == turned((37, 53), orientation) + (3,)
    assert away(made, by_pillow(data)) <= (2 if kind == "JPEG" else 0)


@pytest.mark.parametrize("resize", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_upright_image_is_resized(orientation: int, resize: Any) -> None:
    """As if it were turned first."""
    for kind in ("JPEG", "PNG"):
        plain = saved(np.ascontiguousarray(turn(picture(), orientation)), kind, **quality(kind))
        stored = rotated(picture(), orientation, kind, **quality(kind))
        decoder = image(size=(24, 18), resize=resize)
        assert np.abs(decoder(stored).astype(float) - decoder(plain)).mean() < 3


def turn(pixels: Any, orientation: int) -> Any:
    """Return pixels as a file has them, upright."""
    out = np.empty((*turned(pixels.shape[:2], orientation), 3), np.uint8)
    as_stored(out, orientation)[...] = pixels
    return out


def quality(kind: str) -> dict[str, int]:
    return {"quality": 95, "subsampling": 0} if kind == "JPEG" else {}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turning_is_what_pillow_does(orientation: int) -> None:
    made = Image.fromarray(picture())
    made.getexif()[0x0112] = orientation
    np.testing.assert_array_equal(turn(picture(), orientation), np.asarray(ImageOps.exif_transpose(made)))


def test_a_damaged_orientation_is_none() -> None:
    sound = rotated(picture(), 6)
    at = sound.index(b"Exif\0\0") + 6
    block = sound[at : at + 40]
    assert jpeg_orientation(memoryview(sound)) == exif_orientation(memoryview(block)) == 6
    for cut in range(20):
        assert exif_orientation(memoryview(block[:cut])) == 1
        assert 1 <= jpeg_orientation(memoryview(sound[: at + cut])) <= 8
    for offset in (0xFFFFFFFF, 1 << 20, 30):
        assert exif_orientation(memoryview(block[:4] + struct.pack("<I", offset) + block[8:])) == 1
    rng = np.random.default_rng(0)
    for _ in range(500):
        wrong = bytearray(block)
        wrong[rng.integers(len(wrong))] = rng.integers(256)
        assert 1 <= exif_orientation(memoryview(wrong)) <= 8


# -- sizes


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("shape", [(137, 153), (375, 500), (1000, 60), (12, 500)])
@pytest.mark.parametrize("size", [(24, 24), (17, 40), (224, 224)])
def test_resizing_is_what_pillow_does(kind: str, shape: tuple[int, int], size: tuple[int, int]) -> None:
    data = saved(picture(*shape), kind, **quality(kind))
    whole = Image.open(BytesIO(data)).convert("RGB")
    want, bilinear = size[::-1], Image.Resampling.BILINEAR
    expected = {
        "stretch": whole.resize(want, bilinear),
        "crop": ImageOps.fit(whole, want, bilinear),
        "pad": ImageOps.pad(whole, want, bilinear),
    }
    for resize, pixels in expected.items():
        made = image(size=size, resize=resize)(data)
        assert made.shape == (*size, 3)
        mean = np.abs(made.astype(float) - np.asarray(pixels)).mean()
        assert mean < (0.5 if kind == "PNG" else 7), (resize, mean)


def test_an_image_is_decoded_at_a_smaller_scale_that_is_not_below_the_size() -> None:
    data = saved(picture(800, 1200))
    decoded = []
    decode = simplejpeg.decode_jpeg

    def spy(*args: Any, **options: Any) -> Any:
        made = decode(*args, **options)
        decoded.append(made.shape[:2])
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simplejpeg, "decode_jpeg", spy)
        image(size=100)(data)
        image(size=(400, 600), resize="stretch")(data)
        image(size=(100, 1200), resize="stretch")(data)
        image(size=2000)(data)
    assert decoded == [(100, 150), (400, 600), (800, 1200), (800, 1200)]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_both_libraries_that_resize_agree(mode: Any) -> None:
    """To 1 of 255. cykooz_resizer is faster, and is not there for every machine."""
    pytest.importorskip("cykooz_resizer")
    pixels = image(mode=mode)(saved(picture(137, 153), "PNG"))
    rng = np.random.default_rng(0)
    for _ in range(100):
        top, left = rng.random(2) * 60
        box = (left, top, left + 1 + rng.random() * 90, top + 1 + rng.random() * 70)
        size = (int(rng.integers(1, 200)), int(rng.integers(1, 200)))
        fast = resized(pixels, mode, box, size)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(image_resize, "fast_library", lambda: None)
            assert away(fast, resized(pixels, mode, box, size)) <= 1
            patch.undo()


def test_images_are_resized_without_the_fast_library(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(picture(375, 500))
    expected = image(size=100)(data)
    monkeypatch.setitem(sys.modules, "cykooz_resizer", None)
    image_resize.fast_library.cache_clear()
    try:
        assert away(image(size=100)(data), expected) <= 1
    finally:
        image_resize.fast_library.cache_clear()


def test_an_image_of_the_size_is_decoded_into_its_row() -> None:
    """No pixel is copied."""
    data = saved(picture())
    rows = np.zeros((2, 37, 53, 3), np.uint8)
    decoder = image(size=(37, 53))
    assert decoder.row is not None
    assert decoder.row.shape == (37, 53, 3)
    tracemalloc.start()
    decoder.decode_into(of(data), FILE, rows[1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(rows[1], simplejpeg.decode_jpeg(data))
    assert not rows[0].any()
    assert peak < rows[1].nbytes


@pytest.mark.parametrize("resize", ["crop", "pad", "stretch"])
def test_a_row_may_hold_anything_before(resize: Any) -> None:
    """Memory of batches is used again; the borders of a padded image are black."""
    for data in (saved(picture()), saved(picture(), "PNG"), rotated(picture(), 6)):
        for dtype in ("uint8", "float32"):
            decoder = image(size=(30, 44), resize=resize, dtype=dtype)
            row = np.full((30, 44, 3), 77, dtype)
            decoder.decode_into(of(data), FILE, row)
            np.testing.assert_array_equal(row, decoder(data))
            if resize == "pad":
                assert not (row[:, 0].any() and row[0].any() and row[:, -1].any())


def test_the_smallest_images_and_sizes() -> None:
    for shape in ((1, 1), (1, 500), (500, 1)):
        for kind in ("JPEG", "PNG"):
            data = saved(picture(*shape), kind)
            assert image(data).shape == (*shape, 3)
            for resize in ("crop", "pad", "stretch"):
                for size in (1, (1, 7), (7, 1), 64):
                    assert image(size=size, resize=resize)(data).shape[2] == 3
    assert Fit.of((1, 500), (64, 64), "pad").size == (1, 64)


# -- what is refused


def bomb(kind: str) -> bytes:
    """Return a small file that declares 60,000 x 60,000 pixels, or as many as its format can."""
    many = 60_000
    data = bytearray(saved(picture(), kind, **({"lossless": True} if kind == "WEBP" else {})))
    match kind:
        case "JPEG":
            at = data.index(b"\xff\xc0") + 5
            data[at : at + 4] = struct.pack(">HH", many, many)
        case "PNG":
            data[16:24] = struct.pack(">II", many, many)
            data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
        case "GIF":
            data[6:10] = struct.pack("<HH", many, many)
        case "WEBP":
            assert data[12:16] == b"VP8L"
            data[21:25] = b"\xff\xff\xff\x0f"  # 16,384 x 16,384
        case "BMP":
            data[18:26] = struct.pack("<ii", many, many)
        case "PPM":
            data[:] = b"P6 60000 60000 255\n" + bytes(100)
        case "TIFF":
            data[:] = saved(picture(), "TIFF").replace(*(struct.pack("<HHIH", 256, 4, 1, n) for n in (53, many)))
            data[:] = data.replace(*(struct.pack("<HHIH", 257, 4, 1, n) for n in (37, many)))
            data[:] = data.replace(*(struct.pack("<HHIHxx", 256, 3, 1, n) for n in (53, many)))
            data[:] = data.replace(*(struct.pack("<HHIHxx", 257, 3, 1, n) for n in (37, many)))
    return bytes(data)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "PPM", "TIFF"])
def test_a_bomb_is_refused_before_its_memory_is_taken(kind: str) -> None:
    data = bomb(kind)
    image(saved(picture(), kind))  # so that Pillow is imported
    tracemalloc.start()
    with pytest.raises(Corrupt, match=r"declares \d+ x \d+ pixels, more than the 67108864 allowed|exceeds limit"):
        image.decode(of(data), FILE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_the_limit_can_be_raised_and_lowered() -> None:
    data = saved(picture())
    with pytest.raises(Corrupt, match=r"a\.jpg declares 53 x 37 pixels.*image\(max_pixels=1961\)"):
        image(max_pixels=1960).decode(of(data), FILE)
    assert image(max_pixels=1961)(data).shape == (37, 53, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF"])
def test_a_file_that_is_cut_short_is_corrupt(kind: str) -> None:
    data = saved(picture(), kind, **({"progressive": True} if kind == "JPEG" else {}))
    for cut in (0, 1, 5, 20, 100, len(data) // 2, len(data) - 20):
        with pytest.raises(Corrupt, match=r"a\.jpg"):
            image.decode(of(data[:cut]), FILE)
        with pytest.raises(Corrupt, match=r"a\.jpg"):
            image(size=20).decode(of(data[:cut]), FILE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty, where an image was expected"),
        (b"<!DOCTYPE html><html>", "no image that can be read but a web page"),
        (b"%PDF-1.4", "but a PDF document"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image that can be read"),
        (b"\xff\xd8\xff\xe0", "is a JPEG image that is damaged or cut short"),
        (b"\x89PNG\r\n\x1a\n", "is a PNG image that is damaged or cut short"),
        (bytes(1000), "no image that can be read"),
    ],
)
def test_what_is_no_image_is_corrupt_and_said(data: bytes, message: str) -> None:
    with pytest.raises(Corrupt, match=message):
        image.decode(of(data), FILE)


def test_pixels_without_a_range_are_refused() -> None:
    data = saved(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF")
    with pytest.raises(Corrupt, match="mode F, which has no range"):
        image(data)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Return the bytes with some wrong, missing, repeated or moved."""
    made = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(len(made))) if rng.random() < 0.5 else int(rng.integers(min(64, len(made))))
        match rng.integers(6):
            case 0 | 1 | 2:
                made[at] = rng.integers(256)
            case 3:
                made[at : at + 4] = rng.bytes(4)
            case 4:
                del made[at : at + int(rng.integers(1, 8))]
            case 5:
                made[at:at] = made[at : at + 8]
        if len(made) < 8:
            break
    return bytes(made[: rng.integers(len(made))] if rng.random() < 0.05 else made)


@pytest.mark.filterwarnings("ignore")
def test_thousands_of_damaged_files_are_images_or_corrupt() -> None:
    """No crash, no other error, no memory beyond the limit."""
    rng = np.random.default_rng(SEED)
    small = picture(24, 32)
    sound = [
        saved(small), saved(small, progressive=True), saved(small, mode="L"), rotated(small, 6),
        saved(small, "PNG"), saved(small, "PNG", "P"), saved(small, "PNG", "LA"),
        saved(small, "WEBP"), saved(small, "WEBP", lossless=True), saved(small, "GIF"),
    ]  # fmt: skip
    decoders = [image(max_pixels=1 << 16), image(size=(16, 20), max_pixels=1 << 16)]
    images = corrupt = 0
    tracemalloc.start()
    count = max(2_000, int(2_000 * SEARCH))
    for number in range(count):
        data = mutated(sound[number % len(sound)], rng)
        try:
            made = decoders[number % 3 // 2].decode(of(data), FILE)
        except Corrupt as error:
            assert "a.jpg" in str(error)
            corrupt += 1
        else:
            assert made.size <= 3 << 16
            images += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert min(images, corrupt) > count // 10
    assert peak < 16 << 20


# -- options


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ({"mode": "BGR"}, r"mode must be 'RGB', 'L' \(gray\) or 'RGBA', not 'BGR'"),
        ({"size": 0}, "size must be a whole number of at least 1"),
        ({"size": (3, True)}, "size must be a whole number"),
        ({"size": (3, 4, 3)}, r"size must be \(height, width\) or one number"),
        ({"size": 2.5}, r"size must be \(height, width\)"),
        ({"size": 100_000}, "more than max_pixels"),
        ({"size": 8, "resize": "fit"}, "resize must be 'crop'"),
        ({"resize": "pad"}, "has no effect without a size"),
        ({"dtype": "int32"}, "dtype must be 'uint8'"),
        ({"dtype": "nonsense"}, "dtype must be 'uint8'"),
        ({"max_pixels": 0}, "max_pixels must be a whole number of at least 1"),
    ],
)
def test_a_wrong_option_is_refused(wrong: dict[str, Any], fix: str) -> None:
    with pytest.raises(PipelineError, match=fix):
        image(**wrong)


def test_the_decoder_is_a_value() -> None:
    made = image(size=224, dtype=np.float32, resize="pad", mode="L")
    assert repr(made) == "image(mode='L', size=(224, 224), resize='pad', dtype='float32')"
    assert pickle.loads(pickle.dumps(made)) == made != image
    assert image(size=[2, 3]).size == (2, 3)
    assert repr(image) == "image"
    assert image() == image == ImageDecoder()


def test_the_size_of_an_image_is_known_without_decoding_it() -> None:
    assert image.unpacked(BytesIO(rotated(picture(), 6)), FILE) == 37 * 53 * 3
    assert image(dtype="float32", mode="L").unpacked(BytesIO(saved(picture(), "PNG")), FILE) == 37 * 53 * 4


@pytest.mark.parametrize("missing", ["simplejpeg", "PIL"])
def test_a_missing_library_is_named_with_its_extra(missing: str) -> None:
    program = f"""
import sys
sys.modules[{missing!r}] = None
import asyncfeed as af
try:
    af.image({saved(picture(4, 4), "JPEG" if missing == "simplejpeg" else "PNG")!r})
except af.PipelineError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"this needs {missing}, which is not installed: pip install 'asyncfeed[images]'\n"


def test_raw_bytes_are_decoded_directly() -> None:
    assert af.image(size=8)(saved(picture())).shape == (8, 8, 3)
