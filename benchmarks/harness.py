"""What every benchmark shares: contenders in rounds, medians with their spread, goals, and RESULTS.md.

A figure is worth what it is compared with. So contenders take turns inside one process, round by round,
and a ratio is the median of the ratios *within* a round: what slows the machine down for a while slows both.
Each contender is first checked (every item, in order) and, where it has several settings, runs with the one
that was quickest in a short trial.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias

RESULTS = Path(__file__).parent / "RESULTS.md"

Work: TypeAlias = Callable[[int], Awaitable[int]]
Consume: TypeAlias = Callable[[Sequence[int]], None]
Run: TypeAlias = Callable[[Work, int, Consume], None]
"""Put `range(n)` through the work, and hand each batch to `consume`, in the thread that called."""


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


def cost(run: Run, work: Work, items: int) -> float:
    """Return the seconds per item from before the start until the last item is in the consumer's hand."""
    tally = Tally(items)
    gc.collect()
    begun = time.perf_counter()
    run(work, items, tally)
    return (tally.ended - begun) / items


def forget_heap() -> None:
    """Spare the garbage collector what is alive now: with torch imported, a full collection takes 100 ms."""
    gc.collect()
    gc.freeze()


def enter(contender: Contender, work: Work, seconds: float) -> Entry:
    """Check a contender, choose its setting, and find how many items take about `seconds`."""
    check(contender, work)
    trials: dict[str, float] = {}
    for setting, run in contender.settings.items():
        items = 320
        # Long enough that what it costs to start does not choose for it.
        while (once := cost(run, work, items)) * items < seconds / 2:
            items = min(items * 8, max(items + 320, round(seconds / once)))
        trials[setting] = min(once, cost(run, work, items))
    best = min(trials, key=trials.__getitem__)
    items = max(1, round(seconds / trials[best] / 320)) * 320
    tried = f"chosen from {'; '.join(trials)}" if len(trials) > 1 else ""
    note = "; ".join(filter(None, (contender.note, tried)))
    return Entry(contender.name, contender.settings[best], best, items, note)


def race(entries: Sequence[Entry], work: Work, rounds: int) -> dict[str, list[float]]:
    """Return each entry's seconds per item, round by round; the starting order moves on by one each round."""
    times: dict[str, list[float]] = {entry.name: [] for entry in entries}
    forget_heap()
    for turn in range(rounds):
        start = turn % len(entries)
        for entry in [*entries[start:], *entries[:start]]:
            times[entry.name].append(cost(entry.run, work, entry.items))
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


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a markdown table that reads well as text too: the first column left, the others right."""
    cells = [heads, *rows]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    first, *rest = widths
    lines = [
        " | ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], rest, strict=True))])
        for row in cells
    ]
    lines.insert(1, " | ".join(["-" * first, *("-" * (width - 1) + ":" for width in rest)]))
    return "\n".join(f"| {line} |" for line in lines)


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
    """Put sections into the results, each in the place of the one with its title; the others stay."""
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
