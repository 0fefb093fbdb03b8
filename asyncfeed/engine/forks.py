"""Counts forks. Each draw checks for a fork, and reading a variable is faster than asking for the process id."""

from __future__ import annotations

import os

count = 0
"""Number of forks between this process and the one that imported this module."""


def _forked() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):  # a system without this function cannot fork
    os.register_at_fork(after_in_child=_forked)
