"""How long hypothesis searches: a few examples that are always the same, or many new ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

FACTOR = float(os.environ.get("ASYNCFEED_SEARCH", "0"))
"""`ASYNCFEED_SEARCH=20` tries 20 times as many examples, and others each time."""
LONGER = int(os.environ.get("ASYNCFEED_ITEMS", "1"))
"""`ASYNCFEED_ITEMS=10` draws sources with up to 10 times as many items."""


class Tally:
    """Counts what searches have compared. `-s` prints it if the search is a long one."""

    def __init__(self) -> None:
        self.runs = self.items = 0

    def add(self, items: int) -> None:
        """Note a run that delivered this many items."""
        self.runs += 1
        self.items += items

    def show(self, name: str) -> None:
        """Print what was compared."""
        if FACTOR:
            print(f"\n{name}: {self.items:,} items in {self.runs:,} runs")


def searched(examples: int) -> Callable[[Any], Any]:
    """Have a test try this many examples."""
    if not FACTOR:
        return settings(max_examples=examples, derandomize=True, suppress_health_check=list(HealthCheck))
    return settings(max_examples=int(examples * FACTOR), suppress_health_check=list(HealthCheck))
