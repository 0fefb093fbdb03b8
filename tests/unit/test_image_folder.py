"""`image_folder`: images with the number of their class."""

from __future__ import annotations

import os
import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from tests.servers.objects import serving

NAMES = ["dogs/b.jpg", "dogs/a.PNG", "cats/1.jpeg", "cats/more/2.jpg", "a-b/x.webp", "cats/notes.txt", "README"]
IMAGES = [("a-b/x.webp", 0), ("cats/1.jpeg", 1), ("cats/more/2.jpg", 1), ("dogs/a.PNG", 2), ("dogs/b.jpg", 2)]


def write(folder: Path, names: list[str] = NAMES) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def shown(pipeline: Any, root: Any) -> list[tuple[str, int]]:
    return [(file.path.removeprefix(f"{os.fspath(root).rstrip('/')}/"), label) for file, label in pipeline]


@pytest.mark.parametrize("end", ["", "/"])
def test_the_label_is_the_number_of_the_folder(tmp_path: Path, end: str) -> None:
    write(tmp_path)
    images = af.image_folder(f"{tmp_path}{end}")
    assert shown(images, tmp_path) == IMAGES
    assert images.class_names == ("a-b", "cats", "dogs")
    assert len(images) == 5
    assert shown(af.image_folder(tmp_path), tmp_path) == IMAGES


@pytest.mark.parametrize("name", ["data[1]", "a{b,c}", "what?", "**"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    write(tmp_path / "data1" / "other", ["x/1.jpg"])
    assert shown(af.image_folder(tmp_path / name), tmp_path / name) == IMAGES


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path))
    for root in (".", "./", "../" + tmp_path.name):
        assert shown(af.image_folder(root), root) == IMAGES


def test_a_class_folder_may_be_a_link(tmp_path: Path) -> None:
    write(tmp_path, ["cats/1.jpg"])
    (tmp_path / "felines").symlink_to(tmp_path / "cats")
    assert af.image_folder(tmp_path).class_names == ("cats", "felines")


def test_images_are_reached_by_number(tmp_path: Path) -> None:
    """So they can be split and shuffled exactly, and the names of the classes stay."""
    images = af.image_folder(write(tmp_path))
    train, test = images.split(0.6, 0.4, seed=1)
    assert sorted(shown(train, tmp_path) + shown(test, tmp_path)) == IMAGES
    assert (len(train), len(test)) == (3, 2)
    shuffled = train.shuffle(seed=2)
    assert sorted(shown(shuffled, tmp_path)) == sorted(shown(train, tmp_path))
    assert shuffled.take(2).enumerate().class_names == ("a-b", "cats", "dogs")
    by_folder = images.split(0.5, 0.5, key=lambda pair: pair[0].path)
    assert sorted(shown(by_folder[0], tmp_path) + shown(by_folder[1], tmp_path)) == IMAGES


