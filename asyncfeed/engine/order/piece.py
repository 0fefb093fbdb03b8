"""What an order gives out: results that can be sent now, and what ends after them."""

from __future__ import annotations

from typing import Any

from asyncfeed.epoch_end import EpochEnd
from asyncfeed.errors import Failure
from asyncfeed.position import Position, Positions


class Piece:
    """Results of a stage that can be sent now, each with its position."""

    __slots__ = ("boundary", "change", "failure", "failures", "nbytes", "positions", "results")

    def __init__(self, results: list[Any], positions: Positions) -> None:
        self.results = results
        self.positions = positions
        self.failures: list[tuple[int, Failure]] = []
        """The items that failed: how many of the results come before each, and how it failed."""
        self.nbytes = 0
        """What the results weigh."""
        self.change = 0
        """What is to be charged to the memory limit for them, beyond what is charged already."""
        self.boundary: EpochEnd | None = None
        """Which epochs end after the results."""
        self.failure: Failure | None = None
        """The failure from upstream that comes after the results."""

    @property
    def ends(self) -> bool:
        """Whether something comes after the results: an end, or a failure from upstream."""
        return self.boundary is not None or self.failure is not None

    def end(self) -> Piece:
        """Return a piece without results, and with the same end."""
        end = Piece([], ())
        end.boundary, end.failure = self.boundary, self.failure
        return end


def sifted(results: list[Any], positions: Positions, places: Any, lost: dict[int, Failure | None]) -> Piece:
    """Return a piece without the results of lost items: those that failed, and those that are left out.

    `places` says where each result stands in its chunk, and `lost` which of these places have none.
    """
    kept: list[Any] = []
    kept_positions: list[Position] = []
    piece = Piece(kept, kept_positions)
    for place, result, position in zip(places, results, positions, strict=True):
        if place not in lost:
            kept.append(result)
            kept_positions.append(position)
        elif (failure := lost.pop(place)) is not None:
            piece.failures.append((len(kept), failure))
    return piece
