"""A process that is killed while it trains loses nothing, and repeats nothing that its checkpoint has.

`ASYNCFEED_SEARCH=30` kills it 180 times, and `-s` prints the figures.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine import killed
from tests.searching import SEARCH

KILLS = max(3, int(6 * SEARCH))
FILES = 96
PER_EPOCH = FILES // 4

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
    pytest.mark.timeout(120 + 5 * KILLS),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for number in range(FILES):
        np.save(tmp_path / "data" / f"{number:03}.npy", rng.random(64, np.float32))
    return tmp_path


def uninterrupted(folder: Path) -> list[str]:
    """Return the lines of a job that nobody kills."""
    return [
        f"{epoch.number} {number} {killed.digest_of(batch)}"
        for epoch in killed.pipeline(folder).epochs(killed.EPOCHS)
        for number, batch in epoch
    ]


def place_of(folder: Path, state: Any) -> int:
    """Return how many batches a state has: the place of the first one that a job delivers after it."""
    for epoch in killed.pipeline(folder).epochs(killed.EPOCHS, state=state):
        for number, _ in epoch:
            return epoch.number * PER_EPOCH + int(number)
    return killed.EPOCHS * PER_EPOCH


def begin(folder: Path, mode: str, every: int) -> subprocess.Popen[bytes]:
    program = [sys.executable, killed.__file__, str(folder), mode, str(every)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()})  # noqa: PTH109, S603


def live(folder: Path, mode: str, rng: random.Random) -> tuple[list[str], bool]:
    """Let the program train on some batches, and kill it. Return its lines, and whether it was killed."""
    with begin(folder, mode, rng.randint(1, 5)) as process:
        assert process.stdout is not None
        lines = []
        for _ in range(rng.randint(0, 40)):
            if not (line := process.stdout.readline()):
                break
            lines.append(line)
        time.sleep(rng.random() * 0.02)  # the next moment is anywhere in the next batches
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.readlines()
    assert process.returncode in (0, -signal.SIGKILL)
    return [line.decode().rstrip() for line in lines], process.returncode != 0


@pytest.mark.parametrize("mode", ["file", "model"])
def test_killed_at_random_moments(folder: Path, mode: str) -> None:
    """Each life begins where the last checkpoint on the disk says, and that says nothing that was not trained on."""
    expected = uninterrupted(folder)
    rng = random.Random(5)  # noqa: S311 - it must be repeatable
    kills = repeats = most = jobs = 0
    checkpoint = folder / ("feed.json" if mode == "file" else "model.json")
    trained = 0
    while kills < KILLS:
        before = 0
        if checkpoint.exists():
            saved = json.loads(checkpoint.read_text())
            before = place_of(folder, saved if mode == "file" else saved[1])
        assert before <= trained, "lost"
        if mode == "model" and before:
            assert saved[0] == model_after(expected[:before])
        repeats, most = repeats + trained - before, max(most, trained - before)
        lines, was_killed = live(folder, mode, rng)
        assert lines == expected[before : before + len(lines)]
        kills += was_killed
        trained = max(trained, before + len(lines))
        if not was_killed or trained == len(expected):
            finish(folder, mode, expected)
            jobs, trained = jobs + 1, 0
            checkpoint.unlink()
    finish(folder, mode, expected)
    print(  # noqa: T201
        f"{mode}: {kills} kills in {jobs + 1} jobs of {len(expected)} batches: 0 lost; {repeats} came again, at "
        f"most {most} after one kill, all after the checkpoint on the disk"
    )


def finish(folder: Path, mode: str, expected: list[str]) -> None:
    """Let the job end, and compare what it leaves with what an uninterrupted one leaves."""
    with begin(folder, mode, 3) as process:
        process.communicate()
    assert process.returncode == 0
    if mode == "file":
        found = {each.name: each.read_text() for each in (folder / "results").iterdir() if each.name != "part"}
        assert found == {f"{line.split()[0]}-{int(line.split()[1]):04}": line.split()[2] for line in expected}
        assert [each.name for each in folder.iterdir() if each.suffix == ".part"] == []
    else:
        assert json.loads((folder / "model.json").read_text())[0] == model_after(expected)


def model_after(lines: list[str]) -> str:
    """Return the model of the program after these batches."""
    model = ""
    for line in lines:
        model = hashlib.sha256((model + line.split()[2]).encode()).hexdigest()
    return model
