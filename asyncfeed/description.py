"""A pipeline as a value: a source, its stages, and the facts that are known before a run."""

from __future__ import annotations

import sys
from typing import Any

from asyncfeed.stages.base import Node, Source
from asyncfeed.stages.steps import Indexed
from asyncfeed.stages.together import fold


class Description:
    """A source and the stages after it. It is immutable, and can be compared, printed and pickled."""

    __slots__ = ("source", "stages")

    source: Source
    stages: tuple[Node, ...]

    def __init__(self, source: Source, stages: tuple[Node, ...] = ()) -> None:
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "stages", stages)

    def size(self) -> int | None:
        """Return the number of items that one run delivers. None if it is not known, or the items have no end."""
        size, endless = self.source.size(), self.source.has_no_end
        for node in self.stages:
            if endless:  # only a stage that ends the stream, such as `take`, gives a length
                size = None if node.endless(upstream=True) else node.length(sys.maxsize)
            elif size is not None:
                size = node.length(size)
            endless = node.endless(upstream=endless)
        return size

    def __len__(self) -> int:
        """Return the number of items that one run delivers. Raises `TypeError` if it is not known."""
        size = self.size()
        if size is None:
            fix = f"; {self.source.unnumbered}" if self.source.unnumbered else ""
            raise TypeError(f"the length of {self!r} is not known, or it has no end{fix}")
        return size

    def __bool__(self) -> bool:
        """Return True, also for a pipeline without items."""
        return True

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, by label, as `image_folder` found them. Other sources have none."""
        names = self.source.class_names
        if not names:
            raise AttributeError(
                f"{self.source.method}(...) has no class_names: image_folder(...) has, and what is made of it"
            )
        return names

    def indexed(self) -> Indexed | None:
        """Return the items by number if the source has them by number and all stages only rearrange them."""
        indexed, rest = fold(self.source, self.stages, whole=True)
        return None if rest else indexed

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"a Pipeline cannot be changed, so .{name} cannot be set; its methods return new pipelines"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.stages)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Description):
            return NotImplemented
        return self.source == other.source and self.stages == other.stages

    def __hash__(self) -> int:
        return hash((type(self.source), tuple(map(type, self.stages))))

    def __repr__(self) -> str:
        return ".".join(map(str, (self.source, *self.stages)))
