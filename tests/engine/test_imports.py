"""Nothing is imported on the caller's loop but what is light: an import may take as long as a hundred requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, threading, asyncio
from pathlib import Path
import numpy as np
import asyncfeed as af
from asyncfeed import lines, npy, npz, raw, text

folder = Path(sys.argv[1])
imported = []

def note(event, args):
    if event == "import" and threading.current_thread() is threading.main_thread():
        imported.append(args[0])

async def fetch(x):
    await asyncio.sleep(0)
    return x

def draws(x, rng):
    return x + rng.random()

async def later(x, rng):
    return x + rng.random()

class Dataset:
    def __len__(self):
        return 5
    def __getitem__(self, number):
        return number

def pipelines():
    numbers = af.items(range(40))
    yield numbers.shuffle(seed=7).map(fetch).map(draws, rng=True).batch(4).prefetch(2)
    yield numbers.map(later, rng=True).filter(lambda x: True).repeat(2).shuffle(buffer=4).take(9)
    yield af.files(f"{folder}/*.npy").load(npy).batch(2).pad()
    yield af.files(f"{folder}/*.npz").load(npz).map(lambda sample: sample["x"]).batch(2).unbatch()
    yield af.files(f"{folder}/*.raw").load(raw("uint8")).bucket(boundaries=[5], size=2).pad()
    yield af.files(f"{folder}/*.txt").load(text).enumerate()
    yield af.files(f"{folder}/*.txt").flat_map(lines)
    yield af.zip(af.items(Dataset(), concurrency=2), numbers.map(fetch), strict=False)
    yield af.concat(af.arrays(np.arange(3)), af.items(iter([1, 2])))
    yield af.arrays({"x": np.zeros(5), "y": np.load(folder / "1.npy", mmap_mode="r")}).batch(2)
    yield af.items(fails).flat_map(lambda x: [x])
    yield numbers.map(lambda x: 1 / (x - 9), on_error="skip", skip_limit=1)

def fails():
    yield 1
    raise OSError

async def main():
    described = list(pipelines())
    await asyncio.to_thread(int)  # what the loop itself imports for threads
    sys.addaudithook(note)
    for pipeline in described:
        async with pipeline.open() as feed:
            try:
                assert [item async for item in feed]
            except OSError:
                pass
            feed.stats()

asyncio.run(main())
print("|".join(imported))
"""


def test_the_first_run_imports_nothing_on_the_loop(tmp_path: Path) -> None:
    """Whatever it is of; what is imported for it is imported on a thread, while the loop goes on."""
    import numpy as np

    np.save(tmp_path / "1.npy", np.arange(5))
    np.savez(tmp_path / "1.npz", x=np.arange(5))
    (tmp_path / "1.raw").write_bytes(bytes(8))
    (tmp_path / "1.txt").write_text("a\nb\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True
    )
    light = {"feed", "stats", "engine", "engine.failed", "engine.ready"}
    assert set(done.stdout.strip().split("|")) == {f"asyncfeed.{name}" for name in light}
