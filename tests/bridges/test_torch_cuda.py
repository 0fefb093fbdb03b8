"""`to_torch(device="cuda")` on a machine without a GPU: which calls are made, on which stream, in which order."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.bridges import torch_feed
from asyncfeed.bridges.device_feed import PlacedBatches, PlacedFeed
from asyncfeed.bridges.run_factory import RunFactory

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch")


class FakeTensor:
    """Notes what is done with it. `where` is the stream on which it was copied."""

    def __init__(self, gpu: FakeGPU, name: Any, device: str, *, is_float: bool = True) -> None:
        self.gpu = gpu
        self.name = name
        self.device = SimpleNamespace(type=device)
        self.is_float = is_float

    def to(self, target: Any, *, non_blocking: bool = False) -> FakeTensor:
        if isinstance(target, torch.dtype):
            self.gpu.log.append(("cast", self.name, self.gpu.stream))
            return self
        assert non_blocking
        self.gpu.log.append(("copy", self.name, self.gpu.stream))
        return FakeTensor(self.gpu, self.name, "cuda", is_float=self.is_float)

    def is_floating_point(self) -> bool:
        return self.is_float

    def record_stream(self, stream: FakeStream) -> None:
        self.gpu.log.append(("used", self.name, stream.name))


class FakeStream:
    def __init__(self, gpu: FakeGPU, name: str) -> None:
        self.gpu = gpu
        self.name = name

    def record_event(self) -> str:
        copies = sum(what == "copy" for what, *_ in self.gpu.log)
        return f"after {copies} copies"

    def wait_event(self, event: str) -> None:
        self.gpu.log.append(("waits", self.name, event))


class FakeGPU:
    """Stands for the module `torch`."""

    Tensor = FakeTensor

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.stream = "trainer"
        self.cuda = SimpleNamespace(
            Stream=lambda device: FakeStream(self, "side"),
            stream=self._within,
            current_stream=lambda device: FakeStream(self, self.stream),
        )

    @contextmanager
    def _within(self, stream: FakeStream) -> Iterator[None]:
        before, self.stream = self.stream, stream.name
        try:
            yield
        finally:
            self.stream = before


@pytest.fixture
def gpu() -> FakeGPU:
    return FakeGPU()


def placed(gpu: FakeGPU, pipeline: Any, dtype: Any = None) -> PlacedBatches:
    factory = RunFactory(pipeline, None, None, "to_torch")
    return PlacedBatches(factory, lambda: torch_feed.OnCUDA(gpu, "cuda", dtype), None, "fake")


def test_the_trainers_stream_waits_for_the_copy_and_tensors_know_who_uses_them(gpu: FakeGPU) -> None:
    feed = iter(placed(gpu, af.items(iter([(FakeTensor(gpu, "x", "cpu"), "text")]))))
    tensor, text = next(feed)
    assert (tensor.device.type, text) == ("cuda", "text")
    assert gpu.log == [("copy", "x", "side"), ("waits", "trainer", "after 1 copies"), ("used", "x", "trainer")]


class ReadyRun:
    """A run whose batches are all ready."""

    def __init__(self, *batches: Any) -> None:
        self.batches = list(batches)
        self.feed: Any = iter(lambda: self.batches.pop(0), None)

    def take_ready(self, most: int, nbytes: int) -> list[Any]:
        return [self.batches.pop(0)] if self.batches else []

    def acknowledge(self, received: int) -> None:
        self.received = received


def test_the_next_copy_starts_before_the_present_batch_is_given_out(gpu: FakeGPU) -> None:
    """And the trainer's stream waits for its own batch only."""
    run: Any = ReadyRun(*[FakeTensor(gpu, each, "cpu") for each in range(3)])
    feed = PlacedFeed(run, torch_feed.OnCUDA(gpu, "cuda"), None)
    given = [next(feed).name, len(gpu.log), next(feed).name]
    assert given == [0, 4, 1]
    assert [entry for entry in gpu.log if entry[0] in ("copy", "waits")] == [
        ("copy", 0, "side"), ("copy", 1, "side"), ("waits", "trainer", "after 1 copies"),
        ("copy", 2, "side"), ("waits", "trainer", "after 2 copies"),
    ]  # fmt: skip


def test_a_batch_does_not_wait_for_the_next(gpu: FakeGPU) -> None:
    go = threading.Event()

    def source() -> Any:
        yield FakeTensor(gpu, 0, "cpu")
        assert go.wait(30)
        yield FakeTensor(gpu, 1, "cpu")

    feed = iter(placed(gpu, af.items(source)))
    assert next(feed).name == 0
    go.set()
    assert [each.name for each in feed] == [1]


def test_all_batches_come_in_order(gpu: FakeGPU) -> None:
    data = placed(gpu, af.items(lambda: (FakeTensor(gpu, each, "cpu") for each in range(100))))
    assert [each.name for each in data] == list(range(100))


def test_floating_point_tensors_get_their_dtype_on_the_device(gpu: FakeGPU) -> None:
    item = FakeTensor(gpu, "x", "cpu"), FakeTensor(gpu, "y", "cpu", is_float=False)
    next(iter(placed(gpu, af.items(iter([item])), torch.float16)))
    assert [entry for entry in gpu.log if entry[0] in ("copy", "cast")] == [
        ("copy", "x", "side"), ("cast", "x", "side"), ("copy", "y", "side"),
    ]  # fmt: skip


def test_tensors_of_a_device_stay_there(gpu: FakeGPU) -> None:
    item = FakeTensor(gpu, "x", "cuda")
    assert next(iter(placed(gpu, af.items(iter([item]))))) is item
    assert gpu.log == [("waits", "trainer", "after 0 copies")]


def test_a_batch_that_cannot_be_placed_fails_in_its_place(gpu: FakeGPU) -> None:
    """Also if it was started early."""
    run: Any = ReadyRun(FakeTensor(gpu, 0, "cpu"), np.zeros(2, "M8[s]"), FakeTensor(gpu, 2, "cpu"))
    feed = PlacedFeed(run, torch_feed.OnCUDA(gpu, "cuda"), None)
    assert next(feed).name == 0
    with pytest.raises(af.PipelineError, match="datetime64"):
        next(feed)


def test_memory_is_pinned_on_a_thread_of_the_pipeline(monkeypatch: pytest.MonkeyPatch, gpu: FakeGPU) -> None:
    """And the tensors are copied from there."""
    threads = set()

    def pin_memory(tensor: Any) -> FakeTensor:
        threads.add(threading.current_thread())
        return FakeTensor(gpu, int(tensor.sum()), "cpu")

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch_feed, "OnCUDA", lambda _, device, dtype: original(gpu, device, dtype))
    data = af.items([np.ones(each) for each in range(5)]).prefetch(2).to_torch(device="cuda")
    assert [each.name for each in data] == list(range(5))
    assert threads
    assert threading.main_thread() not in threads
    assert [name for what, name, _ in gpu.log if what == "copy"] == list(range(5))


original = torch_feed.OnCUDA


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    """Every batch arrives whole, while the stream of the trainer is busy and memory goes round."""
    data = af.items([np.full(1 << 16, each, np.float32) for each in range(64)]).prefetch(4).to_torch(device="cuda")
    for number, tensor in enumerate(data):
        busy = torch.randn(1024, 1024, device="cuda")
        for _ in range(10):
            busy = busy @ busy / 1024
        assert tensor.device.type == "cuda"
        assert (tensor == number).all()
