"""One worker process, as its parent sees it.

Invariants:

* A worker process is a new program, never a fork. It leads its own process group. So only the parent gets Ctrl-C,
  and processes that the function has started are killed together with the worker.
* A worker process ends in one of four independent ways. It is told to end (its socket is shut down), and ends
  after its items. It is killed. Its parent dies, which it sees at its socket. Or the last reference to its
  `Worker` goes. Then it is reaped, and its socket and memory are closed.
* The process id is not killed after the process was reaped, because another process may have the id then.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Hashable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from asyncfeed.engine.processes import worker as program
from asyncfeed.engine.processes.blocks import Blocks
from asyncfeed.engine.processes.shared import Arena

_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that set the number of threads of numerical libraries. Without them, each process starts one thread
per core."""

_CLOEXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
"""With this flag, other programs that this process starts do not inherit the file of a block."""


class Worker:
    """One worker process. One thread at a time uses it, but any thread may call `finish` and `kill`."""

    def __init__(self, library_threads: int) -> None:
        with ExitStack() as stack:
            self._sock, theirs = map(stack.enter_context, socket.socketpair())
            self.items = stack.enter_context(closing(Arena.new()))
            self.results = stack.enter_context(closing(Arena.new()))
            self.blocks = self.results.blocks = Blocks()
            fds = (theirs.fileno(), self.items.fileno(), self.results.fileno())
            flags = interpreter_flags()
            paths = [path or str(Path.cwd()) for path in sys.path if isinstance(path, str)]
            environment = {name: str(library_threads) for name in _LIBRARIES} | os.environ
            # The process inherits the blocked signals. It unblocks SIGINT when it has set its own handler.
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._process = subprocess.Popen(  # noqa: S603 - it is our own
                    [sys.executable, *flags, "-c", program.BOOT, *map(str, fds), *paths],
                    stdin=subprocess.DEVNULL,
                    pass_fds=fds,
                    process_group=0,
                    env=environment,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            stack.pop_all()
        theirs.close()
        self.pid = self._process.pid
        self.alive = True
        self.starting = True
        self.killed = False
        self.answered = False
        """Whether it has answered an item since it has the function."""
        self._lock = threading.Lock()
        self._reaped = False
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        # A child of the process may keep the socket open after the process has ended. The pidfd shows the end.
        self._pidfd = _open_pidfd(self.pid)
        if self._pidfd is not None:
            self._poll.register(self._pidfd, select.POLLIN)
        self._release = weakref.finalize(
            self,
            _release,
            os.getpid(),
            self._process,
            self._sock,
            self._pidfd,
            self.items,
            self.results,
            self.blocks,
        )

    def ask(self, order: bytes) -> bytes:
        """Give the process an order (see `worker`), and wait for its answer or its end: `alive` says which."""
        try:
            self.results.forget()  # those of the order before, in case the process dies before it gets this one
            self._sock.send(order)
            while (answer := self._receive()) == program.BLOCK:
                pass
        except OSError:  # the process has closed its end of the socket, or has ended without an answer
            answer = b""
        self.alive = bool(answer)
        self._kill_if_gone()
        return answer

    def _receive(self) -> bytes:
        """Wait for the next message. If it brings a block, map the block and say whether that was possible."""
        self._poll.poll()
        # Not `socket.recv_fds`, which ignores the flags.
        room = socket.CMSG_SPACE(array("i").itemsize)
        message, ancillary, _, _ = self._sock.recvmsg(1, room, socket.MSG_DONTWAIT | _CLOEXEC)
        if message == program.BLOCK:
            fds = array("i", b"".join(data for _, _, data in ancillary))
            reply = program.MAPPED if self.blocks.add(fds.tolist()) else program.REFUSED
            with suppress(OSError):  # the process was told to end, and takes that for a refusal
                self._sock.send(reply)
        return message

    def check(self) -> bool:
        """Return whether the process lives and waits for an order."""
        self.alive = not self._poll.poll(0)
        self._kill_if_gone()
        return self.alive

    @property
    def released(self) -> bool:
        """Whether the interpreter has ended it at exit, or `end` has returned."""
        return not self._release.alive

    def _kill_if_gone(self) -> None:
        if not self.alive:
            # Perhaps only the socket is closed, or processes that it started still live. If the process itself has
            # ended, this does not change its exit status.
            self.kill()

    def finish(self) -> None:
        """Tell the process to end after its present order. This never waits."""
        with suppress(OSError):  # it has ended already
            self._sock.shutdown(socket.SHUT_WR)

    def over(self, seconds: float) -> bool:
        """Wait at most `seconds` for the end of the process. Return whether it has ended."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def forget(self) -> None:
        """Close the socket and the memory of the process, without ending it. This is for a fork of its parent."""
        self._release()

    def kill(self) -> None:
        """Kill the process and the processes that it started. This never waits."""
        self.killed = True
        with self._lock:
            if not self._reaped:
                _kill_group(self.pid)

    def end(self) -> int:
        """Wait for the end of the process, close its socket and memory, and return its exit status."""
        self.alive = False
        with suppress(ChildProcessError):  # it is reaped already
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            else:  # macOS before Python 3.13: this frees the id, so a `kill` just after it may hit another process
                self._process.wait()
        with self._lock:
            # Until the next call, no other process can have this id. So `kill` cannot hit another process.
            self._reaped = True
            status = self._process.wait()
        self.blocks.clear()
        self._release()
        return status

    def exit_message(self, when: str) -> str:
        """Wait for the end of the process. Return how it ended and how to find out more."""
        status = self.end()
        if status >= 0:
            how, more = f"exited with status {status}", "its output on stderr may say why"
        else:
            how = f"was killed by {_signal_name(-status)}"
            more = "its output on stderr may say where"
            if -status == signal.SIGKILL:
                more = (
                    "most often the kernel does that because memory ran out (`dmesg` tells): lower concurrency or "
                    "memory_limit"
                )
        return f"worker process {self.pid} {how} {when}; {more}"


def main_script() -> tuple[str, str] | None:
    """Return where another process finds the main script: ("module", name), ("path", file), or None."""
    if program.script is not None:
        return program.script  # this is a worker process: return the main script of its parent
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return "module", spec.name
    file = getattr(main, "__file__", None)
    return ("path", str(Path(file).absolute())) if file and Path(file).is_file() else None


def surroundings() -> Hashable:
    """Return what a new process inherits from this one. A kept worker that inherited other values is not used."""
    try:
        folder = str(Path.cwd())
    except OSError:  # the working directory was deleted
        folder = ""
    return folder, tuple(map(str, sys.path)), frozenset(os.environ.items()), tuple(map(_open_on, (1, 2)))


def _open_on(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:  # the descriptor is closed
        return None
    return status.st_dev, status.st_ino


def interpreter_flags() -> list[str]:
    """Return the options that this interpreter was started with, such as `-O` and `-W`."""
    # multiprocessing uses this private function, too. If it is removed, workers start without these options.
    flags: Callable[[], list[str]] = getattr(subprocess, "_args_from_interpreter_flags", list)
    return flags()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # the system has no such call
        return None


def _kill_group(pid: int) -> None:
    with suppress(OSError):  # it has ended already
        os.killpg(pid, signal.SIGKILL)


def _release(
    owner: int,
    process: subprocess.Popen[bytes],
    sock: socket.socket,
    pidfd: int | None,
    items: Arena,
    results: Arena,
    blocks: Blocks,
) -> None:
    """Close the socket and the memory of a process. Kill it if it lives, unless this is a fork of its parent."""
    if os.getpid() != owner:
        process.returncode = 0  # it is no child of this process, so `Popen` must not ask about it
    elif process.poll() is None:
        _kill_group(process.pid)
        process.wait()
    sock.close()
    items.close()
    results.close()
    blocks.forget()
    if pidfd is not None:
        os.close(pidfd)


# Functions registered with `atexit` first run last. Python registers its hook for finalizers when the first one is
# made. So one is made here, at import: if a run is open at exit, its workers are released after the run has
# stopped.
weakref.finalize(Worker, bool).atexit = False
