"""`to_torch`: the batches of a pipeline as torch tensors, on the CPU or on a device.

On CUDA a batch takes two steps. A thread of the pipeline copies it into pinned memory. The thread of the trainer
then starts the copy to the device on a stream of its own, before it gets the batch that was copied before. So the
copy and the computation run at the same time. An event makes the trainer's stream wait for its batch, and for
nothing else. `record_stream` keeps the memory of a dropped tensor until the trainer's stream has passed its last
use. torch itself keeps the pinned memory until the copy has read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from asyncfeed.bridges.device_feed import PlacedBatches, Placer
from asyncfeed.bridges.run_factory import RunFactory
from asyncfeed.bridges.torch_tensors import ToTensors, cast, check_dtype
from asyncfeed.errors import PipelineError
from asyncfeed.extras import installed
from asyncfeed.pipeline import Pipeline
from asyncfeed.stages.base import Node
from asyncfeed.stages.steps import Work
from asyncfeed.trees import flatten, map_leaves, unflatten

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncfeed.axes import Axes
    from asyncfeed.feed import Feed
    from asyncfeed.sizes import Size

Pin = bool | Literal["auto"]


def to_batches(
    pipeline: Pipeline[Any],
    *,
    device: Any = None,
    pin_memory: Pin = "auto",
    dtype: Any = None,
    on_open: Callable[[Feed[Any]], None] | None = None,
    memory_limit: Size | None = None,
) -> PlacedBatches:
    """Return the batches of a pipeline as tensors; see `Pipeline.to_torch`."""
    torch = installed("torch", "torch")
    device = None if device is None else torch.device(device)
    _check(torch, pin_memory, dtype)
    on_cuda = device is not None and device.type == "cuda"
    convert = ToTensors(None if on_cuda else dtype, on_cuda if pin_memory == "auto" else pin_memory)
    placer: Callable[[], Placer] = OnCPU
    if on_cuda:
        placer = partial(OnCUDA, torch, device, dtype)
    elif device is not None and device.type != "cpu":
        placer = partial(OnDevice, torch, device)
    # Work that takes time is done on a thread of the pipeline. To show an array as a tensor takes none.
    works = convert.pin or convert.dtype is not None
    converted = before_queues(pipeline, convert) if works else pipeline
    given = {"device": device and str(device), "pin_memory": pin_memory, "dtype": dtype}
    words = ", ".join(f"{name}={value!r}" for name, value in given.items() if value not in (None, "auto"))
    factory = RunFactory(converted, on_open, memory_limit, "to_torch")
    return PlacedBatches(factory, placer, pipeline.size(), f"{pipeline!r}.to_torch({words})")


def _check(torch: Any, pin_memory: Any, dtype: Any) -> None:
    if pin_memory not in (True, False, "auto"):
        raise PipelineError(f"to_torch: pin_memory must be True, False or 'auto', not {pin_memory!r}")
    if pin_memory is True and not torch.cuda.is_available():
        raise PipelineError("to_torch: pin_memory=True needs a GPU; 'auto' pins memory if the device is one")
    check_dtype("to_torch", torch, dtype)


def before_queues(pipeline: Pipeline[Any], fn: Callable[[Any], Any]) -> Pipeline[Any]:
    """Return the pipeline with a function before the queues at its end, so that these hold the results."""
    stages = pipeline.stages
    cut = len(stages)
    while cut and stages[cut - 1].is_queue:
        cut -= 1
    made = Pipeline(pipeline.source, stages[:cut]).then(Conversion(fn))
    return Pipeline(made.source, (*made.stages, *stages[cut:]))


@dataclass(frozen=True)
class Conversion(Node):
    """A `map` that only changes what arrays are shown as. A saved state fits with and without it."""

    fn: Callable[[Any], Any]

    method: ClassVar[str] = "map"
    positional: ClassVar[tuple[str, ...]] = ("fn",)
    only_tunes: ClassVar[bool] = True

    @property
    def one_to_one(self) -> bool:
        """Whether each item that comes out is made of one that goes in: True."""
        return True

    def steps(self) -> Sequence[Work]:
        """Return one step, which calls the function for each item."""
        return [Work(self.fn, "thread")]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return what a `map` returns: the function decides the axes."""
        return upstream.mapped()

    def length(self, upstream: int) -> int | None:
        """Return the number of items, which stays."""
        return upstream


class OnCPU:
    """Shows arrays as tensors."""

    early = False

    def __init__(self) -> None:
        self._convert = ToTensors()

    def start(self, batch: Any) -> Any:
        """Return the batch with tensors."""
        return self._convert(batch)

    def finish(self, started: Any) -> Any:
        """Return the batch."""
        return started


class OnDevice(OnCPU):
    """Copies tensors to a device other than CUDA's. The copy is over when the batch is given out."""

    def __init__(self, torch: Any, device: Any) -> None:
        super().__init__()
        self._torch = torch
        self._device = device

    def start(self, batch: Any) -> Any:
        """Return the batch with tensors on the device."""
        return map_leaves(self._move, super().start(batch))

    def _move(self, leaf: Any) -> Any:
        return leaf.to(self._device) if isinstance(leaf, self._torch.Tensor) else leaf


class OnCUDA(OnCPU):
    """Copies tensors to a GPU on a stream of its own, while the trainer's stream computes.

    Tensors that are on a device already stay as they are.
    """

    early = True

    def __init__(self, torch: Any, device: Any, dtype: Any = None) -> None:
        super().__init__()
        self._torch = torch
        self._device = device
        self._dtype = dtype
        self._stream = torch.cuda.Stream(device)

    def start(self, batch: Any) -> Any:
        """Start the copies. Return the batch, its tensors that were copied, and the event of the last copy."""
        leaves, spec = flatten(super().start(batch))
        copied = []
        with self._torch.cuda.stream(self._stream):
            for place, leaf in enumerate(leaves):
                if isinstance(leaf, self._torch.Tensor) and leaf.device.type == "cpu":
                    leaves[place] = cast(leaf.to(self._device, non_blocking=True), self._dtype)
                    copied.append(leaves[place])
            event = self._stream.record_event()
        return unflatten(spec, leaves), copied, event

    def finish(self, started: Any) -> Any:
        """Return the batch. The current stream waits for it."""
        batch, copied, event = started
        stream = self._torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in copied:
            tensor.record_stream(stream)
        return batch
