"""Reading through io_uring gives what a `LocalReader` gives: each bit, and each error. And it leaves nothing behind."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import Corrupt
from asyncfeed.reading import local, ring, sampled, uring_reader
from asyncfeed.reading.file import File
from asyncfeed.reading.listing import FileList, FileSpan
from asyncfeed.reading.local import LocalReader
from asyncfeed.reading.reader import Columns, Reader, Rows, Waits
from asyncfeed.reading.uring_reader import UringReader
from asyncfeed.testing import no_leaks

T = TypeVar("T")

SIZE = 300
HEAD = 20
KINDS = [
    "whole",
    "short",
    "longer",
    "empty",
    "none",
    "folder",
    "fifo",
    "link",
    "circle",
    "dangling",
    "zero",
    "\udcff",
]

needs_ring = pytest.mark.skipif(bool(uring_reader.refusal()), reason=f"no io_uring: {uring_reader.refusal()}")


def in_thread(fn: Callable[[], T]) -> T:
    """Return the result of a function that is called on a thread. The main thread uses no ring."""
    outcome: list[Any] = []

    def call() -> None:
        try:
            outcome.extend((fn(), None))
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            outcome.extend((None, error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if outcome[1] is not None:
        raise outcome[1]
    result: T = outcome[0]
    return result


def make(folder: Path, kind: str) -> str:
    """Make a file of a kind, and return its path."""
    path = folder / kind
    data = bytes(random.Random(KINDS.index(kind)).randbytes(SIZE))
    match kind:
        case "none" | "zero":
            return "/dev/zero" if kind == "zero" else str(path)
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to("whole")
        case "circle":
            path.symlink_to("circle")
        case "dangling":
            path.symlink_to("nowhere")
        case _:
            path.write_bytes({"short": data[:-1], "longer": data + b"x", "empty": b""}.get(kind, data))
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kinds")
    for kind in KINDS:
        make(made, kind)
    return made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each call of a ring adds its number of files."""
    found: list[int] = []
    uring_reader.refusal()  # it tries a ring, once
    real = ring.Ring.read

    def read(self: ring.Ring, wanted: ring.Wanted, memory: object) -> Any:
        found.append(len(wanted.paths))
        return real(self, wanted, memory)

    monkeypatch.setattr(ring.Ring, "read", read)
    return found


def read_with(reader: LocalReader, files: Any, head: int = HEAD, cut: int = 0) -> list[Any]:
    """Return the contents of each file, or its error as text. The last `cut` bytes are a piece of their own."""
    count, size = len(files), SIZE - head
    heads = np.zeros((count, head), np.uint8)
    first = count // 2  # into two arrays, the second with room between its rows
    starts = [np.arange(first) * size, np.arange(count - first) * 2 * size]
    rows = [
        Rows(np.zeros((place + 1) * len(at) * size, np.uint8), at, np.full(len(at), size))
        for place, at in enumerate(starts)
    ]
    tops = Rows(heads.reshape(-1), np.arange(count) * head, np.full(count, head))
    columns = [[tops], rows]
    if cut:
        begins = [Rows(each.memory, each.starts, each.sizes - cut) for each in rows]
        columns = [
            [tops],
            begins,
            [Rows(each.memory, each.starts + size - cut, each.sizes * 0 + cut) for each in rows],
        ]
    failed = reader.read_rows(files, columns)
    parts = [part for each in rows for part in each.parts()]
    return [
        (type(failed[at]), str(failed[at])) if at in failed else heads[at].tobytes() + bytes(parts[at])
        for at in range(count)
    ]


class ThoroughReader(LocalReader):
    """Reads files with all checks: it looks at the status of each."""

    def read_rows(self, files: Sequence[File], columns: Columns) -> dict[int, Exception]:
        return Reader.read_rows(self, files, columns)


def quick_reader() -> LocalReader:
    """Return a reader whose last reads did not wait for the disk."""
    reader = LocalReader()
    reader._opener.waits = False
    return reader


