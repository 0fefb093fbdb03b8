"""The layers, and the constructs that have one home or none: read from the source, nothing is imported."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import asyncfeed

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(asyncfeed.__file__).parent
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}

# A part may import its own layer and those after it. A new part must be given a layer here.
LAYERS = (
    {"__init__", "cli", "testing"},
    {"array_records", "bridges", "combine", "file_source", "image_source", "sources", "tables"},
    {"pipeline", "batching", "calling", "description", "epochs", "outputs", "feed", "running", "session"},
    {"engine"},
    {"stages"},
    {"stacking"},
    {"reading", "formats", "state", "writing"},
    {"attempts", "axes", "epoch_end", "errors", "functions", "given", "limits", "machine", "extras", "numbered"}
    | {"places", "position", "randomness", "ranks", "sizes", "stats", "tasks", "trees", "weights"},
)
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
# Beside the layers: they import only the last one, and themselves.
BESIDE = {"queues", "coordinator", "threadsafety"}
# (importer, imported) allowed inside a function only: the descriptions know nothing of what runs them.
LAZY_ONLY = {("running", "feed"), ("running", "epochs"), ("running", "session")}
# Allowed against the order, inside a function: `to_tf` is a method for its user's sake.
LAZY_UP = {("outputs", "bridges")}
# Allowed inside a function: a feed that is opened with a coordinator is tied to it, and so is a queue runner.
LAZY_BESIDE = {("session", "coordinator"), ("bridges", "coordinator")}

# What of `stages` others may know: what a stage is, how it runs, what all stages of a description say together, and
# how items are numbered and dealt out.
SEEN_STAGES = {
    "asyncfeed.stages",
    *(
        f"asyncfeed.stages.{name}"
        for name in ("base", "batch", "chain", "deal", "numbering", "reached", "rest", "steps", "together")
    ),
}
KNOWS_STAGES = {"stages", "pipeline", "batching", "calling", "combine"}
IMPORTS_ALL = {"engine/everything.py"}  # so that a run imports nothing later; it names none of them

NO_ASYNCIO = {"stages", "formats", "reading", "stacking", "state"}
# What of these is for the loop: readers that are called there, and the streams that they give.
FOR_THE_LOOP = {
    "reading/threaded.py",
    "reading/ranges.py",
    "reading/stream.py",
    "reading/obstore_reader.py",
    "reading/obstore_listing.py",
    "reading/obstore_pages.py",
    "reading/s3_pages.py",
    "reading/fsspec_store.py",
    "reading/requests.py",
    "reading/request.py",
    "reading/retrying.py",
    "reading/copies.py",
    "reading/record_scan.py",
}
# Stages decide and decoders decode; what they work on is opened and read by `reading`.
NO_IO = {"stages", "formats"}
IO_MODULES = {"threading", "socket", "subprocess", "mmap", "tempfile", "shutil", "aiofiles"}
IO_FUNCTIONS = {"open", "stat", "fstat", "read", "readv", "pread", "preadv", "listdir", "scandir", "walk", "close"}
# Files of a part that knows the loop which do not: their algorithm is tested without one.
PURE = {"queues/attempts.py", "queues/elements.py", "queues/stores.py"}
FRAMEWORKS = {"tensorflow", "keras", "torch", "jax", "jaxlib"}

# Where each call may stand: a file, or a folder with its slash.
STARTS_TASKS = ("engine/run.py", "engine/threads.py", "testing.py", "cli.py")
STARTS_OTHERS = ("engine/", "testing.py", "cli.py")
CALLS = {
    # Elsewhere a loop with eager tasks would run the task inside the call.
    "create_task": ("tasks.py", "testing.py", "cli.py"),
    # The task that draws from an async generator must not be the one that wants the item: that may be cancelled.
    "start_task": ("engine/run.py", "threadsafety.py"),
    "TaskGroup": STARTS_TASKS,
    # A queue runner of TensorFlow's hands out threads that its caller may start later.
    "Thread": (
        *STARTS_TASKS,
        "engine/driver.py",
        "engine/processes/kept.py",
        "engine/pump.py",
        "engine/processes/worker.py",
        "coordinator/joined.py",
        "bridges/tf_queues.py",
    ),
    "ensure_future": STARTS_OTHERS,
    # On the engine's threads where there is an engine: a stream may also be read without one.
    "run_in_executor": (*STARTS_OTHERS, "reading/stream.py", "reading/copies.py"),
    "to_thread": STARTS_OTHERS,
    # fsspec has a loop of its own.
    "run_coroutine_threadsafe": (*STARTS_OTHERS, "reading/fsspec_store.py"),
    "start_new_thread": ("engine/interruptions.py",),
    "ThreadPoolExecutor": (),
    "Popen": ("engine/processes/process.py", "testing.py", "cli.py"),
    "Process": (),
    "ProcessPoolExecutor": (),
    "fork": (),
}
# The delay before another attempt is what the user asked for; anywhere else a sleep would be a guess.
WAITS = ("engine/operators/attempts.py", "reading/retrying.py", "reading/s3_pages.py")
# Whose private names may be used: one's own, a documented one of Python's, and one in the file of its class.
OWNERS = {"self", "cls"}
PYTHONS = {"asyncio", "sys", "os", "threading"}
OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}
# These make a task of a coroutine they are given, which nobody would end.
MAKES_TASKS = {"shield", "gather", "wait_for"}
MAX_LINES = 450
MAX_FIELDS = 8


class Import:
    """One imported module, as written in one file."""

    def __init__(self, module: str, line: int, *, lazy: bool) -> None:
        self.module = module
        self.line = line
        self.lazy = lazy
        self.top = module.partition(".")[0]


def imports(tree: ast.Module, name: str) -> Iterator[Import]:
    """Yield what the file `name` imports when it runs, without the `if TYPE_CHECKING:` blocks."""
    package = ["asyncfeed", *name.split("/")[:-1]]

    def walk(node: ast.AST, *, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            for statement in node.orelse:
                yield from walk(statement, lazy=lazy)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, lazy=lazy)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "asyncfeed":  # each name may be a module
                for alias in node.names:
                    yield Import(f"asyncfeed.{alias.name}", node.lineno, lazy=lazy)
            else:
                yield Import(module, node.lineno, lazy=lazy)
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, lazy=lazy)

    yield from walk(tree, lazy=False)


def part_of(name: str) -> str:
    """Return the part of the package a file or a dotted module belongs to."""
    return name.replace("/", ".").removesuffix(".py").split(".")[0]


def layer_faults(source: str, name: str) -> list[str]:
    """Return the imports of `source`, standing in the file `name`, that go the wrong way."""
    faults = []
    part = part_of(name)
    for found in imports(ast.parse(source), name):
        where = f"{name}:{found.line} imports {found.module}"
        if found.top == "asyncio" and part in NO_ASYNCIO and name not in FOR_THE_LOOP:
            faults.append(f"{where}: {part} knows no event loop")
        if found.top in {"asyncio", "threading"} and name in PURE:
            faults.append(f"{where}: this file knows neither loops nor threads")
        if part in NO_IO and found.top in IO_MODULES:
            faults.append(f"{where}: {part} does no IO and knows no threads")
        concrete = found.module.startswith("asyncfeed.stages.") and found.module not in SEEN_STAGES
        if concrete and part not in KNOWS_STAGES and name not in IMPORTS_ALL:
            faults.append(f"{where}: a stage declares what others want to know of it; ask `stages.base`")
            continue
        if part == "engine" and found.module.startswith("asyncfeed.formats") and name not in IMPORTS_ALL:
            faults.append(f"{where}: the engine knows no format")
            continue
        if found.top in FRAMEWORKS:
            if part != "bridges":
                faults.append(f"{where}: only bridges know a framework")
            elif not found.lazy:
                faults.append(f"{where}: a framework is imported inside a function, when it is called for")
        if found.top != "asyncfeed" or part == "__init__":
            continue
        other = part_of(found.module.removeprefix("asyncfeed").removeprefix(".")) or "__init__"
        if other == part:
            continue
        if part in BESIDE:
            allowed = other in LAYERS[-1]
        elif other in BESIDE:
            allowed = part in LAYERS[0] or (found.lazy and (part, other) in LAZY_BESIDE)
        elif part not in RANK:
            faults.append(f"{name}: {part} has no layer; give it one in this test")
            continue
        else:
            # A name that is no part of the package comes from its __init__, which is the top.
            allowed = RANK[part] <= RANK.get(other, 0)
            allowed = allowed and (found.lazy or (part, other) not in LAZY_ONLY)
            allowed = allowed or (found.lazy and (part, other) in LAZY_UP)
        if not allowed:
            faults.append(f"{where}: {part} may not import {other} here")
    return faults


def _awaits_futures(call: ast.Call) -> bool:
    """Return whether all that such a call is given is made by an executor: a future, and no coroutine."""
    return bool(call.args) and all(
        isinstance(each, ast.Call) and ast.unparse(each.func).endswith("run_in_executor") for each in call.args
    )


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the ways that lead from a file back to itself; one for each file that lies on one."""
    found = []
    for start in graph:
        ways, seen = [[start]], set()
        while ways:
            way = ways.pop()
            for following in graph.get(way[-1], ()):
                if following == start:
                    found.append([*way, start])
                    ways.clear()
                    break
                if following not in seen:
                    seen.add(following)
                    ways.append([*way, following])
    return found


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return which files of one layer each file imports, in a function or not."""
    graph: dict[str, set[str]] = {}
    for name, source in sources.items():
        graph[name] = set()
        for found in imports(ast.parse(source), name):
            path = found.module.removeprefix("asyncfeed.").replace(".", "/")
            other = next((each for each in (f"{path}.py", f"{path}/__init__.py") if each in sources), None)
            if found.top == "asyncfeed" and other is not None and other != name:
                same_layer = RANK.get(part_of(name)) == RANK.get(part_of(other))
                if same_layer and part_of(name) not in LAYERS[0]:
                    graph[name].add(other)
    return graph


def construct_faults(source: str, name: str) -> list[str]:
    """Return the constructs of `source` that may not stand in the file `name`."""
    faults = []
    tree = ast.parse(source)
    sleeps = {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in {"time", "asyncio"}
        for alias in node.names
        if alias.name == "sleep"
    }
    for node in ast.walk(tree):
        where = f"{name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            faults.append(f"{where} bare except")
        elif isinstance(node, ast.FunctionDef) and node.name == "__del__":
            faults.append(f"{where} __del__")
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            last = called.rpartition(".")[2]
            if last in CALLS and not name.startswith(CALLS[last]):
                faults.append(f"{where} {last}")
            if last in MAKES_TASKS and called.startswith("asyncio.") and not _awaits_futures(node):
                faults.append(f"{where} {last} makes a task of a coroutine")
            if part_of(name) in NO_IO and (
                called in {"open", "io.open"} or called in {f"os.{each}" for each in IO_FUNCTIONS}
            ):
                faults.append(f"{where} {called} is IO")
            if called == "time.sleep" or sleeps.get(called) == "time":
                faults.append(f"{where} time.sleep")
            if called == "asyncio.sleep" or sleeps.get(called) == "asyncio":
                argument = ast.unparse(node.args[0]) if node.args else "?"
                if argument != "0" and name not in WAITS:
                    faults.append(f"{where} asyncio.sleep({argument})")
    return faults


def private_faults(source: str, name: str) -> list[str]:
    """Return where `source` uses a private name of an object whose class stands in another file."""
    tree = ast.parse(source)
    own = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            own.add(each.attr)
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            own.add(each.target.id)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            own.add(each.value)  # in `__slots__`
    return [
        f"{name}:{each.lineno} {ast.unparse(each)} is another's private name"
        for each in ast.walk(tree)
        if isinstance(each, ast.Attribute)
        and each.attr.startswith("_")
        and not each.attr.endswith("__")
        and not (isinstance(each.value, ast.Name) and each.value.id in OWNERS | PYTHONS)
        and each.attr not in own | OF_NAMED_TUPLES
    ]


@pytest.mark.parametrize("name", FILES)
def test_private_names_stay_in_their_file(name: str) -> None:
    assert private_faults(FILES[name].read_text(encoding="utf-8"), name) == []


def test_a_private_name_of_another_file_is_found() -> None:
    assert private_faults("feed._run.handoff", "bridges/x.py") == [
        "bridges/x.py:1 feed._run is another's private name"
    ]
    assert private_faults("class A:\n def f(self, o):\n  return o._x == self._y\n def _x(self): ...", "a.py") == []


def changing_fields(source: str) -> dict[str, list[str]]:
    """Return the fields of each class that are set anywhere but where an object is made."""
    found = {}
    for each in ast.walk(ast.parse(source)):
        if not isinstance(each, ast.ClassDef):
            continue
        methods = [method for method in each.body if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)]
        found[each.name] = sorted(
            {
                target.attr
                for method in methods
                if method.name not in {"__init__", "__post_init__"}
                for target in ast.walk(method)
                if isinstance(target, ast.Attribute)
                and isinstance(target.ctx, ast.Store)
                and ast.unparse(target.value) == "self"
            }
        )
    return found


@pytest.mark.parametrize("name", FILES)
def test_few_fields_of_an_object_change(name: str) -> None:
    """Who has more is several objects, each with a rule of its own for what belongs together."""
    for owner, fields in changing_fields(FILES[name].read_text(encoding="utf-8")).items():
        assert len(fields) <= MAX_FIELDS, (owner, fields)


def test_a_field_that_changes_is_found() -> None:
    source = "class A:\n def __init__(self): self.a = 1\n def f(self): self.b, c = 1, 2; self.d += 1"
    assert changing_fields(source) == {"A": ["b", "d"]}


@pytest.mark.parametrize("name", FILES)
def test_imports_go_one_way(name: str) -> None:
    assert layer_faults(FILES[name].read_text(encoding="utf-8"), name) == []


@pytest.mark.parametrize("name", FILES)
def test_constructs_stand_where_they_belong(name: str) -> None:
    assert construct_faults(FILES[name].read_text(encoding="utf-8"), name) == []


@pytest.mark.parametrize("name", FILES)
def test_files_are_short(name: str) -> None:
    lines = len(FILES[name].read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{name} has {lines} lines; 300 is the aim"


def test_no_file_of_a_layer_needs_itself() -> None:
    assert cycles(import_graph({name: path.read_text(encoding="utf-8") for name, path in FILES.items()})) == []


def test_a_cycle_is_found() -> None:
    sources = {
        "stages/a.py": "from asyncfeed.stages.b import B",
        "stages/b.py": "def f():\n from asyncfeed.stages import c\n import asyncfeed.stages.c",
        "stages/c.py": "import asyncfeed.stages.a",
        "stages/d.py": "import asyncfeed.stages.a",
    }
    assert {way[0] for way in cycles(import_graph(sources))} == {"stages/a.py", "stages/b.py", "stages/c.py"}


def test_every_part_has_a_layer() -> None:
    assert {part_of(name) for name in FILES} - set(RANK) - BESIDE == set()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("stages/batch.py", "import asyncio"),
        ("reading/local.py", "from asyncio import Queue"),
        ("formats/lines.py", "import asyncio"),
        ("formats/tar.py", "import threading"),
        ("engine/run.py", "from asyncfeed.formats import lines"),
        ("stages/batch.py", "from asyncfeed.engine.channel import Channel"),
        ("stages/batch.py", "def f():\n from ..engine import channel"),
        ("engine/run.py", "from asyncfeed.pipeline import Pipeline"),
        ("engine/run.py", "from asyncfeed import pipeline"),
        ("engine/run.py", "from asyncfeed import __version__"),
        ("engine/run.py", "import asyncfeed"),
        ("engine/run.py", "import asyncfeed.queues"),
        ("running.py", "from asyncfeed.feed import Feed"),
        ("pipeline.py", "from asyncfeed.bridges.tf_data import to_dataset"),
        ("errors.py", "from .state import State"),
        ("queues/fifo.py", "from asyncfeed.engine.channel import Channel"),
        ("queues/attempts.py", "import threading"),
        ("bridges/keras.py", "import keras"),
        ("formats/tfrecord.py", "def f():\n import tensorflow as tf"),
        ("novelty.py", "from asyncfeed.errors import StoreError"),
        ("stages/a.py", "if TYPE_CHECKING:\n import json\nelse:\n import asyncio"),
        ("stages/batch.py", "import threading"),
        ("bridges/tf_data.py", "from asyncfeed.stages.pad import Pad"),
        ("engine/plan.py", "def f():\n from asyncfeed.stages.repeat import Repeat"),
    ],
)
def test_a_wrong_import_is_found(name: str, source: str) -> None:
    assert len(layer_faults(source, name)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("running.py", "class Running:\n def open(self):\n  from asyncfeed.feed import Feed"),
        ("outputs.py", "class Outputs:\n def to_tf(self):\n  from asyncfeed.bridges.tf_data import f"),
        ("stages/batch.py", "if TYPE_CHECKING:\n from asyncfeed.engine.channel import Channel"),
        ("stages/load.py", "from ..formats import npy\nfrom asyncfeed.errors import Corrupt"),
        ("feed.py", "from asyncfeed.pipeline import Pipeline\nfrom .engine import run"),
        ("bridges/keras.py", "def f():\n import keras\nfrom asyncfeed import feed"),
        (
            "queues/fifo.py",
            "import asyncio\nfrom .base import Base\nfrom asyncfeed.errors import ClosedError",
        ),
        ("reading/stream.py", "import asyncio"),
        ("__init__.py", "from asyncfeed.queues import FIFO\nfrom .pipeline import Pipeline"),
    ],
)
def test_a_right_import_passes(name: str, source: str) -> None:
    assert layer_faults(source, name) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("engine/channel.py", "asyncio.create_task(f())"),
        ("engine/run.py", "group.create_task(f())"),
        ("feed.py", "threading.Thread(target=f)"),
        ("engine/plan.py", "async def f():\n async with asyncio.TaskGroup() as group: pass"),
        ("reading/remote.py", "loop.run_in_executor(None, f)"),
        ("engine/run.py", "ThreadPoolExecutor(4)"),
        ("engine/threads.py", "subprocess.Popen(['ls'])"),
        ("engine/processes/process.py", "multiprocessing.get_context('fork').Process(target=f)"),
        ("engine/processes/process.py", "os.fork()"),
        ("engine/run.py", "time.sleep(0)"),
        ("engine/run.py", "from time import sleep as nap\nnap(1)"),
        ("engine/run.py", "async def f():\n await asyncio.sleep(0.1)"),
        ("engine/run.py", "from asyncio import sleep\nasync def f():\n await sleep(delay)"),
        ("errors.py", "try: f()\nexcept: pass"),
        ("feed.py", "class Feed:\n def __del__(self): pass"),
        ("formats/lines.py", "async def f():\n await asyncio.shield(g())"),
        ("feed.py", "async def f():\n await asyncio.wait_for(task, 3)"),
        ("stages/batch.py", "open(path)"),
        ("stages/batch.py", "os.stat(path)"),
        ("formats/npz.py", "open(path)"),
    ],
)
def test_a_wrong_construct_is_found(name: str, source: str) -> None:
    assert len(construct_faults(source, name)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("engine/run.py", "async def f():\n await asyncio.sleep(0)\n start_task(group, f(), loop=loop, name='f')"),
        ("engine/threads.py", "threading.Thread(target=f)\nloop.run_in_executor(None, f)"),
    ],
)
def test_a_right_construct_passes(name: str, source: str) -> None:
    assert construct_faults(source, name) == []
