"""`load`: reads the files in an item, and decodes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from asyncfeed.attempts.retry import Hedge, Retry, Wanted
from asyncfeed.attempts.skip import OnError, skip_of
from asyncfeed.axes import Axes, Unknown
from asyncfeed.errors import PipelineError
from asyncfeed.formats.base import Decoder
from asyncfeed.functions.checks import check_fn, check_policy, is_async, refuse_awaitable
from asyncfeed.reading.file import Bytes, File
from asyncfeed.reading.reader import value
from asyncfeed.reading.scope import read_whole, reader_of
from asyncfeed.stages.base import Node
from asyncfeed.stages.batch import Batch
from asyncfeed.stages.steps import Concurrency, Work
from asyncfeed.trees import map_leaves


@dataclass(frozen=True)
class Load(Node):
    """Replaces each file by its sample.

    Items are files, or trees with files among their leaves. Other leaves stay as they are. The decoder is a
    `Decoder`, or a function of the file's `bytes`: sync (it runs on a thread) or async (it runs on the loop).
    """

    method = "load"
    positional = ("decoder",)
    makes_items = True

    decoder: Decoder[Any] | Callable[[bytes], Any]
    concurrency: Concurrency = "auto"
    ordered: bool = True
    on_error: OnError = "raise"
    skip_limit: float | None = None
    retry: Retry | Literal["auto"] | None = "auto"
    timeout: float | Literal["auto"] | None = "auto"
    hedge: Hedge = "auto"

    def __post_init__(self) -> None:
        check_policy(self.method, self.concurrency, self.on_error, self.skip_limit)
        self.wanted.check(self.method)
        decoder = self.decoder
        if isinstance(decoder, Decoder):
            return
        if not callable(decoder) or (isinstance(decoder, type) and issubclass(decoder, Decoder)):
            raise PipelineError(
                "load: the decoder must be one of asyncfeed's, as in load(npy) or load(raw('float32')), "
                f"or a function of the file's bytes, not {decoder!r}"
            )
        check_fn(self.method, decoder)
        _check_takes_bytes(decoder)

    @property
    def wanted(self) -> Wanted:
        """What it wants of the reads of its files."""
        return Wanted(self.retry, self.timeout, self.hedge)

    def steps(self) -> Sequence[Work]:
        """Return one step that reads and decodes. An async decoder is a second step."""
        decoder = self.decoder
        if isinstance(decoder, Decoder):
            return [self._work(_Load(_Decode(decoder, self.wanted)), "thread", decoder if decoder.packs else None)]
        if not is_async(decoder):
            return [self._work(_Load(_Call(decoder, self.wanted)), "thread")]
        return [self._work(_Load(_Read(self.wanted)), "thread"), self._work(_Await(decoder), "async")]

    @property
    def one_to_one(self) -> bool:
        """Whether no item can be left out or overtaken."""
        return self.on_error == "raise" and self.ordered

    @property
    def only_reads(self) -> bool:
        """Whether no item can be left out or overtaken. A decoder makes the same sample of the same bytes."""
        return self.one_to_one

    def absorb(self, following: Node) -> Node | None:
        """Return a stage that reads straight into the batch, if the decoder can tell what is in a file."""
        decoder = self.decoder
        fuses = isinstance(decoder, Decoder) and (decoder.probes or decoder.lays_out) and self.one_to_one
        if not fuses or not isinstance(following, Batch) or following.collate is not None:
            return None
        from asyncfeed.stages.load_batch import LoadBatch  # noqa: PLC0415 - only a run needs it

        return LoadBatch(self, following)

    def _work(
        self, fn: Callable[[Any], Any], kind: Literal["async", "thread"], unpacks: Decoder[Any] | None = None
    ) -> Work:
        return Work(
            fn,
            kind,
            concurrency=self.concurrency,
            ordered=self.ordered,
            skip=skip_of(self.on_error, self.skip_limit),
            cost=listed_size if kind == "thread" else None,
            measure=_Measure(unpacks) if kind == "thread" else None,
            packed=unpacks is not None,
        )

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `Unknown`: the files decide the axes."""
        return Unknown()

    def length(self, upstream: int) -> int | None:
        """Return the number of items; None if some may be skipped."""
        return upstream if self.on_error == "raise" else None


OPENERS = {
    ("numpy", "load"): "load(npy), or load(npz) for .npz files",
    ("numpy", "fromfile"): "load(raw('float32')), or another dtype",
    ("json", "load"): "load(json) with asyncfeed's json",
    ("io", "open"): "load(text)",
    ("_io", "open"): "load(text)",
    ("pickle", "load"): "load(pickle.loads)",
    ("_pickle", "load"): "load(pickle.loads)",
}
"""Functions that take a path or an open file, by module and name, with the call to write instead."""
PATH_TAKERS = {
    ("numpy", "loadtxt"), ("numpy", "genfromtxt"), ("PIL.Image", "open"), ("torch.serialization", "load"),
    ("pandas.io.parsers.readers", "read_csv"),
}  # fmt: skip
"""Other functions that take a path. `map` can call them with the path."""


