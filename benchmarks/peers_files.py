"""Reading files into batches with other libraries, each as its documentation has it.

Each maker yields contenders whose work is a `FileSet`. All go through the files in a random order, and each has a
list of settings to choose from. What can be made once for many epochs (a graph, a loader with its workers) is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from filesets import BATCH, SEED, FileSet
from harness import Contender, Made
from readers import by_batch, load_npy, shuffled

TF, TF_GENERATOR, TORCH, TORCHDATA, GRAIN, GRAIN_MP, SPDL, SPDL_BATCHES = (
    "tf.data",
    "tf.data, from_generator",
    "torch DataLoader",
    "torchdata.nodes",
    "Grain",
    "Grain, mp_prefetch",
    "SPDL",
    "SPDL, a batch per call",
)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # a line about the processor and one about GPUs, each time


# -- TensorFlow


def tf_data(*, ragged: bool = False) -> Iterator[Contender]:
    """Yield tf.data in C++: `read_file`, and `decode_raw` of what follows the header, of a file or of a batch."""
    import tensorflow as tf

    auto = tf.data.AUTOTUNE

    def make(calls: int, ordered: bool, whole: bool, files: FileSet, items: int) -> Any:
        tail = files.tail

        def load(path: Any) -> Any:
            body = tf.strings.substr(tf.io.read_file(path), files.offset, -1)
            return tf.reshape(tf.io.decode_raw(body, tf.float32), (-1, *tail) if files.ragged else tail)

        def decode(contents: Any) -> Any:
            return tf.reshape(tf.io.decode_raw(contents, tf.float32)[:, files.offset // 4 :], (-1, *tail))

        paths = tf.data.Dataset.from_tensor_slices(files.take(items)).shuffle(items, seed=SEED)
        each = paths.map(tf.io.read_file if whole else load, num_parallel_calls=calls, deterministic=ordered)
        if files.ragged:
            return each.padded_batch(BATCH).prefetch(auto)
        batches = each.batch(BATCH)
        return (batches.map(decode) if whole else batches).prefetch(auto)

    settings = {}
    for calls in (1, 2, 4, 8, 16, auto):
        for ordered in (True, False):
            for whole in (False,) if ragged else (False, True):  # of unequal length, they are decoded one by one
                name = f"{'AUTOTUNE' if calls == auto else calls}{'' if ordered else ' unordered'}"
                settings[name + " by batch" * whole] = Made(partial(make, calls, ordered, whole))
    note = "parallel calls" if ragged else "parallel calls; `by batch` decodes 32 files at once"
    yield Contender(TF, settings, note=note)


def tf_generator() -> Iterator[Contender]:
    """Yield tf.data over a Python generator that loads one file after the other."""
    import tensorflow as tf

    def make(by: str, files: FileSet, items: int) -> Any:
        def samples() -> Iterator[Any]:
            for path in shuffled(files, items):
                yield load_npy(path)

        def batches() -> Iterator[Any]:
            return by_batch(files, items)

        if by == "sample":
            data = tf.data.Dataset.from_generator(samples, output_signature=tf.TensorSpec(files.tail, tf.float32))
            data = data.batch(BATCH)
        else:
            signature = tf.TensorSpec((None, *files.tail), tf.float32)
            data = tf.data.Dataset.from_generator(batches, output_signature=signature)
        return data.prefetch(tf.data.AUTOTUNE)

    yield Contender(TF_GENERATOR, {by: Made(partial(make, by)) for by in ("sample", "batch")})


# -- PyTorch


class NpyFiles:
    """A map-style dataset of files, in a module of its own so that workers of any kind can import it."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> Any:
        import torch

        return torch.from_numpy(load_npy(self.paths[place]))


def torch_pad(samples: Sequence[Any]) -> Any:
    """Pad a batch of tensors with zeros."""
    from torch.nn.utils.rnn import pad_sequence

    return pad_sequence(samples, batch_first=True)


