"""The examples run as their user runs them, and reach what they promise."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent / "examples" / "digits.py"


def test_service() -> None:
    """Training inside an async service: every batch, and requests answered meanwhile."""
    script = DEMO.with_name("service.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "\nbatches                            124" in done.stdout
    assert "44 of 50 users have trained on everything, 5 were cancelled, and one got:\nValueError: " in done.stdout
    assert "requests answered" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("packing", "500 documents in 153 rows, 94.2% filled"),
        ("mixing", "photos: 70%\ndrawings: 30%"),
        ("time_series", "error on 20 windows: 0.11"),
        (
            "shards",
            "1000 files are 4 shards now, of 2052096 bytes\n"
            "epoch 0 begins with the classes [0, 8, 1, 2, 7, 0, 6, 4]\n"
            "epoch 1 begins with the classes [4, 2, 2, 0, 1, 7, 6, 6]",
        ),
        (
            "tfrecords",
            "epoch 0: 1800 images of 4 shards, 1800 with their label\n"
            "epoch 1: 1800 images of 4 shards, 1800 with their label\n"
            "200 records are left for the test",
        ),
        ("parquet", "20000 rows, 99% right"),
        (
            "json_lines",
            "any length: 2000 texts in 63 batches, 47% padding\n"
            "similar length: 2000 texts in 64 batches, 18% padding",
        ),
        (
            "tar",
            "epoch 0: 300 samples, and the first batch is from the archives [0, 1, 2]\n"
            "epoch 1: 300 samples, and the first batch is from the archives [0, 1, 2]",
        ),
        ("hdf5", "rows: 63 batches, sum 86.947\nchunks: 63 batches, sum 86.947"),
    ],
)
def test_short_examples(name: str, printed: str) -> None:
    """The programs that people write first, each under 40 lines."""
    pytest.importorskip({"parquet": "pyarrow", "hdf5": "h5py"}.get(name, "numpy"))
    script = DEMO.with_name(f"{name}.py")
    assert len(script.read_text().splitlines()) < 40
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == printed
    assert done.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="tells a killed job by its return code")
def test_resume() -> None:
    """A job that is killed again and again has the results of one that is not."""
    script = DEMO.with_name("resume.py")
    assert len(script.read_text().splitlines()) < 60
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    *lives, last = done.stdout.splitlines()
    assert last == "240 results, the same as without a kill"
    assert len(lives) >= 3
    assert all(" killed, " in life for life in lives[:-1])
    assert " finished, " in lives[-1]


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("obstore", "localbucket"))), reason="needs obstore and localbucket"
)
def test_object_store() -> None:
    """The bucket, filling the cache and the cache give the same samples."""
    script = DEMO.with_name("object_store.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    count, *passes = done.stdout.splitlines()
    assert count == "600 objects of 2 MB"
    assert [line.split("  ")[0] for line in passes] == ["bucket", "bucket, into the cache", "cache"]
    assert len({line.rpartition("error")[2] for line in passes}) == 1
    assert done.stderr == ""


@pytest.mark.parametrize("library", [pytest.param("keras", marks=pytest.mark.tensorflow), "torch"])
def test_images(library: str) -> None:
    """A folder of images of three classes."""
    pytest.importorskip("PIL")
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    script = DEMO.with_name(f"images_{library}.py")
    assert len(script.read_text().splitlines()) < 40
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=110, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("of 60 images are in the right class of blue, green, red")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_torch_training() -> None:
    """A model learns what its images show."""
    script = DEMO.with_name("torch_training.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    right, _, rest = done.stdout.partition(" ")
    assert rest == "of 128 images of the test part have the right label\n"
    assert int(right) > 90
    assert done.stderr == ""


@pytest.mark.tensorflow
@pytest.mark.timeout(240)
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("tensorflow", "sklearn"))), reason="needs asyncfeed[demo]"
)
def test_digits(tmp_path: Path) -> None:
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, DEMO, "--data", tmp_path], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("images/*.npy"))) == 1797
    assert "Epoch 15/15" in done.stdout
    table = done.stdout[done.stdout.index("what the pipeline did in 15 passes") :].splitlines()
    assert [line.split("  ")[0] for line in table[1:5]] == [
        "images",
        "bytes",
        "trainer waited for data",
        "data waited for trainer",
    ]
    assert f"{1437 * 15:,}" in table[1]
    assert table[5].startswith("The pipeline ")
    assert table[5].endswith("%.")
    assert float(table[6].split()[-1].rstrip("%")) >= 95
    assert not {"\r", "\b", "\x1b"} & set(done.stdout), "plain lines, as this is no terminal"
    _, plan = done.stdout.split("the pipeline:\n")
    shown = [
        line for line in plan.splitlines()[:-2] if not line.startswith("  table(")
    ]  # which says where the files are
    assert max(map(len, shown)) <= 60
    assert max(map(len, table[:5])) <= 60
    assert "Traceback" not in done.stderr
    assert "UserWarning" not in done.stderr
