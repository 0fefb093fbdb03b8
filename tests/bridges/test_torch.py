"""`to_torch`: trees of tensors in the memory of the batches, and runs that end as those of a `for` loop do."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.stacking.pool import LEAST

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")


def one(leaf: Any) -> Any:
    """Return the only item of a pipeline, as `to_torch` gives it."""
    (got,) = af.items([leaf]).to_torch()
    return got


def shares(tensor: Any, array: Any) -> bool:
    return bool(tensor.data_ptr() == array.__array_interface__["data"][0])


# -- trees


class Point(NamedTuple):
    x: Any
    y: Any


def test_each_array_of_a_tree_becomes_a_tensor() -> None:
    item = {"a": [np.ones(2), np.zeros(3, np.int64)], "b": Point(np.ones(1), (np.ones(2), 5))}
    got = one(item)
    assert [each.dtype for each in got["a"]] == [torch.float64, torch.int64]
    assert type(got["b"]) is Point
    assert got["b"].y[1] == 5
    assert isinstance(got["b"].y[0], torch.Tensor)


def test_a_dataclass_stays_one() -> None:
    @dataclass
    class Sample:
        x: Any
        name: str

    got = one(Sample(np.ones(2), "a"))
    assert isinstance(got.x, torch.Tensor)
    assert got.name == "a"


def test_batches_of_rows_become_tuples_of_tensors() -> None:
    x, y = np.arange(6.0).reshape(3, 2), np.arange(3)
    got = list(af.arrays(x, y).batch(2).to_torch())
    assert [(a.shape, b.tolist()) for a, b in got] == [((2, 2), [0, 1]), ((1, 2), [2])]


# -- leaves

NUMBERS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "F", "D"]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_an_array_of_numbers_shares_its_memory_with_its_tensor(dtype: str) -> None:
    array = np.ones((2, 3), dtype)
    got = one(array)
    assert shares(got, array)
    assert got.dtype is torch.from_numpy(array).dtype


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
)
def test_short_floats_share_their_memory(name: str) -> None:
    array = np.array([0.5, -2, 1], getattr(ml_dtypes, name))
    got = one(array)
    assert shares(got, array)
    assert got.dtype is getattr(torch, name)
    assert got.float().tolist() == array.astype(np.float32).tolist()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(3.0).astype(">f8"),
        np.arange(3.0)[::-1],
        np.zeros(3, [("a", "u1"), ("b", "f4")])["b"],
        np.zeros(13, np.uint8)[1:].view(np.float32),
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.frombuffer(bytes(8), np.float64),
    ],
    ids=["swapped", "backwards", "odd strides", "not aligned", "broadcast", "read-only"],
)
def test_an_array_that_torch_cannot_take_as_it_is_is_copied_without_a_warning(array: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = one(array)
    assert not shares(got, array)
    np.testing.assert_array_equal(got.numpy(), array)
    got += 1  # torch may write to it


@pytest.mark.parametrize("strides", [np.s_[:, ::2], np.s_[1:, 1], np.s_[:0]])
def test_views_of_an_array_are_not_copied(strides: Any) -> None:
    array = np.arange(12.0).reshape(3, 4)[strides]
    got = one(array)
    assert got.shape == array.shape
    assert shares(got, array) or not array.size
    assert got.tolist() == array.tolist()


def test_numbers_of_python_stay_and_numbers_of_numpy_become_tensors_without_axes() -> None:
    got = list(af.items([3, 2.5, True, None, np.float32(1.5), np.array(4), np.True_]).to_torch())
    assert got[:4] == [3, 2.5, True, None]
    assert [(each.shape, each.item()) for each in got[4:]] == [((), 1.5), ((), 4), ((), True)]


def test_text_becomes_str_and_lists_of_str() -> None:
    batch = next(iter(af.items([{"t": "a", "b": b"x"}, {"t": "bc", "b": b"yz"}]).batch(2).to_torch()))
    assert batch == {"t": ["a", "bc"], "b": [b"x", b"yz"]}
    assert one(np.array([["a", "b"]])) == [["a", "b"]]
    assert one(np.str_("a")) == "a"
    assert type(one(np.str_("a"))) is str
    assert one("a") == "a"
    (texts,) = af.items([np.str_("a"), np.str_("b")]).batch(2).to_torch()
    assert [type(each) for each in texts] == [str, str]


def test_arrays_of_different_lengths_become_a_list_of_tensors() -> None:
    ragged = af.items([np.ones(2), np.ones(3)]).batch(2, collate=list)
    (got,) = ragged.to_torch()
    assert [len(each) for each in got] == [2, 3]
    assert torch.nested.nested_tensor(got, layout=torch.jagged).size(0) == 2


def test_objects_that_are_no_arrays_stay_as_they_are() -> None:
    thing, path = object(), Path("a")
    assert one((thing, path)) == (thing, path)


def test_a_tensor_is_passed_on() -> None:
    tensor = torch.ones(2, requires_grad=True)
    assert one((tensor, 1))[0] is tensor


@pytest.mark.tensorflow
def test_arrays_of_jax_become_tensors() -> None:
    jax = pytest.importorskip("jax")
    assert one((jax.numpy.ones(2), 1))[0].tolist() == [1, 1]


REFUSED = {
    "masked": (np.ma.masked_array(np.ones(2), [True, False]), r"masked array.*array\.filled"),
    "dates": (np.zeros(2, "M8[s]"), r"datetime64\[s\].*astype\('int64'\)"),
    "durations": (np.zeros(2, "m8[s]"), r"timedelta64\[s\].*astype\('int64'\)"),
    "long floats": (np.zeros(2, np.longdouble), r"astype\('float64'\)"),
    "structured": (np.zeros(2, [("a", "f4")]), "dict of its fields"),
    "objects": (np.array([None, 1], object), "with .map()"),
    "short integers": (np.zeros(2, ml_dtypes.int4), "int4"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_array_without_a_dtype_of_torch_is_an_error_that_says_what_to_write(kind: str) -> None:
    array, message = REFUSED[kind]
    with pytest.raises(af.PipelineError, match=r"to_torch: the leaf \['x'\]\[1\] is an? .*" + message):
        one({"y": np.ones(1), "x": (1, array)})
    with pytest.raises(af.PipelineError, match="to_torch: the item is an? "):
        one(array)


def test_a_dtype_applies_to_floating_point_tensors() -> None:
    items = af.items([(np.ones(2), np.ones(2, np.float16), np.ones(2, np.int64), "a", np.ones(2, np.complex64))])
    ((x, half, number, text, wave),) = items.to_torch(dtype=torch.float32)
    assert [each.dtype for each in (x, half, number, wave)] == [
        torch.float32, torch.float32, torch.int64, torch.complex64,
    ]  # fmt: skip
    assert text == "a"


def test_a_dtype_is_made_on_a_thread_of_the_pipeline_before_its_last_queue() -> None:
    batches = af.items([np.ones(2)] * 3).prefetch(2).to_torch(dtype=torch.float32)
    with iter(batches) as feed:
        assert repr(feed.feed.pipeline).endswith(").map(ToTensors(dtype=torch.float32, pin=False)).prefetch(2)")
        assert next(feed).dtype is torch.float32


# -- memory


@pytest.fixture
def batches(tmp_path: Path) -> af.Pipeline[Any]:
    for number in range(48):
        np.save(tmp_path / f"{number:02}.npy", np.full(LEAST // 8, number, np.float32))
    return af.files(f"{tmp_path}/*.npy").repeat(4).load(af.npy).batch(4)


@pytest.mark.parametrize("way", ["whole", "slice", "short floats"])
def test_tensors_that_are_kept_stay_as_they_were(batches: af.Pipeline[Any], way: str) -> None:
    """Each fourth batch is kept, while the memory of the others goes round."""
    limit, kept, places = 8 * 2 * LEAST, [], set()
    if way == "short floats":
        batches = batches.map(lambda batch: batch.view(ml_dtypes.bfloat16))
    for number, tensor in enumerate(batches.to_torch(memory_limit=limit)):
        places.add(tensor.data_ptr())
        if number % 4 == 0:
            kept.append((number, tensor[:, 5:] if way == "slice" else tensor))
    assert len(kept) == 12
    assert len(places) < 48, "no memory was used twice, so this shows nothing"
    for number, tensor in kept:
        whole = tensor.view(torch.float32) if way == "short floats" else tensor
        expected = torch.tensor([(4 * number + row) % 48 for row in range(4)], dtype=torch.float32)
        assert torch.equal(whole, expected[:, None].expand(whole.shape)), f"batch {number}"


def test_memory_is_used_again_when_its_tensors_are_gone(batches: af.Pipeline[Any]) -> None:
    places = {tensor.data_ptr() for tensor in batches.to_torch(memory_limit=8 * 2 * LEAST)}
    assert len(places) < 24


# -- runs


def test_each_iteration_is_the_next_epoch() -> None:
    shuffled = af.items(range(20)).shuffle(seed=3)
    data = shuffled.batch(20).to_torch()
    seen = [next(iter(data)).tolist() for _ in range(3)]
    assert seen == [next(iter(each)).tolist() for each in shuffled.batch(20).epochs(3)]


def test_the_length_is_that_of_the_pipeline() -> None:
    assert len(af.items(range(5)).batch(2).to_torch()) == 3
    data = af.items(iter([])).to_torch()
    assert data
    with pytest.raises(TypeError, match=r"items\(<list_iterator>\).to_torch\(\) is not known"):
        len(data)


def test_the_repr_is_the_call() -> None:
    data = af.items([1]).to_torch(device="cpu", dtype=torch.float16)
    assert repr(data) == "items([1]).to_torch(device='cpu', dtype=torch.float16)"


def test_an_error_comes_after_all_batches_before_it() -> None:
    def bad() -> Any:
        yield np.ones(1)
        raise ValueError("the second")

    got = []
    with pytest.raises(ValueError, match="the second"):
        for tensor in af.items(bad).to_torch():
            got.append(tensor)
    assert len(got) == 1


def running() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("asyncfeed")]


def test_a_loop_that_is_left_stops_its_run() -> None:
    closed = threading.Event()

    def endless() -> Any:
        try:
            while True:
                yield np.ones(1)
        finally:
            closed.set()

    for _ in af.items(endless).to_torch():
        break
    gc.collect()
    assert closed.wait(30)


def test_a_with_block_ends_the_run_before_it_returns() -> None:
    opened: list[Any] = []
    with iter(af.items([np.ones(1)]).repeat().to_torch(on_open=opened.append)) as feed:
        next(feed)
        assert opened == [feed.feed]
        assert running()
    assert not running()
    assert opened[0].stats().batches == 1


def test_async_for_runs_on_the_loop_and_counts_epochs_too() -> None:
    data = af.items(range(20)).shuffle(seed=3).batch(20).to_torch()

    async def main() -> list[list[int]]:
        return [[each.tolist() async for each in data][0] for _ in range(2)]

    first, second = asyncio.run(main())
    assert first != second
    assert sorted(first) == list(range(20))


def test_a_plain_loop_in_a_coroutine_is_refused() -> None:
    async def main() -> None:
        for _ in af.items(range(3)).to_torch():
            raise AssertionError

    with pytest.raises(RuntimeError, match="async for"):
        asyncio.run(main())


def test_threads_may_share_one_run() -> None:
    feed = iter(af.items([np.array(each) for each in range(200)]).to_torch())
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.extend(int(each) for each in feed)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(200))


# -- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pin_memory": "always"}, "pin_memory must be True, False or 'auto', not 'always'"),
        ({"dtype": torch.int64}, "dtype must be a floating-point dtype such as torch.float32"),
        ({"dtype": "float32"}, "dtype must be a floating-point dtype"),
        ({"memory_limit": "much"}, "to_torch"),
    ],
)
def test_a_wrong_option_is_an_error_of_the_call(options: dict[str, Any], message: str) -> None:
    with pytest.raises(af.PipelineError, match=message):
        af.items([1]).to_torch(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_pinned_memory_needs_a_gpu() -> None:
    with pytest.raises(af.PipelineError, match="pin_memory=True needs a GPU"):
        af.items([1]).to_torch(pin_memory=True)


def test_another_device_gets_copies() -> None:
    (got,) = af.items([(np.ones(2), "a")]).to_torch(device="meta")
    assert got[0].device.type == "meta"
    assert got[1] == "a"


def test_a_missing_torch_is_an_error_that_names_the_extra() -> None:
    code = (
        "import sys, asyncfeed as af\n"
        "assert 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None\n"
        "try: af.items([1]).to_torch()\n"
        "except af.PipelineError as error: assert \"pip install 'asyncfeed[torch]'\" in str(error), error\n"
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
