"""A job that is killed again and again, and goes on each time where it was: `python examples/resume.py`."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

import asyncfeed as af

BATCHES = 240
train = af.items(range(10 * BATCHES)).shuffle(seed=7).batch(10).enumerate()


def job(folder: Path) -> None:
    """Do some work for each batch, and keep its result under the number of the batch."""
    for number, batch in train.open(path=folder / "feed.json", checkpoint_every=5):
        result = hashlib.sha256(batch.tobytes() * 20_000).hexdigest()
        (folder / f"{number:03}.result").write_text(result)
        print(number, flush=True)


def main() -> None:
    """Start the job, kill it after some 50 batches, and start it again, until it has come to its end."""
    with tempfile.TemporaryDirectory() as name:
        folder, done = Path(name), 0
        for life in itertools.count(1):
            program = [sys.executable, __file__, name]
            with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
                numbers = []
                for line in process.stdout or ():
                    numbers.append(int(line))
                    if len(numbers) == 50:
                        process.kill()
            first = numbers[0] if numbers else done
            again, done = done - first, first + len(numbers)
            bar = " " * (first // 5) + "+" * (again // 5) + "#" * ((done - first - again) // 5)
            end = "killed" if process.returncode else "finished"
            print(f"life {life} |{bar:48}| {end}, {again} batches came again")
            if end == "finished":
                break
        results = sorted(each.read_text() for each in folder.glob("*.result"))
    once = sorted(hashlib.sha256(batch.tobytes() * 20_000).hexdigest() for _, batch in train)
    print(f"{len(results)} results, {'the same as' if results == once else 'NOT those'} without a kill")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        job(Path(sys.argv[1]))
    else:
        main()
