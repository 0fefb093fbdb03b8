"""What every benchmark shares: contenders in rounds, medians with their spread, goals, and RESULTS.md.

A figure is worth what it is compared with. So contenders take turns inside one process, round by round,
and a ratio is the median of the ratios *within* a round: what slows the machine down for a while slows both.
Each contender is first checked (every item, in order) and, where it has several settings, runs with the one
that was quickest in a short trial.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

RESULTS = Path(__file__).parent / "RESULTS.md"

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


def enter(
    contender: Contender,
    work: Any,
    seconds: float,
    *,
    check: Callable[[Contender, Any], None] = check,
    turn: Turn = Turn(),
    most: int | None = None,
) -> Entry:
    """Check a contender, choose its setting, and find how many items, at most `most`, take about `seconds`."""
    check(contender, work)
    most = most or sys.maxsize
    trials: dict[str, float] = {}
    for setting, run in contender.settings.items():
        items = min(320, most)
        # Long enough that what it costs to start does not choose for it.
        while (once := cost(run, work, items, turn)) * items < seconds / 2 and items < most:
            items = min(items * 8, max(items + 320, round(seconds / once)), most)
        trials[setting] = min(once, cost(run, work, items, turn))
        if isinstance(run, Made):
            run.drop()
    best = min(trials, key=trials.__getitem__)
    items = min(max(1, round(seconds / trials[best] / 320)) * 320, most)
    tried = f"chosen from {'; '.join(trials)}" if len(trials) > 1 else ""
    note = "; ".join(filter(None, (contender.note, tried)))
    return Entry(contender.name, contender.settings[best], best, items, note)


def race(
    entries: Sequence[Entry],
    work: Any,
    rounds: int,
    *,
    turn: Turn = Turn(),
) -> dict[str, list[float]]:
    """Return each entry's seconds per item, round by round; the starting order moves on by one each round."""
    times: dict[str, list[float]] = {entry.name: [] for entry in entries}
    forget_heap()
    for number in range(rounds):
        start = number % len(entries)
        for entry in [*entries[start:], *entries[:start]]:
            times[entry.name].append(cost(entry.run, work, entry.items, turn))
    for entry in entries:
        if isinstance(entry.run, Made):
            entry.run.drop()
    return times


# -- figures


@dataclass(frozen=True)
class Spread:
    """A median and how far the measurements went."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some measurements."""
        return cls(statistics.median(values), min(values), max(values))

    def show(self, scale: float = 1.0) -> str:
        """Return `median (low..high)`, three digits each, times `scale`."""
        return f"{number(self.median * scale)} ({number(self.low * scale)}..{number(self.high * scale)})"


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
    return table(("", f"times {base}'s", unit, "items", "setting"), rows)


def percentile(values: Sequence[float], q: float) -> float:
    """Return the smallest value that a share `q` of the values does not exceed."""
    return sorted(values)[math.ceil(q * len(values)) - 1]


def number(value: float) -> str:
    """Return three digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return str(value)
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


# -- results


@dataclass(frozen=True)
class Goal:
    """A figure to reach, and whether it was."""

    what: str
    target: str
    measured: str
    reached: bool


@dataclass
class Section:
    """One row of a benchmark: its goals and tables, under a heading of its own in RESULTS.md."""

    title: str
    command: str
    packages: Sequence[str] = ()
    goals: list[Goal] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def cells(self) -> dict[str, Any]:
        """Return what the section says, for programs."""
        tables = [{"heads": each.heads, "rows": each.rows} for each in self.tables if isinstance(each, Table)]
        return {"command": self.command, "goals": list(map(asdict, self.goals)), "tables": tables}

    def markdown(self) -> str:
        """Return the section, ratios and goals first."""
        rows = [
            (goal.what, goal.target, goal.measured, "yes" if goal.reached else "**no**") for goal in self.goals
        ]
        parts = [
            f"## {self.title}",
            table(("", "target", "measured", "reached"), rows) if rows else "",
            *self.tables,
            "\n".join(f"- {remark}" for remark in self.remarks),
            f"{machine(self.packages)} Again: `{self.command}`",
        ]
        return "\n\n".join(filter(None, parts)) + "\n"


class Table(str):
    """A table as markdown, which also keeps its cells."""

    __slots__ = ("heads", "rows")
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a markdown table that reads well as text too: the first column left, the others right."""
    body = list(rows)
    cells = [heads, *body]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    first, *rest = widths
    lines = [
        " | ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], rest, strict=True))])
        for row in cells
    ]
    lines.insert(1, " | ".join(["-" * first, *("-" * (width - 1) + ":" for width in rest)]))
    made = Table("\n".join(f"| {line} |" for line in lines))
    made.heads, made.rows = heads, body
    return made


def machine(packages: Sequence[str] = ()) -> str:
    """Return one sentence about where this ran."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (named := re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)):
        cpu = named[1]
    parts = [f"{os.cpu_count()} cores ({cpu})", f"{platform.system()} {platform.release()}"]
    parts.append(f"{platform.python_implementation()} {platform.python_version()}")
    for package in packages:
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"no {package}")
    return ", ".join(parts) + "."


def write(path: Path, sections: Sequence[Section]) -> None:
    """Put sections into the results, each in the place of the one with its title; the others stay.

    A JSON file beside them holds the same cells, for programs.
    """
    old = path.read_text() if path.exists() else ""
    head, *kept = re.split(r"^(?=## )", old, flags=re.MULTILINE)
    parts = {part.splitlines()[0]: part for part in kept}
    for section in sections:
        parts[f"## {section.title}"] = section.markdown()
    head = head or (
        "# Results\n\nWritten by the programs in this folder. Figures are `median (lowest..highest)`;"
        " a ratio is taken within a round.\nA goal that is not reached stays here as it is.\n"
    )
    path.write_text("\n".join([head.rstrip() + "\n", *(part.rstrip() + "\n" for part in parts.values())]))
    cells = cells_path(path)
    kept_cells = json.loads(cells.read_text()) if cells.exists() else {}
    cells.write_text(json.dumps(kept_cells | {each.title: each.cells() for each in sections}, indent=1) + "\n")


def cells_path(path: Path) -> Path:
    """Return where the cells of a results file are: `results.json` beside `RESULTS.md`."""
    return path.with_name(f"{path.stem.lower()}.json")


def options(description: str, rows: Sequence[str]) -> argparse.Namespace:
    """Return the command line of a benchmark: `quick`, `rows` and `markdown`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it works, not how fast")
    parser.add_argument(
        "--rows", nargs="+", choices=rows, default=list(rows), metavar="ROW", help=f"of: {', '.join(rows)}"
    )
    parser.add_argument(
        "--markdown", type=Path, default=None, metavar="FILE", help=f"default: {RESULTS.name} beside it"
    )
    chosen = parser.parse_args()
    if chosen.markdown is None and not chosen.quick:
        chosen.markdown = RESULTS
    return chosen
