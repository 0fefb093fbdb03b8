"""Draw the results: for each benchmark, how many times as long as asyncfeed the others take.

Reads the cells that the benchmarks keep beside RESULTS.md; the SVG can be read on light and on dark pages.

    python benchmarks/figure.py [--results benchmarks/results.json] [--to docs/benchmarks.svg]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report

PEERS = 3
"""How many libraries are shown for each benchmark: the fastest, beside the fastest loop by hand."""
BY_HAND = ("bare loop", "preadv")
"""What the names of loops begin with that do less than the task: the limit."""
INK, FASTER, SLOWER, OURS = "#808890", "#b8860b", "#2f81f7", "#2da44e"
"""Colours with enough contrast on white and on black."""
ROW, GAP = 0.24, 0.32
"""Inches for a bar, and above each benchmark."""


@dataclass(frozen=True)
class Bar:
    """One contender of one benchmark."""

    name: str
    ratio: float
    """Its time by ours."""
    low: float
    high: float


def bars(section: dict[str, Any]) -> list[Bar]:
    """Return the quickest contenders of a section, the limit last; none where ours is not in a race."""
    for table in section["tables"]:
        if len(table["heads"]) > 1 and table["heads"][1] == "times asyncfeed's":
            found = [bar(row) for row in table["rows"] if not row[0].startswith("asyncfeed")]
            found.sort(key=lambda bar: bar.ratio)
            limit = [each for each in found if each.name.startswith(BY_HAND)][:1]
            return [*limit, *[each for each in found if not each.name.startswith(BY_HAND)][:PEERS]][::-1]
    return []


def bar(row: list[str]) -> Bar:
    """Return what a row of a table says: `4.34 (4.09..4.64)` in its second cell."""
    ratio, _, spread = row[1].replace(",", "").rstrip(")").partition(" (")
    low, _, high = (spread or f"{ratio}..{ratio}").partition("..")
    return Bar(row[0], float(ratio), float(low), float(high))


def draw(results: dict[str, Any], to: Path) -> None:
    """Draw all sections that are races."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "asyncfeed", "font.family": "sans-serif"})
    from matplotlib import pyplot as plt

    races = {title: found for title, section in results.items() if (found := bars(section))}
    if not races:
        raise SystemExit("no race in the results yet: run the benchmarks first")
    height = sum(GAP + ROW * len(found) for found in races.values())
    figure, axes = plt.subplots(figsize=(8.5, height + 0.9))
    at, high = 0.0, 1.0
    for title, found in races.items():
        at -= GAP
        axes.text(
            0.0, at, title, transform=axes.get_yaxis_transform(), color=INK, weight="bold", va="center", size=9
        )
        for each in found:
            at -= ROW
            colour = SLOWER if each.ratio >= 1 else FASTER
            axes.barh(at, each.ratio - 1, ROW * 0.7, left=1, color=colour)
            axes.plot([each.low, each.high], [at, at], color=INK, linewidth=1)
            side, align = (each.high, "left") if each.ratio >= 1 else (each.low, "right")
            text = f" {each.name}  {report.number(each.ratio)} "
            axes.text(side, at, text, va="center", ha=align, color=INK, size=8)
            high = max(high, each.high)
    axes.axvline(1, color=OURS, linewidth=1.5)
    axes.text(1, 0.02, "asyncfeed", color=OURS, ha="center", va="bottom", size=9, weight="bold")
    low = min(each.low for found in races.values() for each in found)
    axes.set(xscale="log", xlim=(min(0.5, low) / 12, high * 8), ylim=(at - ROW, 0))
    axes.set_xlabel(
        "times as long as asyncfeed takes (log scale): blue is slower, yellow is faster", color=INK, size=9
    )
    axes.tick_params(axis="x", which="both", colors=INK, labelsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks([])
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    figure.savefig(to, transparent=True, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Read the command line and draw."""
    parser = argparse.ArgumentParser(description="Draw the results.")
    parser.add_argument("--results", type=Path, default=report.cells_path(report.RESULTS), metavar="FILE")
    default = report.RESULTS.parents[1] / "docs" / "benchmarks.svg"
    parser.add_argument("--to", type=Path, default=default, metavar="FILE")
    chosen = parser.parse_args()
    draw(json.loads(chosen.results.read_text()), chosen.to)


if __name__ == "__main__":
    main()
