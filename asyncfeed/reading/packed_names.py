"""Many names in one block of memory: numpy copies, selects and sorts them, without Python for each name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from asyncfeed.reading.file import Bytes, Numbers

ENCODING: Final = sys.getfilesystemencoding()
ERRORS: Final = sys.getfilesystemencodeerrors()
"""How the system writes paths, also those that are no text: as `os.fsencode` does."""

_WORD_BYTES: Final = 8
"""Number of bytes of a name that are compared at once."""
_KEPT: Final = np.array([(1 << 64) - (1 << (64 - 8 * kept)) for kept in range(_WORD_BYTES + 1)], np.uint64)
"""The masks that keep the first 0 to 8 bytes of a word."""
_DIGIT_BITS: Final = 16
"""numpy sorts numbers of 16 bits in linear time."""
_KEY_BITS: Final = 3 * _DIGIT_BITS
"""Bits of a name that are sorted at once. With fewer, more names have equal keys, and are sorted again. With more,
all names take another pass."""
_COPIED_NAMES: Final = 1 << 16
"""Number of names that are copied at once. With more, the copy between takes more memory."""

_Words = np.ndarray[Any, np.dtype[np.uint64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


class Names:
    """Names, or paths, in one block of memory. Treat it as immutable.

    >>> names = Names.of(["b.npy", "a.npy"])
    >>> names.arranged(names.order(), b"data/").texts()
    ['data/a.npy', 'data/b.npy']
    """

    __slots__ = ("block", "lengths")

    def __init__(self, block: bytearray, lengths: Numbers) -> None:
        self.block = block
        """The names as the system writes them, each with a zero byte at its end."""
        self.lengths = lengths
        """Number of bytes of each name, without its zero byte."""

    @classmethod
    def of(cls, texts: Iterable[str]) -> Names:
        """Return names that are given as text."""
        block = bytearray("\0".join((*texts, "")), ENCODING, ERRORS)
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 0)
        return cls(block, np.diff(ends, prepend=-1) - 1)

    @classmethod
    def joined(cls, parts: Sequence[Names]) -> Names:
        """Return the names of all parts."""
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([np.empty(0, np.int64), *(each.lengths for each in parts)])
        return cls(bytearray().join(each.block for each in parts), lengths)

    @property
    def memory(self) -> Bytes:
        """The block as an array. While it is held, the block cannot grow."""
        return np.frombuffer(self.block, np.uint8)

    def bounds(self) -> Numbers:
        """Return where each name begins in the block, and where the block ends."""
        bounds = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.lengths + 1, out=bounds[1:])
        return bounds

    def texts(self) -> list[str]:
        """Return the names as text."""
        return self.block[:-1].decode(ENCODING, ERRORS).split("\0") if self.block else []

    def runs(self, count: int) -> Iterator[list[str]]:
        """Yield the names as text, `count` at a time."""
        bounds = self.bounds()[::count].tolist()
        for start, stop in pairwise([*bounds, len(self.block)] if bounds[-1] < len(self.block) else bounds):
            yield self.block[start : stop - 1].decode(ENCODING, ERRORS).split("\0")

    def text(self, at: int) -> str:
        """Return one of the names as text."""
        at = range(len(self))[at]
        start = int(self.lengths[:at].sum()) + at
        return self.block[start : start + int(self.lengths[at])].decode(ENCODING, ERRORS)

    def arranged(self, places: Numbers | Flags, prefix: bytes = b"") -> Names:
        """Return the names at these places, in this order, each with `prefix` before it."""
        width = len(self.block) // max(1, len(self))
        if places.dtype != np.bool_ and (self.lengths == width - 1).all():  # all names have the same length
            starts = places * width
            return gathered(self.memory, starts, np.full(len(starts), width - 1), prefix)
        return gathered(self.memory, self.bounds()[:-1][places], self.lengths[places], prefix)

    def order(self) -> Numbers:
        """Return the places of the names in the order in which Python sorts them as text."""
        if self._sorts_by_bytes():
            return _order_of_bytes(self)
        texts = self.texts()
        return np.array(sorted(range(len(texts)), key=texts.__getitem__), np.int64)

    def unique(self) -> Names:
        """Return the names in the order in which Python sorts them as text, each once."""
        names = self.arranged(self.order())
        starts, lengths = names.bounds()[:-1], names.lengths
        repeats = lengths[1:] == lengths[:-1]
        for place in range(0, int(lengths.max(initial=0)), _WORD_BYTES):
            words = _words(names, starts, place)
            repeats &= words[1:] == words[:-1]
        return names.arranged(np.append(True, ~repeats)[: len(names)])

    def _sorts_by_bytes(self) -> bool:
        """Return whether the bytes of the names sort as their texts do.

        UTF-8 does. Bytes that are no text do not, because Python decodes them to surrogates.
        """
        if self.block.isascii():
            return True
        if ENCODING != "utf-8":
            return False
        try:
            self.block.decode(ENCODING)
        except UnicodeDecodeError:
            return False
        return True

    def __len__(self) -> int:
        return len(self.lengths)


def gathered(memory: Bytes, starts: Numbers, lengths: Numbers, prefix: bytes = b"") -> Names:
    """Return names that lie anywhere in memory, each with a zero byte at its end. Copy `prefix` before each."""
    if not len(starts):
        return Names(bytearray(), np.empty(0, np.int64))
    head = np.frombuffer(prefix, np.uint8)
    made = Names(bytearray(int(lengths.sum()) + len(lengths) * (len(head) + 1)), lengths + len(head))
    into = made.memory
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest == longest:
        width = longest + 1
        rows = into.reshape(-1, len(head) + width)
        rows[:, : len(head)] = head
        at_stride = np.ndarray(len(starts), f"V{width}", into, len(head), (rows.shape[1],))
        for some in range(0, len(starts), _COPIED_NAMES):
            at_stride[some : some + _COPIED_NAMES] = slices(memory, width)[starts[some : some + _COPIED_NAMES]]
        return made
    targets = made.bounds()[:-1]
    by_length = lengths.astype(np.uint16).argsort(kind="stable")
    ends = np.cumsum(np.bincount(lengths))
    for length in range(shortest, longest + 1):
        group = by_length[ends[length - 1] if length else 0 : ends[length]]
        if len(group):
            rows = np.empty((len(group), len(head) + length + 1), np.uint8)
            rows[:, : len(head)] = head
            rows[:, len(head) :] = slices(memory, length + 1)[starts[group]].view(np.uint8).reshape(len(group), -1)
            slices(into, rows.shape[1])[targets[group]] = rows.view(f"V{rows.shape[1]}").reshape(-1)
    return made


def slices(memory: Bytes, width: int) -> np.ndarray[Any, np.dtype[np.void]]:
    """Return a view that has the `width` bytes from each place of the memory on."""
    return np.ndarray(max(0, len(memory) - width + 1), f"V{width}", memory, 0, (1,))


def _order_of_bytes(names: Names) -> Numbers:
    """Return the order of the names by their bytes."""
    keys = _keys(names)
    key, bits, is_last = next(keys, (None, 0, True))
    if key is None:  # all names are equal
        return np.arange(len(names))
    order = _sorted_places(key, bits)
    if is_last:
        return order
    key = key[order]
    differs = np.append(True, key[1:] != key[:-1])
    """For each name in the order, whether it is known to differ from the one before it."""
    while not is_last and not differs.all():
        key, _, is_last = next(keys)
        # Only names whose keys so far are equal are still to be sorted.
        tied = ~differs
        tied[:-1] |= ~differs[1:]
        places = np.flatnonzero(tied)
        key = key[order[places]]
        within = np.lexsort((key, np.cumsum(differs)[places]))
        order[places] = order[places][within]
        key = key[within]
        differs[places[1:]] |= key[1:] != key[:-1]
    return order


def _keys(names: Names) -> Iterator[tuple[_Words, int, bool]]:
    """Yield numbers that sort as the names do, their bits, and whether these are the last ones.

    Later ones count only if earlier ones are equal. Bits that are the same in all names are left out, so one key
    is mostly enough.
    """
    starts = names.bounds()[:-1]
    key, bits = np.zeros(len(names), np.uint64), 0
    for place in range(0, int(names.lengths.max(initial=0)), _WORD_BYTES):
        words = _words(names, starts, place)
        varying = int(np.bitwise_or.reduce(words ^ words[0]))
        for shift in range(56, -1, -8):
            width = (varying >> shift & 0xFF).bit_length()
            if bits + width > _KEY_BITS:
                yield key, bits, False
                key, bits = np.zeros(len(names), np.uint64), 0
            if width:
                key <<= np.uint64(width)
                key |= words >> np.uint64(shift) & np.uint64((1 << width) - 1)
                bits += width
    if bits:
        yield key, bits, True


def _words(names: Names, starts: Numbers, place: int) -> _Words:
    """Return the eight bytes from a place in each name on, as a number. Bytes behind the name are zero."""
    memory = names.memory
    if len(memory) < _WORD_BYTES:
        memory = np.concatenate([memory, np.zeros(_WORD_BYTES, np.uint8)])
    last = len(memory) - _WORD_BYTES
    at = starts + place
    beyond = np.flatnonzero(at > last)
    shifts = np.minimum(at[beyond] - last, _WORD_BYTES - 1).astype(np.uint64) * np.uint64(8)
    at[beyond] = last
    words = np.ndarray(last + 1, ">u8", memory, 0, (1,))[at].astype(np.uint64)
    words[beyond] <<= shifts
    if int(names.lengths.min()) < place + _WORD_BYTES:
        words &= _KEPT[np.clip(names.lengths - place, 0, _WORD_BYTES)]
    return words


def _sorted_places(key: _Words, bits: int) -> Numbers:
    """Return the places of numbers of so many bits in sorted order. They are sorted digit by digit."""
    order = key.astype(np.uint16).argsort(kind="stable")
    for shift in range(_DIGIT_BITS, bits, _DIGIT_BITS):
        order = order[(key >> np.uint64(shift)).astype(np.uint16)[order].argsort(kind="stable")]
    return order
