"""Undo repairs one at a time, and look whether the tests notice: `python -m tests.tools.undo`.

`repairs.toml` lists repairs of this project's history. Each entry holds the text of today's code, and the text that
the code would have without the repair. A repair that can be undone without a test that fails is not guarded.

    python -m tests.tools.undo                     each repair, with the tests of its entry
    python -m tests.tools.undo --only rate         the repairs whose name contains this word
    python -m tests.tools.undo --seeds 3           try so many days' seeds before a repair counts as not found
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SELECTED = "not wide"
"""What `make test` selects."""
FAILED = 1
"""How pytest ends if a test failed."""
HUNG = 124
LIMIT_SECONDS = 300


@dataclass(frozen=True)
class Repair:
    """A repair, and the text that undoes it."""

    name: str
    area: str
    file: str
    now: str
    undone: str
    tests: list[str]

    def undo(self, root: Path) -> None:
        """Write the file as it would be without the repair.

        Raises:
            ValueError: Today's text does not stand in the file exactly once, so the entry is out of date.
        """
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.now) != 1:
            raise ValueError(f"{self.name}: the text of `now` stands {text.count(self.now)} times in {self.file}")
        path.write_text(text.replace(self.now, self.undone), encoding="utf-8")


def repairs() -> list[Repair]:
    """Return the entries of all lists."""
    return [
        Repair(**entry)
        for path in sorted(HERE.glob("repairs*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["repair"]
    ]


def copy(root: Path, to: Path) -> None:
    """Copy the files that git knows, as they are now, and those that are new."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def tried(repair: Repair, root: Path, select: str, seeds: int) -> tuple[str, float]:
    """Return what the tests say without the repair ("found", "hung" or "not found"), and the seconds they took."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        copy(root, Path(folder))
        repair.undo(Path(folder))
        for number in range(seeds):
            seed = {} if number == 0 else {"ASYNCFEED_SEED": str(number)}
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                "-m",
                select,
                *repair.tests,
            ]
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env={**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", **seed},
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return "found (it hung)", time.perf_counter() - begun
            if done.returncode == FAILED:
                failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return f"found: {failed[0][:150] if failed else ''}", time.perf_counter() - begun
            if done.returncode:
                return f"pytest ended with {done.returncode}: {done.stdout[-300:]}", time.perf_counter() - begun
    return "NOT FOUND", time.perf_counter() - begun


def main() -> int:
    """Undo what the arguments name, print a line for each, and return how many were not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a word of the names to try")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout, whose tests are to be tried")
    parser.add_argument("--select", default=SELECTED, help="the marker expression of pytest")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to try")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    options = parser.parse_args()
    chosen = [each for each in repairs() if options.only in each.name]
    lost = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(tried, each, options.root, options.select, options.seeds) for each in chosen]
        for repair, run in zip(chosen, runs, strict=True):
            try:
                said, seconds = run.result()
            except ValueError as error:
                said, seconds = f"OUT OF DATE: {error}", 0.0
            lost += not said.startswith("found")
            print(f"{seconds:6.1f} s  {repair.area:10} {repair.name}: {said}", flush=True)
    print(f"{len(chosen) - lost} passed, {lost} failed")
    return lost


if __name__ == "__main__":
    sys.exit(min(main(), 1))
