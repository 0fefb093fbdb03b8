"""Nothing is imported on the caller's loop but what is light: an import may take as long as a hundred requests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    light = {"feed", "stats", "engine", "engine.failed", "engine.ready"}
    assert imported <= {f"asyncfeed.{name}" for name in light}
