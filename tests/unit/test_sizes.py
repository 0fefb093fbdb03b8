"""Sizes of memory as people write them, everywhere a limit is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.sizes import parse_bytes


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        (1, 1),
        (1e9, 10**9),
        (np.int64(5), 5),
        ("4096", 4096),
        ("1_000", 1000),
        ("17B", 17),
        ("1kB", 1000),
        ("500MB", 500 * 10**6),
        (" 1 gb ", 10**9),
        ("1.5GB", 1_500_000_000),
        ("2TB", 2 * 10**12),
        ("2KiB", 2048),
        ("0.5 MiB", 1 << 19),
        ("1GiB", 1 << 30),
        ("1TiB", 1 << 40),
    ],
)
def test_a_size_is_a_number_or_a_number_with_a_unit(size: Any, nbytes: int) -> None:
    """Thousands for kB, MB, GB and TB, 1,024s for KiB and the like."""
    assert parse_bytes(size, "open") == nbytes
    assert type(parse_bytes(size, "open")) is int


@pytest.mark.parametrize(
    "size",
    [
        "",
        "GB",
        "1G",
        "1 XB",
        "-1MB",
        "1e9",
        "1GB2",
        "1.GB",
        True,
        [1],
        b"1GB",
        float("nan"),
        float("inf"),
        None,
        1j,
    ],
)
def test_what_is_no_size_is_refused(size: Any) -> None:
    """With what to write."""
    with pytest.raises(
        af.PipelineError, match='open: memory_limit must be a number of bytes, or text such as "500MB"'
    ):
        parse_bytes(size, "open")


@pytest.mark.parametrize("size", [0, -1, "0MB", 0.5, "0.1B"])
def test_less_than_a_byte_is_refused(size: Any) -> None:
    """Nothing could ever be read."""
    with pytest.raises(af.PipelineError, match="open: memory_limit must be at least 1 byte, not"):
        af.items(range(3)).open(memory_limit=size)


def test_a_run_has_the_limit_that_was_written() -> None:
    """In `open` and in `explain`."""
    numbers = af.items(range(3))
    with numbers.open(memory_limit="64MB") as feed:
        assert feed.stats().memory_limit == 64_000_000
        assert "64,000,000 bytes" in feed.explain()
    assert "1,073,741,824 bytes" in numbers.explain(memory_limit="1GiB")
    with pytest.raises(af.PipelineError, match="explain: memory_limit must be a number of bytes"):
        numbers.explain(memory_limit="much")
