"""`concurrency="auto"` beside every fixed number: what finding the number costs, and whether it is a good one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import harness
from harness import Entry, Run
from report import Goal, Spread, number

AUTO = 'concurrency="auto"'


@dataclass(frozen=True)
class Beside:
    """What was found."""

    goal: Goal
    column: Mapping[str, str]
    """Items per second by what was at a time, as text."""


def beside_fixed(
    what: str,
    at: Callable[[Any], Run],
    work: Any,
    probes: Mapping[int, int],
    *,
    seconds: float,
    rounds: int,
) -> Beside:
    """Measure each fixed concurrency once, and the best of them beside "auto" in turns.

    `probes` has the items of the one run of each fixed number. The turns are over as many items as the best reads
    in so many seconds, from the start, so what "auto" needs to find its number counts.
    """
    rates = {limit: 1 / harness.cost(at(limit), work, items) for limit, items in probes.items()}
    best = max(rates, key=rates.__getitem__)
    fixed = f"{best} at a time"
    items = round(seconds * rates[best])
    entries = [Entry(AUTO, at("auto"), "", items, ""), Entry(fixed, at(best), "", items, "")]
    times = harness.race(entries, work, rounds)
    measured = harness.ratio(times, over=fixed, under=AUTO)
    column = {str(limit): number(rate) for limit, rate in rates.items()}
    column[AUTO] = Spread.of([1 / each for each in times[AUTO]]).show()
    column["the best again"] = Spread.of([1 / each for each in times[fixed]]).show()
    goal = Goal(f"{what}: auto / {fixed}, items/s", ">= 0.9", measured.show(), measured.median >= 0.9)
    return Beside(goal, column)
