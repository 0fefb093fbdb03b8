"""What a search tries: other cases each day, and the same ones again with `ASYNCFEED_SEED`.

A search has more cases than a run of the tests has time for. Each run draws some of them, by a seed that is the date.
The last line of a run names the seed. A case that failed stays: as an `@example`, or as a test of its own.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

SEED = int(os.environ.setdefault("ASYNCFEED_SEED", f"{datetime.now(UTC):%Y%m%d}"))
"""What all searches draw from. It is set, so that the processes which share the tests, and those which tests start,
have the same."""
SEARCH = float(os.environ.get("ASYNCFEED_SEARCH", "1"))
"""`ASYNCFEED_SEARCH=20` tries 20 times as many cases. `make test-wide` does so, and other Pythons try a quarter."""
LONGER = int(os.environ.get("ASYNCFEED_ITEMS", "1"))
"""`ASYNCFEED_ITEMS=10` draws sources with up to 10 times as many items."""
EXAMPLES = max(5, int(100 * SEARCH))
"""How many examples hypothesis tries for a test that names no number."""
SEEDS = [SEED * 1000 + number for number in range(max(1, round(4 * SEARCH)))]
"""The seeds of schedules, for tests that run once with each."""


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
        if SEARCH > 1:
            print(f"\n{name}: {self.items:,} items in {self.runs:,} runs")


def searched(examples: int) -> Callable[[Any], Any]:
    """Have a test of hypothesis try this many examples, times `ASYNCFEED_SEARCH`."""
    return settings(max_examples=max(1, int(examples * SEARCH)), suppress_health_check=list(HealthCheck))


def sampled(count: int) -> pytest.MarkDecorator:
    """Have each run try this many of a test's parameters, times `ASYNCFEED_SEARCH`. `make test-wide` tries all."""
    return pytest.mark.sampled(count)


def leave_out(items: Sequence[pytest.Item]) -> None:
    """Mark the parameters that today's run leaves out as `wide`."""
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            groups[item.nodeid.partition("[")[0]].append(item)
    for name, group in groups.items():
        count = int(group[0].get_closest_marker("sampled").args[0] * SEARCH)  # type: ignore[union-attr]
        chosen = Random(f"{SEED} {name}").sample(range(len(group)), min(max(1, count), len(group)))
        for number in set(range(len(group))) - set(chosen):
            group[number].add_marker(pytest.mark.wide)
