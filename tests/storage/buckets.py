"""Buckets full of small objects, and pipelines over them."""

from __future__ import annotations

from typing import Any

import numpy as np

import asyncfeed as af
from tests.servers.faults import Faults
from tests.servers.objects import ObjectServer

SIZE = 100
PATIENT = af.Retry(attempts=12, first_delay=0.005, max_delay=0.05)
"""Tries again at once, and as often as no chain of faults is long."""

PASSING = {
    "503": "throttled", "429": "throttled", "reset": "connection", "cut": "interrupted", "stall": "timeout",
    "stall in the body": "timeout", "wrong length": "Corrupt", "wrong range": "Corrupt",
}  # fmt: skip
"""Faults that end an attempt, and how statistics call them."""


def fill(server: ObjectServer, count: int, size: int = SIZE) -> list[bytes]:
    """Put objects of random bytes, and return them in the order of their keys."""
    block = np.random.default_rng(count).bytes(count * size)
    bodies = [block[start : start + size] for start in range(0, count * size, size)]
    for number, body in enumerate(bodies):
        server.put("bucket", f"{number:05}.raw", body)
    return bodies


def files(server: ObjectServer | str, pattern: str = "*.raw", **options: Any) -> af.Pipeline[af.File]:
    """Return the listed objects of a bucket on a server, or at its address."""
    url = server if isinstance(server, str) else server.url
    return af.files(f"s3://bucket/{pattern}", **{"endpoint": url, "anonymous": True, **options})


def add_every_fault(faults: Faults, *, stalls: float) -> None:
    """Let about one request in ten meet a fault, of every kind there is that passes.

    A stall lasts as long as the deadline of a request, so there are fewer: `stalls` is their share.
    """
    for kind in ("503", "429", "reset", "cut", "wrong length", "redirect"):
        faults.add(kind, rate=0.0125, value=1 if kind == "429" else None)
    faults.add("delay", rate=0.0125, value=0.02)
    faults.add("slow tail", rate=0.0125, value=0.01)
    faults.add("wrong range", rate=0.005)
    # A second one in a row is an object that was written to, and an error.
    faults.add("other etag", rate=0.01, per_key=1)
    faults.add("stall", rate=stalls)
    faults.add("stall in the body", rate=stalls)


def total(pipeline: af.Pipeline[Any]) -> int:
    """Return the sum of all bytes that a pipeline delivers. Another process may call it."""
    return sum(int(each.sum(dtype=np.int64)) for each in pipeline)
