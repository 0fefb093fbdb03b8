"""Feeds one enqueue: checks the leaves of an item and assigns them to the placeholders of the enqueue op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncfeed.errors import PipelineError
from asyncfeed.trees import Tree, flatten

KINDS = {bool: "biuf", int: "iuf", float: "f", complex: "c"}
"""The kinds of dtypes that hold Python's numbers without loss."""


class Components:
    """The placeholders of an enqueue op, in the order of an item's leaves, or each for one key of a dict.

    A session converts every value without an error: 300 becomes the uint8 44, and 5.7 becomes 5. So each item is
    checked first. If it does not fit, a `PipelineError` names the component and the `method` that was called.
    """

    def __init__(self, placeholders: Sequence[Any] | Mapping[str, Any], method: str = "to_queue_runner") -> None:
        self._method = method
        self._keys = list(placeholders) if isinstance(placeholders, Mapping) else None
        given = list(placeholders.values()) if isinstance(placeholders, Mapping) else list(placeholders)
        names = self._keys or [str(number) for number in range(len(given))]
        self._all = [_component(name, each) for name, each in zip(names, given, strict=True)]

    def feed(self, item: Tree) -> dict[Any, Any]:
        """Return the `feed_dict` of a session for an item."""
        leaves = leaves_of(item, self._keys, self._method)
        if len(leaves) != len(self._all):
            raise PipelineError(
                f"{self._method}: an item has {len(leaves)} leaves, but the queue takes {len(self._all)} "
                f"components; make {len(self._all)} leaves with .map()"
            )
        for component, leaf in zip(self._all, leaves, strict=True):
            component.check(leaf, self._method)
        return {component.placeholder: leaf for component, leaf in zip(self._all, leaves, strict=True)}


def leaves_of(item: Tree, keys: Sequence[str] | None, method: str = "to_queue_runner") -> list[Any]:
    """Return the leaves of an item, or the values of a dict in the order of the keys.

    A dict is accepted only with keys, because the order of its own keys has no meaning.

    >>> leaves_of((1, (2, 3)), None), leaves_of({"a": 1, "b": 2}, ["b", "a"])
    ([1, 2, 3], [2, 1])
    """
    is_dict = isinstance(item, Mapping)
    if keys is None and is_dict:
        raise PipelineError(
            f"{method}: an item is a dict of {sorted(map(str, item))}: give the queue names=[...], give "
            "placeholders={...} with an enqueue op, or make it a tuple with .map()"
        )
    if keys is None:
        return flatten(item)[0]
    if not is_dict or set(item) != set(keys):
        shown = f"a dict of {sorted(map(str, item))}" if is_dict else f"a {type(item).__name__}"
        raise PipelineError(
            f"{method}: the queue takes a dict of {sorted(keys)}, but an item is {shown}; use .map()"
        )
    return [item[key] for key in keys]


@dataclass(frozen=True)
class Component:
    """One placeholder, with the dtype and shape that it takes."""

    name: str
    placeholder: Any
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None

    def check(self, leaf: Any, method: str) -> None:
        """Raise if a leaf does not fit."""
        if type(leaf) in KINDS:
            fits = self.dtype.kind in KINDS[type(leaf)]
        elif self.dtype.kind == "O":
            fits = isinstance(leaf, str | bytes) or getattr(leaf, "dtype", np.dtype(float)).kind in "OUS"
        else:
            fits = getattr(leaf, "dtype", None) == self.dtype
        if fits and self._has_room(np.shape(leaf)):
            return
        shape = "any shape" if self.shape is None else f"shape {self.shape}"
        raise PipelineError(
            f"{method}: component {self.name} of an item is {_shown(leaf)}, but the queue takes "
            f"{self.placeholder.dtype.name} of {shape}; convert it with .map()"
        )

    def _has_room(self, shape: tuple[int, ...]) -> bool:
        if self.shape is None:
            return True
        return len(shape) == len(self.shape) and all(
            size is None or size == given for size, given in zip(self.shape, shape, strict=True)
        )


def _component(name: str, placeholder: Any) -> Component:
    dtype = np.dtype(placeholder.dtype.as_numpy_dtype)
    rank = placeholder.shape.rank
    return Component(name, placeholder, dtype, None if rank is None else tuple(placeholder.shape.as_list()))


def _shown(leaf: Any) -> str:
    if hasattr(leaf, "dtype"):
        return f"{leaf.dtype} of shape {np.shape(leaf)}"
    return f"{type(leaf).__name__} {str(leaf)[:60]!r}"
