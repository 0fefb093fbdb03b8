"""Read a bucket: the same program for a bucket in a cloud and for one on this machine.

Run it with `python examples/object_store.py`. It needs `asyncfeed[cloud]` and `localbucket`, a small server that
speaks the protocol of S3. It writes samples as objects of a bucket, and serves them on 127.0.0.1. Then it reads
them three times: over the network, over the network into a cache on the local disk, and from the cache.

For a bucket of yours, leave the server out and write its URL: credentials come from the environment.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import asyncfeed as af

SAMPLES = 600


def write_bucket(root: Path) -> None:
    """Write the samples: the folder is the bucket, and the files in it are its objects."""
    rng = np.random.default_rng(0)
    (root / "bucket" / "train").mkdir(parents=True)
    for number in range(SAMPLES):
        label = number % 10
        np.save(
            root / "bucket" / "train" / f"{label}-{number:05}.npy", rng.normal(label, 1, 1000).astype(np.float32)
        )


@contextmanager
def served(root: Path) -> Iterator[str]:
    """Serve the buckets in a folder. Return the address of the server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "import sys, localbucket; sys.argv = ['localbucket', *sys.argv[1:]]; localbucket.main()"
    server = subprocess.Popen(
        [sys.executable, "-c", program, "--port", str(port), str(root)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while socket.socket().connect_ex(("127.0.0.1", port)):  # it starts in a tenth of a second
            if server.poll() is not None:
                sys.exit("the server did not start: pip install localbucket")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def labelled(file: af.File) -> tuple[af.File, int]:
    """Return a file and its label, which is in its name."""
    return file, int(file.path.rpartition("/")[2][0])


def mean_error(batches: Any) -> float:
    """Stands in for a training step: how far the mean of a sample is from its label."""
    errors = [np.abs(samples.mean(axis=1) - labels).mean() for samples, labels in batches]
    return float(np.mean(errors))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_bucket(root / "served")
        with served(root / "served") as address:
            # `endpoint` and `anonymous` are for the server here. A bucket of yours needs neither.
            objects = af.files("s3://bucket/train/*.npy", endpoint=address, anonymous=True)
            print(f"{len(objects)} objects of {sum(file.size or 0 for file in objects) / 1e6:.0f} MB")
            cached = objects.cache(root / "cache", max_bytes=1 << 30)
            for name, files in ("bucket", objects), ("bucket, into the cache", cached), ("cache", cached):
                train = files.shuffle(seed=7).map(labelled).load(af.npy).batch(50)
                began = time.perf_counter()
                with train.open() as feed:
                    error = mean_error(feed)
                seconds = time.perf_counter() - began
                print(f"{name:<24}{SAMPLES / seconds:8,.0f} samples a second, error {error:.3f}")


if __name__ == "__main__":
    main()
