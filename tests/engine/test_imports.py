"""Nothing is imported on the caller's loop but what is light: an import may take as long as a hundred requests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncfeed as af
from asyncfeed.testing import run_virtual
from tests.engine.inside import engine_imported_in
from tests.engine.many import write

PROGRAM = """
import asyncio, sys, threading
from pathlib import Path
from tests.engine.many import pipelines, run_all

imported = []

def note(event, args):
    if event == "import" and threading.current_thread() is threading.main_thread():
        imported.append(args[0])

async def main():
    described = list(pipelines(Path(sys.argv[1])))
    await asyncio.to_thread(int)  # what the loop itself imports for threads
    sys.addaudithook(note)
    await run_all(described)

asyncio.run(main())
print("|".join(imported))
"""


def test_the_first_run_imports_nothing_on_the_loop(tmp_path: Path) -> None:
    """Whatever it is of: what is imported for it is imported on a thread, while the loop goes on."""
    write(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.strip().split("|"))
    assert "asyncfeed.feed" in imported  # or else nothing was seen
    light = {
        "feed",
        "session",
        "stats",
        "engine",
        "engine.constants",
        "engine.failed",
        "engine.ready",
        "engine.coroutines",
        "engine.interruptions",
    }
    assert imported <= {f"asyncfeed.{name}" for name in light}


@pytest.fixture
def importing() -> Iterator[None]:
    """Let each feed find the engine not imported, and the import take a second."""
    with engine_imported_in(1):
        yield


def test_several_tasks_wait_for_one_run(importing: None, seed: int) -> None:
    """Each item goes to one of them."""

    async def main() -> list[int]:
        feed = af.items(range(10)).open()

        async def take() -> list[int]:
            return [item async for item in feed]

        return sorted(sum(await asyncio.gather(take(), take(), take()), []))

    assert run_virtual(main, seed=seed) == list(range(10))


@pytest.mark.parametrize("end", ["stop", "aclose", "cancel"])
def test_a_feed_that_ends_while_the_engine_is_imported_never_starts(importing: None, end: str, seed: int) -> None:
    """The source is not touched."""

    async def main() -> None:
        feed = af.items(pytest.fail).open()
        drawing = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(0.5)
        if end == "stop":
            feed.stop()
        elif end == "aclose":
            await feed.aclose()
        else:
            drawing.cancel()
        with pytest.raises(asyncio.CancelledError if end == "cancel" else af.ClosedError):
            await drawing
        await feed.aclose()

    run_virtual(main, seed=seed)
