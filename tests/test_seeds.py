"""Every program of the seeds runs and prints what it promises, the old way and ours."""

from __future__ import annotations

import gc
import importlib.util
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "seeds"
BATCHES = ["(3, 224, 224, 3) [0 1 2]", "(3, 224, 224, 3) [3 4 0]", "(3, 224, 224, 3) [1 2 3]"]
COUNTS = " ".join(f"{count}.0" for count in range(1, 11))
PRINTS = {
    "seed_000_triplets": [
        "old: an epoch reads 47 of 48 files, and then begins anew",
        "ours: an epoch reads 48 of 48 files",
        "old: 12 steps, the loss fell: True",
        "ours, same queue: 12 steps, the loss fell: True",
        "ours, no queue: 12 steps, the loss fell: True",
    ],
    "seed_001_slices": [
        "old",
        *BATCHES,
        "done",
        "ours",
        *BATCHES,
        "done",
        "ours, with the tail",
        *BATCHES,
        "(1, 224, 224, 3) [4]",
        "done",
    ],
    "seed_002_counter": ["old: 0.3 2.1 2.2", "ours: 0.3 2.1 2.2"],
    "seed_002_runner": [
        "old, with a coordinator: 10 numbers, others each time",
        f"ours, with a coordinator: {COUNTS}",
        f"ours, without: {COUNTS}",
    ],
    "seed_002_coordinator": [
        "old: 10 threads have ended, the fifth at 1000: True",
        "ours: 10 threads have ended, the fifth at 1000: True",
        "ours: 10 tasks have ended",
    ],
    "seed_002_exceptions": [
        "old",
        "the loop ends with OutOfRangeError",
        "join raises InvalidArgumentError: ValueError: sample 3 is broken",
        "ours",
        "the loop ends with OutOfRangeError",
        "join raises ValueError: sample 3 is broken",
    ],
    "seed_003_generator": [
        "old, batches in each epoch: 5 2 2",
        "ours: 5 5 5",
        "ours, from the arrays: 5 5 5",
    ],
    "seed_003_sequence": [
        "old, batches: 6",
        "ours, the same object, batches: 6, learned the same: True",
        "ours, from the arrays, batches: 6, learned the same: True",
    ],
    "seed_003_threadsafe": [
        "old, each item once: True",
        "ours, each item once: True",
        "old, in fit: refused, Unrecognized data type",
        "ours, in fit: trained for 2 epochs",
    ],
    "seed_004_threads": [
        "old, 0 producers without a coordinator: 0 threads, 0 after the stop, 0 after the session is closed",
        "old, 13 producers without a coordinator: 13 threads, 13 after the stop, 0 after the session is closed",
        "old, 13 producers with a coordinator: 26 threads, 0 after the stop, 0 after the session is closed",
        "ours: asyncfeed-N-loop asyncfeed-enqueue-numbers asyncfeed-enqueue-numbers-close_on_stop",
        "ours: 0 after the stop",
    ],
}

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data; interrupting training:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # TensorFlow's and Keras' own imports
]


@pytest.fixture(autouse=True)
def collected_on_the_main_thread() -> Iterator[None]:
    """Collect garbage here, and on no thread of TensorFlow's: Keras' generators run there; see `tests/bridges`."""
    gc.disable()
    yield
    gc.collect()
    gc.enable()


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run a program; return the lines that it printed."""
    load(name).main()
    return re.sub(r"asyncfeed-\d+-", "asyncfeed-N-", capsys.readouterr().out).splitlines()


@pytest.mark.parametrize("name", PRINTS)
def test_the_program_prints_what_it_promises_and_leaves_no_thread(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(threading.enumerate())
    assert printed(name, capsys) == PRINTS[name]
    left = [thread.name for thread in set(threading.enumerate()) - before]
    assert not any(name.startswith("QueueRunner") for name in left)  # `nothing_left` looks for ours


@pytest.mark.parametrize("name", PRINTS)
def test_a_program_shows_the_old_way_beside_ours(name: str) -> None:
    ways = {re.split("[,: ]", line)[0] for line in PRINTS[name]}
    assert {"old", "ours"} <= ways


def test_the_old_names_leave_out_the_last_file_of_each_shuffle_and_ours_none(tmp_path: Path) -> None:
    program = load("seed_000_triplets")
    program.write_files(tmp_path)
    names = sorted(path.name for path in (tmp_path / "in").iterdir())
    drawn = program.old_names(names)
    for _ in range(3):
        assert len({next(drawn) for _ in range(len(names) - 1)}) == len(names) - 1
    assert sum(1 for _ in program.samples(tmp_path)) == len(names)


def test_the_shuffle_program_gives_each_element_once_four_times(capsys: pytest.CaptureFixture[str]) -> None:
    names, orders = zip(*(line.split(": ") for line in printed("seed_002_shuffle", capsys)), strict=True)
    assert names == ("old", "ours", "buffer", "exact")
    for order in orders:
        assert sorted(map(int, order.split())) == list(range(10))


def test_each_program_says_which_document_it_follows() -> None:
    programs = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert programs == sorted([*PRINTS, "seed_002_shuffle"])
    for name in programs:
        doc = load(name).__doc__
        assert f"Follows document {name[5:8]}," in " ".join(doc.split())
