"""Prefetch: how much may wait, ready, for whoever comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from asyncfeed.axes import Axes
from asyncfeed.stages.base import Node, check_count
from asyncfeed.stages.steps import Queue, Step


@dataclass(frozen=True)
class Prefetch(Node):
    """Lets `count` items wait here; at the end of a description, for the consumer."""

    count: int

    method: ClassVar[str] = "prefetch"
    positional: ClassVar[tuple[str, ...]] = ("count",)
    is_queue: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("prefetch", "count", self.count, 1)

    def steps(self) -> Sequence[Step]:
        """Return the queue."""
        return [Queue(self.count)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return the same: the items stay as they are."""
        return upstream

    def length(self, upstream: int) -> int:
        """Return as many as come in."""
        return upstream
