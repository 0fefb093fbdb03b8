"""Prefetch: how much may wait, ready, for whoever comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from asyncfeed.stages.base import Node, Step, check_count


@dataclass(frozen=True)
class Prefetch(Node):
    """Lets `count` items wait here; at the end of a description, for the consumer."""

    count: int

    method: ClassVar[str] = "prefetch"
    positional: ClassVar[tuple[str, ...]] = ("count",)

    def __post_init__(self) -> None:
        check_count("prefetch", "count", self.count, 1)

    def steps(self) -> Sequence[Step]:
        """Return nothing to do: the engine makes a queue of this size."""
        return ()

    def length(self, upstream: int) -> int:
        """Return as many as come in."""
        return upstream
