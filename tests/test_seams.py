"""Where tests may look inside: the engine through one file, other parts where they are tested themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("*.py"))}
SEAM = "engine/inside.py"

PRIVATE = re.compile(r"(?<=[\w\])])(?<!\bself)(?<!\bcls)\.(_(?!_)\w+)")
ENGINE = re.compile(r"(?:from|import) asyncfeed\.engine\b|[\"']asyncfeed\.(?:engine\.|session\.)\w+")
# Names of Python, NumPy and namedtuples that begin with an underscore.
OTHERS = {
    "_PyTask", "_args_from_interpreter_flags", "_asdict", "_current_frames", "_exit", "_log_destroy_pending", "_mmap",
    "_replace",
}  # fmt: skip
# Parts that are tested from inside, each by its own tests: what these touch changes with that part alone.
OWN = {
    "bridges/test_tf_data.py": {"_names"},
    "bridges/test_tf_graph.py": {"_factories"},
    "bridges/test_tf_interrupt.py": {
        "_iterations", "_ended", "_finished", "_main_is_in_tensorflow", "_queue", "_run", "_unhandled", "_waits",
    },
    "bridges/test_tf_together.py": {"_iterations", "_end", "_enqueue", "_names"},
    "coordinator/test_feeds.py": {"_callbacks", "_waiting"},
    "coordinator/test_joining.py": {"_callbacks", "_threads", "_waiting"},
    "engine/outside.py": {"_scheduled"},  # of asyncio's loops
    "engine/test_interrupts_on_a_loop.py": {"_callback", "_run"},  # of asyncio's handles
    "engine/test_threaded_iterator.py": {"_lock"},
    "queues/test_threads.py": {"_attempts", "_give_up", "_push"},
    "reading/test_names_only.py": {"_as_parameter_", "_parsed"},
    "reading/test_names_pipeline.py": {"_of"},
    "reading/test_small_files.py": {"_opener"},
    "reading/test_uring.py": {"_REGISTER", "_UPDATE", "_deciding", "_opener", "_status", "_status_with_gil"},
    "unit/test_pool.py": {"_free", "_limits", "_lock"},
    "unit/test_ranks.py": {"_src"},  # of JAX
    "unit/test_stats.py": {"_repr_html_"},
    "unit/test_testing.py": {"_TURNS_TO_END"},
    "unit/test_threadsafe.py": {"_closed"},
    "unit/test_weights.py": {"_registered"},
}  # fmt: skip
# They show what an import of the engine, or a look at it, is to do.
ABOUT_IT = {"test_architecture.py", "test_seams.py", "engine/test_imports.py"}


def faults(source: str, name: str) -> list[str]:
    """Return what the file `name` touches of the inside of other objects."""
    allowed = OTHERS | OWN.get(name, set())
    found = []
    for number, line in enumerate(source.splitlines(), start=1):
        found += [f"{name}:{number} touches {each}" for each in PRIVATE.findall(line) if each not in allowed]
        if ENGINE.search(line):
            found.append(f"{name}:{number} names a part of the engine")
    return found


@pytest.mark.parametrize("name", sorted(FILES.keys() - {SEAM} - ABOUT_IT))
def test_the_engine_is_seen_through_one_file(name: str) -> None:
    """A change of its parts changes `engine/inside.py`, and no test."""
    assert faults(FILES[name].read_text(encoding="utf-8"), name) == []


def test_every_exception_is_needed() -> None:
    for name, allowed in OWN.items():
        source = FILES[name].read_text(encoding="utf-8")
        assert allowed <= set(PRIVATE.findall(source)), name


@pytest.mark.parametrize(
    "source",
    [
        "feed._run.handoff",
        "    assert run(feed)._items == []",
        "from asyncfeed.engine.handoff import Handoff",
        "import asyncfeed.engine.run",
        'monkeypatch.setattr("asyncfeed.engine.processes.kept.EXIT_SECONDS", 0)',
        'mock.patch("asyncfeed.session.is_ready")',
    ],
)
def test_a_look_inside_is_found(source: str) -> None:
    assert len(faults(source, "engine/test_any.py")) == 1
