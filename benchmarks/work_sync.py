"""Ways to call a sync function for every item on more than one core: the contenders of work.py's decode rows.

A job is a function of an item's number that returns (number, data). All contenders make batches of 32 of them,
in order, stacked to arrays, in the thread that called. Jobs are sent to processes as they are, so they and what
they call stand in this module, which processes import; their start is a fork server that has imported it.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from harness import Contender, Made, Run

import asyncfeed as af

BATCH = 32
OURS, ONE, TWO = "asyncfeed", "one thread", "two processes"

Sample: TypeAlias = tuple[int, Any]
Job: TypeAlias = Callable[[int], Sample]


# -- the jobs


class Inflate:
    """Decompresses 64 KB of float32, one of 64 such arrays; zlib releases the GIL."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        arrays = [rng.normal(size=16_384).round(3).astype(np.float32) for _ in range(64)]
        self.blobs = [zlib.compress(array.tobytes()) for array in arrays]

    def __call__(self, number: int) -> Sample:
        """Return the number and its array."""
        return number, np.frombuffer(zlib.decompress(self.blobs[number % 64], bufsize=1 << 16), np.float32)

    def in_graph(self, tf: Any) -> Callable[[Any], Any]:
        """Return the same for TensorFlow."""
        blobs = tf.constant(self.blobs)
        return lambda number: (
            number,
            tf.io.decode_raw(tf.io.decode_compressed(blobs[number % 64], "ZLIB"), tf.float32),
        )


class Jpeg:
    """Decodes a photo-like JPEG of 256 x 256, one of 64 such, with Pillow, whose decoder releases the GIL."""

    def __init__(self) -> None:
        from PIL import Image

        rng = np.random.default_rng(1)
        self.blobs = []
        for _ in range(64):
            # Smooth at a few scales: noise of 4 x 4 to 64 x 64 points, enlarged and added up.
            pixels = np.full((256, 256, 3), 128.0)
            for points, contrast in ((4, 60), (16, 30), (64, 15)):
                coarse = Image.fromarray(rng.integers(0, 256, (points, points, 3), np.uint8))
                fine = coarse.resize((256, 256), Image.Resampling.BICUBIC)
                pixels += (np.asarray(fine) / 127.5 - 1) * contrast
            file = io.BytesIO()
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
            self.blobs.append(file.getvalue())

    def __call__(self, number: int) -> Sample:
        """Return the number and its image."""
        from PIL import Image

        return number, np.asarray(Image.open(io.BytesIO(self.blobs[number % 64])))

    def in_graph(self, tf: Any) -> Callable[[Any], Any]:
        """Return the same for TensorFlow."""
        blobs = tf.constant(self.blobs)
        return lambda number: (number, tf.io.decode_jpeg(blobs[number % 64], channels=3))


class Spin:
    """Computes in pure Python for about a millisecond: so many steps as take that where it is made."""

    def __init__(self) -> None:
        self.steps = 1_000
        self.steps = round(1_000 * 1e-3 / min(self._time() for _ in range(50)))

    def _time(self) -> float:
        begun = time.perf_counter()
        self(0)
        return time.perf_counter() - begun

    def __call__(self, number: int) -> Sample:
        """Return the number and what came out."""
        state = number
        for _ in range(self.steps):
            state = (state * 1_103_515_245 + 12_345) & 0x7FFFFFFF
        return number, state


def stack(samples: Iterable[Sample]) -> tuple[Any, Any]:
    """Return samples as a batch."""
    numbers, data = zip(*samples, strict=True)
    return np.array(numbers), np.stack(data)


class Numbered:
    """A job as a data set of so many samples, for the libraries that index one."""

    def __init__(self, job: Job, items: int) -> None:
        self.job, self.items = job, items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, number: int) -> Sample:
        return self.job(number)


def context() -> Any:
    """Return how processes start: forked, but not from this one, which has threads."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["numpy", "torch", "PIL.Image", "work_sync"])
    return made


# -- ours


def ours() -> Iterator[Contender]:
    """Yield our pipeline as a user writes it."""

    def make(job: Job, items: int) -> Iterable[Any]:
        return af.items(range(items)).map(job).batch(BATCH)

    yield Contender(OURS, {"defaults": Made(make)})


def ours_with_tensorflow() -> Iterator[Contender]:
    """Yield our pipeline around TensorFlow's own decoder: what is left of the difference is not Pillow's."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    def make(job: Any, items: int) -> Iterable[Any]:
        blobs = [tf.constant(blob) for blob in job.blobs]

        def decode(number: int) -> Sample:
            return number, tf.io.decode_jpeg(blobs[number % 64], channels=3).numpy()

        return af.items(range(items)).map(decode).batch(BATCH)

    yield Contender(f"{OURS}, tf.io.decode_jpeg", {"defaults": Made(make)}, note="called on our threads")


def ours_in_processes() -> Iterator[Contender]:
    """Yield our pipeline with the function in processes."""

    def make(job: Job, items: int) -> Iterable[Any]:
        return af.items(range(items)).map(job, on="process").batch(BATCH)

    yield Contender(OURS, {"defaults": Made(make)})


# -- what bounds it


def one_thread() -> Iterator[Contender]:
    """Yield a bare loop."""

    def run(job: Job, items: int, consume: Callable[[Any], None]) -> None:
        for start in range(0, items, BATCH):
            consume(stack(map(job, range(start, min(start + BATCH, items)))))

    yield Contender(ONE, {"bare loop": run}, note="a bare loop, twice whose items a second are called two cores")