def test_images_are_loaded_beside_their_labels(tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image")
    for number, name in enumerate(("cats/1.png", "dogs/1.png", "dogs/2.png")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        out = BytesIO()
        pil.fromarray(np.full((8, 8, 3), number * 50, np.uint8)).save(out, "PNG")
        (tmp_path / name).write_bytes(out.getvalue())
    ((images, labels),) = af.image_folder(tmp_path).load(af.image(size=4)).batch(3)
    assert (images.shape, images[:, 0, 0, 0].tolist()) == ((3, 4, 4, 3), [0, 50, 100])
    assert (labels.dtype, labels.tolist()) == (np.int64, [0, 1, 1])


def test_images_of_a_store(tmp_path: Path) -> None:
    with serving() as server:
        for name in NAMES:
            server.put("bucket", f"train/{name}", name.encode())
        server.put("bucket", "val/x/1.jpg", b"")
        images = af.image_folder("s3://bucket/train", endpoint=server.url, anonymous=True)
        assert shown(images, "s3://bucket/train") == IMAGES
        assert images.class_names == ("a-b", "cats", "dogs")
        assert [(name, label) for name, label in images.load(bytes.decode)] == IMAGES
        with pytest.raises(af.PipelineError, match="there is no file below 's3://bucket/nothing'"):
            af.image_folder("s3://bucket/nothing", endpoint=server.url, anonymous=True)


def test_the_source_is_a_value(tmp_path: Path) -> None:
    write(tmp_path)
    one, another = af.image_folder(tmp_path), af.image_folder(tmp_path)
    assert one == another
    assert repr(one.batch(2, collate=list)) == f"image_folder({tmp_path!r}).batch(2, collate=list)"
    assert shown(pickle.loads(pickle.dumps(one)), tmp_path) == IMAGES
    write(tmp_path, ["dogs/c.jpg"])
    assert af.image_folder(tmp_path) != one


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(af.PipelineError, match="there is no file below"):
        af.image_folder(tmp_path)
    write(tmp_path, ["cats/notes.txt", "cats/1.npy"])
    with pytest.raises(af.PipelineError, match=r"none of the 2 files below .* has the name of an image \(\.avif"):
        af.image_folder(tmp_path)


def test_an_image_without_a_class_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [*NAMES, "beside.jpg"])
    with pytest.raises(af.PipelineError, match=r"beside\.jpg' lies beside the class folders: move it"):
        af.image_folder(tmp_path)


def test_a_folder_without_images_is_no_class(tmp_path: Path) -> None:
    """Two folders have the same labels if the second is told the classes of the first."""
    train = af.image_folder(write(tmp_path / "train", ["ants/1.jpg", "cats/1.jpg", "dogs/1.jpg"]))
    write(tmp_path / "val", ["ants/notes.txt", "cats/2.jpg", "dogs/2.jpg"])
    (tmp_path / "val" / "bees").mkdir()
    val = af.image_folder(tmp_path / "val")
    assert val.class_names == ("cats", "dogs")
    val = af.image_folder(tmp_path / "val", classes=train.class_names)
    assert val.class_names == ("ants", "cats", "dogs")
    assert shown(val, tmp_path / "val") == [("cats/2.jpg", 1), ("dogs/2.jpg", 2)]
    assert repr(val) == f"image_folder({tmp_path / 'val'!r}, classes=('ants', 'cats', 'dogs'))"
    assert shown(af.image_folder(tmp_path / "val", classes=["dogs", "cats"]), tmp_path / "val") == [
        ("cats/2.jpg", 1),
        ("dogs/2.jpg", 0),
    ]


def test_classes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(af.PipelineError, match=r"classes that are not in classes=: \['a-b', 'dogs'\]"):
        af.image_folder(tmp_path, classes=["cats"])
    wrong: list[Any] = ["cats", [], ["cats", "cats"], [1, 2]]
    for classes in wrong:
        with pytest.raises(af.PipelineError, match="classes must be different names"):
            af.image_folder(tmp_path, classes=classes)


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing"):
        af.image_folder(tmp_path / "nothing")
    with pytest.raises(NotADirectoryError, match="README"):
        af.image_folder(tmp_path / "README")
    with pytest.raises(af.PipelineError, match="one folder, not"):
        af.image_folder([tmp_path])  # type: ignore[arg-type]
    with pytest.raises(af.PipelineError, match="no option 'listing'|these options are for URLs"):
        af.image_folder(tmp_path, endpoint="x")


def test_images_must_be_loaded_before_a_batch(tmp_path: Path) -> None:
    with pytest.raises(af.PipelineError, match="the files are not read"):
        af.image_folder(write(tmp_path)).batch(2)


def test_other_sources_have_no_classes() -> None:
    assert not hasattr(af.items([1]), "class_names")
    with pytest.raises(AttributeError, match=r"items\(\.\.\.\) has no class_names: image_folder"):
        _ = af.items([1]).batch(2).class_names
