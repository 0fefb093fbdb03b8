"""Sends the results of a step through the algorithms that follow it, into the next channel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from asyncfeed.engine.checkpoint.gates import ChildGate, LinkGate, ReplayGate, RestGate
from asyncfeed.engine.checkpoint.record import Record, WorkRecord
from asyncfeed.engine.constants import HEAVY_BYTES
from asyncfeed.engine.epochs import EpochCounter, EpochsEnded
from asyncfeed.engine.limits.budget import Account, Budget
from asyncfeed.epoch_end import END_OF_STREAM, RESTORED, EpochEnd
from asyncfeed.errors import Failure, PipelineError
from asyncfeed.position import Positions, join
from asyncfeed.stages.steps import Algorithm, Chunk

log = logging.getLogger("asyncfeed")


class Sink(Protocol):
    """Where an emitter puts chunks: a channel, or the handoff to the consumer."""

    async def put(self, chunk: Chunk) -> None:
        """Queue a chunk, and wait until there is room for another one."""
        ...

    def __len__(self) -> int: ...


class TransformLink:
    """One algorithm at its place in the stream.

    `level` is the number of `repeat`s before the algorithm. The algorithm flushes at the end of each epoch of that
    level. `top` says that no `repeat` follows: when the algorithm is done, the stream ends. `name` is its stage.
    """

    __slots__ = (
        "algorithm", "already", "ended", "epochs", "gate", "held", "held_bytes", "level", "name", "record",
        "skipping", "top",
    )  # fmt: skip

    def __init__(
        self, algorithm: Algorithm, level: int, epochs: EpochCounter, *, top: bool, name: str = ""
    ) -> None:
        self.algorithm = algorithm
        self.name = name
        self.epochs = epochs
        algorithm.begin(epochs.number)
        self.level = level
        self.top = top
        self.held = 0
        self.held_bytes = 0
        self.skipping = False
        self.ended = 0
        self.record: Record | None = None
        """Notes what came, so that a checkpoint can be taken."""
        self.gate: LinkGate | None = None
        """Makes what the algorithm held at a checkpoint. None in a run from the start, and when that is done."""
        self.already = 0
        """Number of results of the next flush that were received before the checkpoint."""

    def is_flushed_by(self, boundary: EpochEnd | None) -> bool:
        """Return whether the algorithm flushes at this end."""
        return boundary is not None and boundary.ends(self.level)

    def flush(self, boundary: EpochEnd) -> tuple[list[Any], Positions]:
        """Return what is left at an end, and begin the next epoch."""
        self.skipping = False
        self.ended += 1
        items, positions = self.algorithm.flush()
        if self.already:
            items, positions, self.already = items[self.already :], positions[self.already :], 0
        if not boundary.is_end_of_stream:
            self.epochs.go_on(boundary.depth - self.level)
            self.algorithm.begin(self.epochs.number)
        return items, positions


class Watch:
    """Fails the stream if a pass of an endless `repeat` has no items, because such a run would never end.

    It is placed after the `repeat` of this `level`. A pass may be empty if `unwanted` says that a later stage cut
    it short. The first passes of a run that resumes may be empty, too, because their items were received before:
    `resumes` of them.
    """

    __slots__ = ("_came", "_ended", "_resumes", "_unwanted", "_what", "follows", "level")

    def __init__(
        self, what: str, level: int, levels: int, unwanted: Callable[[EpochsEnded], bool], *, resumes: int
    ) -> None:
        self.level = level
        self._what = what
        self._unwanted = unwanted
        self._ended = EpochsEnded(levels)
        self._came = resumes > 0
        self._resumes = resumes
        self.follows: Chunk | None = None

    def look(self, chunk: Chunk) -> Chunk:
        """Return the chunk, or a failure in place of it."""
        self._came = self._came or bool(chunk.items)
        boundary = chunk.boundary
        if boundary is None:
            return chunk
        # At a deeper end something outside, such as a `take` in an outer `repeat`, has ended this `repeat`.
        stuck = boundary.depth == self.level and not self._came and not self._unwanted(self._ended)
        self._ended.note(boundary)
        if boundary.ends(self.level):  # any other boundary ends an epoch inside the pass
            self._resumes -= 1
            self._came = self._resumes > 0
        if not stuck:
            return chunk
        error = PipelineError(f"{self._what} has no items, so repeat() would never end")
        return Chunk([], (), failure=Failure(error, "repeat()", "none", None, 0), nbytes=chunk.nbytes)


Link = TransformLink | Watch | ChildGate | WorkRecord | ReplayGate | RestGate


class Emitter:
    """Sends what a step has made.

    `skip(level, ended)` is called when an algorithm needs no more items of an epoch: an epoch of this `level`,
    before which `ended` epochs have ended. The earlier steps then stop producing for that epoch.

    A failure is raised if and only if it would be raised in a run of its epoch alone. Invariants:

    * A failure has its place in the stream. A step that has sent a failure sends nothing after it. If the step is
      told to skip that epoch, it continues with the end of the epoch (`Step.wait_for_skip`).
    * A stage that ends an epoch early (a `take`, a `zip` with a shorter input) tells all earlier steps to skip the
      epoch, and drops every failure of it. So the result does not depend on how far the steps had read ahead, nor
      on which came first, the failure or the end.
    * Every other failure reaches the consumer, and ends the run.
    """

    def __init__(
        self,
        links: Sequence[Link],
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
        """End the stream at once if an algorithm needs no items at all (`take(0)`)."""
        if any(isinstance(link, TransformLink) and link.algorithm.done and link.top for link in self._links):
            await self.send(Chunk([], (), END_OF_STREAM))

    async def send(self, chunk: Chunk) -> None:
        """Send a chunk. Afterwards `finished` says whether the stream has ended."""
        await self._send(chunk, self._links)

    async def cut(self) -> None:
        """Send what the first algorithm holds, although the epoch goes on."""
        link, *rest = self._links
        assert isinstance(link, TransformLink)
        items, positions = link.algorithm.flush()
        if link.record is not None:
            link.record.note_cut()
        await self._send(Chunk(items, positions, nbytes=self._released(link)), rest)

    async def _send(self, chunk: Chunk, links: Sequence[Link]) -> None:
        if self.finished:  # by what a gate has let through before
            self._budget.charge(-chunk.nbytes)
            return
        for place, link in enumerate(links):
            if isinstance(link, TransformLink):
                if link.gate is not None:
                    await self._send_rebuilt(chunk, link, links[place + 1 :])
                    return
                chunk = self._through(link, chunk)
                continue
            chunk = link.look(chunk)
            if link.follows is not None:
                follows, link.follows = link.follows, None
                await self._send(chunk, links[place + 1 :])
                await self._send(follows, links[place + 1 :])
                return
        if chunk.ends_stream:
            self.finished = True
        if chunk.items or chunk.ends:
            await self.sink.put(chunk)
        elif chunk.nbytes:
            self._budget.charge(-chunk.nbytes)
        if not chunk.items and not chunk.ends_stream:
            # Nothing was queued, so nothing has made this step wait. Without this, a source whose items are all
            # left out would block the loop.
            await asyncio.sleep(0)

    async def _send_rebuilt(self, chunk: Chunk, link: TransformLink, rest: Sequence[Link]) -> None:
        """Send what the gate of a link lets through: results that later stages held, and then those on the way."""
        assert link.gate is not None
        link.held += len(chunk.items)
        link.held_bytes += chunk.nbytes
        link.gate.take(chunk)
        if chunk.failure is not None:
            await self._send(Chunk([], (), failure=chunk.failure), rest)
        if chunk.boundary is not RESTORED:
            return
        gate, link.gate = link.gate, None
        rebuilt, under_way = gate.open(link.algorithm)
        link.held = max(link.held, link.algorithm.held)  # it also holds stand-ins, which weigh nothing
        nbytes = self._released(link)
        share = nbytes * len(rebuilt[0]) // max(1, len(rebuilt[0]) + len(under_way[0]))
        await self._send(Chunk(*rebuilt, RESTORED, nbytes=share), rest)
        chunk = self._through(link, Chunk([], ()))
        await self._send(Chunk(*under_way, chunk.boundary, nbytes=nbytes - share + chunk.nbytes), rest)

    def _through(self, link: TransformLink, chunk: Chunk) -> Chunk:
        algorithm = link.algorithm
        items: list[Any] = []
        positions: Positions = ()
        link.held += len(chunk.items)
        link.held_bytes += chunk.nbytes
        boundary, failure = chunk.boundary, chunk.failure
        if chunk.items and not link.skipping and not algorithm.done:
            push = algorithm.push if link.record is None else link.record.push
            items, positions = push(chunk.items, chunk.positions)
        if algorithm.done and not link.skipping:
            if link.top:
                boundary, failure = END_OF_STREAM, None
            elif not chunk.ends_epoch(link.level):
                link.skipping = True
                self._skip(link.level, link.ended)
        if link.skipping:
            failure = None  # no later stage needs the item that failed
        if failure is None and boundary is not None:
            if link.record is not None and boundary is not RESTORED:
                link.record.note_end(boundary)
            if link.is_flushed_by(boundary):
                more, places = link.flush(boundary)
                if more:
                    items, positions = items + more, join(positions, places)
        if failure is not None:
            more, places = algorithm.cut_off()
            if more:
                items, positions = items + more, join(positions, places)
        if len(items) != len(positions):
            raise PipelineError(
                f"{type(algorithm).__name__} returned {len(items)} items with {len(positions)} positions; return "
                "one position for each item"
            )
        return Chunk(items, positions, boundary, failure, self._released(link))

    def _released(self, link: TransformLink) -> int:
        """Return the bytes that leave the algorithm with the items that it no longer holds."""
        keeps = link.algorithm.held
        leaves = link.held_bytes if not keeps else link.held_bytes * (link.held - keeps) // max(1, link.held)
        link.held = keeps
        link.held_bytes -= leaves
        if link.held_bytes > self._budget.limit and link.held_bytes > HEAVY_BYTES:
            self._warn_of_weight(link)
        return leaves

    def _warn_of_weight(self, link: TransformLink) -> None:
        """Log, once, that a stage needs more items than the memory limit has room for."""
        name, link.name = link.name, ""
        if name:
            log.warning(
                "%s holds %d items of %d MB, and the memory limit is %d MB. A stage gets all items that it needs: "
                "make it smaller, or raise open(memory_limit=...)",
                name, link.held, link.held_bytes >> 20, self._budget.limit >> 20,
            )  # fmt: skip
