"""Whether this is a forked process. Each draw of a run asks, and a number is read quicker than a process asks."""

from __future__ import annotations

import os

count = 0
"""How many forks lie between this process and the one that imported this."""


def _forked() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):  # or else there is no fork
    os.register_at_fork(after_in_child=_forked)