@pytest.mark.parametrize("kind", ["threads", "ring"])
@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(
    kinds=st.lists(st.sampled_from(KINDS + 8 * ["whole"]), min_size=1, max_size=300),
    sized=st.sampled_from([None, SIZE, SIZE - 1]),
    head=st.sampled_from([0, HEAD, SIZE]),
    cuts=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    length=st.integers(1, 128),
    spans=st.booleans(),
)
def test_it_gives_what_a_reader_gives_that_checks_each_file(
    folder: Path,
    kind: str,
    kinds: list[str],
    sized: int | None,
    head: int,
    cuts: list[int],
    length: int,
    spans: bool,
) -> None:
    """Whole files and damaged, missing and special ones, in calls of any length and pieces, by threads and a ring."""
    cuts = [min(cut, SIZE - head) for cut in cuts]
    if kind == "ring" and uring_reader.refusal():
        pytest.skip("no io_uring")
    paths = ["/dev/zero" if kind == "zero" else str(folder / kind) for kind in kinds]
    files: Any = [File(path, sized) for path in paths]
    if spans and sized is not None:
        listed = FileList(reversed(paths), [sized] * len(paths), [0] * len(paths))
        files = FileSpan(listed, [len(paths) - 1 - at for at in range(len(paths))])

    def both() -> tuple[list[Any], list[Any]]:
        reader = UringReader(length) if kind == "ring" else quick_reader()
        with closing(reader):
            return [read_with(reader, files, head, cut) for cut in cuts], [
                read_with(ThoroughReader(), list(files), head, cut) for cut in cuts
            ]

    one, other = in_thread(both)
    assert one == other


