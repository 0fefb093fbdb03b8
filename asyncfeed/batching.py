"""The part of `Pipeline` that makes batches of samples, and samples of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from asyncfeed.running import Running
from asyncfeed.stages.batch import Batch
from asyncfeed.stages.bucket import Bucket
from asyncfeed.stages.pad import Pad
from asyncfeed.stages.unbatch import Unbatch
from asyncfeed.stages.window import Window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from asyncfeed.pipeline import Pipeline

    _Leaf = float | complex | str | bytes | np.generic | NDArray[Any]
    """Samples of which a batch is one array: a type checker takes int and bool for float."""

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
K = TypeVar("K")
_Sizes = int | tuple[int | None, ...] | None


class Unknown:
    """A type that no sample has, for overloads: only a pipeline of Any matches it.

    Without such an overload, a type checker takes the first of the others for a pipeline of Any, which would say
    that its batches are arrays.
    """


class Batching(Running[T_co]):
    """The part of `Pipeline` that makes batches and takes them apart.

    What a type checker knows of a batch is the structure of its samples: one array for numbers, text and arrays; a
    pair, a triple or a dict of anything for samples that are one.
    """

    __slots__ = ()

    @overload
    def batch(
        self: Batching[Unknown], size: int, *, drop_remainder: bool = ..., collate: None = ...,
    ) -> Pipeline[Any]: ...  # fmt: skip
    @overload
    def batch(
        self: Batching[_Leaf], size: int, *, drop_remainder: bool = ..., collate: None = ...,
    ) -> Pipeline[NDArray[Any]]: ...  # fmt: skip
    @overload
    def batch(
        self: Batching[tuple[object, object]], size: int, *, drop_remainder: bool = ..., collate: None = ...,
    ) -> Pipeline[tuple[Any, Any]]: ...  # fmt: skip
    @overload
    def batch(
        self: Batching[tuple[object, object, object]], size: int, *, drop_remainder: bool = ...,
        collate: None = ...,
    ) -> Pipeline[tuple[Any, Any, Any]]: ...  # fmt: skip
    @overload
    def batch(
        self: Batching[dict[K, Any]], size: int, *, drop_remainder: bool = ..., collate: None = ...,
    ) -> Pipeline[dict[K, Any]]: ...  # fmt: skip
    @overload
    def batch(
        self, size: int, *, drop_remainder: bool = ..., collate: Callable[[list[T_co]], U],
    ) -> Pipeline[U]: ...  # fmt: skip
    @overload
    def batch(self, size: int, *, drop_remainder: bool = ..., collate: None = ...) -> Pipeline[Any]: ...
    def batch(
        self, size: int, *, drop_remainder: bool = False, collate: Callable[[list[Any]], Any] | None = None
    ) -> Pipeline[Any]:
        """Stack each `size` samples: every leaf becomes an array with a new first axis.

        Args:
            size: Number of samples of a batch.
            drop_remainder: True drops the last batch of an epoch if it is smaller.
            collate: A sync function of a list of samples that makes the batch instead, called on a thread. It
                takes and returns any objects. `pad` cannot follow it.

        Returns:
            Batches with the structure of the samples, which are trees of arrays and numbers. Numbers become int64,
            float64 or bool. Text and bytes become arrays of objects. Arrays keep their dtype. Tensors of torch,
            JAX and TensorFlow become arrays of theirs. A leaf that is None in all samples stays None.

        Raises:
            ValueError: While the pipeline runs, samples differ in structure, dtype or shape (the message names
                two), or an object makes no array: a `File` that was not loaded, the None of a function without a
                `return`.

        Memory:
            A batch is one 64-byte aligned array for each leaf. If the array is 256 KB or larger, a later batch
            uses its memory again, after the last array, view or tensor that shows it is gone.

        Example:
            >>> import asyncfeed as af
            >>> [batch.tolist() for batch in af.items(range(5)).batch(2)]
            [[0, 1], [2, 3], [4]]
        """
        return self._pipeline.then(Batch(size, drop_remainder=drop_remainder, collate=collate))

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
            value: What is added, or a tree of values, one for each leaf. Arrays of text get "" for the default.
            to: The size of the first axis, or a tuple with the size of each axis. None leaves an axis to the
                longest.
            multiple_of: The same for sizes that are rounded up to a multiple.
            lengths: True gives (batch, true lengths), as TensorFlow's `padded_batch` beside a length column.

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
        """Batch samples of similar length together, as TensorFlow's `bucket_by_sequence_length`.

        A sample shorter than `boundaries[0]` goes to the first bucket, and so on. A bucket that is full becomes a
        batch. `pad` usually follows.

        Args:
            boundaries: The lengths at which the next bucket begins.
            size: Number of samples of a batch, or one number for each bucket.
            length_of: A function of the sample. By default the length is axis 0 of its first array.
            drop_remainder: True drops the smaller batches at the end of an epoch.
            collate: Makes the batch, as for `batch`.

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
    ) -> Pipeline[Any]: ...  # fmt: skip
    @overload
    def window(
        self: Batching[_Leaf], size: int, *, stride: int = ..., drop_remainder: bool = ...,
    ) -> Pipeline[NDArray[Any]]: ...  # fmt: skip
    @overload
    def window(
        self: Batching[tuple[object, object]], size: int, *, stride: int = ..., drop_remainder: bool = ...,
    ) -> Pipeline[tuple[Any, Any]]: ...  # fmt: skip
    @overload
    def window(
        self: Batching[tuple[object, object, object]], size: int, *, stride: int = ..., drop_remainder: bool = ...,
    ) -> Pipeline[tuple[Any, Any, Any]]: ...  # fmt: skip
    @overload
    def window(
        self: Batching[dict[K, Any]], size: int, *, stride: int = ..., drop_remainder: bool = ...,
    ) -> Pipeline[dict[K, Any]]: ...  # fmt: skip
    @overload
    def window(self, size: int, *, stride: int = ..., drop_remainder: bool = ...) -> Pipeline[Any]: ...
    def window(self, size: int, *, stride: int = 1, drop_remainder: bool = True) -> Pipeline[Any]:
        """Stack each `size` samples that follow each other, a window every `stride` samples.

        As TensorFlow's `window(size, shift=stride)` with each window batched. `batch` says what samples may be.
        Windows never reach across epochs.

        Args:
            size: Number of samples of a window.
            stride: Number of samples from the start of a window to the start of the next.
            drop_remainder: False also gives the shorter windows at the end of an epoch.

        Order:
            If the samples are in memory and can be reached by number, the windows can be too, and an exact
            `shuffle` may follow. A `split` must come before, or its parts would share samples.

        Memory:
            Each window is a new array, so all windows need about `size / stride` times as much as the samples.

        Example:
            >>> import asyncfeed as af
            >>> [window.tolist() for window in af.items(range(5)).window(3, stride=2)]
            [[0, 1, 2], [2, 3, 4]]
        """
        return self._pipeline.then(Window(size, stride=stride, drop_remainder=drop_remainder))

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
