"""What no array of numpy is and reaches a batch: tensors become arrays, all else is an error that helps."""

from __future__ import annotations

import builtins
import datetime as dt
import pathlib
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.stacking.collate import collate
from asyncfeed.stages.collating import Collate
from asyncfeed.stages.pad import Pad
from asyncfeed.stages.steps import Work
from asyncfeed.stages.unbatch import few, split


def name(member: int) -> str:
    """Name samples as a source of files would."""
    return f"s{member}.npy"


class Tensor:
    """What a framework's tensor looks like to numpy."""

    def __init__(self, values: Any, dtype: Any = np.float32) -> None:
        self._array = np.array(values, dtype)
        self.shape = self._array.shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array if dtype is None else self._array.astype(dtype)


class Capsule:
    """A tensor that has nothing but dlpack."""

    def __init__(self, values: Any, dtype: Any = np.float32) -> None:
        self._array = np.array(values, dtype)
        self.shape = self._array.shape

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class Interface:
    """An image as PIL makes it: only the older interface, as a property."""

    def __init__(self, values: Any, dtype: Any = np.float32) -> None:
        self._array = np.array(values, dtype)
        self.shape = self._array.shape

    @property
    def __array_interface__(self) -> Any:
        return self._array.__array_interface__


class Graph:
    """A tensor that has no values yet."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise NotImplementedError("no values in a graph")


KINDS = [Tensor, Capsule, Interface]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.bool_, np.complex64])
def test_tensors_are_stacked_as_arrays_of_their_dtype(kind: Any, dtype: Any) -> None:
    """Bare, in a tree, and without axes."""
    made = [kind([0, 1], dtype), kind([1, 0], dtype)]
    for out in (collate(made, name), collate([{"x": each, "y": 1} for each in made], name)["x"]):
        assert out.dtype == dtype
        assert out.tolist() == [[0, 1], [1, 0]]
        assert type(out) is np.ndarray
    scalars = collate([kind(1, dtype), kind(0, dtype)], name)
    assert (scalars.dtype, scalars.tolist()) == (dtype, [1, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_and_arrays_of_one_dtype_make_one_batch(kind: Any) -> None:
    """It does not matter where a sample comes from; an unequal dtype does."""
    assert collate([kind([1]), np.ones(1, "f4")], name).tolist() == [[1], [1]]
    with pytest.raises(ValueError, match=r"s0.npy has dtype float32, s1.npy has dtype float64"):
        collate([kind([1]), np.ones(1)], name)
    with pytest.raises(ValueError, match=r"s0.npy has \(1,\), s1.npy has \(2,\); add .pad"):
        collate([kind([1]), kind([1, 2])], name)


@pytest.mark.parametrize("kind", KINDS)
def test_no_tensor_is_converted_on_the_loop(kind: Any) -> None:
    """However small: its framework may wait for a device."""
    assert Collate().fits([(np.ones(2), 1, "a", None)])
    assert not Collate().fits([(np.ones(2), kind([1]))])
    (work,) = Pad(to=3).steps()
    assert isinstance(work, Work) and work.inline is not None
    assert work.inline(np.ones(2)) and not work.inline((np.ones(2), kind([1])))
    assert few((np.ones(2), None)) and not few((np.ones(2), kind([1, 2])))


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_tensors_are_padded_measured_and_split(kind: Any) -> None:
    """Every stage that looks at arrays takes them."""
    ragged = [kind([1]), kind([1, 2])]
    assert collate(ragged, name, Pad(lengths=True))[1].tolist() == [1, 2]
    assert [each.tolist() for each in af.items(ragged).pad(to=3)] == [[1, 0, 0], [1, 2, 0]]
    bucketed = af.items(ragged).bucket(boundaries=[2], size=1)
    assert [batch.tolist() for batch in bucketed] == [[[1]], [[1, 2]]]
    assert [row.tolist() for row in split(kind([[1, 2], [3, 4]]))] == [[1, 2], [3, 4]]


def test_a_tensor_that_refuses_is_named_with_its_reason() -> None:
    """What the framework says is part of the message, and the cause."""
    with pytest.raises(
        ValueError, match=r"s0.npy at \['x'\] is a .*Graph.*no values in a graph.*\.map\(\)"
    ) as caught:
        collate([{"x": Graph()}], name)
    assert isinstance(caught.value.__cause__, NotImplementedError)


@pytest.mark.parametrize(
    "leaf",
    [{1, 2}, range(3), object(), dt.date(2024, 1, 1), pathlib.Path("a"), bytearray(b"a"), int, print],
)
def test_an_object_that_makes_no_array_is_refused(leaf: Any) -> None:
    """Rather than batched into an array of objects, which fails much later; both ways out are named."""
    with pytest.raises(
        ValueError, match=r"s0.npy at \[0\] is a .*which makes no array.*\.map\(\).*collate=function"
    ):
        collate([(leaf, 1)], name)
    with pytest.raises(ValueError, match=r"s1.npy at \[0\] is a .*which makes no array"):
        collate([(0, 1), (leaf, 1)], name)


class Answers:
    """An object that answers to every name, as mocks do."""

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


def test_an_object_that_answers_to_every_name_is_no_array() -> None:
    with pytest.raises(ValueError, match=r"s0.npy is a .*Answers, which makes no array"):
        collate([Answers()], name)


def test_arrays_of_objects_made_on_purpose_are_stacked() -> None:
    """Whoever makes such an array knows what is in it."""
    sample = np.array([{1}, None], object)
    assert collate([sample, sample], name).tolist() == [[{1}, None]] * 2


def test_a_masked_array_is_refused() -> None:
    """Its mask would be lost without a word."""
    with pytest.raises(ValueError, match=r"s0.npy is a masked array.*filled"):
        collate([np.ma.array([1.0, 2.0], mask=[True, False])] * 2, name)


def test_a_forgotten_load_is_an_error_at_the_line(tmp_path: pathlib.Path) -> None:
    """A batch of files is no batch of arrays; a list of them is to be had."""
    np.save(tmp_path / "a.npy", np.zeros(2))
    files = af.files(f"{tmp_path}/*.npy")
    with pytest.raises(af.PipelineError, match=r"batch: the files are not read: add .load\(npy\)"):
        files.shuffle().batch(2)
    with pytest.raises(af.PipelineError, match=r"bucket: the files are not read: add .load\(npy\)"):
        files.bucket(boundaries=[1], size=1)
    assert [[file.path for file in batch] for batch in files.batch(2, collate=list)] == [[f"{tmp_path}/a.npy"]]


def test_a_file_within_a_sample_is_refused(tmp_path: pathlib.Path) -> None:
    """The stage, the item and the line to add are named."""
    np.save(tmp_path / "a.npy", np.zeros(2))
    train = af.files(f"{tmp_path}/*.npy").map(lambda file: {"x": file, "y": 1}).batch(2)
    with pytest.raises(
        ValueError, match=r"a.npy at \['x'\] is a file that was not read: add .load\(npy\)"
    ) as caught:
        list(train)
    assert "batch(2)" in str(caught.value.__notes__)


def forgetful(number: int) -> Any:
    """Return nothing for what is odd."""
    return None if number % 2 else number


def test_a_function_without_return_is_named_by_the_batch() -> None:
    """With the item, whether it returns None always or only at times."""
    with pytest.raises(ValueError, match=r"number 0 is None, as map\(.*\) returned it: if its function lacks a"):
        list(af.items(range(4)).map(lambda _: None).batch(2))
    with pytest.raises(ValueError, match=r"number 1 is None \(number 0 is not\), as map\(forgetful\) returned it"):
        list(af.items(range(4)).map(forgetful).shuffle(buffer=1).batch(2))
    with pytest.raises(
        ValueError, match=r"number 1 is None .* as map\(forgetful\) returned it.*lambda item: item is"
    ):
        list(af.items(range(4)).map(forgetful).bucket(boundaries=[9], size=2, length_of=lambda _: 1).pad())
    kept = af.items(range(4)).map(forgetful).filter(lambda item: item is not None).batch(2)
    assert [batch.tolist() for batch in kept] == [[0, 2]]


def test_none_as_a_leaf_stays_none() -> None:
    """Where every sample has it, through batch, pad and unbatch."""
    samples = [{"x": np.ones(n), "y": None, "z": (None, n)} for n in (1, 2)]
    train = af.items(samples).batch(2).pad(lengths=True)
    ((batch, lengths),) = train
    assert batch["y"] is None and batch["z"][0] is None and lengths["y"] is None
    assert batch["x"].tolist() == [[1, 0], [1, 1]]
    rows = split(batch)
    assert [(row["x"].tolist(), row["y"], row["z"][0], int(row["z"][1])) for row in rows] == [
        ([1, 0], None, None, 1),
        ([1, 1], None, None, 2),
    ]
    first = split((None, np.arange(2)))
    assert [(row[0], int(row[1])) for row in first] == [(None, 0), (None, 1)]
    with pytest.raises(ValueError, match="unbatch: .* is None, which has no rows"):
        split((None, None))


def test_none_in_some_samples_only_is_an_error_that_names_both() -> None:
    """Nothing can be stacked, and nothing is guessed."""
    with pytest.raises(
        ValueError, match=r"s1.npy at \['y'\] is None, s0.npy at \['y'\] has dtype int64.*\.map\(\)"
    ):
        collate([{"y": 1}, {"y": None}], name)
    with pytest.raises(ValueError, match=r"s0.npy at \['y'\] is None, s1.npy at \['y'\] has .*str"):
        collate([{"y": None}, {"y": "a"}], name, Pad())


# -- torch, where it is installed


@pytest.fixture
def tensors() -> Any:
    """The library, imported only by who uses it."""
    return pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool", "complex64", "float16"])
def test_tensors_of_torch_keep_their_dtype(tensors: Any, dtype: str) -> None:
    """They become arrays that look the same to numpy."""
    out = collate([tensors.ones(2, 3, dtype=getattr(tensors, dtype))] * 2, name)
    assert (out.dtype, out.shape, bool(out.all())) == (np.dtype(dtype), (2, 2, 3), True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_short_floats_of_torch_are_those_of_ml_dtypes(tensors: Any, dtype: str) -> None:
    """Bit by bit, also without axes."""
    one = tensors.tensor([1.5, -2.0]).to(getattr(tensors, dtype))
    out = collate([one, one], name)
    assert out.dtype == np.dtype(getattr(ml_dtypes, dtype))
    assert out.astype("f4").tolist() == [[1.5, -2.0]] * 2
    assert collate([one[0], one[1]], name).astype("f4").tolist() == [1.5, -2.0]


def test_short_floats_without_ml_dtypes_are_refused(tensors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the two ways out."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ValueError, match=r"s0.npy is a tensor of bfloat16.*install ml_dtypes.*tensor.float\(\)"):
        collate([tensors.ones(2, dtype=tensors.bfloat16)], name)


def test_a_tensor_that_numpy_cannot_see_is_refused_with_the_line(tensors: Any) -> None:
    """One that needs its gradient, is sparse, or both at once."""
    needs = tensors.ones(2, requires_grad=True)
    with pytest.raises(
        ValueError, match=r"s0.npy is a tensor that needs its gradient: add .map\(\) with tensor.detach\(\)"
    ):
        collate([needs], name)
    with pytest.raises(ValueError, match=r"is sparse: add .map\(\) with tensor.to_dense\(\)"):
        collate([tensors.ones(2).to_sparse()], name)
    with pytest.raises(ValueError, match=r"needs its gradient and is sparse: .* tensor.detach\(\).to_dense\(\)"):
        collate([needs.to_sparse()], name)
    with pytest.raises(ValueError, match=r"s0.npy is a torch.Tensor, which does not become an array"):
        collate([tensors.ones(2, device="meta")], name)


def test_a_lazy_conjugate_is_worked_out(tensors: Any) -> None:
    """torch flips the sign only when it must, and numpy cannot see that it has not."""
    out = collate([tensors.tensor([1 + 2j]).conj(), tensors.tensor([1j]).conj().imag.to(tensors.complex64)], name)
    assert out.tolist() == [[1 - 2j], [-1]]


def test_nothing_is_imported_for_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework that is not imported already has made none."""

    def refuse(module: str, *args: Any, **options: Any) -> Any:
        if module.partition(".")[0] in {"torch", "jax", "tensorflow"}:
            raise AssertionError(module)
        return real(module, *args, **options)

    real = builtins.__import__
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert collate([Tensor([1]), Tensor([2])], name).tolist() == [[1], [2]]