@needs_ring
def test_good_files_are_read_by_the_ring(folder: Path, calls: list[int]) -> None:
    files = [File(str(folder / "whole"), SIZE)] * 1000
    expected = (folder / "whole").read_bytes()

    def read() -> list[Any]:
        reader = UringReader()
        try:
            return read_with(reader, files)
        finally:
            reader.close()

    assert in_thread(read) == [expected] * 1000
    assert sum(calls) == 1000
    assert len(calls) == -(-1000 // max(calls))


@pytest.mark.parametrize("make_reader", [quick_reader, pytest.param(UringReader, marks=needs_ring)])
def test_a_file_that_changed_is_found_by_the_sample(
    tmp_path: Path, make_reader: Callable[[], LocalReader]
) -> None:
    """The first file of a call is looked at, and every 64th. The others only if their size changed."""
    paths = [tmp_path / f"{number}" for number in range(130)]
    for path in paths:
        path.write_bytes(bytes(SIZE))
    files = [File(str(path), SIZE, path.stat().st_mtime_ns) for path in paths]
    os.utime(paths[128])

    def read() -> list[Any]:
        with closing(make_reader()) as reader:
            return read_with(reader, files)

    found = in_thread(read)
    assert [at for at, each in enumerate(found) if not isinstance(each, bytes)] == [128]
    assert found[128][0] is Corrupt
    assert "it was written to" in found[128][1]


def test_threads_ask_for_no_status_of_a_small_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only of those that are looked at."""
    asked: list[str] = []
    fstat, stat = os.fstat, os.stat
    monkeypatch.setattr(os, "fstat", lambda fd: asked.append("fstat") or fstat(fd))
    monkeypatch.setattr(os, "stat", lambda path, **how: asked.append("stat") or stat(path, **how))
    expected = (folder / "whole").read_bytes()
    reader = quick_reader()
    assert read_with(reader, [File(str(folder / "whole"), SIZE)] * 130) == [expected] * 130
    assert asked.count("fstat") == 0
    assert asked.count("stat") == 3
    monkeypatch.setattr(
        sampled, "_status_with_gil", lambda path: asked.append("with the GIL") or sampled._status(path)
    )
    assert read_with(reader, [File(str(folder / "whole"), SIZE)] * 130) == [expected] * 130
    assert asked.count("with the GIL") == 3
    assert asked.count("stat") == 6
    assert reader.waits is Waits.NONE


@pytest.mark.skipif(sys.platform != "linux", reason="needs statx")
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_looked_at_with_the_gil_as_without(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Also if the C library has no `statx`."""
    path = "/dev/zero" if kind == "zero" else str(folder / kind)

    def outcome(look: Callable[[str], Any]) -> Any:
        try:
            return look(path)
        except (OSError, ValueError) as error:
            return type(error)

    assert outcome(sampled._status_with_gil) == outcome(sampled._status)
    monkeypatch.setattr(sampled, "_statx", lambda: None)
    assert outcome(sampled._status_with_gil) == outcome(sampled._status)
    path += "\0x"
    assert outcome(sampled._status_with_gil) is ValueError


@pytest.mark.parametrize("make_reader", [quick_reader, pytest.param(UringReader, marks=needs_ring)])
@pytest.mark.parametrize("blocks", [0, 2, 3, 6])
def test_what_a_thread_has_read_from_the_disk_tells_whether_it_waited(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make_reader: Callable[[], LocalReader], blocks: int
) -> None:
    """Half of the bytes, here 1,500. A thread that waited for the GIL has read nothing, however long it took."""
    files = [File(str(folder / "whole"), SIZE)] * 10
    counted = iter([1000, 1000 + blocks])
    for module in (local, uring_reader, sampled):
        monkeypatch.setattr(module, "blocks_read", lambda: next(counted), raising=False)

    def read() -> LocalReader:
        with closing(make_reader()) as reader:
            read_with(reader, files)
            return reader

    reader = in_thread(read)
    by_ring = isinstance(reader, UringReader)
    expected = (Waits.KERNEL, Waits.TOGETHER) if by_ring else (Waits.NONE, Waits.UNKNOWN)
    assert reader.waits is expected[blocks >= 3]
    if not by_ring:
        assert reader._opener.waits is (blocks >= 3)


@pytest.mark.skipif(sys.platform != "linux", reason="needs posix_fadvise, and a disk")
def test_the_system_counts_the_blocks_that_a_thread_reads(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 16))
    if not sampled.Sampled().sound([File(str(path))]):
        pytest.skip("not on a plain disk")
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = sampled.blocks_read()
        file.read()
        assert sampled.waited_for(before, 1 << 16)
        before = sampled.blocks_read()
        file.seek(0)
        file.read()
        assert not sampled.waited_for(before, 1 << 16)