def torch() -> Iterator[Contender]:
    """Yield the DataLoader, its workers kept from epoch to epoch."""
    from torch.utils.data import DataLoader

    def make(workers: int, files: FileSet, items: int) -> Any:
        data: Any = NpyFiles(files.take(items))
        pad = torch_pad if files.ragged else None
        return DataLoader(
            data, BATCH, shuffle=True, num_workers=workers, collate_fn=pad, persistent_workers=workers > 0
        )

    settings = {f"workers {count}": Made(partial(make, count)) for count in (0, 1, 2, 4)}
    yield Contender(TORCH, settings, note="batches are torch tensors; workers live on between epochs")


def torchdata() -> Iterator[Contender]:
    """Yield torchdata's nodes."""
    from torchdata.nodes import Batcher, IterableWrapper, Loader, Mapper, ParallelMapper, Prefetcher

    def make(workers: int, method: str, files: FileSet, items: int) -> Any:
        way: Any = method
        loaded = ParallelMapper(IterableWrapper(shuffled(files, items)), load_npy, num_workers=workers, method=way)
        batches = Mapper(Batcher(loaded, BATCH, drop_last=False), files.collate)
        return Loader(Prefetcher(batches, 4))

    ways = [(1, "thread"), (4, "thread"), (2, "process")]
    settings = {f"{count} {way}": Made(partial(make, count, way)) for count, way in ways}
    yield Contender(TORCHDATA, settings)


# -- Grain


def grain() -> Iterator[Contender]:
    """Yield Grain on threads, which read samples or whole batches, and in processes."""
    import grain as gr
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain asks for a flag of absl, whose `app.run` does not run here

    def make(threads: int, buffer: int, whole: bool, files: FileSet, items: int) -> Any:
        loaded = gr.MapDataset.source(files.take(items)).seed(SEED).shuffle().map(load_npy)
        read = gr.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)
        if whole:
            return loaded.batch(BATCH).to_iter_dataset(read)
        return loaded.to_iter_dataset(read).batch(BATCH)

    def processes(workers: int, files: FileSet, items: int) -> Any:
        options = gr.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=4)
        return make(0, 0, True, files, items).mp_prefetch(options)

    settings = {
        f"threads {threads}, buffer {buffer} {'batches' if whole else 'samples'}": Made(
            partial(make, threads, buffer, whole)
        )
        for threads, buffer, whole in (
            *((0, 0, True), (1, 8, True), (2, 8, True), (4, 8, True)),
            *((0, 0, False), (1, 64, False), (4, 64, False), (16, 500, False)),
        )
    }
    yield Contender(GRAIN, settings)
    workers = {f"workers {count}": Made(partial(processes, count)) for count in (1, 2, 4)}
    yield Contender(GRAIN_MP, workers, note="workers start within the clock, as each iterator has its own")


# -- SPDL


def spdl() -> Iterator[Contender]:
    """Yield SPDL with a call per file, and with a call per batch."""
    from spdl.pipeline import PipelineBuilder

    def drain(built: Any, consume: Callable[[Any], None]) -> None:
        with built.auto_stop():
            for batch in built:
                consume(batch)

    def by_file(threads: int, files: FileSet, items: int, consume: Callable[[Any], None]) -> None:
        builder: Any = PipelineBuilder().add_source(shuffled(files, items))
        builder.pipe(load_npy, concurrency=threads).aggregate(BATCH).pipe(files.collate).add_sink(4)
        drain(builder.build(num_threads=threads), consume)

    def by_batches(threads: int, files: FileSet, items: int, consume: Callable[[Any], None]) -> None:
        def load(paths: list[str]) -> Any:
            return files.collate([load_npy(path) for path in paths])

        builder: Any = PipelineBuilder().add_source(shuffled(files, items)).aggregate(BATCH)
        drain(builder.pipe(load, concurrency=threads).add_sink(4).build(num_threads=threads), consume)

    counts = (1, 2, 4, 8, 16)
    yield Contender(SPDL, {f"threads {count}": partial(by_file, count) for count in counts})
    yield Contender(SPDL_BATCHES, {f"threads {count}": partial(by_batches, count) for count in counts[:3]})
