"""The program of a worker process: calls one function for the groups of items that the parent writes.

Invariants:

* The process ends after its items when the parent needs no more. When the parent dies, it ends at once, with all
  processes that it started, even if the function hangs.
* Each item of a group is noted before it is read. So if the process dies, the parent knows which item it was at.
* Between two runs it holds no function, no item and no result, only free blocks of shared memory. Each run sends
  its function again. If a file that the process has imported has changed since, it answers that it is outdated.
* The parent's main script is imported only when a name that it defines is needed. Its module is called
  `__mp_main__`, as multiprocessing does. No worker process may be started during that import.
* The process itself writes nothing to the terminal, except when C code crashes. Only the parent handles Ctrl-C,
  and every error is sent to the parent.
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
from asyncfeed.engine.processes.block_writer import BlockPool, BlockWriter
from asyncfeed.engine.processes.shared import Arena, Failed
from asyncfeed.errors import PipelineError, note
from asyncfeed.functions.checks import refuse_awaitable
from asyncfeed.reading.scope import kept
from asyncfeed.stages.chain import Chain, NamesNeeded
from asyncfeed.stages.steps import MakesArrays

BOOT = """
import sys
sys.path[:] = sys.argv[4:]
from asyncfeed.engine.processes.worker import main
main(*map(int, sys.argv[1:4]))
"""
"""The program. Its first arguments are the descriptors of the socket and both arenas. The rest is `sys.path`."""
MAIN = "__mp_main__"
"""The module name of the parent's main script in a worker process."""

BEGIN, CALL, REST = b"b", b"?", b"r"
"""The orders of the parent: load a function, call it for the items in the arena, drop it."""
DONE, OUTDATED = b".", b"!"
"""The answers."""
BLOCK = b"+"
"""What the process sends, with a file descriptor, when it has made a block for results during an order."""
MAPPED, REFUSED = b"y", b"n"
"""The replies of the parent to that."""

importing = False
"""Whether this is a worker process that is importing the main script now."""
script: tuple[str, str] | None = None
"""In a worker process, the parent's main script: see `Setup`."""


class Setup(NamedTuple):
    """What the parent sends to a worker process at the beginning of a run."""

    name: str
    """The name of the stage in the description."""
    goes_on: bool
    """Whether a group continues after an item that failed."""
    room: int
    """Bytes of results at which a group ends early. Its remaining items form a new group."""
    argv: list[str]
    script: tuple[str, str] | None
    """The main script: ("module", its name) or ("path", its file). None if it cannot be imported."""
    by_value: bool
    """Whether results are written by value: see `asyncfeed.functions.sending`."""
    function: bytes
    """The function, pickled."""


class SentPlace(NamedTuple):
    """The `Place` of an item, as it is sent to a worker process."""

    epoch: int
    ordinal: Any
    names: tuple[str, ...] | None = None
    """The names of the item and of its members. None at first, because only errors show them."""
    epochs: tuple[int, ...] | None = None
    """The epochs of its members. None if all are of one."""

    def name(self, member: int | None = None) -> str:
        """Return the name of the item, or of its `member`."""
        if self.names is None:
            raise NamesNeeded
        return self.names[0 if member is None else 1 + member]

    def member(self, number: int) -> SentPlace:
        """Return the place of a member of a batch."""
        names = None if self.names is None else (self.names[1 + number],)
        epoch = self.epoch if self.epochs is None else self.epochs[number]
        return SentPlace(epoch, self.ordinal[number], names)


def main(lifeline: int, items: int, results: int) -> None:
    """Serve the parent to the end. The arguments are file descriptors."""
    # A handler and not SIG_IGN, because programs that the function starts would inherit SIG_IGN.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    faulthandler.enable()  # if C code crashes, nothing else can say where
    parent = socket.socket(fileno=lifeline)
    threading.Thread(target=_die_with, args=(parent,), name="asyncfeed-lifeline", daemon=True).start()
    with suppress(ConnectionError):  # the parent is gone, or needs no more results
        _serve(parent, Arena(items), Arena(results))


