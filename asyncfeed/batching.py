"""The part of `Pipeline` that makes batches of samples, and samples of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from asyncfeed.running import Running
from asyncfeed.stages.batch import Batch
from asyncfeed.stages.bucket import Bucket
from asyncfeed.stages.pack import Pack, Packed, TooLong
from asyncfeed.stages.pad import Pad
from asyncfeed.stages.rebatch import Rebatch
from asyncfeed.stages.unbatch import Unbatch
from asyncfeed.stages.window import Window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from asyncfeed.pipeline import Pipeline

    _Leaf = float | complex | str | bytes | np.generic | NDArray[Any]
    """Samples whose batch is one array. Type checkers accept int and bool as float."""

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
K = TypeVar("K")
_Sizes = int | tuple[int | None, ...] | None


class Unknown:
    """A type that no sample has. Overloads use it, because only a pipeline of Any matches it.

    Without such an overload, a type checker would choose the first of the other overloads for a pipeline of Any.
    That overload would say that the batches are arrays.
    """


class Batching(Running[T_co]):
    """The part of `Pipeline` that makes batches and takes them apart.

    The types give the structure of a batch. A batch of numbers, texts or arrays is one array. A batch of pairs,
    triples or dicts is a pair, a triple or a dict of Any.
    """

    __slots__ = ()

    @overload
    def batch(
        self: Batching[Unknown], size: int, *, drop_remainder: bool = ..., collate: None = ...,
        timeout: float | None = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    @overload
    def batch(
        self: Batching[_Leaf], size: int, *, drop_remainder: bool = ..., collate: None = ...,
        timeout: float | None = ...,
    ) -> Pipeline[NDArray[Any]]: ...  # fmt: skip
    @overload
    def batch(
        self: Batching[tuple[object, object]], size: int, *, drop_remainder: bool = ..., collate: None = ...,
        timeout: float | None = ...,
    ) -> Pipeline[tuple[Any, Any]]: ...  # fmt: skip
    @overload
    def batch(
        self: Batching[tuple[object, object, object]], size: int, *, drop_remainder: bool = ...,
        collate: None = ..., timeout: float | None = ...,
    ) -> Pipeline[tuple[Any, Any, Any]]: ...  # fmt: skip
    @overload
    def batch(
        self: Batching[dict[K, Any]], size: int, *, drop_remainder: bool = ..., collate: None = ...,
        timeout: float | None = ...,
    ) -> Pipeline[dict[K, Any]]: ...  # fmt: skip
    @overload
    def batch(
        self, size: int, *, drop_remainder: bool = ..., collate: Callable[[list[T_co]], U],
        timeout: float | None = ...,
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def batch(
        self, size: int, *, drop_remainder: bool = ..., collate: None = ..., timeout: float | None = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    def batch(
        self, size: int, *, drop_remainder: bool = False, collate: Callable[[list[Any]], Any] | None = None,
        timeout: float | None = None,
    ) -> Pipeline[Any]:  # fmt: skip
        """Stack each `size` samples: every leaf becomes an array with a new first axis.

        Args:
            size: Number of samples in a batch.
            drop_remainder: True drops the last batch of an epoch if it is smaller.
            collate: A sync function that gets a list of samples and returns the batch, instead of stacking. It is
                called on a thread, and may take and return any objects. `pad` cannot follow it.
            timeout: Seconds that a sample waits for others at most. Then the samples that are there are a batch.
                This is for streams that trickle: which samples make a batch depends on when they come.

        Returns:
            Batches with the structure of the samples, which are trees of arrays and numbers. Numbers become int64,
            float64 or bool. Text and bytes become arrays of objects. Arrays keep their dtype. Tensors of torch,
            JAX and TensorFlow become arrays of theirs. A leaf that is None in all samples stays None.

        Raises:
            ValueError: While the pipeline runs, samples differ in structure, dtype or shape; the message names two
                of them. Or an object cannot be stacked, such as a `File` that was not loaded, or the None of a
                function without a `return`.

        Memory:
            A batch is one 64-byte aligned array for each leaf. If the array is 256 KB or larger, a later batch
            uses its memory again after the last array, view or tensor over this memory is gone.

        Example:
            >>> import asyncfeed as af
            >>> [batch.tolist() for batch in af.items(range(5)).batch(2)]
            [[0, 1], [2, 3], [4]]
        """
        return self._pipeline.then(Batch(size, drop_remainder=drop_remainder, collate=collate, timeout=timeout))

    @overload
    def pad(
        self: Batching[Unknown], *, value: Any = ..., to: _Sizes = ..., multiple_of: _Sizes = ...,
        lengths: Literal[False] = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    @overload
    def pad(
        self: Batching[NDArray[Any]], *, value: Any = ..., to: _Sizes = ..., multiple_of: _Sizes = ...,
        lengths: Literal[False] = ...,
    ) -> Pipeline[NDArray[Any]]: ...  # fmt: skip
    @overload
    def pad(
        self: Batching[tuple[object, object]], *, value: Any = ..., to: _Sizes = ..., multiple_of: _Sizes = ...,
        lengths: Literal[False] = ...,
    ) -> Pipeline[tuple[Any, Any]]: ...  # fmt: skip
    @overload
    def pad(
        self: Batching[tuple[object, object, object]], *, value: Any = ..., to: _Sizes = ...,
        multiple_of: _Sizes = ..., lengths: Literal[False] = ...,
    ) -> Pipeline[tuple[Any, Any, Any]]: ...  # fmt: skip
    @overload
    def pad(
        self: Batching[dict[K, Any]], *, value: Any = ..., to: _Sizes = ..., multiple_of: _Sizes = ...,
        lengths: Literal[False] = ...,
    ) -> Pipeline[dict[K, Any]]: ...  # fmt: skip
    @overload
    def pad(
        self, *, value: Any = ..., to: _Sizes = ..., multiple_of: _Sizes = ...,
        lengths: Literal[False] = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    @overload
    def pad(
        self, *, value: Any = ..., to: _Sizes = ..., multiple_of: _Sizes = ...,
        lengths: Literal[True],
    ) -> Pipeline[tuple[Any, Any]]: ...  # fmt: skip
    def pad(
        self, *, value: Any = 0, to: _Sizes = None, multiple_of: _Sizes = None, lengths: bool = False
    ) -> Pipeline[Any]:
        """Make ragged arrays one shape by adding `value` at the end of their axes.

        Right after `batch` or `bucket`, arrays are padded to the longest of the batch, to `to`, or to the next
        `multiple_of`. Anywhere else each sample is padded to `to`.

        Args:
            value: The value to add, or a tree with one value for each leaf. By default arrays of text are padded
                with "".
            to: The size of the first axis, or a tuple with the size of each axis. None pads an axis to the
                longest.
            multiple_of: A number to whose next multiple the first axis is padded, or a tuple with one for each
                axis.
            lengths: True returns pairs (batch, lengths). The lengths are the sizes of axis 0 before padding.

        Example:
            >>> import asyncfeed as af, numpy as np
            >>> next(iter(af.items([np.ones(1), np.ones(3)]).batch(2).pad())).tolist()
            [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
        """
        return self._pipeline.then(Pad(value=value, to=to, multiple_of=multiple_of, lengths=lengths))

    @overload
    def bucket(
        self: Batching[Unknown], *, boundaries: Sequence[int], size: int | Sequence[int],
        length_of: Callable[[T_co], Any] | None = ..., drop_remainder: bool = ..., collate: None = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    @overload
    def bucket(
        self: Batching[_Leaf], *, boundaries: Sequence[int], size: int | Sequence[int],
        length_of: Callable[[T_co], Any] | None = ..., drop_remainder: bool = ..., collate: None = ...,
    ) -> Pipeline[NDArray[Any]]: ...  # fmt: skip
    @overload
    def bucket(
        self: Batching[tuple[object, object]], *, boundaries: Sequence[int], size: int | Sequence[int],
        length_of: Callable[[T_co], Any] | None = ..., drop_remainder: bool = ..., collate: None = ...,
    ) -> Pipeline[tuple[Any, Any]]: ...  # fmt: skip
    @overload
    def bucket(
        self: Batching[tuple[object, object, object]], *, boundaries: Sequence[int], size: int | Sequence[int],
        length_of: Callable[[T_co], Any] | None = ..., drop_remainder: bool = ..., collate: None = ...,
    ) -> Pipeline[tuple[Any, Any, Any]]: ...  # fmt: skip
    @overload
    def bucket(
        self: Batching[dict[K, Any]], *, boundaries: Sequence[int], size: int | Sequence[int],
        length_of: Callable[[T_co], Any] | None = ..., drop_remainder: bool = ..., collate: None = ...,
    ) -> Pipeline[dict[K, Any]]: ...  # fmt: skip
    @overload
    def bucket(
        self, *, boundaries: Sequence[int], size: int | Sequence[int],
        length_of: Callable[[T_co], Any] | None = ..., drop_remainder: bool = ...,
        collate: Callable[[list[T_co]], U],
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def bucket(
        self, *, boundaries: Sequence[int], size: int | Sequence[int],
        length_of: Callable[[T_co], Any] | None = ..., drop_remainder: bool = ..., collate: None = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    def bucket(
        self,
        *,
        boundaries: Sequence[int],
        size: int | Sequence[int],
        length_of: Callable[[Any], Any] | None = None,
        drop_remainder: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Pipeline[Any]:
        """Batch samples of similar length together, like TensorFlow's `bucket_by_sequence_length`.

        Bucket 0 takes samples shorter than `boundaries[0]`, bucket 1 those shorter than `boundaries[1]`, and so
        on. A full bucket becomes a batch. `pad` usually follows.

        Args:
            boundaries: The lengths at which the next bucket begins.
            size: Number of samples in a batch, or one number for each bucket.
            length_of: A function of the sample. By default the length is the size of axis 0 of its first array.
            drop_remainder: True drops the smaller batches at the end of an epoch.
            collate: A function that makes the batch, as for `batch`.

        Example:
            >>> import asyncfeed as af, numpy as np
            >>> ragged = af.items([np.ones(n) for n in (1, 9, 2, 8)])
            >>> [batch.shape for batch in ragged.bucket(boundaries=[5], size=2).pad()]
            [(2, 2), (2, 9)]
        """
        sizes = size if isinstance(size, int) else tuple(size)
        return self._pipeline.then(
            Bucket(tuple(boundaries), sizes, length_of=length_of, drop_remainder=drop_remainder, collate=collate)
        )

    @overload
    def window(
        self: Batching[Unknown], size: int, *, stride: int = ..., drop_remainder: bool = ...,
        within: Callable[[Any], Any] | Literal["file"] | None = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    @overload
    def window(
        self: Batching[_Leaf], size: int, *, stride: int = ..., drop_remainder: bool = ...,
        within: Callable[[Any], Any] | Literal["file"] | None = ...,
    ) -> Pipeline[NDArray[Any]]: ...  # fmt: skip
    @overload
    def window(
        self: Batching[tuple[object, object]], size: int, *, stride: int = ..., drop_remainder: bool = ...,
        within: Callable[[Any], Any] | Literal["file"] | None = ...,
    ) -> Pipeline[tuple[Any, Any]]: ...  # fmt: skip
    @overload
    def window(
        self: Batching[tuple[object, object, object]], size: int, *, stride: int = ..., drop_remainder: bool = ...,
        within: Callable[[Any], Any] | Literal["file"] | None = ...,
    ) -> Pipeline[tuple[Any, Any, Any]]: ...  # fmt: skip
    @overload
    def window(
        self: Batching[dict[K, Any]], size: int, *, stride: int = ..., drop_remainder: bool = ...,
        within: Callable[[Any], Any] | Literal["file"] | None = ...,
    ) -> Pipeline[dict[K, Any]]: ...  # fmt: skip
    @overload
    def window(
        self, size: int, *, stride: int = ..., drop_remainder: bool = ...,
        within: Callable[[Any], Any] | Literal["file"] | None = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    def window(
        self,
        size: int,
        *,
        stride: int = 1,
        drop_remainder: bool = True,
        within: Callable[[Any], Any] | Literal["file"] | None = None,
    ) -> Pipeline[Any]:
        """Stack each `size` consecutive samples into a window. A window begins every `stride` samples.

        If the samples are of several series, say so with `within`. Otherwise a window at the end of a series holds
        the first samples of the next one.

        This is TensorFlow's `window(size, shift=stride)` with each window batched. Samples may be those that
        `batch` takes. A window never holds samples of two epochs.

        Args:
            size: Number of samples in a window.
            stride: Number of samples from the start of a window to the start of the next.
            drop_remainder: False also returns the shorter windows at the end of an epoch, or of a series.
            within: What no window crosses. "file" is an item of the source, such as a file whose rows `flat_map`
                has given. A function of a sample returns the name of its series, a text or a number: where it
                changes, the next series begins.

        Order:
            If the samples are in memory and can be reached by number, the windows can be reached by number too,
            and an exact `shuffle` may follow. A `split` must come before `window`, or the parts would share
            samples.

        Memory:
            Right behind `arrays(...)` of numbers in memory, a window is a read-only view of them and takes no
            memory of its own. A function that changes it must change a `window.copy()`. Other windows are new
            arrays, so all of them need about `size / stride` times as much as the samples.

        Example:
            >>> import asyncfeed as af
            >>> [window.tolist() for window in af.items(range(5)).window(3, stride=2)]
            [[0, 1, 2], [2, 3, 4]]
            >>> days = af.items([("mon", 1), ("mon", 2), ("mon", 3), ("tue", 4), ("tue", 5)])
            >>> [list(day) for day, _ in days.window(2, within=lambda row: row[0])]
            [['mon', 'mon'], ['mon', 'mon'], ['tue', 'tue']]
        """
        return self._pipeline.then(Window(size, stride=stride, drop_remainder=drop_remainder, within=within))

    def pack(
        self, length: int, *, bins: int = 64, value: Any = 0, too_long: TooLong = "raise"
    ) -> Pipeline[Packed]:
        """Put several sequences into each row of `length` places, so that little is padding.

        This is packing as language models are trained with it. `batch` usually follows.

        Args:
            length: Number of places in a row.
            bins: Number of rows that are open at a time. More leave less padding, and hold more samples in memory.
            value: The value of padding, or a tree with one value for each leaf.
            too_long: What becomes of a sequence that is longer than a row. "raise" ends the run, "split" makes
                several pieces of it, each a sequence of its own, and "cut" keeps the first `length` places.

        Returns:
            Rows of three parts. `values` has the structure of a sample, and its arrays have `length` places.
            `segment_ids` (int32) has the number of the sequence at each place, from 1, and 0 where there is
            padding. `positions` (int32) has the place in the sequence, from 0.

        Raises:
            ValueError: While the pipeline runs: a sample is no array with a first axis and no tree of such arrays
                of one length, samples do not fit together, or a sequence is too long.

        Order:
            A sequence goes into the oldest open row that has room for it (first fit, as in Grain's
            `FirstFitPackIterDataset`). A row that is full goes out at once. If a sequence has room in no row, the
            oldest row goes out, and a new one is opened. At the end of an epoch all open rows go out.

        Memory:
            Up to `bins` rows are held. `feed.stats()` counts the places with data and with padding.

        Example:
            >>> import asyncfeed as af, numpy as np
            >>> rows = list(af.items([np.arange(1, n + 1) for n in (3, 4, 2, 1)]).pack(5))
            >>> rows[0].values.tolist(), rows[0].segment_ids.tolist(), rows[0].positions.tolist()
            ([1, 2, 3, 1, 2], [1, 1, 1, 2, 2], [0, 1, 2, 0, 1])
            >>> rows[1].values.tolist()
            [1, 2, 3, 4, 1]
        """
        return self._pipeline.then(Pack(length, bins=bins, value=value, too_long=too_long))

    def rebatch(self, size: int, *, drop_remainder: bool = False) -> Pipeline[T_co]:
        """Make batches of `size` rows of batches of any size.

        It does what `unbatch().batch(size)` does, without taking batches apart into samples.

        Args:
            size: Number of rows in a batch.
            drop_remainder: True drops the last batch of an epoch if it is smaller.

        Raises:
            ValueError: While the pipeline runs: a leaf has no rows, or batches do not fit together.

        Memory:
            A batch that lies in one of the earlier batches is a view of it. Others are copied once.

        Example:
            >>> import asyncfeed as af, numpy as np
            >>> [batch.tolist() for batch in af.items([np.arange(3), np.arange(4)]).rebatch(5)]
            [[0, 1, 2, 0, 1], [2, 3]]
        """
        return self._pipeline.then(Rebatch(size, drop_remainder=drop_remainder))

    @overload
    def unbatch(self: Batching[Unknown]) -> Pipeline[Any]: ...
    @overload
    def unbatch(self: Batching[tuple[object, object]]) -> Pipeline[tuple[Any, Any]]: ...
    @overload
    def unbatch(self: Batching[tuple[object, object, object]]) -> Pipeline[tuple[Any, Any, Any]]: ...
    @overload
    def unbatch(self: Batching[dict[K, Any]]) -> Pipeline[dict[K, Any]]: ...
    @overload
    def unbatch(self) -> Pipeline[Any]: ...
    def unbatch(self) -> Pipeline[Any]:
        """Take batches apart along their first axis.

        Memory:
            The rows are views of the batch: nothing is copied.

        Example:
            >>> import asyncfeed as af
            >>> [int(row) for row in af.items(range(3)).batch(2).unbatch()]
            [0, 1, 2]
        """
        return self._pipeline.then(Unbatch())
