"""Tables: rows with files and numbers, and text that only looks like a number."""

from __future__ import annotations

import csv
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.reading.objects import ObjectStore
from asyncfeed.tables import infer


def write(folder: Path, text: str) -> Path:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_table_reads_rows_with_files_and_numbers(tmp_path: Path) -> None:
    """Whole numbers become ints, numbers floats, and the named columns files beside the table."""
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.full(2, ord(name)))
    path = write(tmp_path, "image,label,weight,name\na.npy,1,0.5,x\nb.npy,2,1,y\n")
    rows = af.table(path, files="image")
    assert len(rows) == 2
    first = next(iter(rows))
    assert (first["label"], first["weight"], first["name"]) == (1, 0.5, "x")
    assert isinstance(first["image"], af.File)
    assert [row["image"][0] for row in rows.load(af.npy)] == [97, 98]
    assert repr(rows).startswith("table(")
    (batch,) = rows.load(af.npy).batch(2)
    assert batch["label"].tolist() == [1, 2]
    assert batch["image"].tolist() == [[97, 97], [98, 98]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "header"),
        ("a,b\n", "at least one row"),
        ("a,b\n1\n", "line 2 of .* has 1 fields"),
        ("a,b\n1,2\n", "no column 'image'; it has a, b"),
    ],
)
def test_a_table_that_is_wrong_says_how(tmp_path: Path, text: str, message: str) -> None:
    """At the line that describes it."""
    with pytest.raises(af.PipelineError, match=message):
        af.table(write(tmp_path, text), files="image")


