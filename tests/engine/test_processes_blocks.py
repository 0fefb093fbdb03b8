"""Large results of worker processes: shown where the worker wrote them, and never changed or lost by what follows."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.testing import end_kept_processes, no_leaks
from tests.engine import in_worker as fns
from tests.engine.inside import COPIES, OwnWorkers, blocks_bounded, mappings, new_blocks
from tests.engine.processes import run
from tests.unit.test_blocks import in_a_block, maps, marked
from tests.unit.test_pool import start
from tests.unit.test_shared import same


def large(count: int = 12, fn: Callable[..., Any] = fns.large, **options: Any) -> af.Pipeline[Any]:
    options.setdefault("concurrency", 1)
    return af.items(range(count)).map(fn, on="process", **options)


def expected(count: int) -> list[np.ndarray]:
    return list(map(fns.large, range(count)))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for at in range(40):
        np.save(tmp_path / f"{at:03}.npy", np.full((50, 100), at, np.float32))
    return tmp_path


def test_large_results_cross_once() -> None:
    """They are in a block, as soon as there is one, writable and aligned, and each is its own."""
    got = list(large())
    assert [in_a_block(array) for array in got] == [number % (COPIES + 1) == COPIES for number in range(12)]
    assert same(got, expected(12))
    for array in got:
        assert start(array) % 64 == 0
        array += 1
    assert same(got, [array + 1 for array in expected(12)])


@pytest.mark.parametrize("concurrency", [1, 2])
def test_results_of_any_kind_are_those_of_threads(concurrency: int) -> None:
    """Twice, views of each other, in Fortran order, read-only, structured, of objects, empty, tiny."""
    fn = fns.large_of_many_kinds
    threads = list(af.items(range(30)).map(fn))
    processes = list(large(30, fn, concurrency=concurrency))
    assert same(threads, processes)
    for one, other in zip(threads, processes, strict=True):
        for name in ("fortran", "transposed", "read_only", "broadcast"):
            assert one[name].flags.writeable == other[name].flags.writeable or name == "broadcast"
            assert one[name].flags.f_contiguous == other[name].flags.f_contiguous or name == "broadcast"
        assert other["twice"][0] is other["twice"][1]
        other["views"][0][:] = -1
        assert same(one["views"][1:], other["views"][1:])
        assert same(one["twice"], other["twice"])


def test_files_are_read_into_the_batch_that_the_consumer_gets(files: Path) -> None:
    """In the worker, into shared memory. With padding, and if the first file promised something else, as well."""

    def build(on: str) -> af.Pipeline[Any]:
        return af.files(f"{files}/*.npy").load(af.npy, on=on).batch(8)  # type: ignore[call-overload]

    for stages in (lambda p: p, lambda p: p.pad(to=60, lengths=True)):
        threads, processes = (list(stages(build(on))) for on in ("thread", "process"))
        assert same(threads, processes)
        assert any(in_a_block(batch[0] if isinstance(batch, tuple) else batch) for batch in processes)
    np.save(files / "017.npy", np.full((50, 100), 17, np.float64))
    outcomes: list[Any] = []
    for on in ("thread", "process"):
        try:
            outcomes.append([batch.tobytes() for batch in build(on)])
        except Exception as error:
            outcomes.append([type(error), str(error)])
    assert outcomes[0] == outcomes[1]


def test_rows_are_decoded_in_shared_memory(files: Path) -> None:
    """The worker writes nothing that it would have to copy, once there is a block."""
    batches = list(af.files(f"{files}/*.npy").load(fns.TellsWhere(), on="process", concurrency=1).batch(4))
    assert all((batch == batch[0, 0]).all() for batch in batches)
    where = [bool(batch[0, 0]) for batch in batches]
    assert where == list(map(in_a_block, batches))
    assert sum(where) >= 3


@pytest.mark.parametrize("kind", ["raw", "npz", "png"])
def test_batches_of_any_decoder_are_those_of_threads(tmp_path: Path, kind: str) -> None:
    """Files with several arrays, without a header, and files that are decoded into their rows."""
    decoder: Any = af.raw("float32") if kind == "raw" else af.npz if kind == "npz" else af.image(size=(48, 64))
    for at in range(24):
        array = np.full((64, 48, 3), at, np.uint8)
        path = tmp_path / f"{at:03}.{kind}"
        if kind == "raw":
            array.astype(np.float32).tofile(path)
        elif kind == "npz":
            with path.open("wb") as file:
                np.savez(file, x=array, y=array.astype(np.float64) / 2, z=np.int64(at))
        else:
            pytest.importorskip("PIL.Image").fromarray(array).save(path)

    def build(on: str) -> af.Pipeline[Any]:
        return af.files(f"{tmp_path}/*").load(decoder, on=on).batch(8)

    threads, processes = list(build("thread")), list(build("process"))
    assert same(threads, processes)
    assert any(in_a_block(batch["x"] if kind == "npz" else batch) for batch in processes)


def test_what_is_held_stays_through_the_rest_of_the_run_and_the_next() -> None:
    """Views of any part; the kept worker of the next run writes to other memory."""
    held = []
    for _ in range(3):
        with large(300).open() as feed:
            for number, array in enumerate(feed):
                if number % 37 == 0:
                    held.append((number, array[number % 5 :: 7]))
                if number == 250:
                    break  # in the middle
        del array
    assert all((view == number).all() for number, view in held)
    pids = {*(fns.children())}
    assert pids
    end_kept_processes()
    assert all((view == number).all() for number, view in held)


def test_blocks_are_used_again() -> None:
    """A run has as many as there are results under way, and new memory costs the system more than a copy."""
    workers = OwnWorkers(fns.large)
    with new_blocks() as made:
        for number in range(50):
            assert (workers.call(number) == number).all()
        held = [workers.call(number) for number in range(9)]
        del held
        for number in range(50):
            workers.call(number)
    workers.stop()
    assert len(made) == 3
    assert made[0] >= 400_000


def test_a_group_is_cut_by_the_bytes_in_blocks_too() -> None:
    """As many results as before come at a time."""
    pipeline = af.items(range(128)).map(fns.grows, on="process", concurrency=1)
    with blocks_bounded(nbytes=1 << 30), pipeline.open(memory_limit="16MB") as feed:
        assert [len(each) for each in feed] == [1] * 100 + [1 << 20] * 28
        peak = feed.stats().memory_peak
    assert peak < 30e6


def test_a_consumer_that_keeps_everything() -> None:
    """Nothing waits, and the number of blocks is bounded."""
    with blocks_bounded(nbytes=2_000_000, most=20):
        got = list(large(60))
    assert same(got, expected(60))
    assert 1 <= sum(map(in_a_block, got)) <= 20


# -- ends


def test_results_of_a_worker_that_was_killed_are_whole() -> None:
    """Those it had finished; they live on when it is gone."""
    held = []
    with large(20, fns.large_until_killed).open() as feed, pytest.raises(RuntimeError, match="SIGKILL"):
        for array in feed:
            held.append(array)
    end_kept_processes()
    assert same(held, expected(7))
    skipping = large(20, fns.large_until_killed, on_error="skip", skip_limit=1)
    assert same(list(skipping), [array for number, array in enumerate(expected(20)) if number != 7])


def test_a_worker_whose_conversation_broke_off_leaves_its_blocks() -> None:
    """It is killed between a question and its answer, as if this side had failed."""
    workers = OwnWorkers(fns.large)
    held = [workers.call(number) for number in range(3)]
    with workers.breaks_off(), pytest.raises(MemoryError):
        workers.call(3)
    held += [workers.call(number) for number in range(3, 6)]
    workers.stop()
    assert same(held, expected(6))
    end_kept_processes()


def test_nothing_is_left_of_twenty_runs_with_blocks() -> None:
    """No descriptor, mapping, memory or thread, however they end; nor while their arrays are held."""
    gc.collect()
    before = mappings(), maps()
    held: list[Any] = []
    with no_leaks():
        for number in range(20):
            fn = fns.large_until_killed if number % 7 == 3 else fns.large
            feed = large(40, fn, concurrency=1 + number % 2).open()
            if number % 4 == 1:
                with pytest.raises(RuntimeError) if fn is fns.large_until_killed else feed:
                    list(feed)
            else:
                held.append([next(feed) for _ in range(3)])
            if number % 3:
                feed.close()
            del feed
        end_kept_processes()
        assert mappings() > before[0]
    assert all(same(arrays, expected(3)) for arrays in held)
    held.clear()
    gc.collect()
    assert (mappings(), maps()) == before


def test_a_finalizer_may_run_after_the_run() -> None:
    """A result in a cycle, collected when the worker serves another run or none."""
    for _ in range(3):
        cycle: list[Any] = [list(large(5))]
        cycle.append(cycle)
        del cycle
        assert same(list(large(5)), expected(5))
        gc.collect()
    end_kept_processes()
    gc.collect()
    assert same([marked(1)], [marked(1)])


# -- other processes, and the system

SCRIPT = """
import numpy as np
from tests.engine.in_worker import large
def pipeline(count, concurrency=1):
    return af.items(range(count)).map(large, on="process", concurrency=concurrency)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_children_that_are_forked_in_the_middle_of_a_run_keep_what_they_have() -> None:
    """And write to it, as the workers of another library do, while the parent goes on."""
    ended = run(
        SCRIPT
        + """
children = []
with pipeline(400).open() as feed:
    held = []
    for number, array in enumerate(feed):
        if number % 3 == 0:
            held.append((number, array))
            held = held[-5:]
        if number % 100 == 50:
            reading, writing = os.pipe()
            if not (child := os.fork()):
                held[0][1][:] = -1
                os.read(reading, 1)
                good = all((a == n).all() for n, a in held[1:]) and (held[0][1] == -1).all()
                os._exit(0 if good else 1)
            children.append((child, writing))
        assert all((a == n).all() for n, a in held)
for child, writing in children:
    os.write(writing, b"!")
    print(os.waitpid(child, 0)[1])
"""
    )
    assert ended == (0, ["0"] * 4, "")