@needs_ring
@pytest.mark.parametrize("seed", range(5))
def test_files_whose_open_waits_for_the_disk(
    folder: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Their reads are submitted a second time, and every file and every error is as without a wait."""
    chance = random.Random(seed)
    kinds = [chance.choice([*KINDS[:7], *5 * ["whole"]]) for _ in range(400)]
    kinds[:: sampled.SAMPLED] = ["whole"] * len(kinds[:: sampled.SAMPLED])
    files = [File(str(folder / kind), SIZE) for kind in kinds]
    entered: list[int] = []
    real_lay_out, real_call = ring.Memory.lay_out, ring.call

    def lay_out(self: ring.Memory, pieces: int) -> None:
        real_lay_out(self, pieces)
        waits = 1 << 4  # IOSQE_ASYNC: another thread of the kernel opens it
        self.opens["flags"] = [chance.choice([0, waits]) for _ in self.opens]

    def call(number: int, *args: Any, **how: Any) -> int:
        if number == ring.ENTER:
            entered.append(args[1])
        return real_call(number, *args, **how)

    monkeypatch.setattr(ring.Memory, "lay_out", lay_out)
    monkeypatch.setattr(ring, "call", call)

    def both() -> None:
        with closing(UringReader()) as reader:
            expected = read_with(LocalReader(), files)
            for _ in range(5):
                assert read_with(reader, files) == expected

    in_thread(both)
    assert sum(entered) > 2 * sum(calls)


@needs_ring
@pytest.mark.parametrize("seed", range(20))
def test_calls_that_the_kernel_cuts_short(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A signal ends a wait, a call submits a part, or memory is short for a moment: all files are read all the same."""
    chance = random.Random(seed)
    real = ring.call

    def call(number: int, *args: Any, **how: Any) -> int:
        if number != ring.ENTER:
            return real(number, *args, **how)
        fd, submit, wait, *rest = args
        match chance.choice(["whole", "wait", "part", "signal", "memory"]):
            case "wait":
                return real(number, fd, submit, chance.randint(0, wait), *rest)
            case "part":
                return real(number, fd, chance.randint(0, submit), 0, *rest)
            case "signal":
                raise InterruptedError(errno.EINTR, "a signal")
            case "memory":
                raise OSError(chance.choice([errno.EAGAIN, errno.EBUSY]), "no memory")
        return real(number, *args, **how)

    files = [File(str(folder / chance.choice([*KINDS[:7], *5 * ["whole"]])), SIZE) for _ in range(400)]

    def both() -> None:
        reader = UringReader()
        expected = read_with(LocalReader(), files)
        monkeypatch.setattr(ring, "call", call)
        try:
            for _ in range(5):
                assert read_with(reader, files) == expected
        finally:
            monkeypatch.undo()
            reader.close()

    in_thread(both)


@needs_ring
def test_a_ring_whose_call_fails_is_not_used_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory may still be written to, so the call raises. The next one does without a ring."""
    files = [File(str(folder / "whole"), SIZE)] * 10
    real = ring.call

    def call(number: int, *args: Any, **how: Any) -> int:
        if number == ring.ENTER:
            raise OSError(errno.EFAULT, "bad address")
        return real(number, *args, **how)

    def read() -> list[Any]:
        reader = UringReader()
        try:
            read_with(reader, files)  # makes the ring
            monkeypatch.setattr(ring, "call", call)
            with pytest.raises(OSError, match="bad address"):
                read_with(reader, files)
            return read_with(reader, files)
        finally:
            reader.close()

    assert in_thread(read) == [(folder / "whole").read_bytes()] * 10


@needs_ring
def test_the_files_behind_a_call_that_broke_the_ring_are_read_without_it(
    folder: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a call were read, and their slots are not free again."""
    files = [File(str(folder / "whole"), SIZE)] * 20
    real = ring.call

    def call(number: int, *args: Any, **how: Any) -> int:
        if number == ring._REGISTER and args[1] == ring._UPDATE:
            raise OSError(errno.ENOMEM, "no memory")
        return real(number, *args, **how)

    def read() -> list[Any]:
        with closing(UringReader(10)) as reader:
            return read_with(reader, files)

    monkeypatch.setattr(ring, "call", call)
    assert in_thread(read) == [(folder / "whole").read_bytes()] * 20
    assert calls == [10]


@needs_ring
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGALRM")
def test_signals_while_files_are_read(folder: Path) -> None:
    files = [File(str(folder / "whole"), SIZE)] * 2000
    expected = (folder / "whole").read_bytes()
    alarms: list[int] = []

    def read() -> None:
        reader = UringReader()
        try:
            for _ in range(10):
                assert read_with(reader, files) == [expected] * 2000
        finally:
            reader.close()

    before = signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        in_thread(read)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert alarms


@needs_ring
def test_a_forked_child_uses_no_ring_of_its_parent(folder: Path) -> None:
    files = [File(str(folder / "whole"), SIZE)] * 100
    expected = [(folder / "whole").read_bytes()] * 100

    def read() -> None:
        reader = UringReader()
        try:
            assert read_with(reader, files) == expected
            child = os.fork()
            if not child:
                try:
                    done = read_with(reader, files) == expected
                    reader.close()
                    os._exit(0 if done else 1)
                finally:
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
            assert read_with(reader, files) == expected
        finally:
            reader.close()

    in_thread(read)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the kernel forbid rings, as in many containers."""
    real = ring.call

    def call(number: int, *args: Any, **how: Any) -> int:
        if number == ring.SETUP:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return real(number, *args, **how)

    monkeypatch.setattr(ring, "call", call)
    uring_reader.decided.cache_clear()
    yield
    uring_reader.decided.cache_clear()


def pipeline_of(folder: Path, count: int = 64, kind: str = "npy") -> af.Pipeline[Any]:
    for number in range(count):
        array = np.full(100, number, np.float32)
        if kind == "npz":
            np.savez(folder / f"{number:03}.npz", x=array, y=np.int64(number))
        else:
            np.save(folder / f"{number:03}.npy", array)
    decoder = {"npy": af.npy, "npz": af.npz}[kind]
    return af.files(f"{folder}/*.{kind}").shuffle(seed=0).repeat(2).load(decoder).batch(8)


def test_without_a_ring_threads_read_and_say_so_once(
    tmp_path: Path, refused: None, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = pipeline_of(tmp_path)
    with caplog.at_level(logging.INFO, "asyncfeed"):
        for _ in range(3):
            assert sorted(np.concatenate(list(pipeline))[:, 0].tolist()) == sorted(2 * [*range(64)])
    if sys.platform == "linux":
        assert [each.message for each in caplog.records if "io_uring" in each.message] == [
            "local files are read without io_uring: the system refuses it (EPERM): it needs Linux 6.1, and many "
            "containers forbid it"
        ]
        assert "read by threads, without io_uring: the system refuses it (EPERM)" in pipeline.explain()


def test_a_variable_turns_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(uring_reader.SWITCH, "0")
    uring_reader.decided.cache_clear()
    try:
        assert uring_reader.refusal() == "ASYNCFEED_IO_URING is 0"
        assert "without io_uring: ASYNCFEED_IO_URING is 0" in pipeline_of(tmp_path).explain()
    finally:
        uring_reader.decided.cache_clear()


def test_threads_that_decide_at_once_say_once_that_there_is_no_ring(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    others: list[threading.Thread] = []

    def try_ring() -> str:
        if not others:
            others.append(threading.Thread(target=uring_reader.refusal))
            others[0].start()
            others[0].join(0.3)  # it waits until this thread has decided
        return "no ring today"

    monkeypatch.setattr(uring_reader, "_try_ring", try_ring)
    uring_reader.decided.cache_clear()
    try:
        with caplog.at_level(logging.INFO, "asyncfeed"):
            assert uring_reader.refusal() == "no ring today"
            others[0].join()
    finally:
        uring_reader.decided.cache_clear()
    assert [each.message for each in caplog.records] == ["local files are read without io_uring: no ring today"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent_that_decides() -> None:
    uring_reader.refusal()
    with uring_reader._deciding.lock:
        child = os.fork()
        if not child:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(20)  # it ends a child that waits
                uring_reader.refusal()
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@needs_ring
def test_a_disk_whose_reads_go_to_other_threads_is_read_without_it(
    folder: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """tmpfs, overlayfs and network disks say so."""

    def preadv(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "preadv", preadv)
    files = [File(str(folder / "whole"), SIZE)] * 10

    def read() -> list[Any]:
        reader = UringReader()
        try:
            return read_with(reader, files)
        finally:
            reader.close()

    assert in_thread(read) == [(folder / "whole").read_bytes()] * 10
    assert not calls


@needs_ring
@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_a_pipeline_reads_with_rings_and_makes_no_files(
    tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A `File` is made for those that are looked at, and for the first one of all."""
    pipeline = pipeline_of(tmp_path, kind=kind)
    made: list[str] = []
    real = File.__init__

    def init(self: File, path: str, *given: Any, **options: Any) -> None:
        made.append(path)
        real(self, path, *given, **options)

    monkeypatch.setattr(File, "__init__", init)
    batches = [batch if kind == "npy" else batch["x"] for batch in pipeline]
    assert sorted(np.concatenate(batches)[:, 0].tolist()) == sorted(2 * [*range(64)])
    assert sum(calls) == 128
    if kind == "npy":  # archives are looked at before they are read, until it is known that they are not packed
        assert len(made) <= 4 * len(calls)  # 32 and more in each call, if there are more files


@needs_ring
@pytest.mark.parametrize("seed", range(10))
def test_runs_that_are_left_anywhere_leave_nothing(tmp_path: Path, seed: int) -> None:
    pipeline = pipeline_of(tmp_path)
    chance = random.Random(seed)
    before = len(os.listdir("/proc/self/fd"))
    with no_leaks():
        for _ in range(10):
            with pipeline.open() as feed:
                for _ in range(chance.randint(0, 16)):
                    next(feed)
    assert len(os.listdir("/proc/self/fd")) == before


@needs_ring
@pytest.mark.parametrize("seed", range(4))
def test_a_consumer_that_is_cancelled_at_any_step_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also while the kernel has requests: calls take long, end early, or submit a part."""
    pipeline = pipeline_of(tmp_path)
    list(pipeline)
    chance = random.Random(seed)
    real = ring.call

    def call(number: int, *args: Any, **how: Any) -> int:
        if number != ring.ENTER:
            return real(number, *args, **how)
        time.sleep(chance.choice([0, 0, 0.002]))
        fd, submit, wait, *rest = args
        match chance.choice(["whole", "whole", "wait", "part", "signal"]):
            case "wait":
                wait = chance.randint(0, wait)
            case "part":
                submit, wait = chance.randint(0, submit), 0
            case "signal":
                raise InterruptedError(errno.EINTR, "a signal")
        return real(number, fd, submit, wait, *rest)

    monkeypatch.setattr(ring, "call", call)

    async def consume() -> int:
        return sum([len(batch) async for batch in pipeline])

    async def cancel_after(steps: int) -> None:
        task = asyncio.create_task(consume())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            assert await task == 128

    with no_leaks():
        for steps in [*range(0, 60, 3), *range(60, 3000, 150)]:
            asyncio.run(cancel_after(steps))


@needs_ring
def test_many_files_with_faults_and_runs_that_are_left(tmp_path: Path) -> None:
    """10^5 reads of files, of which some are replaced by others or removed while they are read."""
    pipeline = pipeline_of(tmp_path, 2000).repeat(50)
    whole = (tmp_path / "000.npy").read_bytes()
    chance = random.Random(0)
    before = len(os.listdir("/proc/self/fd"))
    read = failed = 0
    with no_leaks():
        while read < 100_000:
            damaged = tmp_path / f"{chance.randrange(2000):03}.npy"
            wrong = chance.choice([whole[:-1], whole + b"x", b"", None])
            with pipeline.open() as feed:
                try:
                    for number in range(chance.randint(1, 1000)):
                        read += len(next(feed))
                        if number == 100 and wrong is not None:
                            damaged.write_bytes(wrong)
                        elif number == 100:
                            damaged.unlink()
                except (Corrupt, FileNotFoundError) as error:
                    assert damaged.name in str(error)  # noqa: PT017 - it may also not be met
                    failed += 1
            np.save(damaged, np.full(100, int(damaged.stem), np.float32))
            pipeline = af.files(f"{tmp_path}/*.npy").shuffle(seed=read).load(af.npy).batch(8).repeat(50)
    assert failed
    assert len(os.listdir("/proc/self/fd")) == before


@needs_ring
def test_a_ring_that_is_made_while_the_reader_closes_is_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose loop was closed closes its readers, and waits for no thread."""
    files = [File(str(folder / "whole"), SIZE)] * 10
    made = uring_reader.Ring

    def read() -> list[Any]:
        reader = UringReader()

        def late(*args: Any) -> Any:
            found = made(*args)
            reader.close()
            return found

        monkeypatch.setattr(uring_reader, "Ring", late)
        with no_leaks():
            found = read_with(reader, files)
            assert not reader.closes
        return found

    assert in_thread(read) == [(folder / "whole").read_bytes()] * 10
