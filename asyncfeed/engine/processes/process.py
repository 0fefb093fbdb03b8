"""One worker process, as its parent has it.

Invariants:

* It is a new program, never a fork. It leads a process group of its own: Ctrl-C is the parent's, and what the
  function has started is killed with it.
* It ends in one of four ways, none of which needs another: it is told to (the end of its socket) and ends after
  its items; it is killed; the parent dies, which its socket shows it; nobody refers to it here any more. Then it
  is reaped, and its socket and memory are closed.
* Its number is not given to `kill` once it is reaped, as another process may have it then.
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
from collections.abc import Callable, Hashable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from asyncfeed.engine.processes import worker as program
from asyncfeed.engine.processes.shared import Arena

_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""How many threads numerical libraries start: in every process as many as there are cores, unless told."""


class Worker:
    """One worker process. Used by one thread at a time, but for `finish` and `kill`."""

    def __init__(self, library_threads: int) -> None:
        with ExitStack() as stack:
            self._sock, theirs = map(stack.enter_context, socket.socketpair())
            self.items = stack.enter_context(closing(Arena.new()))
            self.results = stack.enter_context(closing(Arena.new()))
            fds = (theirs.fileno(), self.items.fileno(), self.results.fileno())
            flags = interpreter_flags()
            paths = [path or str(Path.cwd()) for path in sys.path if isinstance(path, str)]
            environment = {name: str(library_threads) for name in _LIBRARIES} | os.environ
            # It is to hear of no Ctrl-C until it knows what to do about it, and inherits what is blocked here.
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
        self._lock = threading.Lock()
        self._reaped = False
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        # The socket may outlive the process, in a child of its own; this shows its end all the same.
        self._pidfd = _open_pidfd(self.pid)
        if self._pidfd is not None:
            self._poll.register(self._pidfd, select.POLLIN)
        self._release = weakref.finalize(
            self, _release, os.getpid(), self._process, self._sock, self._pidfd, self.items, self.results
        )

    def ask(self, order: bytes) -> bytes:
        """Give the process an order (see `worker`), and wait for its answer or its end: `alive` says which."""
        try:
            self._sock.send(order)
            self._poll.poll()
            answer = self._sock.recv(1, socket.MSG_DONTWAIT)
        except OSError:  # its end is closed, or it has ended without a word
            answer = b""
        self.alive = bool(answer)
        self._bury()
        return answer

    def check(self) -> bool:
        """Return whether the process is there, and waits."""
        self.alive = not self._poll.poll(0)
        self._bury()
        return self.alive

    def _bury(self) -> None:
        if not self.alive:
            # It may have closed its end only, and what it has started may live; its exit status is what it was.
            self.kill()

    def finish(self) -> None:
        """Tell the process to end when it has answered; never waits."""
        with suppress(OSError):  # it has ended already
            self._sock.shutdown(socket.SHUT_WR)

    def over(self, seconds: float) -> bool:
        """Wait for the end of the process for at most so many seconds; return whether it has come."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def forget(self) -> None:
        """Close what belongs to the process here: in a fork of its parent, which is not to hold on to it."""
        self._release()

    def kill(self) -> None:
        """Kill the process and what it started; never waits."""
        self.killed = True
        with self._lock:
            if not self._reaped:
                _kill_group(self.pid)

    def end(self) -> int:
        """Wait for the end of the process, close what belongs to it, and return its exit status."""
        self.alive = False
        with suppress(ChildProcessError):  # it is reaped already
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            else:  # macOS before Python 3.13: a `kill` in the instant after this may meet another process
                self._process.wait()
        with self._lock:
            # Until here nothing else can have its number, so `kill` meets it and no other.
            self._reaped = True
            status = self._process.wait()
        self._release()
        return status

    def exit_message(self, when: str) -> str:
        """Wait for the end, and say how the process has ended and how to find out more."""
        status = self.end()
        if status >= 0:
            how, more = f"exited with status {status}", "what it wrote to stderr may say why"
        else:
            how = f"was killed by {_signal_name(-status)}"
            more = "what it wrote to stderr says where it stood"
            if -status == signal.SIGKILL:
                more = "where memory is short the system does that, and its log (`dmesg`) says so"
        return f"worker process {self.pid} {how} {when}; {more}"


def main_script() -> tuple[str, str] | None:
    """Return where another process finds the main script."""
    if program.script is not None:
        return program.script  # of the process that started this one
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return "module", spec.name
    file = getattr(main, "__file__", None)
    return ("path", str(Path(file).absolute())) if file and Path(file).is_file() else None


def surroundings() -> Hashable:
    """Return what a new process takes over from this one: a worker that was started with another is not used."""
    try:
        folder = str(Path.cwd())
    except OSError:  # it is gone
        folder = ""
    return folder, tuple(map(str, sys.path)), frozenset(os.environ.items()), tuple(map(_open_on, (1, 2)))


def _open_on(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:  # it is closed
        return None
    return status.st_dev, status.st_ino


def interpreter_flags() -> list[str]:
    """Return the options that this interpreter was started with, as `-O` and `-W`, for another one."""
    # What multiprocessing uses. It is private: if it goes, workers start without these options.
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
    except (AttributeError, OSError):  # not every system has it
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
) -> None:
    """Close what belongs to a process; kill it where it lives, unless this is a fork of its parent."""
    if os.getpid() != owner:
        process.returncode = 0  # it is no child of this one, so nothing is to be asked about it
    elif process.poll() is None:
        _kill_group(process.pid)
        process.wait()
    sock.close()
    items.close()
    results.close()
    if pidfd is not None:
        os.close(pidfd)


# What is registered first runs last at exit. Python registers its finalizers with the first that is made, so one
# is made here: the workers of a run that is open at exit are released after the run has stopped.
weakref.finalize(Worker, bool).atexit = False
