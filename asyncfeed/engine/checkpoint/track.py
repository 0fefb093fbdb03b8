"""The track of a run: where its consumer is, and what each stage held there.

The run notes what it puts into the last queue. From how many of these items were taken, `Track` finds the last
item that was received, and brings its stations there: see `stations.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from asyncfeed.engine.checkpoint.children import ChildrenStation
from asyncfeed.engine.checkpoint.gates import ReplayGate
from asyncfeed.engine.checkpoint.merges import MergeStation
from asyncfeed.engine.checkpoint.record import WorkRecord
from asyncfeed.engine.checkpoint.replayed import ReplayedStation
from asyncfeed.engine.checkpoint.skips import SkipRecord, SkipStation
from asyncfeed.engine.checkpoint.stations import Again, LinkStation, Root, SourceStation, Station
from asyncfeed.engine.checkpoint.unordered import UnorderedStation
from asyncfeed.engine.constants import RECORDED_EVENTS, TRACKED_EVENTS
from asyncfeed.engine.emitter import Link, TransformLink
from asyncfeed.engine.epochs import EpochCounter
from asyncfeed.engine.interruptions import calmly
from asyncfeed.engine.operators.skip_budget import SkipBudget
from asyncfeed.engine.order.expansions import Expansions
from asyncfeed.engine.provenance import Provenance
from asyncfeed.epoch_end import RESTORED, EpochEnd
from asyncfeed.errors import StateError
from asyncfeed.position import Position, Positions
from asyncfeed.stages.base import Node
from asyncfeed.stages.steps import Chunk, Work


def needs_record(work: Work) -> bool:
    """Return whether items have children, or results are sent as they come."""
    return not work.ordered or work.shape == "flat"


class Track:
    """The stations of a run, and the positions of what it has put into the last queue.

    The stations follow the consumer when a state is taken, and from time to time, so that the records stay short.
    """

    def __init__(self, run: int) -> None:
        self.stations: list[Station] = []
        """The stations: each after those before it."""
        self.last: Station
        """The last station of the chain that is being built. In the end, that of the whole run."""
        self.root: Root
        """The station at which this chain begins."""
        self.refused = ""
        """Why no state can be taken. Empty if one can."""
        self.received: int | None = None
        """Number of items that the trainer behind a bridge has received. None if what was taken was received."""
        self.shard: Station | None = None
        """The station that deals out the items to several processes: a source, or an algorithm."""
        self.rest: dict[str, Any] | None = None
        """What other processes have left of the first epochs, as a part of the state."""
        self._wanted: dict[int, list[Position]] = {}
        """What later stages held of the results of each station, in a state that is looked at."""
        self._run = run
        """The number of earlier runs."""
        self._puts: deque[tuple[Positions, EpochEnd | None]] = deque()
        """The chunks that were put and not wholly followed."""
        self._first = 0
        """The number of the first item of these chunks."""
        self._taken = 0
        """Number of items that were followed."""
        self._place: tuple[int, Position | None] = 0, None
        self._epochs_left = 0
        """Number of epochs of the last `repeat` that were followed to their end."""
        self._lock = threading.Lock()

    def add_source(
        self, epochs: EpochCounter, provenance: Provenance, place_of: Callable[[int, int], int] | None = None
    ) -> SourceStation:
        """Add the station of a source, and begin its chain. `place_of` returns the place of an ordinal."""
        source = SourceStation(epochs, provenance, place_of)
        self._begin(source, source)
        return source

    def add_merge(self, merge: MergeStation) -> None:
        """Add the station of a merge, and begin its chain."""
        self._begin(merge, merge)

    def _begin(self, station: Station, root: Root) -> None:
        self.stations.append(station)
        self.last, self.root = station, root

    def _add(self, station: Station) -> None:
        self.stations.append(station)
        self.last = station

    def add_link(self, link: TransformLink, name: str, *, timed: bool) -> None:
        """Add the station of an algorithm to the chain. If it is `timed`, what it makes depends on the time."""
        if self.refused:
            return
        if missing := link.algorithm.undeclared():
            lacks = f"{type(link.algorithm).__name__} lacks " + ", ".join(f"`{each}`" for each in missing)
            self.refuse(
                f"{name} does not say what a state needs: its algorithm {lacks}; "
                "write them, or inherit from asyncfeed.stages.Arranging if each result is an item that came in"
            )
            return
        self._add(LinkStation(self.last, self.root, link, name, timed=timed))

    def note_shard(self, nodes: Sequence[Node]) -> None:
        """Note that these stages are at the last station. One of them may be a `shard`."""
        if any(node.shards for node in nodes):
            self.shard = self.last

    def wanted_of(self, station: Station) -> list[Position]:
        """Return what later stages held of the results of a station, before the run begins."""
        return self._wanted.get(id(station), [])

    def add_work(self, work: Work, record: WorkRecord, links: list[Link], order: object) -> None:
        """Add the station of a function to the chain, if it `needs_record`. `links` are those behind it."""
        if isinstance(order, Expansions):
            self._add(ChildrenStation(self.last, record, links, order, work.turns))
        else:
            self._add(UnorderedStation(self.last, record))

    def add_skips(self, record: SkipRecord, budget: SkipBudget) -> None:
        """Add the station of a function that may leave items out."""
        self._add(SkipStation(self.last, record, budget))

    def add_carrying(self, gate: ReplayGate, level: int, name: str) -> None:
        """Add the station of a function that carries something from item to item."""
        if not self.last.in_order:
            self.refuse(
                f"{name} must be called in the same order again, and the items before it come in any order"
            )
        self.root = station = ReplayedStation(self.last, self.root, gate, level)
        self._add(station)

    def begin(self) -> None:
        """Let go of all steps. Record nothing if no state can be taken."""
        self._wanted.clear()
        for each in self.stations:
            each.begin()
        if self.refused:
            self._close()

    def refuse(self, why: str) -> None:
        """Take no states of this run."""
        self.refused = self.refused or why

    def _close(self) -> None:
        self._puts.clear()
        for log in (log for each in self.stations for log in each.logs):
            log.close()

    def note_put(self, chunk: Chunk, gone: Callable[[], tuple[int, int]]) -> None:
        """Note a chunk that is put into the last queue. `gone` returns how many items left it, and epochs."""
        boundary = None if chunk.boundary is RESTORED else chunk.boundary
        if self.refused or not (chunk.items or boundary):
            return
        self._puts.append((chunk.positions, boundary))
        waiting = sum(each.waiting for each in self.stations)
        if len(self._puts) + waiting > TRACKED_EVENTS:
            calmly(partial(self._catch_up, gone()[0]))  # `gone` takes the lock of the queue: not inside this one

    def _catch_up(self, taken: int) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._bring(taken)
                if not self.refused:
                    self._states()  # so stations forget labels that nobody needs
            finally:
                self._lock.release()

    def state(self, taken: int, epochs_left: int = 0) -> dict[str, Any]:
        """Return the state after this number of items, as JSON.

        `epochs_left` says how many epochs of the last `repeat` the consumer has left, to their end or before. Any
        thread and any signal handler may call this.
        """
        return calmly(partial(self._state, taken, epochs_left))

    def _state(self, taken: int, epochs_left: int) -> dict[str, Any]:
        with self._lock:
            self._bring(taken)
            if self.refused:
                raise StateError(self.refused)
            passes = self.root.epochs.passes
            state: dict[str, Any] = {"run": self._run, "passes": passes}
            if self.rest is not None:
                state["rest"] = self.rest
            if epochs_left > self._epochs_left:  # the rest of an epoch may still be on its way
                state["passes"] = [0] * (len(passes) - 1) + [passes[-1] + epochs_left - self._epochs_left]
            else:
                state["stations"] = self._states()
            return state

    def _states(self) -> list[dict[str, Any]]:
        needed: dict[int, Again] = {}
        states = []
        for each in reversed(self.stations):
            again = needed.get(id(each), Again(each, []))
            its, needs = each.state(again.positions) if again.passes is None else each.restart(again.passes)
            needed.update((id(need.station), need) for need in needs)
            states.append(its)
        return states[::-1]

    def _bring(self, taken: int) -> None:
        """Bring all stations to the place after `taken` items. Take no states if one of them cannot go there."""
        if self.refused:
            return
        try:
            self._follow(taken)
        except StateError as error:
            self.refuse(str(error))
            self._close()

    def _follow(self, taken: int) -> None:
        """Bring all stations to the place after `taken` items."""
        if any(log.full for each in self.stations for log in each.logs):
            self.refuse(f"no state: {RECORDED_EVENTS:,} chunks came to a stage, and nothing of them was delivered")
            self._close()
            return
        if self.received is not None:
            taken = min(taken, self.received)
        ends, last = self._place
        puts = self._puts
        while puts and (left := taken - self._first) > 0:
            positions, boundary = puts[0]
            if left < len(positions):
                last = positions[left - 1]
                break
            if left == len(positions) and boundary is not None:
                last = positions[-1]
                break
            if positions:
                last = positions[-1]
            if boundary is not None:
                ends, last = ends + 1, None
                self._epochs_left += boundary.ends(self.root.epochs.levels - 1)
            self._first += len(positions)
            puts.popleft()
        self._place = ends, last
        if taken > self._taken:  # not a comparison of places: the last round of a shard may repeat its item
            self._taken = taken
            self.last.follow(ends, last)

    def resume(self, state: dict[str, Any]) -> None:
        """Prepare the steps for a run that goes on from a state."""
        try:
            self._resume(state)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise StateError(f"the state is damaged: {error!r}") from error

    def _resume(self, state: dict[str, Any]) -> None:
        if self.refused:
            raise StateError(self.refused)
        if "passes" not in state:  # it was taken before the run had begun
            return
        states = state.get("stations") or [{} for _ in self.stations]
        if len(states) != len(self.stations):
            raise StateError("the state has another number of stages than the pipeline")
        outer = state["passes"]
        for station, its in zip(self.stations, states, strict=True):
            epochs = getattr(station, "epochs", None)
            if epochs is not None:
                epochs.resume(its.get("passes", [0] * (epochs.levels - len(outer)) + outer))
        wanted = self._wanted
        for station, its in zip(reversed(self.stations), reversed(states), strict=True):
            needs = station.resume(its, wanted.get(id(station), []))
            wanted.update((id(need.station), need.positions) for need in needs)
