"""An asyncio-native prefetching input pipeline for training.

Describe a `Pipeline` with a source (`files`, `items`, `arrays`, `table`) and its methods, then iterate it, open
it, or hand it to a framework. Frameworks are imported only when their bridge is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from asyncfeed.attempts.retry import Retry
from asyncfeed.attempts.skip import Skip
from asyncfeed.combine import concat, mix
from asyncfeed.combine import zip as zip  # noqa: A004 - `af.zip`; not in `__all__`: it would hide Python's
from asyncfeed.errors import (
    AsyncfeedError,
    ClosedError,
    Corrupt,
    Failure,
    PipelineError,
    StateError,
    StoreError,
    TimedOut,
    Unavailable,
)
from asyncfeed.file_source import files
from asyncfeed.formats.base import Decoder
from asyncfeed.limits import limits
from asyncfeed.pipeline import Pipeline
from asyncfeed.reading.file import File
from asyncfeed.sources import arrays, items
from asyncfeed.tables import table
from asyncfeed.weights import register_size

if TYPE_CHECKING:
    from asyncfeed import queues as queues
    from asyncfeed.array_records import arrayrecord
    from asyncfeed.bridges.keras_checkpoint import FeedCheckpoint
    from asyncfeed.bridges.progress import Progress
    from asyncfeed.bridges.pydataset import pydataset
    from asyncfeed.bridges.tf_queue_dataset import queue_dataset
    from asyncfeed.coordinator import Coordinator
    from asyncfeed.epochs import Epoch, Epochs
    from asyncfeed.feed import Feed
    from asyncfeed.formats.arrow import arrow
    from asyncfeed.formats.audio import audio
    from asyncfeed.formats.csv_rows import csv
    from asyncfeed.formats.example import example
    from asyncfeed.formats.features import feature
    from asyncfeed.formats.image import image
    from asyncfeed.formats.json_lines import json_lines
    from asyncfeed.formats.lines import lines
    from asyncfeed.formats.litdata import litdata
    from asyncfeed.formats.mds import mds
    from asyncfeed.formats.npy import npy
    from asyncfeed.formats.npz import npz
    from asyncfeed.formats.parquet import parquet
    from asyncfeed.formats.raw import raw
    from asyncfeed.formats.safetensors import safetensors
    from asyncfeed.formats.tar import tar
    from asyncfeed.formats.text import json, text
    from asyncfeed.formats.tfrecord import tfrecord
    from asyncfeed.image_source import image_folder
    from asyncfeed.state.merging import merge_states
    from asyncfeed.stats import FeedStats
    from asyncfeed.threadsafety import threadsafe, threadsafe_generator

__version__ = "0.1.0"

__all__ = [
    "AsyncfeedError",
    "ClosedError",
    "Coordinator",
    "Corrupt",
    "Decoder",
    "Epoch",
    "Epochs",
    "Failure",
    "Feed",
    "FeedCheckpoint",
    "FeedStats",
    "File",
    "Pipeline",
    "PipelineError",
    "Progress",
    "Retry",
    "Skip",
    "StateError",
    "StoreError",
    "TimedOut",
    "Unavailable",
    "arrayrecord",
    "arrays",
    "arrow",
    "audio",
    "concat",
    "csv",
    "example",
    "feature",
    "files",
    "image",
    "image_folder",
    "items",
    "json",
    "json_lines",
    "limits",
    "lines",
    "litdata",
    "mds",
    "merge_states",
    "mix",
    "npy",
    "npz",
    "parquet",
    "pydataset",
    "queue_dataset",
    "raw",
    "register_size",
    "safetensors",
    "table",
    "tar",
    "text",
    "tfrecord",
    "threadsafe",
    "threadsafe_generator",
]

# Imported when they are first used, because a description needs none of them: asyncio, the engine, the decoders.
_LATER = {
    "Coordinator": "asyncfeed.coordinator",
    "Epoch": "asyncfeed.epochs",
    "Epochs": "asyncfeed.epochs",
    "Feed": "asyncfeed.feed",
    "FeedCheckpoint": "asyncfeed.bridges.keras_checkpoint",
    "FeedStats": "asyncfeed.stats",
    "Progress": "asyncfeed.bridges.progress",
    "arrayrecord": "asyncfeed.array_records",
    "arrow": "asyncfeed.formats.arrow",
    "audio": "asyncfeed.formats.audio",
    "csv": "asyncfeed.formats.csv_rows",
    "example": "asyncfeed.formats.example",
    "feature": "asyncfeed.formats.features",
    "image": "asyncfeed.formats.image",
    "image_folder": "asyncfeed.image_source",
    "json": "asyncfeed.formats.text",
    "json_lines": "asyncfeed.formats.json_lines",
    "lines": "asyncfeed.formats.lines",
    "litdata": "asyncfeed.formats.litdata",
    "mds": "asyncfeed.formats.mds",
    "merge_states": "asyncfeed.state.merging",
    "npy": "asyncfeed.formats.npy",
    "npz": "asyncfeed.formats.npz",
    "parquet": "asyncfeed.formats.parquet",
    "pydataset": "asyncfeed.bridges.pydataset",
    "queue_dataset": "asyncfeed.bridges.tf_queue_dataset",
    "raw": "asyncfeed.formats.raw",
    "safetensors": "asyncfeed.formats.safetensors",
    "tar": "asyncfeed.formats.tar",
    "text": "asyncfeed.formats.text",
    "tfrecord": "asyncfeed.formats.tfrecord",
    "threadsafe": "asyncfeed.threadsafety",
    "threadsafe_generator": "asyncfeed.threadsafety",
}


if not TYPE_CHECKING:  # with a `__getattr__`, a type checker would accept every misspelt name

    def __getattr__(name: str) -> object:
        if name == "queues":  # a module: importing it sets the attribute
            return import_module("asyncfeed.queues")
        if name not in _LATER:
            raise AttributeError(f"module 'asyncfeed' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_LATER[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "queues"})
