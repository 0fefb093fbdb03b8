"""Cases of a test that searches many."""

from __future__ import annotations

from typing import Any

import pytest

FIRST = 16


def searched(count: int) -> list[Any]:
    """Return the numbers of cases. Each run of the tests tries the first ones, and the wide search all others."""
    return [pytest.param(number, marks=pytest.mark.wide if number >= FIRST else ()) for number in range(count)]
