"""Pieces: the results that an order releases to be sent, and what ends after them."""

from __future__ import annotations

from typing import Any

from asyncfeed.epoch_end import EpochEnd
from asyncfeed.errors import Failure
from asyncfeed.position import Position, Positions


class Piece:
    """Results of a stage that can be sent now, each with its position."""

    __slots__ = ("boundary", "charge_change", "failure", "failures", "gone", "nbytes", "positions", "results")

    def __init__(self, results: list[Any], positions: Positions) -> None:
        self.results = results
        self.positions = positions
        self.gone: Positions = positions
        """The positions of all items that are done with this piece, also of those that are left out."""
        self.failures: list[tuple[int, Failure]] = []
        """The items that failed. Each has the number of results before it, and how it failed."""
        self.nbytes = 0
        """Bytes of the results."""
        self.charge_change = 0
        """Bytes to charge for the results in addition to what is charged already. Negative to release bytes."""
        self.boundary: EpochEnd | None = None
        """The end of epochs after the results."""
        self.failure: Failure | None = None
        """A failure from upstream after the results."""

    @property
    def ends(self) -> bool:
        """Whether an end of an epoch, or a failure from upstream, comes after the results."""
        return self.boundary is not None or self.failure is not None

    def end(self) -> Piece:
        """Return a piece with the same end and without results."""
        end = Piece([], ())
        end.boundary, end.failure = self.boundary, self.failure
        return end


def without_missing(
    results: list[Any], positions: Positions, indices: Any, missing: dict[int, Failure | None]
) -> Piece:
    """Return a piece without the missing items: those that failed, and those that are left out.

    Args:
        results: The values of items of an entry, also of missing items.
        positions: The position of each of these items.
        indices: The index of each of these items in the entry.
        missing: The missing items of the entry, by index. Those of this piece are removed from it.
    """
    kept: list[Any] = []
    kept_positions: list[Position] = []
    piece = Piece(kept, kept_positions)
    for index, result, position in zip(indices, results, positions, strict=True):
        if index not in missing:
            kept.append(result)
            kept_positions.append(position)
        elif (failure := missing.pop(index)) is not None:
            piece.failures.append((len(kept), failure))
    piece.gone = positions
    return piece
