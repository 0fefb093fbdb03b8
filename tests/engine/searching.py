"""How long hypothesis searches: a few examples that are always the same, or many new ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

FACTOR = float(os.environ.get("ASYNCFEED_SEARCH", "0"))
"""`ASYNCFEED_SEARCH=20` tries 20 times as many examples, and others each time."""


def searched(examples: int) -> Callable[[Any], Any]:
    """Have a test try this many examples."""
    if not FACTOR:
        return settings(max_examples=examples, derandomize=True, suppress_health_check=list(HealthCheck))
    return settings(max_examples=int(examples * FACTOR), suppress_health_check=list(HealthCheck))
