"""Where a step's results go: through the algorithms that follow it, into the next channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from asyncfeed.engine.epochs import EpochCounter, EpochsEnded
from asyncfeed.engine.limits.budget import Account, Budget
from asyncfeed.epoch_end import END_OF_STREAM
from asyncfeed.errors import Failure, PipelineError
from asyncfeed.position import Positions, join
from asyncfeed.stages.steps import Algorithm, Chunk


class Sink(Protocol):
    """What takes chunks: a channel, or the handoff to the consumer."""

    async def put(self, chunk: Chunk) -> None:
        """Queue a chunk, then wait until there is room for another."""
        ...

    def __len__(self) -> int: ...


class TransformLink:
    """One algorithm at its place in the stream.

    `level` is the number of `repeat`s before it: it flushes where an epoch of that level ends, and `top` says
    that no `repeat` follows, so when the algorithm wants no more the stream ends here.
    """

    __slots__ = ("algorithm", "ended", "epochs", "held", "held_bytes", "level", "skipping", "top")

    def __init__(self, algorithm: Algorithm, level: int, epochs: EpochCounter, *, top: bool) -> None:
        self.algorithm = algorithm
        self.epochs = epochs
        algorithm.begin(epochs.number)
        self.level = level
        self.top = top
        self.held = 0
        self.held_bytes = 0
        self.skipping = False
        self.ended = 0


class Watch:
    """Sees to it that an endless `repeat` gets somewhere: a pass that lets no item through fails the stream.

    It stands where the `repeat` does, of which `level` is the number. What `unwanted` names was cut by a stage
    further on, and may well be empty.
    """

    __slots__ = ("_came", "_ended", "_unwanted", "_what", "level")

    def __init__(self, what: str, level: int, levels: int, unwanted: Callable[[EpochsEnded], bool]) -> None:
        self.level = level
        self._what = what
        self._unwanted = unwanted
        self._ended = EpochsEnded(levels)
        self._came = False

    def look(self, chunk: Chunk) -> Chunk:
        """Return the chunk, or the failure in its place."""
        self._came = self._came or bool(chunk.items)
        boundary = chunk.boundary
        if boundary is None:
            return chunk
        # A deeper end ends the repeat from outside, so it is not endless there.
        stuck = boundary.depth == self.level and not self._came and not self._unwanted(self._ended)
        self._ended.note(boundary)
        if boundary.ends(self.level):  # any other ends an epoch within the pass
            self._came = False
        if not stuck:
            return chunk
        error = PipelineError(f"{self._what} has no items, so repeat() would never end")
        return Chunk([], (), failure=Failure(error, "repeat()", "none", None, 0), nbytes=chunk.nbytes)


class Emitter:
    """The way out of a step.

    `skip` is called with a level and how many of its epochs have ended, where a stage wants no more of the
    epoch: the steps before it then stop producing for it.

    A failure is raised if and only if it would be with one epoch alone. Invariants:

    * A failure stands in its place in the stream. A step that has sent one sends nothing after it, unless it is
      told to skip that epoch: then it goes on with the end of the epoch (`Step.halted`).
    * What ends an epoch early (a `take`, a shorter input of a `zip`) tells all before it to skip the epoch, and
      lets no failure of it pass. So it does not matter how far was read ahead, or which of the two came first.
    * Every other failure comes to the consumer, and ends the run.
    """

    def __init__(
        self,
        links: Sequence[TransformLink | Watch],
        sink: Sink,
        budget: Budget | Account,
        skip: Callable[[int, int], None],
    ) -> None:
        self._links = links
        self._budget = budget
        self._skip = skip
        self.sink = sink
        self.finished = False

    async def start(self) -> None:
        """End the stream at once where a stage wants nothing at all (`take(0)`)."""
        if any(isinstance(link, TransformLink) and link.algorithm.done and link.top for link in self._links):
            await self.send(Chunk([], (), END_OF_STREAM))

    async def send(self, chunk: Chunk) -> None:
        """Pass a chunk on; afterwards `finished` tells whether anything more is wanted."""
        for link in self._links:
            chunk = link.look(chunk) if isinstance(link, Watch) else self._through(link, chunk)
        if chunk.ends_stream:
            self.finished = True
        if chunk.items or chunk.ends:
            await self.sink.put(chunk)
        elif chunk.nbytes:
            self._budget.charge(-chunk.nbytes)
        if not chunk.items and not chunk.ends_stream:
            # No queue has filled, so nothing has made this step wait: a source whose items are all left out would
            # keep the loop to itself.
            await asyncio.sleep(0)

    def _through(self, link: TransformLink, chunk: Chunk) -> Chunk:
        algorithm = link.algorithm
        items: list[Any] = []
        positions: Positions = ()
        link.held += len(chunk.items)
        link.held_bytes += chunk.nbytes
        boundary, failure = chunk.boundary, chunk.failure
        if chunk.items and not link.skipping and not algorithm.done:
            items, positions = algorithm.push(chunk.items, chunk.positions)
        if algorithm.done and not link.skipping:
            if link.top:
                boundary, failure = END_OF_STREAM, None
            elif not chunk.ends_epoch(link.level):
                link.skipping = True
                self._skip(link.level, link.ended)
        if link.skipping:
            failure = None  # nobody wants what failed
        if failure is None and boundary is not None and boundary.ends(link.level):
            link.skipping = False
            link.ended += 1
            more, places = algorithm.flush()
            if not boundary.is_end_of_stream:
                link.epochs.go_on(boundary.depth - link.level)
                algorithm.begin(link.epochs.number)
            if more:
                items, positions = items + more, join(positions, places)
        if len(items) != len(positions):
            raise PipelineError(
                f"{type(algorithm).__name__} returned {len(items)} items with {len(positions)} positions; each "
                "item must have one"
            )
        return Chunk(items, positions, boundary, failure, self._released(link))

    def _released(self, link: TransformLink) -> int:
        """Return the bytes that leave the algorithm: its share of items no longer held."""
        keeps = link.algorithm.held
        leaves = link.held_bytes if not keeps else link.held_bytes * (link.held - keeps) // max(1, link.held)
        link.held = keeps
        link.held_bytes -= leaves
        return leaves