def _check_takes_bytes(decoder: Any) -> None:
    """Raise for functions that do not take the bytes of a file. The most common ones are known by name."""
    module, name = getattr(decoder, "__module__", ""), getattr(decoder, "__qualname__", "")
    if (module, name) == ("asyncfeed.formats.raw", "raw"):
        raise PipelineError("load: raw makes a decoder of a dtype: write load(raw('float32')), or another dtype")
    fix = OPENERS.get((module, name))
    if fix is None and (module, name) in PATH_TAKERS:
        fix = f"map(lambda file: {name}(file.path)), or load(lambda data: {name}(io.BytesIO(data)))"
    if fix is not None:
        raise PipelineError(
            f"load: the decoder gets the bytes of a file, which {module}.{name} does not take: write {fix}"
        )


def listed_size(item: Any) -> int | None:
    """Return the total size of the files in an item; None if the size of one is not known.

    >>> listed_size((File("a.npy", 17), {"y": File("b.npy", 3)}, "label"))
    20
    """
    if type(item) is File:
        return item.size
    total = 0
    for file in _files(item):
        if file.size is None:
            return None
        total += file.size
    return total


def _files(item: Any) -> list[File]:
    if isinstance(item, str | int | float):
        return []
    files: list[File] = []
    map_leaves(lambda leaf: files.append(leaf) if isinstance(leaf, File) else None, item)
    return files


@dataclass(frozen=True, slots=True)
class _Measure:
    """Looks up the total size of the files in an item: their size on disk, or their size when unpacked."""

    decoder: Decoder[Any] | None

    def __call__(self, item: Any) -> int:
        return sum(map(self._of, [item] if type(item) is File else _files(item)))

    def _of(self, file: File) -> int:
        try:
            if self.decoder is None and file.size is not None:
                return file.size
            with reader_of(file) as reader:
                if self.decoder is None:
                    return value(*reader.look((file,))).size or 0
                with reader.open(file) as opened:
                    return self.decoder.unpacked(opened, file)
        except (OSError, ValueError):
            return file.size or 0  # reading the file meets the same error, and reports it


@dataclass(frozen=True, slots=True)
class _Load:
    """Calls a function for each file in an item, and puts the results in their places."""

    each: Callable[[File], Any]

    def __call__(self, item: Any) -> Any:
        each = self.each
        if type(item) is File:
            return each(item)
        if type(item) is tuple and all(type(leaf) is File for leaf in item) and item:
            return tuple(map(each, item))
        found = False

        def put(leaf: Any) -> Any:
            nonlocal found
            if isinstance(leaf, File):
                found = True
                return each(leaf)
            return leaf

        loaded = map_leaves(put, item)
        if not found:
            raise TypeError(
                f"load takes files, or tuples, lists and dicts of them, not {_shown(item)}: "
                "start with files(...), or put File(path) where a file is to be read"
            )
        return loaded


@dataclass(frozen=True, slots=True)
class _Decode:
    decoder: Decoder[Any]
    wanted: Wanted

    def __call__(self, file: File) -> Any:
        sample = self.decoder.decode(read_whole(file, self.wanted), file)
        refuse_awaitable("load", sample)
        return sample


@dataclass(frozen=True, slots=True)
class _Call:
    fn: Callable[[bytes], Any]
    wanted: Wanted

    def __call__(self, file: File) -> Any:
        sample = self.fn(read_whole(file, self.wanted).tobytes())
        refuse_awaitable("load", sample)
        return sample


class _Contents(File):
    """A file with its contents, on the way to an async decoder."""

    __slots__ = ("data",)

    def __init__(self, file: File, data: Bytes) -> None:
        super().__init__(file.path, file.size, file.mtime_ns, etag=file.etag, store=file.store)
        self.data = data

    @property
    def nbytes(self) -> int:
        """Size of the contents in bytes."""
        return self.data.nbytes


@dataclass(frozen=True, slots=True)
class _Read:
    wanted: Wanted

    def __call__(self, file: File) -> _Contents:
        return _Contents(file, read_whole(file, self.wanted))


@dataclass(frozen=True, slots=True)
class _Await:
    """Awaits a decoder for each file in an item, one after the other."""

    fn: Callable[[bytes], Any]

    async def __call__(self, item: Any) -> Any:
        if type(item) is _Contents:
            return await self.fn(item.data.tobytes())
        read: list[_Contents] = []
        map_leaves(lambda leaf: read.append(leaf) if type(leaf) is _Contents else None, item)
        decoded = iter([await self.fn(each.data.tobytes()) for each in read])
        return map_leaves(lambda leaf: next(decoded) if type(leaf) is _Contents else leaf, item)


def _shown(item: Any) -> str:
    text = " ".join(repr(item).split())
    return f"{type(item).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
