"""What a benchmark says: figures with their spread, goals, tables, and RESULTS.md with its cells.

Each section of the results is one row of one benchmark, with the machine and the day it was measured on and the
command that repeats it; a section that is measured again takes the place of the old one.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "RESULTS.md"

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
    packages: Sequence[str] = ()
    goals: list[Goal] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    says: str = ""
    """What is measured."""
    command: str = ""
    """What repeats it."""
    day: date = field(default_factory=date.today)

    def where(self) -> str:
        """Return one sentence about where and when this ran."""
        return f"{machine(self.packages)}, {self.day.isoformat()}."

    def cells(self) -> dict[str, Any]:
        """Return what the section says, for programs."""
        tables = [{"heads": each.heads, "rows": each.rows} for each in self.tables if isinstance(each, Table)]
        goals = list(map(asdict, self.goals))
        return {"command": self.command, "where": self.where(), "goals": goals, "tables": tables}

    def markdown(self) -> str:
        """Return the section, ratios and goals first."""
        rows = [
            (goal.what, goal.target, goal.measured, "yes" if goal.reached else "**no**") for goal in self.goals
        ]
        parts = [
            f"## {self.title}",
            self.says,
            table(("", "target", "measured", "reached"), rows) if rows else "",
            *self.tables,
            "\n".join(f"- {remark}" for remark in self.remarks),
            f"{self.where()} Again: `{self.command}`",
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
    """Return what this runs on: the processor, the systems and the versions of packages."""
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
    return ", ".join(parts)


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
