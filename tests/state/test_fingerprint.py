"""A fingerprint tells pipelines apart by their data and its order, and by nothing else."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
from array import array
from contextlib import nullcontext
from dataclasses import MISSING, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.image_source import ImageFolder, Labelled
from asyncfeed.reading import ObjectStore
from asyncfeed.reading.listing import FileList
from asyncfeed.stages.base import Node
from tests.state import described
from tests.state.described import Words, crop, double, local_files, objects, of

if TYPE_CHECKING:
    from collections.abc import Callable

items = af.items(range(10))
merged = partial(af.zip, strict=False)
CLIENTS = {
    "client_options": {"proxy_url": "http://user:hunter2@proxy"},
    "options": {"aws_secret_access_key": "hunter2"},
}

SAME: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "concurrency": (lambda: items.map(double), lambda: items.map(double, concurrency=3)),
    "prefetch": (lambda: items.map(double).batch(2), lambda: items.prefetch(2).map(double).batch(2).prefetch(3)),
    "cache of files": (lambda: local_files("/a").load(af.npy), lambda: local_files("/a").cache("/b").load(af.npy)),
    "cache of samples": (lambda: items.map(double), lambda: items.map(double).cache("memory", max_bytes="1 MB")),
    "using": (lambda: items.map(crop), lambda: items.using(size=nullcontext).map(crop)),
    "worker processes": (lambda: items.map(double), lambda: items.map(double, on="process")),
    "attempts": (lambda: items.map(double_later), lambda: items.map(double_later, retry=af.Retry(), timeout=3.0, hedge="auto")),
    "attempts of reads": (lambda: local_files("/a").load(af.npy), lambda: local_files("/a").load(af.npy, retry=None, timeout=3.0, hedge=None)),
    "how many may be skipped": (
        lambda: items.map(double, on_error="skip", skip_limit=3), lambda: items.map(double, on_error=af.Skip(max_count=9)),
    ),
    "limits of a decoder": (
        lambda: local_files("/a").flat_map(af.parquet()), lambda: local_files("/a").flat_map(af.parquet(max_bytes=5)),
    ),
    "reads at a time": (lambda: af.items(Words("a")), lambda: af.items(Words("a"), concurrency=3)),
    "reads of arrays": (lambda: af.arrays(np.arange(3)), lambda: af.arrays(np.arange(3), concurrency=2)),
    "another folder": (lambda: local_files("/data/a"), lambda: local_files("/mnt/elsewhere")),
    "another bucket": (lambda: objects("one"), lambda: objects("two")),
    "how a store is reached": (lambda: objects("one"), lambda: objects("one", endpoint="http://localhost:9", max_requests=3, **CLIENTS)),
    "list or tuple": (lambda: af.items([1, "a"]), lambda: af.items((1, "a"))),
    "an equal number of numpy's": (lambda: items.map(partial(crop, size=3)), lambda: items.map(partial(crop, size=np.int64(3)))),
    "where a lambda stands": (lambda: items.map(lambda x: x + 1), lambda: (lambda: items.map(lambda x: x + 1))()),
    "the code of a function with a name": (lambda: items.map(made("x + 1")), lambda: items.map(made("x + 2"))),
    "what a function has captured": (lambda: items.map(captures(1)), lambda: items.map(captures(2))),
    "a default that is written": (lambda: items.shuffle(), lambda: items.shuffle(seed=0, reshuffle=True)),
    "the folder of files that a run lists": (
        lambda: af.files("/a/b/*.npy", listing="streamed"), lambda: af.files("/c/*.npy", listing="streamed"),
    ),
    "the bucket of objects that a run lists": (
        lambda: af.files("s3://one/a/*.npy", listing="streamed"), lambda: af.files("s3://two/b/*.npy", listing="streamed"),
    ),
    "the folder of a tree that a run lists": (
        lambda: af.files(["/a/x/1*", "/a/y/*"], listing="streamed"), lambda: af.files(["/b/x/1*", "/b/y/*"], listing="streamed"),
    ),
    "the folder of labelled images": (lambda: labelled("/a"), lambda: labelled("/b")),
    "other files beside images": (lambda: labelled("/a"), lambda: labelled("/a", more=["readme.txt"])),
    "an input that is there twice": (lambda: af.zip(items, items), lambda: af.zip(items, af.items(range(10)))),
    "speed of an input": (lambda: af.zip(items, items.map(double)), lambda: af.zip(items.prefetch(2), items.map(double, concurrency=2))),
}  # fmt: skip

OTHER: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "the numbers of a range": (lambda: items, lambda: af.items(range(0, 20, 2))),
    "the length": (lambda: af.items([1, 2]), lambda: af.items([1, 2, 3])),
    "an item": (lambda: af.items([1, 2]), lambda: af.items([1, 3])),
    "the last of many items": (lambda: af.items([0] * 9999), lambda: af.items([0] * 9998 + [1])),
    "an item within an item": (lambda: af.items([{"a": [1]}]), lambda: af.items([{"a": [2]}])),
    "text and number": (lambda: af.items(["1"]), lambda: af.items([1])),
    "a number of an array": (lambda: af.arrays(np.zeros(5)), lambda: af.arrays(np.eye(5)[4])),
    "the type of an array": (lambda: af.arrays(np.zeros(5)), lambda: af.arrays(np.zeros(5, np.float32))),
    "the shape of an array": (lambda: af.arrays(np.zeros((4, 2))), lambda: af.arrays(np.zeros((4, 2, 1)))),
    "the names of arrays": (lambda: af.arrays({"x": np.zeros(5)}), lambda: af.arrays({"y": np.zeros(5)})),
    "a dataset of another length": (lambda: af.items(Words("a")), lambda: af.items(Words("a", "b"))),
    "a dataset that shows other words": (lambda: af.items(Words("a")), lambda: af.items(Words("b"))),
    "another generator": (lambda: af.items(described.numbers), lambda: af.items(other_numbers)),
    "the number of files": (lambda: local_files("/a"), lambda: local_files("/a", 4)),
    "the name of a file": (lambda: objects("b", "abc"), lambda: objects("b", "abd")),
    "the order of files": (lambda: objects("b", "abc", etags=None), lambda: objects("b", "acb", etags=None)),
    "the size of a file": (lambda: objects("b"), lambda: objects("b", size=2)),
    "the version of an object": (lambda: objects("b", etags="xyz"), lambda: objects("b", etags="xyy")),
    "the pattern of files that a run lists": (
        lambda: af.files("/a/*.npy", listing="streamed"), lambda: af.files("/a/*.npz", listing="streamed"),
    ),
    "the classes of images": (lambda: labelled("/a"), lambda: labelled("/a", names=("c", "d"))),
    "the labels of images": (lambda: labelled("/a"), lambda: labelled("/a", labels=(0, 0))),
    "seed": (lambda: items.shuffle(seed=1), lambda: items.shuffle(seed=2)),
    "buffer": (lambda: items.shuffle(), lambda: items.shuffle(buffer=10)),
    "a stage": (lambda: items.batch(2), lambda: items.batch(2).unbatch().batch(2)),
    "the order of stages": (lambda: items.take(5).shuffle(), lambda: items.shuffle().take(5)),
    "the kind of a stage": (lambda: items.take(5), lambda: items.skip(5)),
    "size": (lambda: items.batch(2), lambda: items.batch(3)),
    "drop_remainder": (lambda: items.batch(3), lambda: items.batch(3, drop_remainder=True)),
    "ordered": (lambda: items.map(double), lambda: items.map(double, ordered=False)),
    "whether failed items are left out": (lambda: items.map(double), lambda: items.map(double, on_error="skip", skip_limit=1)),
    "random numbers": (lambda: items.map(crop, rng=True), lambda: items.map(crop, rng=True, seed=1)),
    "a function": (lambda: items.map(double), lambda: items.map(crop)),
    "a method of another object": (lambda: items.map("a".join), lambda: items.map("b".join)),
    "the argument of a partial": (lambda: items.map(partial(crop, size=3)), lambda: items.map(partial(crop, size=4))),
    "the field of a function object": (lambda: items.map(described.Scale(1)), lambda: items.map(described.Scale(2))),
    "a number in a lambda": (lambda: items.map(lambda x: x + 1), lambda: items.map(lambda x: x + 2)),
    "an operator in a lambda": (lambda: items.filter(lambda x: x < 1), lambda: items.filter(lambda x: x > 1)),
    "a name in a lambda": (lambda: items.map(lambda x: x.a), lambda: items.map(lambda x: x.b)),
    "the default of a lambda": (lambda: items.map(lambda x, n=1: x + n), lambda: items.map(lambda x, n=2: x + n)),
    "what a decoder reads": (lambda: local_files("/a").load(af.npz), lambda: local_files("/a").load(af.npz(keys=["x"]))),
    "the decoder": (lambda: local_files("/a").load(af.text), lambda: local_files("/a").load(af.json)),
    "a share": (lambda: items.split(0.5, 0.5)[0], lambda: items.split(0.5, 0.5)[1]),
    "the part of a process": (lambda: items.shard(0, 2), lambda: items.shard(1, 2)),
    "the number of parts": (lambda: items.shard(0, 2), lambda: items.shard(0, 3)),
    "a padding": (lambda: items.pad(to=3), lambda: items.pad(to=(3, 4))),
    "an input": (lambda: af.zip(items, items), lambda: af.zip(items, items.shuffle())),
    "the order of inputs": (lambda: merged(items.take(2), items), lambda: merged(items, items.take(2))),
    "the stage of another input": (lambda: merged(items.take(2), items), lambda: merged(items, items).take(2)),
    "how inputs are merged": (lambda: af.zip(items, items), lambda: af.concat(items, items)),
    "weights": (lambda: af.mix(items, items), lambda: af.mix(items, items, weights=[1, 2])),
}  # fmt: skip


async def double_later(x: Any) -> Any:
    return 2 * x


def other_numbers() -> Any:
    yield 1


def made(code: str) -> Any:
    scope: dict[str, Any] = {}
    exec(f"def fn(x): return {code}", scope)
    return scope["fn"]


def captures(n: int) -> Any:
    return lambda x: x + n


def labelled(
    root: str, *, names: tuple[str, ...] = ("a", "b"), labels: tuple[int, ...] = (0, 1), more: Any = ()
) -> af.Pipeline[Any]:
    paths = [f"{root}/{name}" for name in ("a/1.png", "b/1.png", *more)]
    images = Labelled(
        FileList(paths, range(len(paths)), range(len(paths))), array("q", [0, 1]), array("i", labels)
    )
    return af.Pipeline(ImageFolder(root, None, None, images, names))


@pytest.mark.parametrize("what", SAME)
def test_this_does_not_count(what: str) -> None:
    one, other = SAME[what]
    assert of(one()) == of(one())
    assert of(one()).value == of(other()).value


@pytest.mark.parametrize("what", OTHER)
def test_this_counts(what: str) -> None:
    one, other = OTHER[what]
    assert of(one()).value == of(one()).value
    assert of(one()).value != of(other()).value


# -- the same everywhere

VALUES = {
    "range": "d3bf8a2b98aa5a42c53a29489d666afe",
    "numbers": "0370b8de19ee8b9b982a2d3e4120d231",
    "texts": "9e6924ad9ddd2c61dee20fa70febb06d",
    "trees": "6b2e50a56d348fbcfcad01849ed43512",
    "arrays": "1e0c7795f4a56249559b166f16d65203",
    "structured": "c28f98c60bd0bf7c696b016d46b1f923",
    "generator": "18c578a0fc6cea1a6166e034f5972a25",
    "dataset": "28acdf4c72991d89fb3ae8e3a019d2de",
    "files": "2aefc66745fce5acfbd39aeade0bc90c",
    "objects": "7f2c4a23eb1fcda71f28a1bd8cddce00",
    "lambda": "455c8ed2b5cfe00a028485f303d96d74",
    "partial": "a05d54a2c815cb9660fa10dc0db74c29",
    "objects as functions": "f575d3c73d5355b2d42da259251d4841",
    "functions": "92e666723ee680fd5be53a58215b6918",
    "merged": "98f74ee0c5129531eb48be153a5556a7",
    "random": "81cd9400c7afdfe053252cd3ef75d96e",
    "split": "cea4bfdb5e1bb69724f23a736a304afa",
}


def test_fingerprints_are_the_same_in_every_version() -> None:
    """If this fails, states that were saved before do not fit any more. That needs a new version of the envelope."""
    assert {name: of(pipeline).value for name, pipeline in described.pipelines().items()} == VALUES


@pytest.mark.parametrize("seed", ["0", "1", "12345"])
def test_fingerprints_are_the_same_in_another_process(seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.state.described"],
        env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == VALUES


def test_a_copy_of_a_folder_has_the_same_fingerprint(tmp_path: Path) -> None:
    found = []
    for folder, age in (("one", 1), ("two/deeper", 2)):
        place = tmp_path / folder
        for name in ("a/1.txt", "b/1.txt", "b/2.txt"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(name)
            os.utime(place / name, (age, age))
        (place / "all.csv").write_text("image,label\na/1.txt,1\nb/2.txt,0\n")
        found += [
            [
                of(each).value
                for each in (
                    af.files(f"{place}/**/*.txt"),
                    af.files([f"{place}/b/1.txt", f"{place}/a/1.txt"]),
                    af.files(f"{place}/b/1.txt"),
                    af.table(place / "all.csv", files="image", types={"label": int}),
                )
            ]
        ]
    assert found[0] == found[1]
    assert len(set(found[0])) == 4


def test_a_fingerprint_survives_pickling() -> None:
    for name in ("range", "partial", "functions", "random"):
        pipeline = described.pipelines()[name]
        assert of(pickle.loads(pickle.dumps(pipeline))).value == of(pipeline).value


# -- the parts


def test_the_parts_are_the_source_and_the_stages_as_they_were_written() -> None:
    parts = of(local_files("/a").shuffle(seed=3).prefetch(2).load(af.npy).batch(2)).parts
    assert [each.where for each in parts] == ["source", "stage 1", "stage 2", "stage 3"]
    assert [each.text for each in parts] == ["files('/a/*.npy')", "shuffle(seed=3)", "load(npy)", "batch(2)"]
    assert [each.holds for each in parts] == ["3 files", "", "", ""]
    assert all(len(digest) == 16 for each in parts for digest in each.digest.split("."))


def test_the_parts_of_inputs_are_told_apart() -> None:
    parts = of(merged(items.take(2), af.concat(items)).batch(2)).parts
    assert [(each.where, each.holds) for each in parts] == [
        ("source", ""),
        ("input 1, source", "10 items"),
        ("input 1, stage 1", ""),
        ("input 2, source", ""),
        ("input 2, input 1, source", "10 items"),
        ("stage 1", ""),
    ]


def test_texts_are_short_and_hold_no_address() -> None:
    (source, stage) = of(af.items(range(3)).map(Opaque())).parts
    assert stage.text == "map(<tests.state.test_fingerprint.Opaque object>)"
    assert len(of(af.items(["x" * 1000])).parts[0].text) == 200
    assert source.holds == "3 items"


class Opaque:
    def __call__(self, x: Any) -> Any:
        return x


def test_many_paths_are_shown_as_their_number(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n:02}" for n in range(20)]
    for path in paths:
        path.touch()
    assert str(af.files(paths)) == "files(<20 paths>)"
    assert af.files(paths) != af.files(paths[1:])


def test_no_secret_is_shown() -> None:
    shown = of(objects("b", anonymous=False, **CLIENTS)).parts + of(
        af.Pipeline(replace(labelled("s3://b/x").source, store=ObjectStore("s3://b", **CLIENTS)))
    ).parts  # fmt: skip
    assert "hunter2" not in str(shown)


# -- no field is forgotten

FIELDS = {
    "Arrays": "tree ~concurrency='auto'",
    "Batch": "size drop_remainder=False collate=None timeout=None padding=None",
    "Bucket": "boundaries size length_of=None drop_remainder=False collate=None padding=None",
    "Cache": "(nothing)",
    "CachedWork": "stages cache",
    "Concat": "pipelines",
    "Conversion": "(nothing)",
    "Enumerate": "start=0",
    "EpochNumbers": "dataset",
    "Fetch": "upstream reading name",
    "Files": "(see its `deciding`) patterns=None manifest=None root=None listing='eager' found",
    "Filter": "fn ~concurrency='auto' ordered=True on_error='raise' ~skip_limit=None",
    "FlatMap": "fn ~concurrency='auto' ordered=True on_error='raise' ~skip_limit=None",
    "ImageFolder": "(see its `deciding`) root classes=None store=None labelled names=()",
    "Interleave": "fn cycle=4 block=1 on_error='raise' ~skip_limit=None",
    "Items": "data ~concurrency=None on_error='raise' ~skip_limit=None",
    "Load": "decoder ~concurrency='auto' ordered=True on_error='raise' ~skip_limit=None ~retry='auto' ~timeout='auto' ~hedge='auto' ~on='thread'",
    "Map": "fn ~concurrency='auto' ordered=True rng=False seed=0 on_error='raise' ~skip_limit=None ~on='thread' ~retry=None ~timeout=None ~hedge=None stream=0",
    "Mix": "pipelines weights=None seed=0 stop='all'",
    "Numbers": "dataset count",
    "Pack": "size bins=64 value=0 too_long='raise'",
    "Pad": "value=0 to=None multiple_of=None lengths=False",
    "Prefetch": "(nothing)",
    "Read": "dataset reading",
    "ReadEpochs": "dataset order reading",
    "Rebatch": "size drop_remainder=False",
    "Repeat": "count=None",
    "Scan": "fn initial",
    "Segment": "nodes",
    "Shard": "number count uneven='pad'",
    "Share": "dealing",
    "Shuffle": "seed=0 buffer=None reshuffle=True stream=0",
    "Skip": "count",
    "Source": "",
    "Split": "shares part seed=0 key=None by='index' stream=0",
    "Table": "(see its `deciding`) path files=() root=None types columns",
    "Take": "count",
    "Unbatch": "",
    "Using": "(nothing)",
    "Window": "size stride=1 drop_remainder=True within=None",
    "Zip": "pipelines strict=True",
}


def nodes() -> set[type[Node]]:
    package = Path(af.__file__).parent
    for path in package.rglob("*.py"):
        if "(Node)" in (text := path.read_text()) or "(Source)" in text:
            importlib.import_module(".".join(("asyncfeed", *path.relative_to(package).with_suffix("").parts)))
    pending, every = [Node], set()
    while pending:
        below = pending.pop().__subclasses__()
        every |= {each for each in below if each.__module__.startswith("asyncfeed.")}
        pending += below
    return every


def test_each_field_of_each_stage_either_counts_or_tunes() -> None:
    """A new field counts unless `tuning` names it. Decide that, and add it here with its default.

    A field with its default does not count. So a default must not change: states that were saved before would fit
    pipelines with other data.
    """
    found = {}
    for kind in nodes():
        words = []
        for each in fields(kind):
            if each.compare:
                mark = "~" if each.name in kind.tuning else ""
                words.append(f"{mark}{each.name}" + ("" if each.default is MISSING else f"={each.default!r}"))
        own = "" if kind.deciding is Node.deciding else "(see its `deciding`) "
        found[kind.__name__] = "(nothing)" if kind.only_tunes else own + " ".join(words)
        assert {*kind.tuning} <= {each.name for each in fields(kind)}, kind
    assert found == FIELDS


# -- drawn pipelines

STAGES: list[tuple[str, Callable[[Any], Any]]] = [
    ("take", lambda p: p.take(3)),
    ("take", lambda p: p.take(4)),
    ("skip", lambda p: p.skip(1)),
    ("shard", lambda p: p.shard(0, 2)),
    ("shard", lambda p: p.shard(1, 2)),
    ("shuffle", lambda p: p.shuffle(buffer=3)),
    ("shuffle", lambda p: p.shuffle(buffer=3, seed=2)),
    ("map", lambda p: p.map(double)),
    ("map", lambda p: p.map(crop)),
    ("map", lambda p: p.map(crop, rng=True)),
    ("filter", lambda p: p.filter(bool)),
    ("enumerate", lambda p: p.enumerate()),
    ("repeat", lambda p: p.repeat(2)),
    ("batch", lambda p: p.batch(2)),
    ("unbatch", lambda p: p.unbatch()),
]
NOTHING: list[Callable[[Any], Any]] = [lambda p: p.prefetch(1), lambda p: p.using(other=nullcontext), lambda p: p]
chains = st.lists(st.integers(0, len(STAGES) - 1), max_size=5)


@settings(max_examples=150, deadline=None)
@given(chains, chains, st.data())
def test_pipelines_have_one_fingerprint_if_and_only_if_they_are_equal(
    one: list[int], other: list[int], data: Any
) -> None:
    built: list[Any] = [af.items(range(5)), af.items(range(5)), af.items(range(5))]
    for number in one:
        built[0] = STAGES[number][1](built[0])
        built[1] = data.draw(st.sampled_from(NOTHING))(STAGES[number][1](built[1]))
    for number in other:
        built[2] = STAGES[number][1](built[2])
    values = [of(each).value for each in built]
    assert values[0] == values[1]
    assert (values[0] == values[2]) == (one == other)
