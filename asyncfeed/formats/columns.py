"""Columns of Arrow as NumPy arrays. `docs/formats.md` says which type becomes what.

Numbers become arrays that share Arrow's memory if it may be written to, and are copied once otherwise. No Python
object is made for a number. Text and binary values are Python objects, and so is the array of each list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncfeed.errors import AsyncfeedError, Corrupt, PipelineError
from asyncfeed.extras import installed
from asyncfeed.reading.file import File
from asyncfeed.trees import map_leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

Columns = dict[str, Any]
"""Arrays by the name of their column. A column of structs is such a dict, too."""
_BROKEN = (ValueError, OSError, LookupError, OverflowError, NotImplementedError, MemoryError, TypeError)
"""Exceptions of pyarrow for bytes that are not what they claim to be, or that it cannot read."""


def pyarrow(module: str = "pyarrow") -> Any:
    """Return pyarrow, or one of its modules. If it is missing, the error says what to install."""
    return installed(module, "parquet")


# -- options of the decoders


def as_columns(decoder: str, columns: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the names of columns. Raise if they are one text, which is often meant as one name."""
    if isinstance(columns, str):
        raise PipelineError(f"{decoder}: columns must be several names: write columns=[{columns!r}]")
    return None if columns is None else tuple(columns)


def as_nulls(decoder: str, nulls: Mapping[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    """Return what replaces missing values, as pairs."""
    if nulls is not None and not (isinstance(nulls, Mapping) and all(isinstance(name, str) for name in nulls)):
        raise PipelineError(f"{decoder}: nulls must be values by column, as in nulls={{'age': -1}}, not {nulls!r}")
    return tuple((nulls or {}).items())


def check_options(decoder: str, columns: tuple[str, ...] | None, **counts: int | None) -> None:
    """Raise if the names of columns, or a count, mean nothing."""
    if columns is not None and not (columns and all(isinstance(name, str) for name in columns)):
        raise PipelineError(f"{decoder}: columns must be names, as in columns=['x', 'label'], not {columns!r}")
    for name, count in counts.items():
        if count is not None and (type(count) is not int or count < 1):
            raise PipelineError(f"{decoder}: {name} must be a whole number of at least 1, not {count!r}")


def check_found(file: File, columns: Sequence[str], names: Sequence[str], paths: Sequence[str]) -> None:
    """Raise if a column is not in the file. `paths` are those of the fields of structs, too."""
    for name in columns:
        if name not in names and not any(f"{path}.".startswith(f"{name}.") for path in paths):
            raise Corrupt(f"{file.path} has no column {name!r}; it has {', '.join(names) or 'none'}")


def in_order(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns of the file that hold the wanted ones, each once, in the order that was asked for."""
    return list(dict.fromkeys(name if name in names else name.partition(".")[0] for name in columns))


# -- arrays


class UnreadableColumn(ValueError):
    """A column that makes no array. The message names it, and says what to write."""


@dataclass(frozen=True)
class ToArrays:
    """Turns the record batches of one file into dicts of arrays, one after the other."""

    path: str
    """The file, for errors."""
    nulls: Mapping[str, Any]
    """What replaces missing values, by column."""
    known: dict[str, tuple[Any, Any]] = field(default_factory=dict, compare=False)
    """The last dictionary of each column, and its values. Most batches of a file share one."""

    def __call__(self, batch: Any) -> Columns:
        """Return the columns of a record batch."""
        names = batch.schema.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UnreadableColumn(f"{self.path} has two columns {twice!r}: read others with columns=[...]")
        return {name: self.column(batch.column(place), name) for place, name in enumerate(names)}

    def column(self, array: Any, name: str) -> Any:
        """Return the array of a column; for structs, a dict of them."""
        pa = pyarrow()
        types, kind = pa.types, array.type
        if isinstance(kind, pa.FixedShapeTensorType):
            if array.null_count:
                return self._missing(array, name)
            if types.is_boolean(kind.value_type) and kind.permutation is None:  # pyarrow makes no tensors of them
                return self.column(array.storage, name).reshape(len(array), *kind.shape)
            return array.to_numpy_ndarray()
        if isinstance(kind, pa.BaseExtensionType):
            return self.column(array.storage, name)
        if types.is_struct(kind):
            # `flatten` marks the fields of a missing struct as missing.
            fields = [kind.field(place).name for place in range(kind.num_fields)]
            parts = zip(fields, array.flatten(), strict=True)
            return {field: self.column(part, f"{name}.{field}") for field, part in parts}
        if types.is_run_end_encoded(kind):
            return self.column(pa.compute.run_end_decode(array), name)
        if types.is_dictionary(kind):
            if array.null_count or array.dictionary.null_count:
                return self.column(array.dictionary_decode(), name)
            dictionary, known = self.known.get(name, (None, None))
            if dictionary is None or not dictionary.equals(array.dictionary):
                known = self.column(array.dictionary, name)
                self.known[name] = array.dictionary, known
            places = self.column(array.indices, name)
            return map_leaves(lambda values: values[places], known)
        if array.null_count:
            return self._missing(array, name)
        make = _maker(kind, types)
        if make is None:
            raise UnreadableColumn(
                f"{self.path}: column {name!r} is of type {kind}, which makes no array: read other columns with "
                "columns=[...]"
            )
        return make(self, array, name)

    def _missing(self, array: Any, name: str) -> Any:
        """Return a column in which the missing values are replaced, as the user has said."""
        pa = pyarrow()
        count, kind = array.null_count, array.type
        if name not in self.nulls:
            raise UnreadableColumn(
                f"{self.path}: column {name!r} has {count} missing values in {len(array)} rows: write "
                f"nulls={{{name!r}: value}} for what to put in their place"
            )
        value = self.nulls[name]
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        whole = None
        if value is None and (is_list or _is_objects(kind, pa.types)):
            whole = self._present(array, name)
        elif is_list and isinstance(value, (list, tuple)) and not value:
            whole = self._present(array, name)
            for place in np.flatnonzero(_mask(array)):
                whole[place] = self.column(array.values[:0], f"{name}.element")
        elif isinstance(value, (np.datetime64, np.timedelta64)) and np.isnat(value):
            if pa.types.is_temporal(kind) and not pa.types.is_time(kind):
                found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
                whole = found if found.flags.writeable else found.copy()
        elif value is not None and not is_list:
            try:
                fit = Decimal(str(value)) if pa.types.is_decimal(kind) else value
                return self.column(array.fill_null(pa.scalar(fit, type=kind)), name)
            except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
                raise self._unfit(name, kind) from error
        if whole is None:
            raise self._unfit(name, kind)
        return whole

    def _unfit(self, name: str, kind: Any) -> UnreadableColumn:
        return UnreadableColumn(
            f"{self.path}: nulls={{{name!r}: {self.nulls[name]!r}}} does not fit the column, which has type {kind}"
        )

    def _present(self, array: Any, name: str) -> NDArray[Any]:
        """Return an array of objects, with None for missing values."""
        out = np.full(len(array), None, object)
        present = np.flatnonzero(~_mask(array))
        found = self.column(array.drop_null(), name)
        for place, each in zip(present.tolist(), found, strict=True):
            out[place] = each
        return out


Make = Callable[[ToArrays, Any, str], Any]


def read_with_pyarrow(path: str, fn: Callable[..., Any], *args: Any) -> Any:
    """Return what a function of pyarrow's returns. If it fails, raise `Corrupt` and name the file."""
    try:
        return fn(*args)
    except (UnreadableColumn, AsyncfeedError):
        raise
    except Exception as error:  # pyarrow's own need not be any of these
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file could not be read
        if not isinstance(error, _BROKEN) and not type(error).__module__.startswith("pyarrow"):
            raise
        text = (str(error) or type(error).__name__).partition("\n")[0][:300]
        if "Wrapping" in text:  # it shows a value, which may be a secret
            raise Corrupt(f"{path} cannot be read by pyarrow: a text is not UTF-8") from None
        raise Corrupt(f"{path} cannot be read by pyarrow: {text}") from error


def _maker(kind: Any, types: Any) -> Make | None:
    """Return the function that makes an array of a column of this type without missing values."""
    if types.is_boolean(kind):
        return _bits
    if types.is_integer(kind) or types.is_floating(kind):
        return _numbers
    if types.is_temporal(kind) and not types.is_interval(kind):
        return _times
    if types.is_decimal(kind):
        return _decimals
    if types.is_fixed_size_binary(kind):
        return _fixed_bytes
    if _is_objects(kind, types):
        return _objects
    if types.is_fixed_size_list(kind):
        return _fixed_lists
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        return _lists
    return None


def _is_objects(kind: Any, types: Any) -> bool:
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        or types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    )  # fmt: skip


def _mask(array: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return found


def _numbers(_to: ToArrays, array: Any, _name: str) -> NDArray[Any]:
    # Not `to_pandas_dtype`, which needs pandas before pyarrow 22.
    dtype: np.dtype[Any] = array[:0].to_numpy(zero_copy_only=False).dtype
    if not len(array):
        return np.empty(0, dtype)
    made = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    return made if made.flags.writeable else made.copy()


def _bits(_to: ToArrays, array: Any, _name: str) -> NDArray[Any]:
    made: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return made


def _times(_to: ToArrays, array: Any, _name: str) -> NDArray[Any]:
    pa = pyarrow()
    kind = array.type
    if pa.types.is_time(kind):
        array = array.cast(pa.int64() if kind.bit_width == 64 else pa.int32()).cast(pa.int64())
        array = array.cast(pa.duration(kind.unit))
    made: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return made if made.flags.writeable else made.copy()


def _decimals(_to: ToArrays, array: Any, _name: str) -> NDArray[Any]:
    kind = array.type
    if kind.bit_width == 128 and kind.precision <= 18 and 0 <= kind.scale <= 18 and len(array):
        # The lower half of each number is the number. Arrow's own conversion is off by the last bit for some.
        halves = np.frombuffer(array.buffers()[1], "<i8", 2 * len(array), 16 * array.offset)
        found: NDArray[Any] = halves[::2] / 10.0**kind.scale
        return found
    made: NDArray[Any] = array.cast(pyarrow().float64()).to_numpy(zero_copy_only=False)
    return made if made.flags.writeable else made.copy()


def _fixed_bytes(_to: ToArrays, array: Any, _name: str) -> NDArray[Any]:
    width = array.type.byte_width
    if not len(array) or not width:
        return np.empty((len(array), width), np.uint8)
    made = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
    return (made if made.flags.writeable else made.copy()).reshape(len(array), width)


def _objects(_to: ToArrays, array: Any, _name: str) -> NDArray[Any]:
    made: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return made


def _fixed_lists(to: ToArrays, array: Any, name: str) -> Any:
    rows, width = len(array), array.type.list_size
    inner = to.column(array.flatten(), f"{name}.element")
    return map_leaves(lambda leaf: leaf.reshape(rows, width, *leaf.shape[1:]), inner)


def _lists(to: ToArrays, array: Any, name: str) -> Any:
    """Return an array of objects: for each row an array, which is a view of one array of all values."""
    pa = pyarrow()
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    start, stop = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    if pa.types.is_map(array.type):
        inner: Any = {
            "key": to.column(array.keys[start:stop], f"{name}.key"),
            "value": to.column(array.items[start:stop], f"{name}.value"),
        }
    else:
        inner = to.column(array.values[start:stop], f"{name}.element")
    ends = (offsets - start).tolist()

    def cut(leaf: NDArray[Any]) -> NDArray[Any]:
        out = np.empty(len(array), object)
        for row in range(len(array)):
            out[row] = leaf[ends[row] : ends[row + 1]]
        return out

    return map_leaves(cut, inner)
