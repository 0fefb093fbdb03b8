"""`expand`: which files do paths and patterns name, and which must they not. `expand_names` finds the same."""

from __future__ import annotations

import glob
import os
import pickle
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncfeed.errors import PipelineError
from asyncfeed.reading.file import File
from asyncfeed.reading.glob import alternatives, has_magic
from asyncfeed.reading.listing import FileList, expand
from asyncfeed.reading.name_list import expand_names

Tree = Callable[..., None]


@pytest.fixture(autouse=True, params=["eager", "names"])
def listing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with both functions."""
    if request.param == "names":
        monkeypatch.setattr(sys.modules[__name__], "expand", expand_names)
    return str(request.param)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.chdir(tmp_path)

    def make(*names: str) -> None:
        for name in names:
            where = Path(name)
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_bytes(b"x" * len(name))

    return make


def paths(files: FileList) -> list[str]:
    return [file.path for file in files]


def test_a_pattern_gives_its_files_sorted_with_size_and_time(tree: Tree, listing: str) -> None:
    tree("data/b.npy", "data/a.npy", "data/c.txt")
    files = expand("data/*.npy")
    assert paths(files) == ["data/a.npy", "data/b.npy"]
    status = Path("data/a.npy").stat()
    known = (status.st_size, status.st_mtime_ns) if listing == "eager" else ()
    assert files[0] == File("data/a.npy", *known)


def test_a_path_object_may_be_a_pattern(tree: Tree) -> None:
    tree("data/a.npy")
    assert paths(expand(Path("data") / "*.npy")) == ["data/a.npy"]


def test_a_pattern_without_a_directory_looks_in_the_current_one(tree: Tree) -> None:
    tree("a.npy", "b.txt")
    assert paths(expand("*.npy")) == ["a.npy"]


def test_an_absolute_pattern_gives_absolute_paths(tree: Tree, tmp_path: Path) -> None:
    tree("a.npy")
    assert paths(expand(tmp_path / "*.npy")) == [str(tmp_path / "a.npy")]


def test_wildcards_match_within_one_part_and_in_directories(tree: Tree) -> None:
    tree("d/x1/a.npy", "d/x2/b.npy", "d/y1/c.npy", "d/x1/deep/d.npy", "d/a.npy")
    assert paths(expand("d/x?/*.npy")) == ["d/x1/a.npy", "d/x2/b.npy"]
    assert paths(expand("d/[xy]1/[!d]*.npy")) == ["d/x1/a.npy", "d/y1/c.npy"]
    assert paths(expand("d/*/deep/d.npy")) == ["d/x1/deep/d.npy"]


def test_two_stars_match_any_number_of_directories(tree: Tree) -> None:
    tree("d/a.npy", "d/x/b.npy", "d/x/y/c.npy", "d/x/y/e.txt")
    assert paths(expand("d/**/*.npy")) == ["d/a.npy", "d/x/b.npy", "d/x/y/c.npy"]
    assert paths(expand("d/**")) == ["d/a.npy", "d/x/b.npy", "d/x/y/c.npy", "d/x/y/e.txt"]
    assert paths(expand("d/**/**/y/**/*.npy")) == ["d/x/y/c.npy"]


def test_a_leading_dot_is_matched_only_where_it_is_written(tree: Tree) -> None:
    tree("d/.hidden", "d/seen", "d/.git/config")
    assert paths(expand("d/*")) == ["d/seen"]
    assert paths(expand("d/**")) == ["d/seen"]
    assert paths(expand("d/.*")) == ["d/.hidden"]


def test_a_pattern_matches_files_and_never_directories_or_pipes(tree: Tree) -> None:
    tree("d/a", "d/sub/b")
    os.mkfifo("d/pipe")
    assert paths(expand("d/*")) == ["d/a"]


def test_the_files_of_overlapping_patterns_come_once_and_sorted(tree: Tree) -> None:
    tree("d/a.npy", "d/b.npy", "c/z.npy")
    assert paths(expand(["d/*.npy", "d/a*", "c/*"])) == ["c/z.npy", "d/a.npy", "d/b.npy"]


def test_paths_in_a_list_stay_in_order_as_often_as_they_stand_there(tree: Tree) -> None:
    tree("b", "a", "d/c")
    assert paths(expand(["b", "a", "b"])) == ["b", "a", "b"]
    assert paths(expand(["b", "d/*", "a"])) == ["b", "d/c", "a"]


def test_a_path_that_exists_as_written_is_no_pattern(tree: Tree) -> None:
    tree("img[1].npy", "img1.npy", "what?")
    assert paths(expand(["img[1].npy", "what?"])) == ["img[1].npy", "what?"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("{train,val}/*.npy", ["train/a.npy", "train/b.npy", "val/c.npy"]),
        ("{val,train}/*.npy", ["train/a.npy", "train/b.npy", "val/c.npy"]),
        ("{train,{val,test}}/*.{npy,txt}", ["test/e.txt", "train/a.npy", "train/b.npy", "val/c.npy"]),
        ("t{rain,est}/{a,e}.*", ["test/e.txt", "train/a.npy"]),
        ("train/{a,b}.npy", ["train/a.npy", "train/b.npy"]),
        ("train/{a.*,*.npy,a.npy}", ["train/a.npy", "train/b.npy"]),
        ("**/?.{npy,jpeg}", ["train/a.npy", "train/b.npy", "val/c.npy"]),
        ("train/a{.npy,}{,}", ["train/a", "train/a.npy"]),
        ("train/[{a,}].npy", ["train/a.npy"]),
        ("odd/{x}*", ["odd/{x}.npy", "odd/{x}y,z.npy"]),
        ("odd/{x}{.npy,y*}", ["odd/{x}.npy", "odd/{x}y,z.npy"]),
        ("odd/[{]x[},]*", ["odd/{x}.npy", "odd/{x}y,z.npy"]),
        ("odd/{{x},none*}.npy", ["odd/{x}.npy"]),
    ],
)
def test_braces_stand_for_alternatives(tree: Tree, pattern: str, expected: list[str]) -> None:
    """As in a shell, nested too, sorted and each file once; in brackets they are characters."""
    tree("train/a", "train/a.npy", "train/b.npy", "val/c.npy", "test/e.txt", "odd/{x}.npy", "odd/{x}y,z.npy")
    assert paths(expand(pattern)) == expected


def test_a_file_whose_name_holds_braces_is_found_by_it(tree: Tree) -> None:
    """Something that exists as it is written is no pattern."""
    tree("{a,b}.npy", "a.npy", "b.npy")
    assert paths(expand("{a,b}.npy")) == ["{a,b}.npy"]


def test_an_alternative_that_names_nothing_there_is_an_error(tree: Tree, tmp_path: Path) -> None:
    """A missing directory or file would be data left out; one of several endings may match nothing."""
    tree("train/a.npy")
    assert paths(expand("train/*.{npy,npz}")) == ["train/a.npy"]
    with pytest.raises(
        PipelineError, match=r"'val/\*.npy' matches no file; it looked in '.*/val', which is not a dir"
    ):
        expand("{train,val}/*.npy")
    with pytest.raises(FileNotFoundError, match=r"train/b.npy"):
        expand("train/{a,b}.npy")
    with pytest.raises(
        PipelineError, match=r"'tr\{ain,ain\}/\*.\{x,y\}' matches no file; it looked in '[^']*/train'$"
    ):
        expand("tr{ain,ain}/*.{x,y}")
    with pytest.raises(FileNotFoundError, match="is relative to"):
        expand("{a}.npy")


def test_a_path_with_many_braces_is_looked_at_quickly() -> None:
    """A path may come from a table: it is not expanded to see whether it is a pattern."""
    assert has_magic("{a,b}" * 60)
    assert not has_magic("{" * 500 + "a}")


@given(st.text("{},[]!a", max_size=12))
def test_any_text_with_braces_has_alternatives(text: str) -> None:
    """None has braces that could be expanded further, and a text without a comma is left as it is."""
    found = alternatives(text)
    assert found
    if "," not in text:
        assert found == [text]
    for each in found:
        assert "," not in text or len(each) <= len(text)


def test_names_that_are_not_utf8_are_found_and_kept(tree: Tree) -> None:
    tree(os.fsdecode(b"d/\xff.npy"))
    assert [os.fsencode(path) for path in paths(expand("d/*.npy"))] == [b"d/\xff.npy"]


NAMES = st.sampled_from(["a", "b", "ab", "a.x", ".h", "b.x"])
PARTS = st.sampled_from(["*", "**", "a*", "?", "[ab]", "*.x", ".*", "a", "**b"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    made=st.lists(st.lists(NAMES, min_size=1, max_size=4).map("/".join), min_size=1, max_size=8),
    pattern=st.lists(PARTS, min_size=1, max_size=4).map("/".join),
)
def test_a_pattern_matches_what_the_standard_glob_matches(
    tmp_path_factory: pytest.TempPathFactory, made: list[str], pattern: str
) -> None:
    top = tmp_path_factory.mktemp("tree")
    for name in made:
        where = top / name
        if any(parent.is_file() for parent in where.parents) or where.is_dir():
            continue
        where.parent.mkdir(parents=True, exist_ok=True)
        where.touch()
    matches = glob.glob(f"{top}/{pattern}", recursive=True)  # noqa: PTH207 - it is the reference here
    # For "a/**", where a is a file, it returns "a/", which is nothing.
    expected = sorted({path for path in matches if os.path.isfile(path)})  # noqa: PTH113
    if expected:
        assert [os.path.normpath(path) for path in paths(expand(f"{top}/{pattern}"))] == expected
    elif not has_exact(top, pattern):
        with pytest.raises(PipelineError, match="matches no file"):
            expand(f"{top}/{pattern}")


def has_exact(top: Path, pattern: str) -> bool:
    return not any(letter in pattern for letter in "*?[") or (top / pattern).exists()


# What cannot be meant


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(PipelineError, match="the list of paths is empty"):
        expand([])


def test_a_pattern_without_a_match_says_where_it_looked(tree: Tree, tmp_path: Path) -> None:
    tree("d/a.txt")
    with pytest.raises(PipelineError, match=rf"'d/\*\.npy' matches no file; it looked in '{tmp_path}/d'"):
        expand("d/*.npy")
    with pytest.raises(PipelineError, match="which is not a directory"):
        expand("none/*.npy")
    with pytest.raises(PipelineError, match="which is not a directory"):
        expand("d/a.txt/*")


def test_a_pattern_that_matches_directories_only_says_so(tree: Tree) -> None:
    tree("d/x/a", "d/y/b")
    with pytest.raises(PipelineError, match=r"holds matching directories only: add /\*"):
        expand("d/*")
    with pytest.raises(PipelineError, match=r"names directories; write 'd/\*/\*'"):
        expand("d/*/")


def test_a_path_that_is_not_there_keeps_its_error(tree: Tree, tmp_path: Path) -> None:
    tree("file")
    with pytest.raises(FileNotFoundError, match=rf"relative to '{tmp_path}'.*none\.npy") as caught:
        expand("none.npy")
    assert caught.value.filename == "none.npy"
    with pytest.raises(FileNotFoundError, match=rf"directory: '{tmp_path}/none\.npy'"):
        expand(tmp_path / "none.npy")
    with pytest.raises(NotADirectoryError, match="file/below"):
        expand("file/below")


def test_a_directory_is_refused_with_the_fix(tree: Tree) -> None:
    tree("d/a")
    with pytest.raises(IsADirectoryError, match=r"write it as '\.\.\./\*'.*'d'"):
        expand("d")


def test_something_that_is_no_regular_file_is_refused(tree: Tree) -> None:
    tree()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        with pytest.raises(OSError, match="s is not a regular file"):
            expand("s")


@pytest.mark.parametrize("text", ["~/none.npy", "~/none/*.npy"])
def test_a_home_directory_is_not_expanded_in_silence(tree: Tree, text: str) -> None:
    tree()
    with pytest.raises((FileNotFoundError, PipelineError), match="expanduser"):
        expand(text)


@pytest.mark.parametrize("text", ["", "a\0b", "d/*\0"])
def test_an_impossible_path_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match="cannot be a path"):
        expand(text)


@pytest.mark.parametrize("thing", [b"a.npy", 3, None])
def test_something_that_is_no_path_is_refused(thing: object) -> None:
    with pytest.raises(PipelineError, match="must be a str"):
        expand([thing])  # type: ignore[list-item]


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "https", "S3"])
def test_urls_are_no_local_paths_and_no_secret_is_shown(scheme: str) -> None:
    with pytest.raises(PipelineError, match="is not a local path") as caught:
        expand(f"{scheme}://user:secret@bucket/*.npy?token=secret")
    assert "secret" not in str(caught.value)


def test_a_file_url_is_refused_with_the_fix() -> None:
    with pytest.raises(PipelineError, match="write a plain path"):
        expand("file:///data/*.npy")


def test_a_directory_that_may_not_be_read_is_an_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree("d/a.npy", "d/closed/b.npy")
    scandir = os.scandir

    def refuse(where: str) -> object:
        if "closed" in where:
            raise PermissionError(13, "Permission denied", where)
        return scandir(where)

    monkeypatch.setattr(os, "scandir", refuse)  # the tests may run as root, who may read everything
    with pytest.raises(PermissionError, match="closed"):
        expand("d/**/*.npy")


def test_a_directory_that_goes_away_meanwhile_is_an_error(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree("d/a.npy", "d/sub/b.npy")
    scandir = os.scandir

    def late(where: str) -> object:
        if "sub" in where:
            Path("d/sub/b.npy").unlink()
            Path("d/sub").rmdir()
        return scandir(where)

    monkeypatch.setattr(os, "scandir", late)
    with pytest.raises(FileNotFoundError, match="d/sub"):
        expand("d/**/*.npy")


# Nothing outside the root


@pytest.fixture
def outside(tree: Tree) -> None:
    tree("in/a.npy", "out/secret.npy")


@pytest.mark.usefixtures("outside")
def test_a_link_to_a_file_outside_is_refused_and_named() -> None:
    Path("in/link.npy").symlink_to("../out/secret.npy")
    with pytest.raises(PipelineError, match=r"'in/link\.npy' leads out of .*pass root="):
        expand("in/*.npy")


@pytest.mark.usefixtures("outside")
def test_a_link_to_a_directory_outside_is_refused_and_named() -> None:
    Path("in/link").symlink_to("../out")
    with pytest.raises(PipelineError, match=r"'in/link/secret\.npy' leads through 'in/link' out of"):
        expand("in/*/*.npy")


@pytest.mark.usefixtures("outside")
def test_a_link_through_another_link_is_refused() -> None:
    Path("in/sub").mkdir()
    Path("in/sub/link").symlink_to("../group")
    Path("in/group").symlink_to("../out")
    with pytest.raises(PipelineError, match="leads through"):
        expand("in/*/link/*.npy")


@pytest.mark.usefixtures("outside")
def test_dots_after_a_wildcard_are_refused() -> None:
    Path("in/sub").mkdir()
    with pytest.raises(PipelineError, match=r"goes up with \.\. after a wildcard"):
        expand("in/*/../../out/*.npy")


@pytest.mark.usefixtures("outside")
def test_a_root_that_holds_both_lets_the_link_through() -> None:
    Path("in/link.npy").symlink_to("../out/secret.npy")
    Path("in/sub").symlink_to("../out")
    assert paths(expand("in/*.npy", root=".")) == ["in/a.npy", "in/link.npy"]
    assert paths(expand("in/*/*.npy", root=".")) == ["in/sub/secret.npy"]


@pytest.mark.usefixtures("outside")
def test_a_link_within_the_root_is_followed() -> None:
    Path("in/b.npy").symlink_to("a.npy")
    assert paths(expand("in/*.npy")) == ["in/a.npy", "in/b.npy"]


@pytest.mark.usefixtures("outside")
def test_a_link_out_and_back_in_is_followed() -> None:
    Path("in/sub").mkdir()
    Path("out/back").symlink_to("../in")
    Path("in/sub/away").symlink_to("../../out")
    assert paths(expand("in/sub/*/back/a.npy", root="in")) == ["in/sub/away/back/a.npy"]


@pytest.mark.usefixtures("outside")
def test_the_directory_of_a_pattern_may_itself_be_a_link() -> None:
    Path("alias").symlink_to("out")
    assert paths(expand("alias/*.npy")) == ["alias/secret.npy"]
    with pytest.raises(PipelineError, match="out of"):
        expand("alias/*.npy", root="in")


@pytest.mark.usefixtures("outside")
def test_a_root_holds_for_paths_too() -> None:
    Path("in/link.npy").symlink_to("../out/secret.npy")
    assert paths(expand("in/link.npy")) == ["in/link.npy"]  # without a root, naming a file is asking for it
    assert paths(expand(["in/a.npy", "in/a.npy"], root="in")) == ["in/a.npy", "in/a.npy"]
    for path in ("in/link.npy", "in/../out/secret.npy", "out/secret.npy"):
        with pytest.raises(PipelineError, match="out of"):
            expand(path, root="in")


@pytest.mark.usefixtures("outside")
def test_a_neighbour_whose_name_starts_alike_is_outside(tree: Tree) -> None:
    tree("inner/x.npy")
    with pytest.raises(PipelineError, match="out of"):
        expand("inner/x.npy", root="in")


@pytest.mark.usefixtures("outside")
def test_two_stars_do_not_go_through_links_and_so_never_in_circles() -> None:
    Path("in/circle").symlink_to("..")
    Path("in/link").symlink_to("../out")
    assert paths(expand("in/**/*.npy")) == ["in/a.npy"]


@pytest.mark.usefixtures("outside")
def test_a_link_to_nothing_is_an_error() -> None:
    Path("in/link.npy").symlink_to("gone")
    with pytest.raises(FileNotFoundError, match=r"link\.npy"):
        expand("in/*.npy")


# The list


def test_a_list_of_files_is_a_sequence() -> None:
    files = FileList(["a", "b", "c"], [1, 2, 3], [4, 5, 6])
    assert len(files) == 3
    assert files[-1] == File("c", 3, 6)
    assert files[1:] == FileList(["b", "c"], [2, 3], [5, 6])
    assert files.pick([2, 0, 2]) == [File("c", 3, 6), File("a", 1, 4), File("c", 3, 6)]
    assert list(files) == files.pick(range(3))
    assert files.nbytes == 6
    assert repr(files) == "FileList(3 files, 6 bytes)"
    with pytest.raises(IndexError):
        files[3]


def test_lists_of_files_compare_by_content_and_can_be_pickled() -> None:
    files = FileList(["a", "b"], [1, 2], [4, 5])
    assert pickle.loads(pickle.dumps(files)) == files
    assert hash(FileList(["a", "b"], [1, 2], [4, 5])) == hash(files)
    assert files != FileList(["a", "b"], [1, 3], [4, 5])
    assert files != ["a", "b"]
    with pytest.raises(ValueError, match="one size and one time"):
        FileList(["a"], [], [])
