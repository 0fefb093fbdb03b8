"""Servers that the tests of readers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import moto


@pytest.fixture(scope="session")
def moto_server() -> Iterator[None]:
    """Run moto's S3 in a process of its own, if moto is installed."""
    with moto.running():
        yield