def test_a_fork_can_have_workers_of_its_own() -> None:
    """With blocks of their own, while it holds arrays of its parent."""
    ended = run(
        SCRIPT
        + """
held = list(pipeline(5))
if not (child := os.fork()):
    mine = list(pipeline(9))
    good = all((a == n).all() for each in (held, mine) for n, a in enumerate(each))
    print(good, flush=True)
    del held, mine
    sys.exit(0)
print(os.waitpid(child, 0)[1], all((a == n).all() for n, a in enumerate(held)))
"""
    )
    assert ended == (0, ["True", "0", "True"], "")


def test_a_process_with_few_descriptors_gets_its_results() -> None:
    """Blocks take an eighth of them. When none is left, arrays are copied."""
    ended = run(
        """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
"""
        + SCRIPT
        + """
from tests.engine.inside import mappings
with pipeline(40).open() as feed:
    held = [next(feed)]
    files = []
    try:
        while True: files.append(os.open("/dev/null", os.O_RDONLY))
    except OSError: pass
    held += feed
    print(all((a == n).all() for n, a in enumerate(held)), mappings() <= 8)
    for each in files: os.close(each)
"""
    )
    assert ended == (0, ["True", "True"], "")


def test_the_interpreter_ends_with_arrays_and_workers() -> None:
    """In builtins, in a cycle, in the middle of a run: silently."""
    ended = run(
        SCRIPT
        + """
builtins.held = list(pipeline(5))
feed = pipeline(10**6, 2).open()
cycle = [next(feed)]
cycle.append(cycle)
held = next(feed)
print((builtins.held[3] == 3).all())
"""
    )
    assert ended == (0, ["True"], "")
