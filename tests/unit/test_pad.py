"""Pad: ragged samples against a plain model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncfeed.errors import PipelineError
from asyncfeed.stacking.collate import collate
from asyncfeed.stages.pad import Pad
from asyncfeed.stages.steps import Work


def name(member: int) -> str:
    """Name samples as a source of files would."""
    return f"s{member}.npy"


class At:
    """The place of one sample."""

    epoch = 0
    ordinal = 3

    def name(self, member: int | None = None) -> str:
        return "s3.npy"


def words(*text: Any) -> np.ndarray:
    """Return an array of objects."""
    return np.array(text, object)


def padded(array: np.ndarray, shape: tuple[int, ...], value: float) -> np.ndarray:
    """Pad one array as numpy does."""
    return np.pad(
        array,
        [(0, size - have) for have, size in zip(array.shape, shape, strict=True)],
        constant_values=value,
    )


ragged = st.integers(1, 3).flatmap(
    lambda ndim: st.lists(
        hnp.arrays(
            np.float32,
            hnp.array_shapes(min_dims=ndim, max_dims=ndim, min_side=0, max_side=4),
            elements=st.integers(0, 9),
        ),
        min_size=1,
        max_size=5,
    )
)


@given(ragged, st.integers(-3, 3), st.integers(1, 5))
def test_a_batch_is_padded_to_its_longest_on_every_axis(samples: list[np.ndarray], value: int, step: int) -> None:
    """Each sample stands at the start, the value behind it; rounding up changes axis 0 only."""
    shape = tuple(max(sizes) for sizes in zip(*(s.shape for s in samples), strict=True))
    out = collate(samples, name, Pad(value=value))
    assert np.array_equal(out, np.stack([padded(s, shape, value) for s in samples]))
    assert out.dtype == np.float32
    assert out.__array_interface__["data"][0] % 64 == 0
    shape = (-(-shape[0] // step) * step, *shape[1:])
    out, lengths = collate(samples, name, Pad(value=value, multiple_of=step, lengths=True))
    assert np.array_equal(out, np.stack([padded(s, shape, value) for s in samples]))
    assert lengths.dtype == np.int64
    assert lengths.tolist() == list(map(len, samples))


@given(ragged)
def test_a_fixed_size_holds_for_every_batch(samples: list[np.ndarray]) -> None:
    """None leaves an axis to the longest; axes that a leaf does not have are ignored."""
    longest = [max(sizes) for sizes in zip(*(s.shape for s in samples), strict=True)]
    assert collate(samples, name, Pad(to=6)).shape == (len(samples), 6, *longest[1:])
    assert collate(samples, name, Pad(to=(None, 5))).shape[1:3] == tuple([longest[0], 5][: len(longest)])
    assert collate(samples, name, Pad(multiple_of=[2, 3])).shape[1] == longest[0] + longest[0] % 2


def test_each_leaf_is_padded_by_itself() -> None:
    """Numbers and text are left alone, and have no length."""
    samples = [{"x": np.ones(i, np.int32), "y": i, "z": "text"} for i in (1, 3)]
    out, lengths = collate(samples, name, Pad(value=-1, lengths=True))
    assert out["x"].tolist() == [[1, -1, -1], [1, 1, 1]]
    assert out["y"].tolist() == [1, 3]
    assert out["z"].tolist() == ["text", "text"]
    assert lengths["x"].tolist() == [1, 3]
    assert lengths["y"] is lengths["z"] is None


def test_each_leaf_may_have_its_own_value() -> None:
    """In the structure of a sample."""
    samples = [(np.ones(i), np.ones(i, bool), np.array(["a"] * i, object)) for i in (1, 2)]
    out = collate(samples, name, Pad(value=(np.nan, True, None)))
    assert np.isnan(out[0][0, 1])
    assert out[1].tolist() == [[True, True], [True, True]]
    assert out[2].tolist() == [["a", None], ["a", "a"]]


@pytest.mark.parametrize(
    ("dtype", "value", "fill"),
    [
        (bool, 0, False),
        (np.int64, 0.0, 0),
        (np.float32, 0.1, float(np.float32(0.1))),
        ("M8[s]", np.datetime64("NaT", "s"), None),
        ("U3", 0, ""),
        ("i4,f8", 0, (0, 0.0)),
        (object, "x", "x"),
        ("U5", "<pad>", "<pad>"),
        ("S3", 0, b""),
        ("S1", b"-", b"-"),
        ("M8[s]", "2024-01-01", np.datetime64("2024-01-01", "s")),
    ],
)
def test_the_value_takes_the_dtype_of_the_leaf(dtype: Any, value: Any, fill: Any) -> None:
    """Zero is the zero of every dtype."""
    out = collate([np.zeros(1, dtype), np.zeros(2, dtype)], name, Pad(value=value))
    assert out.dtype == np.dtype(dtype)
    assert out.tolist()[0][1] == fill


@pytest.mark.parametrize("axes", [1, 2])
def test_samples_of_one_shape_are_just_stacked(axes: int) -> None:
    """The value is not even looked at."""
    samples = [np.ones((2,) * axes, np.uint8)] * 3
    assert collate(samples, name, Pad(value=-1)).tolist() == np.stack(samples).tolist()


@pytest.mark.parametrize(
    ("samples", "pad", "message"),
    [
        (
            [np.zeros(1), np.zeros(9)],
            Pad(to=8),
            r"s1.npy measures 9 along axis 0, more than to=8; give a larger",
        ),
        (
            [(0, np.zeros((1, 5)))],
            Pad(to=(3, 4)),
            r"s0.npy at \[1\] measures 5 along axis 1, more than to=\(3, 4\)",
        ),
        (
            [np.zeros(1), np.zeros((1, 1))],
            Pad(),
            r"s0.npy has shape \(1,\), s1.npy has \(1, 1\); reshape one",
        ),
        ([np.zeros(()), np.zeros(1)], Pad(), r"s0.npy has shape \(\), s1.npy has \(1,\)"),
        ([np.zeros(1), np.zeros(2, "f4")], Pad(), "s0.npy has dtype float64, s1.npy has dtype float32"),
        ([np.zeros(1, "i4"), np.zeros(2, "i4")], Pad(value=0.5), "value=0.5 is not int32, but s0.npy is"),
        ([np.zeros(1, "u1"), np.zeros(2, "u1")], Pad(value=-1), "value=-1 is not uint8"),
        ([np.zeros(1, "i4"), np.zeros(2, "i4")], Pad(value=np.nan), "value=nan is not int32"),
        ([np.zeros(1), np.zeros(2)], Pad(value="x"), "value='x' is not float64"),
        ([np.zeros(1), np.zeros(2)], Pad(value="1.5"), "value='1.5' is not float64"),
        ([np.array(["a"]), np.array(["a", "b"])], Pad(value=-1), "value=-1 is not <U1"),
        ([np.array(["a"]), np.array(["a", "b"])], Pad(value=b"x"), "value=b'x' is not <U1"),
        (
            [words("a"), words("a", "b")],
            Pad(value=-1),
            "value=-1 is not str, but s0.npy is; give a value of that type",
        ),
        ([(np.zeros(1),)], Pad(value=(1, 2)), r"value is \(\*, \*\), but the samples are \(\*,\)"),
    ],
)
def test_what_cannot_be_padded_is_named(samples: list[Any], pad: Pad, message: str) -> None:
    """With the sample, the figures, and what to do."""
    with pytest.raises(ValueError, match=message):
        collate(samples, name, pad)


def test_arrays_of_text_are_padded_with_no_text() -> None:
    """Not with the number 0, which nobody can encode; bytes with bytes, other objects with the value."""
    assert collate([words("a"), words("b", "c")], name, Pad()).tolist() == [["a", ""], ["b", "c"]]
    assert collate([words(b"a"), words(b"b", b"c")], name, Pad()).tolist() == [[b"a", b""], [b"b", b"c"]]
    assert collate([words(), words()], name, Pad(to=1)).tolist() == [[""], [""]]
    assert collate([words({}), words({}, [])], name, Pad()).tolist() == [[{}, 0], [{}, []]]
    assert collate([words("a"), words("b", "c")], name, Pad(value="-")).tolist() == [["a", "-"], ["b", "c"]]
    assert collate([np.array(["a"]), np.array(["b", "c"])], name, Pad(value="<p>")).tolist() == [
        ["a", "<p>"],
        ["b", "c"],
    ]
    samples = [{"t": words(*"ab"[:n]), "x": np.ones(n)} for n in (1, 2)]
    out = collate(samples, name, Pad(value={"t": "", "x": -1}))
    assert (out["t"].tolist(), out["x"].tolist()) == ([["a", ""], ["a", "b"]], [[1, -1], [1, 1]])


def test_single_samples_are_padded_to_a_fixed_size() -> None:
    """Before a batch, each by itself; what has no axes passes as it is."""
    (work,) = Pad(to=3, value=7, lengths=True).steps()
    assert isinstance(work, Work)
    assert work.placed
    sample, lengths = work.fn((np.ones(1), 5, "text"), At())
    assert sample[0].tolist() == [1, 7, 7]
    assert sample[1:] == (5, "text")
    assert lengths == (1, None, None)
    (work,) = Pad(to=(None, 3)).steps()
    assert isinstance(work, Work)
    assert work.fn(np.ones((2, 1)), At()).tolist() == [[1, 0, 0], [1, 0, 0]]


def test_a_single_sample_that_is_too_long_is_named() -> None:
    """By the name of its file."""
    (work,) = Pad(to=3).steps()
    assert isinstance(work, Work)
    with pytest.raises(ValueError, match=r"s3.npy at \[0\] measures 4 along axis 0, more than to=3"):
        work.fn((np.zeros(4),), At())


def test_large_samples_are_padded_on_a_thread() -> None:
    """What counts is the size after padding."""
    (work,) = Pad(to=10_000).steps()
    assert isinstance(work, Work)
    assert work.inline is not None
    assert work.cost is not None
    assert not work.inline(np.zeros(1))
    assert work.cost((np.zeros(1), 5)) == 80_000
    assert work.inline(np.zeros(1, np.uint8))


@pytest.mark.parametrize("pad", [Pad(), Pad(multiple_of=8), Pad(to=()), Pad(to=(None, None))])
def test_a_single_sample_without_a_fixed_size_is_refused(pad: Pad) -> None:
    """The message says both ways out."""
    with pytest.raises(
        PipelineError, match=r"put .pad\(\) right after .batch\(\) or .bucket\(\), or give the size"
    ):
        pad.steps()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"to": -1}, "pad: to must be at least 0, not -1"),
        ({"to": (3, 1.5)}, "pad: to must be a whole number, not 1.5"),
        ({"multiple_of": 0}, "pad: multiple_of must be at least 1, not 0"),
        ({"to": 8, "multiple_of": 2}, "fixes the size, so `multiple_of` has no effect; give only one of them"),
        ({"value": np.zeros(2)}, "value must be one number or text for each leaf"),
    ],
)
def test_a_wrong_description_is_refused(wrong: dict[str, Any], message: str) -> None:
    """Where it is written, with the value."""
    with pytest.raises(PipelineError, match=message):
        Pad(**wrong)


def test_it_is_written_as_it_was_called() -> None:
    """Only what was given."""
    assert str(Pad()) == "pad()"
    assert str(Pad(value=-1, to=[3, None])) == "pad(value=-1, to=(3, None))"
    assert Pad(to=3).length(7) == 7
