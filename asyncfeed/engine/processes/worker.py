"""What runs in a worker process: calls of one function, for the groups of items that the parent writes.

Invariants:

* It ends when the parent asks for nothing more, after the items it has; when the parent dies, at once, with all
  that it started, even if the function hangs.
* Between two runs it holds no function, no item and no result. Each run brings its function anew. If a file that
  it has imported has changed since, it answers that it is outdated.
* The parent's main script is imported only where something is asked for that is defined there, under the name
  `__mp_main__`, as multiprocessing does; while it is, no process may be started.
* Of itself it writes nothing to the terminal, but where C code breaks down: a Ctrl-C is the parent's, and every
  error goes there.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import runpy
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from time import perf_counter
from types import ModuleType
from typing import Any, NamedTuple

from asyncfeed.engine.constants import LATE_FACTOR, PROCESS_GROUP_SECONDS
from asyncfeed.engine.processes.shared import Arena, Failed
from asyncfeed.errors import PipelineError, note
from asyncfeed.functions.checks import refuse_awaitable

BOOT = """
import sys
sys.path[:] = sys.argv[4:]
from asyncfeed.engine.processes.worker import main
main(*map(int, sys.argv[1:4]))
"""
"""The program: descriptors of the socket and both arenas are its first arguments, the rest is `sys.path`."""
MAIN = "__mp_main__"
"""The name under which a worker process has the parent's main script."""

BEGIN, CALL, REST = b"b", b"?", b"r"
"""What the parent may order: take a function, call it for the items that are written, let go of it."""
DONE, OUTDATED = b".", b"!"
"""What it is answered."""

importing = False
"""Whether this is a worker process that is just importing the main script."""
script: tuple[str, str] | None = None
"""In a worker process, the parent's main script: see `Setup`."""


class Setup(NamedTuple):
    """What a worker process is told at the beginning of a run."""

    name: str
    """The stage, as it is written in the description."""
    goes_on: bool
    """Whether the items after one that failed are wanted."""
    room: int
    """How many bytes of results end a group, the rest of which is taken anew."""
    argv: list[str]
    script: tuple[str, str] | None
    """The main script: ("module", its name) or ("path", its file); None where it cannot be imported."""
    by_value: bool
    """Whether results are written by value: see `asyncfeed.functions.sending`."""
    function: bytes
    """The function, pickled."""


class SentPlace(NamedTuple):
    """Where an item stands, as far as it is known here."""

    epoch: int
    ordinal: Any


def main(lifeline: int, items: int, results: int) -> None:
    """Run to the end; the arguments are descriptors."""
    # Not SIG_IGN, which the programs that a function starts would inherit.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    faulthandler.enable()  # where C code breaks down, that alone can say where
    parent = socket.socket(fileno=lifeline)
    threading.Thread(target=_die_with, args=(parent,), name="asyncfeed-lifeline", daemon=True).start()
    with suppress(ConnectionError):  # the parent is gone, or wants nothing any more
        _serve(parent, Arena(items), Arena(results))


def _die_with(parent: socket.socket) -> None:
    """Wait until the parent has died, and end this process and what it started."""
    poll = select.poll()
    poll.register(parent, 0)  # nothing but the end: both directions are closed
    poll.poll()
    os.killpg(os.getpid(), signal.SIGKILL)


def _serve(parent: socket.socket, items: Arena, results: Arena) -> None:
    started = time.time()
    begun = False
    fn, name, goes_on, room = None, "", False, 0
    while order := parent.recv(1):
        answer = DONE
        results.begin()
        if order == CALL:
            began = perf_counter()
            for _ in range(items.open()[0]):
                good = _call(fn, items, results, name)
                late = perf_counter() - began > LATE_FACTOR * PROCESS_GROUP_SECONDS
                if not (good or goes_on) or late or results.written > room:
                    break
            results.finish(perf_counter() - began)
        elif order == REST:
            fn = None
            results.trim()
        elif begun and _changed_since(started):
            answer = OUTDATED
        else:
            items.open()
            name, goes_on, room, sys.argv, main_script, by_value, data = items.get()
            if not begun:
                _stand_in_for(main_script)
                begun = True
            results.write_by_value(by_value)
            try:
                fn = pickle.loads(data)  # noqa: S301 - it is our own
            except BaseException as error:  # noqa: BLE001 - the parent reports it, whatever it is
                results.put(Failed(error))
            del data
        parent.send(answer)


def _stand_in_for(main_script: tuple[str, str] | None) -> None:
    """Let the parent's main script be found under its names, and imported when it is first asked for."""
    global script
    script = main_script
    sys.modules["__main__"] = sys.modules[MAIN] = _Main(main_script)


def _changed_since(seconds: float) -> bool:
    """Return whether a file that a module here was imported from has changed: 1 ms for 1,000 modules."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        try:
            # When the file came to be what it is, also where it was moved here with an old time of its own.
            if isinstance(file, str) and os.stat(file).st_ctime >= seconds:  # noqa: PTH116 - four times as fast
                return True
        except (OSError, ValueError):  # some modules name a file that never was
            pass
    return False


def _call(fn: Any, items: Arena, results: Arena, name: str) -> bool:
    """Call the function for the next item and put down what comes of it; return whether that is a result."""
    try:
        result = fn(*items.get())
        refuse_awaitable(name, result)
    except BaseException as error:  # noqa: BLE001 - it is the consumer's, whatever it is
        results.put(Failed(error, results.dumps))
        return False
    try:
        results.put(result)
    except BaseException as error:  # noqa: BLE001
        note(error, f"asyncfeed: a result of type {type(result).__qualname__} cannot leave its process")
        results.put(Failed(error, results.dumps))
        return False
    return True


class _Main(ModuleType):
    """Stands for the main script until something in it is asked for."""

    def __init__(self, script: tuple[str, str] | None) -> None:
        super().__init__(MAIN)
        self._script = script

    def __getattr__(self, name: str) -> Any:
        global importing
        if name.startswith("__") or importing:
            raise AttributeError(f"module '__main__' has no attribute {name!r}")
        if self._script is None:
            raise PipelineError(
                f"{name!r} is defined in a session without a file (stdin, a prompt, a notebook), which no other "
                "process can import: `pip install cloudpickle`, which sends functions of such a session by value, "
                "or put it into a module of its own"
            )
        kind, where = self._script
        importing = True
        try:
            if kind == "module":
                found = runpy.run_module(where, run_name=MAIN, alter_sys=True)
            else:
                found = runpy.run_path(where, run_name=MAIN)
        finally:
            importing = False
        module = ModuleType(MAIN)
        module.__dict__.update(found)
        sys.modules["__main__"] = sys.modules[MAIN] = module
        return getattr(module, name)
