"""Prefetch: how many ready items may wait for the next stage or the consumer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from asyncfeed.axes import Axes
from asyncfeed.stages.base import Node, check_count
from asyncfeed.stages.steps import Queue, Step


@dataclass(frozen=True)
class Prefetch(Node):
    """Holds up to `count` ready items. At the end of a description they wait for the consumer."""

    count: int

    method: ClassVar[str] = "prefetch"
    only_tunes: ClassVar[bool] = True
    positional: ClassVar[tuple[str, ...]] = ("count",)
    is_queue: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("prefetch", "count", self.count, 1)

    def steps(self) -> Sequence[Step]:
        """Return the queue."""
        return [Queue(self.count)]

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream

    def length(self, upstream: int) -> int:
        """Return `upstream`: as many items come out as go in."""
        return upstream
