"""What every benchmark shares: contenders in rounds, their ratios, and the command line.

A figure is worth what it is compared with. So contenders take turns inside one process, round by round,
and a ratio is the median of the ratios *within* a round: what slows the machine down for a while slows both.
Each contender is first checked (every item, in order) and, where it has several settings, runs with the one
that was quickest in short trials. All turns are about as long, so a contender that is 100 times as slow gets a
hundredth of the items: what counts is the rate.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import report
from report import Goal, Section, Spread, Table

LEAST = 3
"""The rounds that a ratio needs."""

Work: TypeAlias = Callable[[int], Awaitable[int]]
Consume: TypeAlias = Callable[[Sequence[int]], None]
Run: TypeAlias = Callable[[Any, int, Callable[[Any], None]], None]
"""Put n items through the work, and hand each batch to `consume`, in the thread that called.

The work is whatever a benchmark is about, an async function or a set of files; all its contenders get the same.
"""


class Made:
    """A run over an iterable that is made before the clock starts, and iterated once a turn.

    A pipeline is described once and goes through many epochs, so neither tracing a graph nor listing files counts.
    """

    def __init__(self, make: Callable[[Any, int], Iterable[Any]]) -> None:
        self._make = make
        self._made: tuple[Any, int, Iterable[Any]] | None = None

    def prepare(self, work: Any, items: int) -> Iterable[Any]:
        """Return the iterable, made where there is none for these items yet."""
        if self._made is None or self._made[0] is not work or self._made[1] != items:
            self._made = None  # what it replaces ends first: it may own processes
            self._made = (work, items, self._make(work, items))
        return self._made[2]

    def drop(self) -> None:
        """Let go of the iterable, and of the workers it may keep for the next turn."""
        self._made = None

    def __call__(self, work: Any, items: int, consume: Callable[[Any], None]) -> None:
        """Iterate."""
        for batch in self.prepare(work, items):
            consume(batch)


# -- contenders


@dataclass(frozen=True)
class Contender:
    """One row of a table: a way to do the work, with the settings to choose from."""

    name: str
    settings: Mapping[str, Run]
    ordered: bool = True
    runs_work: bool = True
    """False where it cannot run the async function and stands in with one of its own."""
    note: str = ""
    lends: bool = False
    """True where a batch is only good until the next one is drawn."""


@dataclass(frozen=True)
class Entry:
    """A contender with the setting that suited it best, and the number of items that fills one turn."""

    name: str
    run: Run
    setting: str
    items: int
    note: str


@dataclass
class Tally:
    """A consumer that counts, and knows when the last item came."""

    left: int
    ended: float = math.nan

    def __call__(self, batch: Sequence[int]) -> None:
        """Take one batch."""
        self.left -= len(batch)
        if not self.left:
            self.ended = time.perf_counter()


@dataclass(frozen=True)
class Turn:
    """What belongs to a turn beside the run."""

    before: Callable[[], None] | None = None
    """Called first, off the clock: it empties a cache, say."""
    tally: Callable[[int], Tally] = Tally
    """Makes the consumer: one that computes, say."""


class WrongError(Exception):
    """A contender did not deliver what went in: its figure would mean nothing."""


def available(makers: Iterable[Callable[[], Iterable[Contender]]]) -> tuple[list[Contender], list[str]]:
    """Return the contenders whose packages are installed, and a line for each package that is not."""
    found: list[Contender] = []
    missing: list[str] = []
    for maker in makers:
        try:
            found.extend(maker())
        except ImportError as error:
            missing.append(f"{error.name} is not installed and was skipped (`pip install 'asyncfeed[bench]'`).")
    return found, missing


def thinned(contender: Contender, most: int) -> Contender:
    """Return a contender with at most so many of its settings, evenly spread."""
    step = -(-len(contender.settings) // most)
    return replace(contender, settings=dict(list(contender.settings.items())[::step]))


def check(contender: Contender, work: Work, items: int = 1_003) -> None:
    """Raise unless every setting delivers every item, in order where that was asked, the short batch last."""
    for setting, run in contender.settings.items():
        batches: list[Sequence[int]] = []
        run(work, items, batches.append)  # they are all kept, so none may share its memory with another
        flat = [int(item) for batch in batches for item in batch]
        if (flat if contender.ordered else sorted(flat)) != list(range(items)):
            raise WrongError(f"{contender.name} ({setting}) lost, repeated or moved items")
        if [len(batch) for batch in batches] != [32] * (items // 32) + [items % 32]:
            raise WrongError(f"{contender.name} ({setting}) made other batches")


def cost(run: Run, work: Any, items: int, turn: Turn = Turn()) -> float:
    """Return the seconds per item from before the start until the last item is in the consumer's hand."""
    tally = turn.tally(items)
    if isinstance(run, Made):
        run.prepare(work, items)
    gc.collect()
    if turn.before:
        turn.before()
    begun = time.perf_counter()
    run(work, items, tally)
    if tally.left:
        raise WrongError(f"{run} delivered {items - tally.left} of {items} items")
    return (tally.ended - begun) / items


def forget_heap() -> None:
    """Spare the garbage collector what is alive now: with torch imported, a full collection takes 100 ms."""
    gc.collect()
    gc.freeze()


def trial(run: Run, work: Any, seconds: float, turn: Turn, most: int) -> float:
    """Return the seconds per item of a run that is long enough to take about so many seconds, warm."""
    items = min(64, most)
    # Long enough that what it costs to start does not choose for it.
    while (once := cost(run, work, items, turn)) * items < seconds / 2 and items < most:
        items = min(items * 8, max(items + 64, round(seconds / once)), most)
    return min(once, cost(run, work, items, turn))


