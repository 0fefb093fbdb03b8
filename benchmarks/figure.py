"""Draw the results: six panels with the rate of each library, and all benchmarks by times of asyncfeed's.

Reads the cells that the benchmarks keep beside RESULTS.md; the SVGs can be read on light and on dark pages.

    python benchmarks/figure.py [--results benchmarks/results.json] [--to docs/benchmarks.svg] [--all FILE]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report

COLOURS = {
    "asyncfeed": "#2da44e",
    "tf.data": "#e07b00",
    "PyTorch": "#d9534f",
    "Grain": "#8a63d2",
    "SPDL": "#2f81f7",
    "streamable": "#c2569b",
    "aiostream": "#9a7b4f",
    "by hand": "#808890",
}
"""One for each library, in all panels."""


@dataclass(frozen=True)
class Panel:
    """One task, with the row of the results that is shown for each library."""

    title: str
    section: str
    unit: str
    rows: dict[str, str]
    scale: float = 1.0
    """What the rate is multiplied with; negative where the figure is a time, and the rate is what it goes into."""


FILES = {
    "asyncfeed": "asyncfeed",
    "tf.data": "tf.data",
    "PyTorch": "torch DataLoader",
    "Grain": "Grain",
    "SPDL": "SPDL, a batch per call",
    "by hand": "np.load + np.stack",
}
PANELS = (
    Panel("4 KB .npy files, shuffled, batched", "Files: 4 KB each", "thousand files/s", FILES, 1e-3),
    Panel("1 MB .npy files, batched", "Files: 1 MB each", "GB/s", FILES),
    Panel(
        "ragged .npy files, padded batches",
        "Files: ragged, 20 to 200 x 40, padded",
        "thousand files/s",
        {name: row for name, row in FILES.items() if name != "Grain"},
        1e-3,
    ),
    Panel(
        "512 slow reads in flight, in order",
        "512 in flight, a long tail",
        "thousand items/s",
        {
            "asyncfeed": "asyncfeed",
            "SPDL": "SPDL, ordered, tuned",
            "streamable": "streamable",
            "aiostream": "aiostream",
            "by hand": "Semaphore and gather",
        },
        1e-3,
    ),
    Panel(
        "JPEG decoding on threads",
        "Decode: JPEG on threads",
        "thousand images/s",
        {
            "asyncfeed": "asyncfeed",
            "tf.data": "tf.data",
            "PyTorch": "torch DataLoader",
            "Grain": "Grain, processes",
            "SPDL": "SPDL",
            "by hand": "ThreadPoolExecutor.map",
        },
        1e-3,
    ),
    Panel(
        "the engine alone, with x -> x",
        "Engine alone: the function never suspends",
        "thousand items/s",
        {
            "asyncfeed": "asyncfeed",
            "tf.data": "tf.data, x + 0",
            "SPDL": "SPDL, ordered, tuned",
            "streamable": "streamable",
            "aiostream": "aiostream",
        },
        -1e3,
    ),
)
"""What a reader may want to know first. tf.data decodes JPEG with its own decoder, the others with Pillow; in the
last panel its function is one that it calls."""

PEERS = 3
"""How many libraries are shown for each benchmark: the fastest, beside the fastest loop by hand."""
BY_HAND = ("bare loop", "preadv")
"""What the names of loops begin with that do less than the task: the limit."""
INK, FASTER, SLOWER, OURS = "#808890", "#b8860b", "#2f81f7", "#2da44e"
"""Colours with enough contrast on white and on black."""
NONE: dict[str, Any] = {"tables": []}
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


def rates(panel: Panel, section: dict[str, Any]) -> list[tuple[str, float, float, float]]:
    """Return library, rate, lowest and highest rate, the quickest last."""
    cells = {row[0]: row[2] for table in section["tables"] for row in table["rows"] if len(row) > 2}
    found = []
    for name, row in panel.rows.items():
        if row in cells:
            text, _, spread = cells[row].replace(",", "").rstrip(")").partition(" (")
            low, _, high = (spread or f"{text}..{text}").partition("..")
            values = [float(each) for each in (text, low, high)]
            if panel.scale < 0:
                values = [-panel.scale / each for each in (values[0], values[2], values[1])]
            else:
                values = [panel.scale * each for each in values]
            found.append((name, *values))
    return sorted(found, key=lambda each: each[1])


def draw_panels(results: dict[str, Any], to: Path) -> None:
    """Draw the panels, three in a row: a bar for each library, with its rate."""
    from matplotlib import pyplot as plt

    panels = [(panel, found) for panel in PANELS if (found := rates(panel, results.get(panel.section, NONE)))]
    if not panels:
        raise SystemExit("none of the panels is in the results yet: run the benchmarks first")
    figure, grid = plt.subplots(-(-len(panels) // 3), 3, figsize=(11, 2.3 * -(-len(panels) // 3)), squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (panel, found) in zip(grid.flat, panels, strict=False):
        most = max(high for _, _, _, high in found)
        for place, (name, rate, low, high) in enumerate(found, 6 - len(found)):
            ours = name == "asyncfeed"
            axes.barh(place, rate, 0.72, color=COLOURS[name])
            axes.plot([low, high], [place, place], color=INK, linewidth=1)
            style = {"color": INK, "size": 9, "va": "center", "weight": "bold" if ours else "normal"}
            axes.text(max(rate, high) + 0.02 * most, place, report.number(rate), ha="left", **style)
            axes.text(-0.02 * most, place, name, ha="right", **style)
        axes.set(xlim=(-0.42 * most, 1.2 * most), ylim=(-0.6, 5.6))
        axes.set_title(f"{panel.title}\n{panel.unit}", color=INK, size=10, loc="left")
    figure.tight_layout()
    figure.savefig(to, transparent=True, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Read the command line and draw."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "asyncfeed", "font.family": "sans-serif"})
    parser = argparse.ArgumentParser(description="Draw the results.")
    parser.add_argument("--results", type=Path, default=report.cells_path(report.RESULTS), metavar="FILE")
    default = report.RESULTS.parents[1] / "docs" / "benchmarks.svg"
    parser.add_argument("--to", type=Path, default=default, metavar="FILE")
    default = report.RESULTS.parent / "figures" / "all.svg"
    parser.add_argument("--all", type=Path, default=default, metavar="FILE")
    chosen = parser.parse_args()
    results = json.loads(chosen.results.read_text())
    draw_panels(results, chosen.to)
    chosen.all.parent.mkdir(exist_ok=True)
    draw(results, chosen.all)


if __name__ == "__main__":
    main()
