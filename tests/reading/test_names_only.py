"""`files(..., listing="names")` finds the files that `listing="eager"` finds, in the same order, without sizes."""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.reading import directory, inside
from asyncfeed.reading.file import File
from asyncfeed.reading.listing import UNKNOWN, FileList, FileSpan, Listing, expand
from asyncfeed.reading.name_list import NameList, expand_names
from asyncfeed.reading.packed_names import Names

needs_call = pytest.mark.skipif(not directory.supported(), reason="no getdents64 on this system")


@pytest.fixture(params=["numpy", "numpy, one name at a time", "scandir"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How directories are read. A small buffer holds few records, so a directory takes many calls."""
    if request.param == "scandir":
        monkeypatch.setattr(inside, "supported", lambda: False)
    elif not directory.supported():
        pytest.skip("no getdents64 on this system")
    else:
        monkeypatch.setattr(inside, "MIN_BYTES", 0)
        if request.param != "numpy":
            monkeypatch.setattr(directory, "BUFFER_BYTES", 304)
    return str(request.param)


def outcome(listing: Any, patterns: Any, root: str | None = None) -> Any:
    """Return the paths that are found, or the type and the text of the error."""
    try:
        return [file.path for file in listing(patterns, root)]
    except (af.PipelineError, OSError) as error:
        return type(error), str(error)


def one_by_one(patterns: Any, root: str | None) -> list[File]:
    """List the files as a run does with `listing="streamed"`: each is looked at when its turn comes."""
    return list(Listing(patterns, root).files())


def same(patterns: Any, root: str | None = None) -> Any:
    """Check that all listings agree. Return what they found."""
    found = outcome(expand_names, patterns, root)
    assert found == outcome(one_by_one, patterns, root) == outcome(expand, patterns, root)
    return found


# Any folder

NAMES = st.sampled_from(
    ["a", "b", "ab", "a.x", ".h", "b.x", "-", "..x", "...", "a" * 255, "é.x", "\uffff.x", "𐀀.x", "日本.x", "A.x"]
) | st.integers(0, 10**6).map("img_{}.x".format)
ODD_NAMES = NAMES | st.sampled_from(
    ["\udcff.x", "a\udc80", "\udced\udca0\udc80", "a\nb.x", " ", "a*", "[a]", "{a,b}.x"]
)
KINDS = st.sampled_from(
    ["file"] * 8 + ["folder", "link", "link to folder", "dangling", "outside", "out folder", "circle", "fifo"]
)
PARTS = st.sampled_from(
    [
        "*",
        "**",
        "a*",
        "?",
        "[ab]*",
        "*.x",
        ".*",
        "a",
        "**b",
        "*a*",
        "*é.x",
        "img_*.x",
        "{a,b}*",
        "*.{x,y}",
        "\udcff*",
    ]
)


def make(top: Path, made: list[tuple[list[str], str]]) -> None:
    (top / "out").mkdir()
    (top / "out" / "secret.x").touch()
    (top / "in").mkdir()
    for parts, kind in made:
        where = top.joinpath("in", *parts)
        try:
            where.parent.mkdir(parents=True, exist_ok=True)
            if kind == "folder":
                where.mkdir()
            elif kind == "fifo":
                os.mkfifo(where)
            elif kind == "file":
                where.touch()
            elif kind == "circle":
                where.symlink_to(where)
            else:
                targets = {
                    "link": "in/a",
                    "link to folder": "in",
                    "dangling": "none",
                    "outside": "out/secret.x",
                    "out folder": "out",
                }
                where.symlink_to(top / targets[kind])
        except OSError:  # something else is there
            pass


@pytest.mark.parametrize("way", ["numpy", "numpy, one name at a time", "scandir"], indirect=True)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    made=st.lists(st.tuples(st.lists(ODD_NAMES, min_size=1, max_size=3), KINDS), max_size=14),
    patterns=st.lists(st.lists(PARTS, min_size=1, max_size=3).map("/".join), min_size=1, max_size=3),
    wide=st.booleans(),
)
@example([(["a.x"], "file"), (["\udcff.x"], "file"), (["\uffff.x"], "file")], ["*"], False)
@example([(["a", "b"], "file"), (["a.x"], "file"), (["a-"], "file")], ["**"], False)
def test_any_folder_gives_the_same_paths_in_the_same_order(
    way: str, made: list[tuple[list[str], str]], patterns: list[str], wide: bool
) -> None:
    """If several things are wrong, either listing may raise for another one of them."""
    top = Path(tempfile.mkdtemp())
    try:
        make(top, made)
        texts = [f"{top}/in/{each}" for each in patterns]
        root = str(top) if wide else None
        expected = outcome(one_by_one, texts, root)
        for listing in (expand_names, expand):
            found = outcome(listing, texts, root)
            if isinstance(expected, tuple) and len(patterns) > 1:
                assert isinstance(found, tuple)
            else:
                assert found == expected
        if isinstance(expected, list):
            assert list(expand(texts, root)) == one_by_one(texts, root)
    finally:
        shutil.rmtree(top)


@needs_call
@pytest.mark.parametrize("buffer_bytes", [1 << 16, 1 << 20])
@pytest.mark.parametrize("shape", ["one length", "many lengths", "unicode", "not text", "long", "equal starts"])
def test_a_large_folder_gives_the_same_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, buffer_bytes: int
) -> None:
    monkeypatch.setattr(directory, "BUFFER_BYTES", buffer_bytes)
    rng = np.random.default_rng(1)
    names = {
        "one length": [f"img_{number:07}.npy" for number in range(3000)],
        "many lengths": [f"{number**3}.npy" for number in range(3000)],
        "unicode": ["".join(map(chr, rng.choice([0x61, 0x3B1, 0xD7FF, 0xE000, 0x10000], 6))) for _ in range(3000)],
        "not text": [os.fsdecode(rng.integers(48, 256, 6, np.uint8).tobytes()) for _ in range(3000)],
        "long": [f"{'long' * 40}{number % 7}{'er' * 25}{number}.npy" for number in range(1000)],
        "equal starts": ["".join(map(chr, rng.integers(97, 99, 3 + number % 50))) for number in range(3000)],
    }[shape]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "m.npy").symlink_to("folder")
    (tmp_path / "n.npy").symlink_to(os.listdir(tmp_path)[0])  # noqa: PTH208
    monkeypatch.chdir(tmp_path)
    assert len(same("*")) >= 990
    assert len(same(f"{tmp_path}/**")) >= 990
    assert len(same(f"{tmp_path}/*")) >= 990
    same(f"{tmp_path}/*.npy")
    same(f"{tmp_path}/[a-m]*")
    same([f"{tmp_path}/*.npy", f"{tmp_path}/*9*"])


@pytest.mark.usefixtures("way")
def test_any_names_sort_as_python_sorts_them() -> None:
    @given(
        st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8") | st.just("\udcff"), min_size=1))
    )
    @example(["a" * 8, "a" * 9, "a" * 7 + "b", "a" * 7])
    @example(["", "a"])
    def check(texts: list[str]) -> None:
        names = Names.of(texts)
        assert names.texts() == texts
        assert names.arranged(names.order(), b"x/").texts() == [f"x/{each}" for each in sorted(texts)]
        assert names.unique().texts() == sorted(set(texts))

    check()


def test_what_a_pattern_does_not_match_is_not_looked_at(tmp_path: Path) -> None:
    """A link that leads to nothing is an error only if its name matches."""
    (tmp_path / "a.npy").touch()
    (tmp_path / "b.txt").symlink_to("none")
    assert same(f"{tmp_path}/*.npy") == [f"{tmp_path}/a.npy"]
    assert same(f"{tmp_path}/*")[0] is FileNotFoundError


# Systems without the call


@pytest.mark.parametrize(
    "answer",
    [
        OSError(38, "Function not implemented"),
        OSError(5, "Input/output error"),
        b"\0" * 48,
        b"\1" * 48,
        b"\0" * 16 + b"\x10\0" + b"\0" * 30,
        b"\0" * 16 + b"\x19\0" + b"\0" * 30,
        (b"\0" * 16 + b"\x28\0" + b"\0" * 22) * 2,
        (b"\0" * 16 + b"\x18\0" + b"a" * 6) * 2,
    ],
)
@needs_call
def test_a_system_that_answers_otherwise_is_asked_with_scandir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: OSError | bytes
) -> None:
    """As one that refuses the call, or has other records."""
    (tmp_path / "a.npy").touch()
    asked = []

    def call(_number: int, _fd: int, buffer: Any, _size: int) -> int:
        asked.append(1)
        if isinstance(answer, OSError):
            raise answer
        ctypes.memmove(buffer._as_parameter_, answer, len(answer))
        return len(answer)

    monkeypatch.setattr(directory, "call", call)
    monkeypatch.setattr(inside, "MIN_BYTES", 0)
    assert same(f"{tmp_path}/*") == [f"{tmp_path}/a.npy"]
    assert asked


@needs_call
def test_a_file_system_that_does_not_tell_what_entries_are_is_asked_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / f"{number}").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(inside, "MIN_BYTES", 0)
    parsed = directory._parsed
    monkeypatch.setattr(
        directory, "_parsed", lambda records: parsed(records)._replace(kinds=parsed(records).kinds * 0)
    )
    assert len(same(f"{tmp_path}/*")) == 20


# The list


def listed(*paths: str) -> NameList:
    return NameList(Names.of(paths))


@given(st.lists(st.text("ab/é\udcff", min_size=1), max_size=9), st.data())
def test_a_list_of_names_is_a_sequence_of_files(paths: list[str], data: st.DataObject) -> None:
    found, files = listed(*paths), [File(path) for path in paths]
    assert list(found) == files
    assert found.paths() == paths
    part = data.draw(st.slices(len(files)))
    assert list(found[part]) == files[part]
    assert isinstance(found[part], NameList)
    places = data.draw(st.lists(st.integers(0, len(files) - 1))) if files else []
    assert found.pick(places) == list(found.part(places)) == [files[at] for at in places]
    for same_list in (listed(*paths), pickle.loads(pickle.dumps(found)), found[:]):
        assert same_list == found
        assert same_list.digest() == found.digest()
        assert hash(same_list) == hash(found)
    span = pickle.loads(pickle.dumps(FileSpan(found, places)))
    assert list(span) == [files[at] for at in places]
    assert span.sizes() == [UNKNOWN] * len(places)
    if files:
        assert found != FileList(paths, [0] * len(paths), [0] * len(paths))
        assert found.digest() != FileList(paths, [0] * len(paths), [0] * len(paths)).digest()
        assert found.digest() == listed(*(f"/data/{path}" for path in paths)).digest()
        assert found.digest(range(1, len(files))) == found[1:].digest()
        with pytest.raises(IndexError):
            found[len(files)]
    assert repr(found) == f"NameList({len(paths)} files)"


def test_a_name_takes_little_memory(tmp_path: Path) -> None:
    """Less than 60 bytes for each file beside its name, also while it is listed."""
    count = 20_000
    for number in range(count):
        (tmp_path / f"{number:08}.npy").touch()
    expand_names(f"{tmp_path}/*.npy")
    tracemalloc.start()
    try:
        found = expand_names(f"{tmp_path}/*.npy")
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    name = len(found.path(0))
    assert held / count < name + 12
    assert (most - directory.BUFFER_BYTES * 4) / count < name + 60