def half(job: Job, items: int, ready: Any) -> tuple[float, float]:
    """Run a bare loop; return when it began, with the other one, and when it ended."""
    ready.wait()
    begun = time.perf_counter()
    for start in range(0, items, BATCH):
        stack(map(job, range(start, min(start + BATCH, items))))
    return begun, time.perf_counter()


def two_processes(job: Job, items: int) -> float:
    """Return the seconds per item of two processes that run bare loops and hand nothing over."""
    with context().Manager() as manager, ProcessPoolExecutor(2, mp_context=context()) as pool:
        ready = manager.Barrier(2)
        begun, ended = zip(*pool.map(half, [job] * 2, [items // 2] * 2, [ready] * 2), strict=True)
    return (max(ended) - min(begun)) / (items // 2 * 2)


# -- peers


def executors() -> Iterator[Contender]:
    """Yield the standard library's pool of threads."""

    def run(workers: int, job: Job, items: int, consume: Callable[[Any], None]) -> None:
        with ThreadPoolExecutor(workers) as pool:
            done = pool.map(job, range(items))
            for start in range(0, items, BATCH):
                consume(stack(next(done) for _ in range(min(BATCH, items - start))))

    yield Contender(
        "ThreadPoolExecutor.map",
        {f"threads {workers}": partial(run, workers) for workers in (2, 4)},
        note="all of it is queued at once, and nothing holds it back",
    )


def process_pool() -> Iterator[Contender]:
    """Yield the standard library's pool of processes."""

    def run(chunk: int, job: Job, items: int, consume: Callable[[Any], None]) -> None:
        with ProcessPoolExecutor(2, mp_context=context()) as pool:
            done = pool.map(job, range(items), chunksize=chunk)
            for start in range(0, items, BATCH):
                consume(stack(next(done) for _ in range(min(BATCH, items - start))))

    yield Contender(
        "ProcessPoolExecutor.map",
        {f"processes 2, chunks of {chunk}": partial(run, chunk) for chunk in (8, 1, 32)},
        note="all of it is queued at once, and nothing holds it back",
    )


def spdl() -> Iterator[Contender]:
    """Yield SPDL with the function, and the stacking, on its threads."""
    from spdl.pipeline import PipelineBuilder

    def run(threads: int, job: Job, items: int, consume: Callable[[Any], None]) -> None:
        builder: Any = PipelineBuilder().add_source(range(items))
        builder.pipe(job, concurrency=threads, output_order="input").aggregate(BATCH).pipe(stack).add_sink(4)
        pipeline = builder.build(num_threads=threads + 1)
        with pipeline.auto_stop():
            for batch in pipeline:
                consume(batch)

    yield Contender("SPDL", {f"threads {threads}": partial(run, threads) for threads in (2, 4, 8)})


def torch() -> Iterator[Contender]:
    """Yield torch's DataLoader; its workers stay from one turn to the next."""
    from torch.utils.data import DataLoader

    warnings.filterwarnings("ignore", "This DataLoader will create 4", UserWarning)  # we only try

    def make(workers: int, job: Job, items: int) -> Iterable[Any]:
        told = {"multiprocessing_context": context(), "persistent_workers": True} if workers else {}
        return DataLoader(Numbered(job, items), batch_size=BATCH, num_workers=workers, collate_fn=tensors, **told)

    settings: dict[str, Run] = {f"workers {workers}": Made(partial(make, workers)) for workers in (2, 0, 1, 4)}
    yield Contender("torch DataLoader", settings, note="batches are tensors, which its workers share")


def tensors(samples: list[Sample]) -> tuple[Any, Any]:
    """Return samples as a batch of tensors, with no copy more than it takes."""
    import torch

    numbers, data = stack(samples)
    return torch.from_numpy(numbers), torch.from_numpy(data)


def grain_threads() -> Iterator[Contender]:
    """Yield Grain with its threads."""
    from grain import MapDataset, ReadOptions

    def make(threads: int, job: Job, items: int) -> Iterable[Any]:
        dataset = MapDataset.source(Numbered(job, items)).batch(BATCH)
        return dataset.to_iter_dataset(ReadOptions(num_threads=threads, prefetch_buffer_size=2 * max(threads, 1)))

    settings: dict[str, Run] = {f"threads {threads}": Made(partial(make, threads)) for threads in (2, 4, 16, 0)}
    yield Contender("Grain, threads", settings)


def grain_processes() -> Iterator[Contender]:
    """Yield Grain with its processes."""
    from grain import MapDataset, MultiprocessingOptions, ReadOptions

    def make(workers: int, job: Job, items: int) -> Iterable[Any]:
        dataset = MapDataset.source(Numbered(job, items)).batch(BATCH)
        options = MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
        return dataset.to_iter_dataset(ReadOptions(num_threads=0)).mp_prefetch(options)

    settings: dict[str, Run] = {f"processes {workers}": Made(partial(make, workers)) for workers in (2, 1)}
    yield Contender("Grain, processes", settings)


def tf_data() -> Iterator[Contender]:
    """Yield tf.data's C++, where the job can be said in a graph."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # else it greets, on every start
    import tensorflow as tf

    def make(parallel: int | None, job: Any, items: int) -> Iterable[Any]:
        told = {} if parallel is None else {"num_parallel_calls": parallel, "deterministic": True}
        dataset: Any = tf.data.Dataset.range(items).map(job.in_graph(tf), **told)
        return dataset.batch(BATCH).prefetch(2)

    tried = {"2": 2, "4": 4, "AUTOTUNE": tf.data.AUTOTUNE, "none": None}
    settings: dict[str, Run] = {
        f"parallel calls {name}": Made(partial(make, count)) for name, count in tried.items()
    }
    yield Contender("tf.data", settings, note="C++; batches are eager tensors")