def _die_with(parent: socket.socket) -> None:
    """Wait until the parent has died. Then kill this process and the processes that it started."""
    poll = select.poll()
    poll.register(parent, 0)  # 0: only POLLHUP is reported, when both directions are closed
    poll.poll()
    os.killpg(os.getpid(), signal.SIGKILL)


def _serve(parent: socket.socket, items: Arena, results: Arena) -> None:
    def announce(fd: int) -> bool:
        socket.send_fds(parent, [BLOCK], [fd])
        return parent.recv(1) == MAPPED

    def begins(member: int) -> bool:
        results.begin_member(member)
        return items.stopped()

    started = time.time()
    begun = False
    blocks = results.block_writer = BlockWriter(announce)
    kept.on = True
    fn, name, goes_on, room = None, "", False, 0
    while order := parent.recv(1):
        answer = DONE
        results.begin()
        if order == CALL:
            began = perf_counter()
            count, _ = items.open()
            blocks.begin(items.get())
            for _ in range(count - 1):
                results.begin_value()
                more = _call(fn, items, results, name, goes_on=goes_on)
                blocks.end_call()
                late = perf_counter() - began > LATE_FACTOR * PROCESS_GROUP_SECONDS
                if not more or late or results.written > room or items.stopped():
                    break
            results.finish(perf_counter() - began)
        elif order == REST:
            fn = None
            kept.close()
            results.trim()
            items.open()
            blocks.rest(items.get())
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
                if isinstance(fn, MakesArrays):
                    fn.make_in(BlockPool(blocks))
                if isinstance(fn, Chain):
                    fn.tell(begins)
            except BaseException as error:  # noqa: BLE001 - the parent reports it
                results.put(Failed(error))
            del data
        parent.send(answer)


def _stand_in_for(main_script: tuple[str, str] | None) -> None:
    """Install a module in place of the parent's main script, which imports the script when it is first used."""
    global script
    script = main_script
    sys.modules["__main__"] = sys.modules[MAIN] = _Main(main_script)


def _changed_since(seconds: float) -> bool:
    """Return whether the file of an imported module has changed since. This takes 1 ms for 1,000 modules."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        try:
            # `st_ctime` and not `st_mtime`, because a file that was moved here may keep an old `st_mtime`.
            if isinstance(file, str) and os.stat(file).st_ctime >= seconds:  # noqa: PTH116 - four times as fast
                return True
        except (OSError, ValueError):  # some modules name a file that never existed
            pass
    return False


def _call(fn: Any, items: Arena, results: Arena, name: str, *, goes_on: bool) -> bool:
    """Call the function for the next item, and write its result or exception. Return whether the group goes on."""
    try:
        result = fn(*items.get())
        refuse_awaitable(name, result)
    except BaseException as error:  # noqa: BLE001 - the consumer gets it
        results.put(Failed(error, results.dumps))
        return goes_on and not isinstance(error, NamesNeeded)
    try:
        results.put(result)
    except BaseException as error:  # noqa: BLE001
        note(error, f"asyncfeed: a result of type {type(result).__qualname__} cannot be sent from its process")
        results.put(Failed(error, results.dumps))
        return goes_on
    return True


class _Main(ModuleType):
    """Takes the place of the main script until one of its names is needed."""

    def __init__(self, script: tuple[str, str] | None) -> None:
        super().__init__(MAIN)
        self._script = script

    def __getattr__(self, name: str) -> Any:
        global importing
        if name.startswith("__") or importing:
            raise AttributeError(f"module '__main__' has no attribute {name!r}")
        if self._script is None:
            raise PipelineError(
                f"{name!r} is defined in a session without a file (stdin, a prompt, a notebook), so no other "
                "process can import it: run `pip install cloudpickle`, which sends such functions by value, or "
                "put it into a module of its own"
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
