"""The caller's loop is never blocked: each test of the engine runs under a detector (see conftest.py); this one shows it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockingError

import asyncfeed as af
from tests.engine.failing import draw
from tests.engine.many import pipelines, run_all, write


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_no_pipeline_blocks_the_loop(tmp_path: Path, loop: str) -> None:
    """Of any source, stage and format: none opens or reads a file there, waits for a lock or starts a process."""
    factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else None
    write(tmp_path)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run_all(list(pipelines(tmp_path))))


def locked() -> None:
    lock = threading.Lock()
    with pytest.raises(BlockingError):
        for _ in range(2):
            lock.acquire(timeout=0.01)
    raise BlockingError("lock")


BLOCKING: dict[str, Callable[[], Any]] = {
    "sleep": lambda: time.sleep(0),
    "open": lambda: Path(__file__).open(),
    "os.open": lambda: os.open(__file__, os.O_RDONLY),
    "readv": lambda: os.readv(0, []),
    "stat": lambda: Path(__file__).stat(),
    "scandir": lambda: list(os.scandir("/")),
    "process": lambda: subprocess.run([sys.executable, "--version"]),
    "lock": locked,
}


@pytest.mark.parametrize("call", BLOCKING)
def test_what_blocks_the_loop_is_found(call: str) -> None:
    """In whatever is called by us, as an async function; on a thread it may."""

    async def blocks(x: int) -> int:
        BLOCKING[call]()
        return x

    drawn = asyncio.run(draw(af.items([1]).map(blocks)))
    assert type(drawn.error) is BlockingError
    assert asyncio.run(draw(af.items([1]).map(lambda x: time.sleep(0)))).error is None
