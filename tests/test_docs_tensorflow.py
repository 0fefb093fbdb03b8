"""Every block of Python in `docs/tensorflow.md` runs by itself, and prints what its comments say."""

from __future__ import annotations

import gc
import importlib.util
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

DOCUMENT = Path(__file__).parent.parent / "docs" / "tensorflow.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
BLOCKS = {
    f"line {TEXT[: found.start()].count(chr(10)) + 2}": found[1]
    for found in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
}
SAMPLES = 12

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # TensorFlow's and Keras' own imports
    pytest.mark.filterwarnings("ignore:.*`shuffle=True` was passed, but will be ignored:UserWarning"),
]


@pytest.fixture(autouse=True)
def collected_on_the_main_thread() -> Iterator[None]:
    """Collect garbage here, and on no thread of TensorFlow's: a block uses `from_generator`; see `tests/bridges`."""
    gc.disable()
    yield
    gc.collect()
    gc.enable()


@pytest.fixture
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files that the document promises, and go there."""
    monkeypatch.chdir(tmp_path)
    for part in ("in", "out"):
        (tmp_path / part).mkdir()
    for number in range(SAMPLES):
        np.save(f"in/{number:04}.npy", np.full((2 + number % 6, 8), number, np.float32))
        np.save(f"out/{number:04}.npy", np.int64(number))


def promised(block: str) -> list[str]:
    """Return what the comments behind `print(...)` say: one line for each value."""
    return [value for found in re.findall(r"print\(.*\)  # (.*)", block) for value in found.split(", ")]


@pytest.mark.parametrize("line", BLOCKS)
@pytest.mark.usefixtures("samples")
def test_a_block_of_the_document_runs_and_prints_what_it_says(
    line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(threading.enumerate())
    block = BLOCKS[line]
    exec(compile(block, f"docs/tensorflow.md, {line}", "exec"), {"__name__": "__main__"})
    assert capfd.readouterr().out.splitlines() == promised(block) != []
    for thread in set(threading.enumerate()) - before:
        assert not thread.name.startswith("QueueRunner")


def test_each_way_to_migrate_is_shown_before_and_after() -> None:
    for section in re.split(r"^## ", TEXT, flags=re.MULTILINE):
        if section.startswith("From "):
            before, after = section.index("\nBefore: "), section.index("\nAfter: ")
            assert section.count("```python\n") == 2
            assert before < section.index("```python\n") < after < section.rindex("```python\n")


def test_every_test_that_the_document_names_is_there() -> None:
    for name in re.findall(r"`(tests/[\w/.]+)`", TEXT):
        assert (DOCUMENT.parent.parent / name).exists(), name
