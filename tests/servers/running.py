"""Runs a server on a thread, and waits until its sockets and those of its clients are closed.

obstore closes the sockets of a client on threads of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path


def open_sockets() -> set[str]:
    """Return the sockets that this process has open."""
    found: set[str] = set()
    for fd in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            name = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if name.startswith("socket:"):
            found.add(name)
    return found


def wait_for_sockets(before: set[str]) -> None:
    """Wait until no socket is open that was not open before."""
    deadline = time.monotonic() + 20
    while left := open_sockets() - before:
        assert time.monotonic() < deadline, f"sockets stay open: {', '.join(map(ends_of, sorted(left)))}"
        time.sleep(0.005)


def ends_of(name: str) -> str:
    """Return what the system knows of a socket: the ports of both ends, and its state."""
    inode = name.partition("[")[2].rstrip("]")
    for table in ("tcp", "tcp6", "unix"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if table == "unix" and words[6] == inode:
                return f"{name} unix {' '.join(words[5:])}"
            if table != "unix" and words[9] == inode:
                mine, other = (int(words[at].rpartition(":")[2], 16) for at in (1, 2))
                return f"{name} {table} port {mine} to {other}, state {words[3]}"
    return f"{name}, which no table has"


@contextmanager
def on_a_thread(
    name: str, start: Callable[[], Coroutine[None, None, asyncio.Server]], end: Callable[[], None]
) -> Iterator[None]:
    """Run a server on a loop of its own. `end` ends the connections that it knows of; it is called on the loop."""
    before = open_sockets()
    started, stop = threading.Event(), asyncio.Event()

    async def main() -> None:
        server = await start()
        started.set()
        await stop.wait()
        # asyncio has a task for each connection that was accepted and has no protocol yet. Its socket stays open if
        # the server or the loop is closed before.
        for each in server.sockets:
            asyncio.get_running_loop().remove_reader(each.fileno())
        while accepting := asyncio.all_tasks() - {asyncio.current_task()}:
            end()
            await asyncio.wait(accepting)
        server.close()
        end()
        await asyncio.sleep(0)

    def run() -> None:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            loops.append(runner.get_loop())
            runner.run(main())

    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(10)
        wait_for_sockets(before)
