"""The public surface: what `import asyncfeed` gives, and what it costs."""

from __future__ import annotations

import builtins
import inspect
import subprocess
import sys
from types import ModuleType

import pytest

import asyncfeed as af
import asyncfeed.formats
import asyncfeed.reading

PUBLIC = """
AsyncfeedError ClosedError Coordinator Corrupt Decoder Epoch Epochs Failure Feed FeedCheckpoint FeedStats File Pipeline PipelineError
Progress Retry Skip StateError StoreError TimedOut Unavailable arrayrecord arrays arrow audio concat csv example feature files image image_folder items json json_lines limits lines litdata mds merge_states mix npy npz parquet pydataset queue_dataset raw register_size safetensors table tar text tfrecord
threadsafe threadsafe_generator
""".split()

METHODS = """
apply arrays batch bucket cache class_names concat enqueue enumerate epochs explain filter flat_map in_processes indexed
interleave load map map_batches open pack pad prefetch rebatch repeat scan shard shuffle size skip source split stages
take then to_jax to_keras to_queue_runner to_shards to_tf to_torch to_torch_dataset unbatch using window
""".split()


def test_the_public_names_are_these_and_sorted() -> None:
    """A new name is a decision: it is added here."""
    assert af.__all__ == PUBLIC == sorted(PUBLIC)
    assert {*PUBLIC, "zip", "queues"} <= set(dir(af))
    for name in PUBLIC:
        assert getattr(af, name) is not None


def test_a_pipeline_has_these_methods() -> None:
    """A new stage is one method, added here."""
    methods = {name for name in dir(af.Pipeline) if not name.startswith("_")}
    assert methods == set(METHODS) - {"arrays", "concat"}


def test_every_public_object_has_a_docstring() -> None:
    """What is exported is documented, and so are its methods."""
    for name in PUBLIC:
        value = getattr(af, name)
        assert inspect.getdoc(value), name
        if inspect.isclass(value):
            for method, member in vars(value).items():
                if not method.startswith("_") and inspect.isfunction(member):
                    assert inspect.getdoc(member), f"{name}.{method}"


def test_importing_brings_no_framework_and_no_loop() -> None:
    """Describing a pipeline needs neither TensorFlow nor asyncio."""
    code = (
        "import sys, numpy; before = set(sys.modules); import asyncfeed; new = set(sys.modules) - before;"
        "print([name for name in ('tensorflow', 'torch', 'jax', 'keras', 'asyncio', 'uvloop') if name in new])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("package", "names"),
    [
        (asyncfeed.formats, "Compression Decoder Header Layout RangeDecoder Row StreamDecoder"),
        (
            asyncfeed.reading,
            "AsyncReader Buffers ByteRanges ByteStream Bytes File MemoryStore ObjectStore Range Reader Store",
        ),
    ],
)
def test_a_format_or_a_store_of_ones_own_needs_only_these_names(package: ModuleType, names: str) -> None:
    """`docs/extending.md` shows how to write one."""
    assert package.__all__ == names.split()
    assert all(hasattr(package, name) for name in names.split())
    assert not hasattr(package, "ReadStream")


def test_readers_and_decoders_bring_no_loop() -> None:
    """A stream knows asyncio, and is imported when it is asked for."""
    code = (
        "import sys, numpy, asyncfeed.reading, asyncfeed.formats; print('asyncio' in sys.modules);"
        "from asyncfeed.reading import ByteStream; print('asyncio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_a_star_import_hides_no_name_of_python() -> None:
    """`zip` is `af.zip` and nothing else."""
    namespace: dict[str, object] = {}
    exec("from asyncfeed import *", namespace)
    assert not set(namespace) - {"__builtins__"} & set(dir(builtins))
    assert [list(pair) for pair in af.zip(af.items([1]), af.items([2]))] == [[1, 2]]


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Lazy names do not hide a misspelling."""
    assert not hasattr(af, "pipline")


def test_the_queues_are_reached_without_an_import_of_their_own() -> None:
    """They bring asyncio, so `import asyncfeed` leaves them where they are."""
    code = "import sys, asyncfeed; assert 'asyncfeed.queues' not in sys.modules; print(asyncfeed.queues.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("'")[1::2] == [
        "ClosedError",
        "FIFOQueue",
        "OutOfRangeError",
        "PaddingFIFOQueue",
        "PriorityQueue",
        "QueueBase",
        "RandomShuffleQueue",
    ]
