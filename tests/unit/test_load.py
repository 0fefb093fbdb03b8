"""`load`: what is in a file takes the place of the file, wherever in the item it stands."""

from __future__ import annotations

import asyncio
import functools
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncfeed.attempts.skip import skip_of
from asyncfeed.errors import Corrupt, PipelineError
from asyncfeed.formats.npy import Npy, npy
from asyncfeed.formats.npz import npz
from asyncfeed.formats.text import text
from asyncfeed.reading.file import File
from asyncfeed.reading.listing import expand
from asyncfeed.stages.load import Load
from asyncfeed.stages.loading import listed_size


def loaded(node: Load, item: Any) -> Any:
    """Do what the engine does with one item."""
    for step in node.steps():
        result = step.fn(item)
        item = asyncio.run(result) if step.kind == "async" else result
    return item


@pytest.fixture
def file(tmp_path: Path) -> File:
    np.save(tmp_path / "x.npy", np.arange(3, dtype="i4"))
    return expand(tmp_path / "x.npy")[0]


@pytest.fixture
def note(tmp_path: Path) -> File:
    (tmp_path / "a.txt").write_text("hello")
    return expand(tmp_path / "a.txt")[0]


@dataclass
class Pair:
    """A sample that is a dataclass."""

    x: Any
    label: str


async def upper(contents: bytes) -> str:
    return contents.decode().upper()


def test_a_file_becomes_what_is_in_it(file: File) -> None:
    assert loaded(Load(npy), file).tolist() == [0, 1, 2]


def test_every_file_of_a_tree_is_loaded_and_the_rest_stays(note: File) -> None:
    node = Load(text)
    assert loaded(node, (note, note)) == ("hello", "hello")
    assert loaded(node, (note, 3)) == ("hello", 3)
    assert loaded(node, {"x": [note, None], "y": "label"}) == {"x": ["hello", None], "y": "label"}
    assert loaded(node, Pair(note, "cat")) == Pair("hello", "cat")


def test_a_function_gets_the_bytes(note: File) -> None:
    assert loaded(Load(bytes.upper), note) == b"HELLO"
    assert loaded(Load(lambda contents: type(contents)), note) is bytes


def test_an_async_function_is_awaited_after_the_read(note: File) -> None:
    node = Load(upper, concurrency=3, ordered=False, on_error="skip", skip_limit=0.5)
    read, decode = node.steps()
    assert (read.kind, decode.kind) == ("thread", "async")
    for step in (read, decode):
        assert (step.concurrency, step.ordered) == (3, False)
    assert (read.skip, decode.skip) == (None, skip_of("skip", 0.5))  # one step counts all that fails
    assert read.cost is not None
    assert decode.cost is None
    assert loaded(node, note) == "HELLO"
    assert loaded(node, (note, 3)) == ("HELLO", 3)
    assert loaded(node, {"x": [note, note]}) == {"x": ["HELLO", "HELLO"]}
    assert loaded(Load(functools.partial(upper)), note) == "HELLO"


def test_what_was_read_for_an_async_function_is_still_a_file_and_charged_by_its_bytes(note: File) -> None:
    read, _ = Load(upper).steps()
    between = read.fn(note)
    assert isinstance(between, File)
    assert between.path == note.path
    assert between.nbytes == 5


def test_one_call_reads_and_decodes() -> None:
    (step,) = Load(npz, concurrency=4).steps()
    assert (step.kind, step.shape, step.placed, step.concurrency, step.ordered) == (
        "thread",
        "map",
        False,
        4,
        True,
    )
    assert step.cost is listed_size


def test_an_item_costs_what_its_files_hold() -> None:
    assert listed_size(File("a", 17)) == 17
    assert listed_size(File("a")) is None
    assert listed_size((File("a", 17), {"x": [File("b", 3)], "y": 9})) == 20
    assert listed_size("a path") == 0
    assert listed_size(None) == 0


@pytest.mark.parametrize("item", ["x.npy", 3, None, ("a", "b"), (), {}, {"x": [1]}, np.zeros(1000)])
def test_an_item_without_a_file_is_a_type_error_with_the_fix(item: Any) -> None:
    with pytest.raises(TypeError, match=r"load takes files.* not \w+ .*start with files\(\.\.\.\)") as caught:
        loaded(Load(npy), item)
    assert len(str(caught.value)) < 300


def test_errors_of_the_file_and_of_the_bytes_pass_through(note: File) -> None:
    with pytest.raises(Corrupt, match=r"a\.txt is not an \.npy file"):
        loaded(Load(npy), note)
    with pytest.raises(FileNotFoundError):
        loaded(Load(npy), File("none.npy"))
    with pytest.raises(ZeroDivisionError):
        loaded(Load(lambda _: 1 // 0), note)


def test_a_load_is_a_value_shows_itself_and_its_function_can_be_pickled() -> None:
    assert Load(npy) == Load(npy) != Load(text)
    assert str(Load(npy)) == "load(npy)"
    assert str(Load(npz(keys=("x",)), ordered=False)) == "load(npz(keys=('x',)), ordered=False)"
    fn = Load(npy).steps()[0].fn
    assert pickle.loads(pickle.dumps(fn)) == fn


def test_as_many_come_out_as_went_in_unless_some_may_be_skipped() -> None:
    assert Load(npy).length(7) == 7
    assert Load(npy, on_error="skip", skip_limit=1).length(7) is None


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ({"decoder": "npy"}, r"load: the decoder must be one of asyncfeed's, as in load\(npy\)"),
        ({"decoder": None}, "the decoder must be"),
        ({"decoder": Npy}, "the decoder must be"),
        ({"concurrency": 0}, 'load: concurrency must be "auto" or a whole number of at least 1, not 0'),
        ({"concurrency": True}, "concurrency must be"),
        ({"concurrency": "many"}, "concurrency must be"),
        ({"concurrency": 2.0}, "concurrency must be"),
        ({"on_error": "ignore"}, 'on_error must be "raise", "skip"'),
        ({"on_error": "skip"}, "needs a skip_limit: .* skip_limit=10, .* skip_limit=0.01"),
        ({"on_error": "skip", "skip_limit": 0}, "skip_limit must be"),
        ({"on_error": "skip", "skip_limit": 1.0}, "skip_limit must be"),
        ({"on_error": "skip", "skip_limit": True}, "skip_limit must be"),
        ({"skip_limit": 3}, 'skip_limit has no effect without on_error="skip"'),
    ],
)
def test_a_wrong_description_is_refused_with_the_fix(wrong: dict[str, Any], fix: str) -> None:
    with pytest.raises(PipelineError, match=fix):
        Load(**{"decoder": npy, **wrong})