def test_a_table_does_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    """Its paths are data, and data is not trusted."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.npy").write_bytes(b"x")
    with pytest.raises(af.PipelineError):
        af.table(write(inside, "image\n../secret.npy\n"), files="image")
    with pytest.raises(FileNotFoundError):
        af.table(write(inside, "image\nmissing.npy\n"), files="image")


@pytest.mark.parametrize(
    "values",
    [
        ["01234", "56789"], ["1_000", "2"], [" 1", "2"], ["1 ", "2"], ["+5", "6"], ["1.10", "2.20"], ["1e5", "2"],
        ["1E-07", "2"], ["nan", "1"], ["inf", "0.5"], ["9223372036854775808"], ["1" * 5000], ["0x10"], ["", "1"],
        [".5", "1.5"], ["1.", "2"], ["1", "1.0"], ["9007199254740993.0"], ["0.1000000000000000055"], ["True"],
        ["\uff11"], ["1e400"], ["00", "0"], ["--1"], ["1,5"],
    ],
)  # fmt: skip
def test_text_that_a_number_would_change_stays_text(values: list[str]) -> None:
    """The whole column, the other values too."""
    assert infer(values) == values
    assert {type(each) for each in infer(values)} == {str}


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (["0", "-1", "9223372036854775807"], [0, -1, 2**63 - 1]),
        (["0.5", "-1.0", "1e-07", "1e+16"], [0.5, -1.0, 1e-07, 1e16]),
        (["0.5", "-1", "0"], [0.5, -1.0, 0.0]),
    ],
)
def test_columns_of_plain_numbers_become_numbers(values: list[str], numbers: list[Any]) -> None:
    """All ints or all floats."""
    found = infer(values)
    assert found == numbers
    assert list(map(type, found)) == list(map(type, numbers))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_ints_that_were_written_are_read(numbers: list[int]) -> None:
    """Whatever they are."""
    assert infer(list(map(str, numbers))) == numbers


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_that_were_written_are_read(numbers: list[float]) -> None:
    """Whatever they are."""
    assert list(map(repr, infer(list(map(repr, numbers))))) == list(map(repr, numbers))


@given(
    st.lists(st.text("0123456789.-+e_ ", max_size=6) | st.floats().map(str) | st.integers().map(str), min_size=1)
)
def test_what_was_inferred_can_be_written_back(values: list[str]) -> None:
    """The text of every row is to be had from the numbers and one rule for the column."""
    found = infer(values)
    written = [list(map(str, found)), [str(each).removesuffix(".0") for each in found]]
    assert values in written


def test_types_that_are_asked_for_are_applied(tmp_path: Path) -> None:
    """Python's, numpy's, or any function of the text; bool by what is written."""
    path = write(tmp_path, "a,b,c,d,e,f\n01,1,true,1.10,x|y,7\n02,2,False,2.20,z,8\n")
    kinds = {"a": int, "b": str, "c": bool, "d": np.float32, "e": lambda text: text.split("|")}
    rows = af.table(path, types=kinds)
    assert list(rows) == [
        {"a": 1, "b": "1", "c": True, "d": np.float32(1.1), "e": ["x", "y"], "f": 7},
        {"a": 2, "b": "2", "c": False, "d": np.float32(2.2), "e": ["z"], "f": 8},
    ]
    assert "types={'a': int, 'b': str, 'c': bool, 'd': float32, 'e': ...}" in repr(rows)
    assert rows == af.table(path, types=kinds) != af.table(path)
    plain = af.table(path, types={"a": int})
    assert pickle.loads(pickle.dumps(plain)) == plain


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "a,b\n1,x\n\n2,y\n",
            {"types": {"b": int}},
            r"line 2 of .*table.csv, column 'b': int refuses 'x' \(ValueError",
        ),
        ('a,b\n"1\n2",3\n\n1,y\n', {"types": {"b": int}}, r"line 5 of .*, column 'b': int refuses 'y'"),
        (
            "a\nyes\n",
            {"types": {"a": bool}},
            r"column 'a': bool refuses 'yes' .*a bool is written as true, false, 1 or 0",
        ),
        ("a\n1\n", {"types": {"b": int}}, "has no column 'b'; it has a"),
        ("a\n1\n", {"types": {"a": "int"}}, "the type of 'a' must be int, float or a function, not 'int'"),
        ("a\n1\n", {"types": {"a": int}, "files": "a"}, "column 'a' is in `files` and in `types`"),
        ("a,b,a\n1,2,3\n", {}, "has two columns 'a'"),
        ('a\n"x\n', {}, "line 2 of .* is not valid CSV"),
        ('a\n1\n"x"y\n', {}, "line 3 of .* is not valid CSV"),
        ("a\n\n\n", {}, "at least one row"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_column(
    tmp_path: Path, text: str, options: dict[str, Any], message: str
) -> None:
    """Lines as an editor counts them, with the blank ones and those within a value."""
    with pytest.raises(af.PipelineError, match=message):
        af.table(write(tmp_path, text), **options)


def test_a_table_of_another_encoding_is_refused(tmp_path: Path) -> None:
    """With what to do."""
    path = tmp_path / "table.csv"
    path.write_bytes("a\n\u00fc\n".encode("latin-1"))
    with pytest.raises(af.PipelineError, match="table.csv is not UTF-8"):
        af.table(path)
    path.write_bytes("a\n\u00fc\n".encode("utf-8-sig"))
    assert list(af.table(path)) == [{"a": "\u00fc"}]


@pytest.mark.parametrize("name", ["missing.npy", "", "img[1].npy", "../out.npy", "{img1,img2}.npy", "*.npy"])
def test_a_file_that_is_not_there_is_named_by_line_and_column(tmp_path: Path, name: str) -> None:
    """A path is never a pattern: it would match another file, or several."""
    (tmp_path / "img1.npy").write_bytes(b"")
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as out:
        csv.writer(out).writerows([["image", "label"], ["img1.npy", 1], [name, 2]])
    with pytest.raises((OSError, af.PipelineError)) as caught:
        af.table(path, files="image")
    assert f"line 3 of {path}, column 'image'" in str(caught.value.__notes__)


@given(
    st.lists(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")), min_size=2, max_size=2
        ),
        min_size=1,
    )
)
def test_values_are_read_as_they_were_written(rows: list[list[str]]) -> None:
    """Quotes, commas, line ends, blanks: by a reader that is not ours."""
    import tempfile

    written = io.StringIO(newline="")
    csv.writer(written).writerows([["a", "b"], *rows])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(written.getvalue().encode())
        found = list(af.table(path, types={"a": str, "b": str}))
    assert [[row["a"], row["b"]] for row in found] == rows


# URLs


def test_a_column_may_hold_urls(tmp_path: Path) -> None:
    path = write(tmp_path, "image,label\ns3://bucket/a.npy,1\ns3://other/b.npy,2\n")
    rows = list(af.table(path, files="image", anonymous=True))
    assert [(row["image"].path, row["image"].size, row["label"]) for row in rows] == [
        ("s3://bucket/a.npy", None, 1),
        ("s3://other/b.npy", None, 2),
    ]
    assert rows[0]["image"].store == ObjectStore("s3://bucket", anonymous=True)


def test_a_column_may_be_relative_to_a_url(tmp_path: Path) -> None:
    path = write(tmp_path, "image\na b.npy\ndeep/c.npy\n")
    rows = af.table(path, files="image", root="s3://bucket/train")
    assert [row["image"].path for row in rows] == ["s3://bucket/train/a b.npy", "s3://bucket/train/deep/c.npy"]
    assert repr(rows) == f"table({str(path)!r}, files=('image',), root='s3://bucket/train')"


@pytest.mark.parametrize(
    ("cell", "options", "said"),
    [
        ("s3://user:CANARY@bucket/a", {}, "holds a user name"),
        ("ftp://host/a", {}, "one of the schemes"),
        ("../a", {"root": "s3://bucket/train"}, r"holds '\.', '\.\.'"),
        ("s3://other/a", {"root": "s3://bucket/train"}, "is not below s3://bucket/train/"),
        ("s3://other/a", {"store": ObjectStore("s3://bucket")}, "s3://other is not s3://bucket"),
    ],
)
def test_a_url_that_is_not_allowed_is_an_error_that_names_its_line(
    tmp_path: Path, cell: str, options: dict[str, Any], said: str
) -> None:
    path = write(tmp_path, f"image\ns3://bucket/train/a\n{cell}\n")
    with pytest.raises(af.PipelineError, match=f"line 3 of .*, column 'image': .*{said}") as caught:
        af.table(path, files="image", **options)
    assert "CANARY" not in str(caught.value)


def test_an_option_that_no_store_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(af.PipelineError, match="table: no option 'file'"):
        af.table(write(tmp_path, "image\na\n"), file="image")
