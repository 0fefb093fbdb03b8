"""`files(manifest=...)`: a text file says which files there are, and may name nothing else."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.reading import manifest as manifests
from asyncfeed.reading.objects import ObjectStore
from tests.servers.objects import ObjectServer, serving

pytest.importorskip("obstore")

NAMES = ["b.txt", "a.txt", "deep/c.txt", "a.txt"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    for name in NAMES:
        (tmp_path / "data" / name).write_text(name)
    return tmp_path / "data"


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving() as made:
        for name in NAMES:
            made.put("bucket", f"data/{name}", name.encode())
            made.put("other", f"data/{name}", f"other {name}".encode())
        yield made


def reach(server: ObjectServer) -> dict[str, Any]:
    return {"endpoint": server.url, "anonymous": True}


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def in_all_formats(names: list[str], sizes: list[int | None]) -> dict[str, str]:
    """Return manifests of the same files, by the ending of their names."""
    rows = list(zip(names, sizes, strict=True))
    return {
        "txt": "".join(f"{name}\n" for name in names),
        "list": "\r\n".join(["", *names, "", "  "]),
        "jsonl": "\n".join(json.dumps({"path": name, "size": size, "label": 3}) for name, size in rows),
        "ndjson": "\n\n".join(json.dumps(name) for name in names),
        "csv": "label,size,path\n"
        + "".join(f'3,{"" if size is None else size},"{name}"\n' for name, size in rows),
    }


FORMATS = sorted(in_all_formats([], []))


# Local manifests


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ending", FORMATS)
def test_the_files_come_in_the_order_of_the_lines(folder: Path, ending: str, packed: bool) -> None:
    text = "\ufeff" + in_all_formats(NAMES, [len(name) for name in NAMES])[ending]
    path = folder / f"all.{ending}{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    pipeline = af.files(manifest=path)
    assert list(pipeline.load(af.text)) == NAMES
    assert len(pipeline) == 4
    assert repr(pipeline) == f"files(manifest={str(path)!r})"
    assert list(af.files(manifest=str(path), listing="streamed").load(af.text)) == NAMES


def test_paths_are_relative_to_the_manifest_or_to_the_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    written(folder / "all.txt", "\n".join(NAMES))
    assert list(af.files(manifest="all.txt").load(af.text)) == NAMES
    elsewhere = written(folder.parent / "elsewhere.txt", "\n".join(NAMES))
    assert list(af.files(manifest=elsewhere, root=folder).load(af.text)) == NAMES
    absolute = written(folder.parent / "absolute.txt", f"{folder}/a.txt")
    assert list(af.files(manifest=absolute).load(af.text)) == ["a.txt"]


def test_a_name_with_a_wildcard_is_a_name(folder: Path) -> None:
    written(folder / "x[1]*.txt", "x")
    assert list(af.files(manifest=written(folder / "all.list", "x[1]*.txt")).load(af.text)) == ["x"]
    with pytest.raises(FileNotFoundError) as caught:
        af.files(manifest=written(folder / "all.list", "a.txt\n*.txt"))
    assert f"line 2 of {folder}/all.list" in str(caught.value.__notes__)


@pytest.mark.parametrize("name", ["../secret.txt", "link.txt", "deep/../../secret.txt"])
def test_a_path_must_not_lead_out_of_the_folder(folder: Path, name: str) -> None:
    written(folder.parent / "secret.txt", "secret")
    (folder / "link.txt").symlink_to("../secret.txt")
    path = written(folder / "all.list", f"a.txt\n{name}")
    with pytest.raises(af.PipelineError, match="out of") as caught:
        af.files(manifest=path)
    assert f"line 2 of {path}" in str(caught.value.__notes__)


def test_a_file_that_has_another_size_is_refused(folder: Path) -> None:
    path = written(folder / "all.jsonl", '{"path": "a.txt", "size": 5}\n{"path": "b.txt", "size": 6}')
    with pytest.raises(af.Corrupt, match=rf"b.txt has 5 bytes, but 6 are written in line 2 of {path}"):
        af.files(manifest=path)


@pytest.mark.parametrize(
    ("ending", "text", "expected"),
    [
        ("jsonl", '{"path": "a.txt"}\n{"path": ', "line 2 .*: not valid JSON"),
        ("jsonl", "[" * 60_000, "line 1 .*: not valid JSON"),
        ("jsonl", '"a.txt"\n\n3', "line 3 .*: a line is written as"),
        ("jsonl", '{"url": "a.txt"}', "line 1 .*: a line is written as"),
        ("jsonl", '{"path": 3}', "line 1 .*: its path must be a text"),
        ("jsonl", '{"path": ""}', "line 1 .*: its path must be a text that is not empty"),
        ("jsonl", '{"path": "a.txt", "size": -1}', "line 1 .*: its size must be a whole number"),
        ("jsonl", '{"path": "a.txt", "size": true}', "line 1 .*: its size must be a whole number"),
        ("jsonl", '{"path": "a.txt", "size": 9223372036854775808}', "line 1 .*: its size must be a whole number"),
        ("jsonl", '{"path": "a.txt", "etag": 7}', "line 1 .*: its etag must be a text"),
        ("csv", "name,size\na.txt,5\n", "line 1 .*: the header of a CSV manifest needs the column 'path'"),
        ("csv", "path,size\na.txt,5\nb.txt\n", "line 3 .*: it has 1 fields, the header has 2"),
        ("csv", "path,size\na.txt,five\n", "line 2 .*: its size must be"),
        ("csv", 'path,size\n"a.txt,5\n', "line 2 .*: not valid CSV"),
        ("txt", "a" * 70_000, "line 1 .*: it is longer than 65,536 bytes"),
        ("txt", "a.txt\n" + "b" * 3_000_000, "line 2 .*: it is longer than 65,536 bytes"),
        ("txt", "\n  \n", "names no file"),
        ("txt", "", "names no file"),
        ("txt", "a.txt\ns3://bucket/b.txt", "line 1 .* names a local path, and others name URLs"),
        ("txt", "file:///etc/passwd", "line 1 .*: object stores have one of the schemes"),
        ("txt", "a.txt\n\0", "line 2 .*: its path holds a NUL"),
        ("txt", "ftp://host/a", "line 1 .*: object stores have one of the schemes"),
        ("txt", "s3://bucket/a\ns3://user:CANARY@bucket/a", "line 2 .*: s3://... holds a user name"),
        ("txt", "https://example.org/a?token=CANARY", "line 1 .*: https://... holds .* a query string"),
        ("txt", "http://example.org/a", "line 1 .*: http:// is neither encrypted"),
        ("txt", "https://169.254.169.254/latest", "line 1 .*: .* is a private address"),
        ("txt", "s3://bucket/../a", "line 1 .*: the key .* holds '.', '..'"),
    ],
)
def test_a_line_that_is_wrong_is_named(folder: Path, ending: str, text: str, expected: str) -> None:
    with pytest.raises(af.PipelineError, match=expected) as caught:
        af.files(manifest=written(folder / f"all.{ending}", text))
    assert "CANARY" not in str(caught.value)


def test_a_manifest_that_is_no_text_or_is_cut_off_is_refused(folder: Path) -> None:
    path = folder / "all.txt"
    path.write_bytes(b"a.txt\n\xff\xfe")
    with pytest.raises(af.PipelineError, match="line 2 of .* it is not UTF-8"):
        af.files(manifest=path)
    packed = folder / "all.txt.gz"
    whole = gzip.compress(b"a.txt\n") + gzip.compress(b"b.txt\n")
    packed.write_bytes(whole)
    assert list(af.files(manifest=packed).load(af.text)) == ["a.txt", "b.txt"]
    for damaged, said in (
        (whole[:-5], "ends too early"),
        (b"a.txt", "not a valid gzip"),
    ):
        packed.write_bytes(damaged)
        with pytest.raises(af.Corrupt, match=said):
            af.files(manifest=packed)


def test_packed_zeros_do_not_fill_the_memory(folder: Path) -> None:
    path = folder / "all.txt.gz"
    path.write_bytes(gzip.compress(bytes(100_000_000)))
    tracemalloc.start()
    try:
        with pytest.raises(af.PipelineError, match="line 1 of .* longer than"):
            af.files(manifest=path)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@given(st.lists(st.binary(max_size=12), max_size=8), st.integers(1, 7))
def test_lines_do_not_depend_on_where_the_blocks_end(lines: list[bytes], size: int) -> None:
    text = b"\n".join(lines)
    blocks = (text[at : at + size] for at in range(0, len(text), size))
    expected = text.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert list(manifests.lines_of(blocks)) == [line.removesuffix(b"\r") for line in expected]


def test_what_does_not_go_together_is_refused(folder: Path) -> None:
    path = written(folder / "all.txt", "a.txt")
    for call, said in (
        (lambda: af.files("a.txt", manifest=path), "either patterns or a manifest"),
        (lambda: af.files(manifest=[path]), "the manifest is a path or a URL"),  # type: ignore[arg-type]
        (lambda: af.files(manifest=path, store="fsspec"), "takes an ObjectStore"),
        (lambda: af.files(manifest=path, region="x"), "no option 'region'"),
        (lambda: af.files(), "takes a path, a pattern"),
        (lambda: af.files(manifest="s3://user:CANARY@bucket/all.txt"), "holds a user name"),
    ):
        with pytest.raises(af.PipelineError, match=said) as caught:
            call()
        assert "CANARY" not in str(caught.value)


# URLs


def test_a_local_manifest_may_name_urls_of_any_store(server: ObjectServer, folder: Path) -> None:
    lines = ["s3://other/data/a.txt", "s3://bucket/data/b.txt", "s3://other/data/b.txt"]
    pipeline = af.files(manifest=written(folder / "all.txt", "\n".join(lines)), **reach(server))
    assert [file.path for file in pipeline] == lines
    assert not server.requests
    assert list(pipeline.load(af.text)) == ["other a.txt", "b.txt", "other b.txt"]


def test_sizes_and_etags_save_requests_and_are_checked(server: ObjectServer, folder: Path) -> None:
    etag = server.etag("bucket", "data/a.txt")
    line = {"path": "s3://bucket/data/a.txt", "size": 5, "etag": etag.strip('"')}
    pipeline = af.files(manifest=written(folder / "all.jsonl", json.dumps(line)), verify="etag", **reach(server))
    (file,) = pipeline
    assert (file.size, file.etag) == (5, etag)
    assert list(pipeline.load(af.text)) == ["a.txt"]
    assert dict(server.requests) == {"GET": 1}
    server.put("bucket", "data/a.txt", b"A.txt")
    with pytest.raises(af.Corrupt):
        list(pipeline.load(af.text))
    wrong = af.files(manifest=written(folder / "all.jsonl", json.dumps({**line, "size": 4})), **reach(server))
    with pytest.raises(af.Corrupt):
        list(wrong.load(af.text))


def test_a_root_that_is_a_url_holds_for_names_and_urls(server: ObjectServer, folder: Path) -> None:
    path = written(folder / "all.txt", "a.txt\ns3://bucket/data/deep/c.txt")
    assert list(af.files(manifest=path, root="s3://bucket/data", **reach(server)).load(af.text)) == [
        "a.txt",
        "deep/c.txt",
    ]
    with pytest.raises(af.PipelineError, match=r"line 2 .* is not below s3://bucket/data/x/"):
        af.files(manifest=path, root="s3://bucket/data/x", **reach(server))


# Manifests in a store


@pytest.mark.parametrize("listing", ["eager", "streamed"])
@pytest.mark.parametrize("ending", FORMATS)
def test_a_manifest_in_a_store_names_files_beside_it(server: ObjectServer, ending: str, listing: Any) -> None:
    text = in_all_formats(NAMES, [len(name) for name in NAMES])[ending]
    server.put("bucket", f"data/all.{ending}.gz", gzip.compress(text.encode()))
    pipeline = af.files(manifest=f"s3://bucket/data/all.{ending}.gz", listing=listing, **reach(server))
    assert list(pipeline.load(af.text)) == NAMES
    assert server.wait_closed()


def test_a_manifest_of_a_web_server_names_files_beside_it(server: ObjectServer) -> None:
    server.put("bucket", "data/all.txt", b"a.txt\ndeep/c.txt\nmissing%20one.txt")
    pipeline = af.files(manifest=f"{server.url}/bucket/data/all.txt", allow_http=True)
    assert [file.path for file in pipeline][1:] == [
        f"{server.url}/bucket/data/deep/c.txt",
        f"{server.url}/bucket/data/missing%20one.txt",
    ]
    assert list(pipeline.take(2).load(af.text)) == ["a.txt", "deep/c.txt"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("s3://other/data/a.txt", "s3://other/data/a.txt is not below s3://bucket/"),
        ("https://example.org/a.txt", "https://example.org/a.txt is not below s3://bucket/"),
        ("s3://bucket-2/a.txt", "is not below s3://bucket/"),
        ("s3://CANARY:CANARY@other/a.txt", "holds a user name"),
        ("file:///etc/passwd", "object stores have one of the schemes"),
        ("/etc/passwd", "has an empty part"),
        ("../a.txt", "holds '.', '..'"),
    ],
)
def test_a_manifest_in_a_store_names_nothing_elsewhere(server: ObjectServer, line: str, said: str) -> None:
    """Or whoever can write it could have anything read with the credentials of its reader."""
    server.put("bucket", "data/all.txt", f"a.txt\n{line}".encode())
    with pytest.raises(af.PipelineError, match=f"line 2 of s3://bucket/data/all.txt: .*{said}") as caught:
        af.files(manifest="s3://bucket/data/all.txt", **reach(server))
    assert "CANARY" not in str(caught.value)
    assert server.requests["GET"] + server.requests["HEAD"] <= 2


def test_a_manifest_may_name_the_store_that_root_allows(server: ObjectServer) -> None:
    server.put("bucket", "all.txt", b"data/a.txt\ns3://other/data/b.txt")
    pipeline = af.files(manifest="s3://bucket/all.txt", root="s3://other", **reach(server))
    assert list(pipeline.load(af.text)) == ["other a.txt", "other b.txt"]


def test_a_manifest_that_is_not_there_keeps_its_error(server: ObjectServer, folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        af.files(manifest=folder / "none.txt")
    with pytest.raises(FileNotFoundError, match="s3://bucket/none.txt"):
        af.files(manifest="s3://bucket/none.txt", **reach(server))
    streamed = af.files(manifest="s3://bucket/none.txt", listing="streamed", **reach(server))
    with pytest.raises(FileNotFoundError, match="s3://bucket/none.txt"):
        list(streamed)


def test_a_store_as_a_value_reads_the_manifest_and_its_files(server: ObjectServer) -> None:
    server.put("bucket", "data/all.txt", b"a.txt")
    store = ObjectStore("s3://bucket", **reach(server))
    assert list(af.files(manifest="s3://bucket/data/all.txt", store=store).load(af.text)) == ["a.txt"]
    with pytest.raises(af.PipelineError, match="s3://other is not s3://bucket"):
        af.files(manifest="s3://other/data/all.txt", store=store)


def test_on_a_loop_a_manifest_in_a_store_is_read_in_the_run(server: ObjectServer) -> None:
    server.put("bucket", "data/all.txt", b"a.txt")
    options = {"manifest": "s3://bucket/data/all.txt", **reach(server)}

    async def main() -> list[str]:
        with pytest.raises(af.PipelineError, match=r'listing="streamed".* await asyncio.to_thread'):
            af.files(**options)
        return [text async for text in af.files(listing="streamed", **options).load(af.text)]

    assert asyncio.run(main()) == ["a.txt"]


def test_no_repr_shows_an_option(folder: Path) -> None:
    options = {"options": {"aws_secret_access_key": "CANARY"}}
    for patterns in ({"manifest": written(folder / "all.txt", "s3://bucket/a")}, {"patterns": ["s3://bucket/*"]}):
        pipeline: Any = af.files(listing="streamed", **patterns, **options)  # type: ignore[arg-type]
        assert "CANARY" not in f"{pipeline!r} {pipeline.source!r} {pipeline.source.found!r}"
