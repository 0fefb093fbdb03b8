"""`audio`: what soundfile has written, and damaged files."""

from __future__ import annotations

import io
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.reading import File
from tests.formats.mutations import mutations

soundfile = pytest.importorskip("soundfile")

RATE = 16_000
WAVE = np.sin(np.arange(RATE // 4)[:, None] * [0.05, 0.07]).astype("f4") / 2
FORMATS = {"wav": "PCM_16", "flac": "PCM_16", "ogg": "VORBIS", "mp3": "MPEG_LAYER_III"}


def written(kind: str, samples: Any = WAVE, subtype: str | None = None, rate: int = RATE) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=kind, subtype=subtype or FORMATS[kind])
    return out.getvalue()


def buffer(data: bytes) -> Any:
    return np.frombuffer(bytearray(data), np.uint8)


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_gives_the_samples_that_soundfile_reads(kind: str) -> None:
    data = written(kind)
    found = af.audio(data)
    expected, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    assert (found.dtype, found.shape) == (np.float32, expected.shape)
    np.testing.assert_allclose(found, expected, atol=1e-6)  # mp3 is not decoded bit by bit the same
    assert abs(len(found) - len(WAVE)) < 3_000
    assert found.flags.writeable


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32"])
def test_mono_is_the_mean_of_the_channels(dtype: Any) -> None:
    data = written("wav")
    both = af.audio(dtype=dtype).decode(buffer(data), File("a.wav"))
    one = af.audio(dtype=dtype, mono=True).decode(buffer(data), File("a.wav"))
    assert one.dtype == both.dtype == np.dtype(dtype)
    np.testing.assert_allclose(one, both.mean(axis=1), atol=0.5 if "int" in dtype else 1e-6)
    single = af.audio(mono=True).decode(buffer(written("wav", WAVE[:, 0])), File("a.wav"))
    assert single.shape == (len(WAVE),)


def test_files_are_loaded_and_batched(tmp_path: Path) -> None:
    for number, kind in enumerate(("wav", "flac")):
        (tmp_path / f"{number}.{kind}").write_bytes(written(kind))
    (batch,) = af.files(str(tmp_path / "*.*")).load(af.audio(sample_rate=RATE, mono=True)).batch(2)
    assert batch.shape == (2, len(WAVE))
    np.testing.assert_allclose(batch[0], batch[1], atol=1e-4)
    rates = [rate for _, rate in af.files(str(tmp_path / "*.*")).load(af.audio(with_rate=True))]
    assert rates == [RATE, RATE]


def test_another_rate_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(
        ValueError, match=r"a\.wav has 8000 samples a second, not 16000: .*with_rate=True.*resample"
    ):
        af.audio(sample_rate=16_000).decode(buffer(written("wav", rate=8_000)), File("a.wav"))


def test_a_file_that_unpacks_to_too_much_is_refused() -> None:
    silence = written("flac", np.zeros(1 << 20, "f4"))
    assert len(silence) < 30_000
    with pytest.raises(ValueError, match=r"unpacks to 4194304 bytes, more than the 100000 allowed: .*max_bytes="):
        af.audio(max_bytes=100_000).decode(buffer(silence), File("a.flac"))


@pytest.mark.parametrize(("kind", "least"), [("wav", 1), ("flac", 1), ("mp3", 0.9)])
def test_the_size_of_the_samples_is_known_before_they_are_decoded(kind: str, least: float) -> None:
    data = written(kind)
    size = af.audio.unpacked(io.BytesIO(data), File("a", len(data)))
    assert least * WAVE.nbytes <= size <= 10 * WAVE.nbytes
    if kind != "mp3":
        assert size == WAVE.nbytes


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is no audio file, or is damaged"),
        (b"no audio file" * 10, "is no audio file, or is damaged"),
        (written("wav")[:-5], "is cut short: 15995 of 16000 bytes of samples are there"),
        (written("wav")[:30], "is cut short: it holds no samples"),
        (written("flac")[:-500], "is cut short|is damaged"),
        (written("flac")[:10], "is no audio file, or is damaged"),
    ],
    ids=["empty", "text", "wav", "head of wav", "flac", "head of flac"],
)
def test_a_damaged_file_is_corrupt(data: bytes, message: str) -> None:
    with pytest.raises(Corrupt, match=rf"^a\.wav .*({message})"):
        af.audio.decode(buffer(data), File("a.wav"))


def test_a_wav_file_that_was_written_to_a_pipe_is_read_to_its_end() -> None:
    data = bytearray(written("wav"))
    place = data.index(b"data") + 4
    data[place : place + 4] = data[4:8] = b"\xff\xff\xff\xff"
    assert len(af.audio(bytes(data))) == len(WAVE)


@pytest.mark.parametrize("kind", FORMATS)
def test_mutations_give_samples_or_corrupt(kind: str) -> None:
    data = written(kind, WAVE[:800])
    decoder = af.audio(max_bytes=1 << 22)
    sound = 0
    for mutated in mutations(data, {"mp3": 300, "ogg": 1_000}.get(kind, 3_000)):
        with suppress(Corrupt, ValueError):
            sound += len(decoder.decode(buffer(mutated), File("a"))) >= 0
    assert sound


def test_it_is_a_value_and_refuses_what_means_nothing() -> None:
    assert pickle.loads(pickle.dumps(af.audio(mono=True))) == af.audio(mono=True) != af.audio
    assert repr(af.audio(dtype="int16")) == "audio(dtype='int16')"
    for wrong in ({"sample_rate": 0}, {"sample_rate": 1.5}, {"dtype": "int8"}, {"max_bytes": 0}):
        with pytest.raises(PipelineError, match=f"audio: {next(iter(wrong))}"):
            af.audio(**wrong)  # type: ignore[call-overload]


def test_without_soundfile_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    data = written("wav")
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    with pytest.raises(PipelineError, match=r"pip install 'asyncfeed\[audio\]'"):
        af.audio(data)
