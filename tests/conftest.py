"""What every test gets: seeds, loops, and a check that nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import hypothesis
import pytest

from asyncfeed.testing import Leaks, end_kept_processes, run_virtual
from tests.eager import HAS_EAGER_TASKS, eagerly
from tests.searching import EXAMPLES, SEED, SEEDS, leave_out
from tests.servers import moto

try:
    import obstore.store
except ImportError:  # an extra
    obstore = None
try:
    import uvloop
except ImportError:  # it does not exist for Windows
    uvloop = None

# A test that asserts no time must not fail for one. No database: the seed alone says what is tried.
hypothesis.settings.register_profile("asyncfeed", deadline=None, database=None, max_examples=EXAMPLES)
hypothesis.settings.load_profile("asyncfeed")
hypothesis.core.global_force_seed = SEED

# Coroutine, or a function that makes one -> its result.
Run = Callable[[Coroutine[Any, Any, Any] | Callable[[], Coroutine[Any, Any, Any]]], Any]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what today's run does not draw, and refuse names of tests that differ from process to process.

    Several processes could not share tests with such names.
    """
    leave_out(items)
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"the name of a test holds an address: {item.nodeid}; give ids to parametrize")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which seed repeats this run."""
    terminalreporter.write_line(
        f"searches drew from the seed {SEED}: ASYNCFEED_SEED={SEED} before the same command repeats them"
    )


@pytest.fixture(params=SEEDS)
def seed(request: pytest.FixtureRequest) -> int:
    """Return a seed; the test runs once with each. `ASYNCFEED_SEARCH=100` widens the search."""
    return int(request.param)


LOOPS = [*(f"virtual-{seed}" for seed in SEEDS), "asyncio", "uvloop", "debug"]
if HAS_EAGER_TASKS:
    LOOPS += [*(f"virtual-{seed}-eager" for seed in SEEDS[:2]), "asyncio-eager", "uvloop-eager"]


@pytest.fixture(params=LOOPS)
def loop_kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of loop that `run` uses.

    `virtual-<seed>`, `asyncio`, `uvloop`, `debug` (asyncio's debug mode), or one of these with `-eager`: a loop on
    which a task runs up to its first wait before `create_task` returns.
    """
    kind = str(request.param)
    if kind.startswith("uvloop") and uvloop is None:
        pytest.skip("needs uvloop")
    return kind


@pytest.fixture(params=[False, True] if HAS_EAGER_TASKS else [False], ids=["lazy", "eager"][: 1 + HAS_EAGER_TASKS])
def eager(request: pytest.FixtureRequest) -> bool:
    """Return whether the test is to run on a loop with eager tasks; it runs with and without."""
    return bool(request.param)


@pytest.fixture
def run(loop_kind: str) -> Run:
    """Return a function that runs a coroutine on a new loop of this kind."""
    kind, *more = loop_kind.split("-")
    wrap = eagerly if "eager" in more else _as_it_is
    if kind == "virtual":
        return lambda main: run_virtual(wrap(main), seed=int(more[0]))
    factory = uvloop.new_event_loop if kind == "uvloop" else asyncio.SelectorEventLoop

    def run_real(main: Coroutine[Any, Any, Any] | Callable[[], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401
        with asyncio.Runner(loop_factory=factory, debug=kind == "debug") as runner:
            return runner.run(wrap(main))

    return run_real


def _as_it_is(main: Coroutine[Any, Any, Any] | Callable[[], Coroutine[Any, Any, Any]]) -> Coroutine[Any, Any, Any]:
    return main if isinstance(main, Coroutine) else main()


@pytest.fixture(autouse=True, scope="session")
def made_once() -> None:
    """Make what a process makes once and keeps, so that no test is blamed: libuv's pipe, the threads of obstore."""
    if uvloop is not None:
        uvloop.new_event_loop().close()
    if obstore is not None:
        store = obstore.store.MemoryStore()
        store.put("a", b"1")
        store.get("a")


@pytest.fixture(scope="session")
def moto_server() -> Iterator[None]:
    """Run moto's S3 in a process of its own, if moto is installed. It is started before a test looks what is open."""
    with moto.running():
        yield


@pytest.fixture(autouse=True, scope="module")
def only_new_objects_are_collected() -> None:
    """Set aside what lives already: tests that look for leaks collect garbage, and the runner's heap is large."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread of ours or an open file behind.

    Files are not counted where TensorFlow runs: it opens some of its own and keeps them.
    """
    leaks = Leaks(tasks=False)
    counts_files = request.node.get_closest_marker("tensorflow") is None

    def found() -> list[str]:
        return leaks.threads("asyncfeed") + (leaks.files() if counts_files else [])

    yield
    end_kept_processes()
    if found():
        gc.collect()  # only now: it would cost every test milliseconds
        if left := found():
            pytest.fail("left behind:\n" + "\n".join(left), pytrace=False)
