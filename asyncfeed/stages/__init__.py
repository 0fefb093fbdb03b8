"""What a stage or a source of your own is made of: see `docs/extending.md`."""

from __future__ import annotations

from asyncfeed.axes import AllOf, Axes, Batched, Fixed, PaddedTo, Unknown
from asyncfeed.stages.base import Node, Source, check_count
from asyncfeed.stages.steps import (
    Algorithm,
    Arranging,
    Choice,
    Held,
    Indexed,
    Opening,
    Passes,
    Picking,
    Place,
    Queue,
    Reading,
    Step,
    Timed,
    Work,
    Zipping,
)

__all__ = [
    "Algorithm",
    "AllOf",
    "Arranging",
    "Axes",
    "Batched",
    "Choice",
    "Fixed",
    "Held",
    "Indexed",
    "Node",
    "Opening",
    "PaddedTo",
    "Passes",
    "Picking",
    "Place",
    "Queue",
    "Reading",
    "Source",
    "Step",
    "Timed",
    "Unknown",
    "Work",
    "Zipping",
    "check_count",
]
