"""The tests of the bridges: those that need TensorFlow are marked so, and its own warnings are not ours."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

HERE = Path(__file__).parent
PLAIN = ("test_epochs.py", "test_torch", "test_jax")
"""How the names of files begin whose tests need no TensorFlow."""
IGNORED = (
    # Keras, of its own `shuffle=True` default, whenever it gets a dataset.
    "ignore:.*`shuffle=True` was passed, but will be ignored:UserWarning",
    # Keras, at the end of an epoch whose length it was not told.
    "ignore:Your input ran out of data; interrupting training:UserWarning",
    # Keras with torch, of the tensors it converts.
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",
    # Raised while TensorFlow and what it imports are imported.
    "ignore::DeprecationWarning:(tensorflow|keras|google|flatbuffers|h5py|ml_dtypes|astunparse|gast)",
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files for TensorFlow if their tests are not wanted: to read them imports it, which takes 1 GB."""
    unwanted = "not tensorflow" in config.option.markexpr
    is_test = collection_path.parent == HERE and collection_path.name.startswith("test_")
    return True if unwanted and is_test and not collection_path.name.startswith(PLAIN) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    missing = importlib.util.find_spec("tensorflow") is None
    for item in items:
        if HERE not in item.path.parents or item.path.name.startswith(PLAIN):
            continue
        item.add_marker(pytest.mark.tensorflow)
        for each in IGNORED:
            item.add_marker(pytest.mark.filterwarnings(each))
        if missing:
            item.add_marker(pytest.mark.skip(reason="needs TensorFlow"))


@pytest.fixture(autouse=True)
def collected_on_the_main_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """Collect garbage here, and on no thread of TensorFlow's, which `from_generator` runs Python on.

    An iterator that is found there waits, as it is destroyed, for its own thread: that one. TensorFlow alone does
    so too, and from then on nothing in the process is collected. A failed test's traceback is enough of a cycle.
    """
    if request.node.get_closest_marker("tensorflow") is None:
        yield
        return
    gc.disable()
    yield
    gc.collect()
    gc.enable()
