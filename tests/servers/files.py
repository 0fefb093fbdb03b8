"""Waits until the sockets of a client are closed: obstore closes them on threads of its own."""

from __future__ import annotations

import os
import time


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
    while open_sockets() - before:
        assert time.monotonic() < deadline, "a socket stays open"
        time.sleep(0.005)