def enter(
    contender: Contender,
    work: Any,
    seconds: float,
    *,
    check: Callable[[Contender, Any], None] = check,
    turn: Turn = Turn(),
    most: int | None = None,
) -> Entry:
    """Check a contender, choose its setting, and find how many items, at most `most`, take about `seconds`.

    Every setting is tried for a part of that; the best three, where there are more, again for longer.
    """
    check(contender, work)
    most = most or sys.maxsize

    def tried(settings: Iterable[str], share: float) -> dict[str, float]:
        trials = {}
        for setting in settings:
            run = contender.settings[setting]
            trials[setting] = trial(run, work, seconds * share, turn, most)
            if isinstance(run, Made):
                run.drop()
        return trials

    trials = tried(contender.settings, 0.15)
    if len(trials) > 3:
        trials = tried(sorted(trials, key=trials.__getitem__)[:3], 0.4)
    best = min(trials, key=trials.__getitem__)
    items = min(max(1, round(seconds / trials[best] / 64)) * 64, most)
    return Entry(contender.name, contender.settings[best], best, items, chosen(contender))


def chosen(contender: Contender) -> str:
    """Return the note of a contender, with the settings that its own was chosen from."""
    tried = f"chosen from {'; '.join(contender.settings)}" if len(contender.settings) > 1 else ""
    return "; ".join(filter(None, (contender.note, tried)))


def rounds(most: int, within: float = math.inf, least: int = LEAST) -> Iterator[int]:
    """Yield the numbers of rounds: `most`, or as many as fit into `within` seconds, but at least `least`."""
    begun = time.perf_counter()
    for number in range(most):
        taken = time.perf_counter() - begun
        if number >= least and taken / number * (number + 1) > within:
            return
        yield number


def rotated(entries: Sequence[Any], number: int) -> list[Any]:
    """Return the entries in the order of a round: the first moves on by one each round."""
    start = number % len(entries)
    return [*entries[start:], *entries[:start]]


def race(
    entries: Sequence[Entry],
    work: Any,
    most: int,
    *,
    within: float = math.inf,
    turn: Turn = Turn(),
) -> dict[str, list[float]]:
    """Return each entry's seconds per item, round by round: `most` rounds, or fewer where time is short."""
    times: dict[str, list[float]] = {entry.name: [] for entry in entries}
    forget_heap()
    for number in rounds(most, within):
        for entry in rotated(entries, number):
            times[entry.name].append(cost(entry.run, work, entry.items, turn))
    for entry in entries:
        if isinstance(entry.run, Made):
            entry.run.drop()
    return times


# -- figures


def ratio(times: Mapping[str, Sequence[float]], over: str, under: str) -> Spread:
    """Return how many times as long `over` takes as `under`, from the ratios within each round."""
    return Spread.of([a / b for a, b in zip(times[over], times[under], strict=True)])


def faster(times: Mapping[str, Sequence[float]], name: str, than: Sequence[str], least: float) -> Goal | None:
    """Return the goal of being `least` times as fast as the fastest of some others; None where all are missing."""
    present = [other for other in than if other in times]
    if name not in times or not present:
        return None
    other = min(present, key=lambda other: statistics.median(times[other]))
    measured = ratio(times, over=other, under=name)
    return Goal(f"{other} / {name}", f">= {least:g}", measured.show(), measured.median >= least)


def side_by_side(
    entries: Sequence[Entry],
    times: Mapping[str, Sequence[float]],
    *,
    base: str,
    unit: str,
    value: Callable[[float], float],
) -> Table:
    """Return the table of a race, the slowest first; `value` turns seconds per item into the `unit`."""
    ranked = sorted(entries, key=lambda entry: -statistics.median(times[entry.name]))
    rows = [
        (
            entry.name,
            ratio(times, over=entry.name, under=base).show() if entry.name != base else "1",
            Spread.of([value(seconds) for seconds in times[entry.name]]).show(),
            f"{entry.items:,}",
            entry.setting,
        )
        for entry in ranked
    ]
    return report.table(("", f"times {base}'s", unit, "items", "setting"), rows)


# -- the command line


@dataclass(frozen=True)
class Row:
    """A part of a benchmark that can be measured alone."""

    says: str
    """What it measures."""
    seconds: int
    """About how long that takes on two slow cores."""
    measure: Callable[..., Section]
    """Takes `quick`."""


def main(description: str, rows: Mapping[str, Row]) -> None:
    """Measure the rows asked for; print each, and put it into the results, as soon as it is measured."""
    asked = options(description, rows)
    program = f"python benchmarks/{Path(sys.argv[0]).name}"
    for name in asked.rows:
        begun = time.perf_counter()
        section = rows[name].measure(quick=asked.quick)
        section.says = f"{rows[name].says[0].upper()}{rows[name].says[1:]}."
        section.command = f"{program} --rows {name}"
        print(section.markdown(), f"{name}: {time.perf_counter() - begun:.0f} s\n", sep="\n", flush=True)
        if asked.markdown:
            report.write(asked.markdown, [section])


def options(description: str, rows: Mapping[str, Row]) -> argparse.Namespace:
    """Return the command line of a benchmark: `quick`, `rows` and `markdown`."""
    width = max(map(len, rows))
    listed = "\n".join(f"  {name:<{width}}  {row.seconds:>3} s  {row.says}" for name, row in rows.items())
    parser = argparse.ArgumentParser(
        description=description,
        epilog=f"rows, with about what they take:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it works, not how fast")
    parser.add_argument("--rows", nargs="+", choices=rows, default=list(rows), metavar="ROW", help="default: all")
    parser.add_argument(
        "--markdown", type=Path, default=None, metavar="FILE", help=f"default: {report.RESULTS.name} beside it"
    )
    asked = parser.parse_args()
    if asked.markdown is None and not asked.quick:
        asked.markdown = report.RESULTS
    return asked
