"""How a run goes on from merged states: which items the processes had left, and what is dealt out anew.

The states are of W processes, each with its part of one pipeline. A run on any of W' processes takes these steps:

1. It opens each of the W states as if it were to go on from it, and asks the stations what they would read again.
   So each stage has one way to say what it holds.
2. What is behind `shard` begins anew, and gets as items what the W had held. What is before `shard` begins anew
   with the first epoch that is not over, unless its items are reached by number: then only the rest is read.
3. The rest of each epoch that one of the W had begun is dealt out to W'. Later epochs are dealt out as always.

Invariants: each item of these epochs is sent by exactly one of the W', or was received by one of the W. An item
has the same position in all runs, and with it the same random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncfeed.engine.checkpoint.children import ChildrenStation
from asyncfeed.engine.checkpoint.gates import FlatLeft
from asyncfeed.engine.checkpoint.rests import behind, damage
from asyncfeed.engine.checkpoint.stations import LinkStation, SourceStation
from asyncfeed.engine.checkpoint.track import Track
from asyncfeed.engine.emitter import Sink
from asyncfeed.engine.operators.step import RunContext
from asyncfeed.engine.plan import Description, compile_steps
from asyncfeed.engine.provenance import UNSIZED
from asyncfeed.errors import StateError
from asyncfeed.position import Position, renumbered, to_json
from asyncfeed.stages.numbering import Strided
from asyncfeed.stages.rest import Described, Layer, Place, layer_from, with_shard
from asyncfeed.stages.together import arrange, fold


def unmerged(
    description: Description, context: RunContext, sink: Sink, state: dict[str, Any], *, by_epoch: bool
) -> dict[str, Any]:
    """Return a state from which any one part goes on. A state that is not merged is returned as it is."""
    if "parts" not in state:
        return state
    slow_paths = context.slow_paths.copy()
    with damage():
        found = _Merged(description, context, sink, by_epoch).state(state)
    context.slow_paths[:] = slow_paths  # what was compiled to look at a state does not run
    return found


class _Merged:
    def __init__(self, description: Description, context: RunContext, sink: Sink, by_epoch: bool) -> None:
        self._description = description
        self._context = context
        self._sink = sink
        self._by_epoch = by_epoch

    def state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state with what the parts have left."""
        bodies = state["parts"]
        stage, uneven = state["stage"], state["uneven"]
        parts = []
        rest = None
        for index, body in enumerate(bodies):
            if body["run"] != state["run"]:
                raise StateError("the state is damaged: its parts are of different runs")
            place = Place(index, len(bodies), stage, uneven)
            description = with_shard(self._description.source, self._description.stages, place)
            body = unmerged(description, self._context, self._sink, body, by_epoch=self._by_epoch)
            if index and body.get("rest") != rest:
                raise StateError(
                    "the states cannot be merged: some processes went on from merged states, and some from others"
                )
            rest = body.get("rest")
            parts.append(self._part(description, body))
        layer = Layer(
            len(parts),
            [each.at for each in parts],
            [each.places for each in parts],
            [each.positions for each in parts],
            _joined([each.flat for each in parts]),
        )
        first = min(layer.first, *(each.first for each in parts))
        layers = [layer_from(each) for each in rest["layers"]] if rest else []
        layers = [each for each in layers if each.last >= first]
        found = {
            "stage": stage,
            "uneven": uneven,
            "layers": [each.to_json() for each in (*layers, layer)],
        }
        return {"run": state["run"], "passes": parts[0].passes(first), "rest": found}

    def _part(self, description: Described, body: dict[str, Any]) -> _Part:
        _, track = compile_steps(
            description, self._context, self._sink, state=body, by_epoch=self._by_epoch, begins=False
        )
        for station in behind(track):
            if station.refuses_rest:
                raise StateError(
                    f"the states cannot be merged: {station.refuses_rest}, and each process goes on with other "
                    "items. Put shard behind this stage, or go on with as many processes as before"
                )
        return _Part(description, track)


class _Part:
    """What the state of one part says."""

    def __init__(self, description: Described, track: Track) -> None:
        self._epochs = track.root.epochs
        self._weight = 1
        self.places: dict[int, list[int]] = {}
        self.positions: list[Position] = []
        shard = track.shard
        provenance = track.root.provenance
        old = new = provenance.start(1)
        if isinstance(shard, SourceStation):
            indexed, _ = fold(description.source, arrange(description.stages))
            if not isinstance(indexed, Strided):
                new = UNSIZED  # as in `Rest`: the ordinals depend on the number of parts
            epoch = shard.epochs.number
            self.at = epoch, shard.next or 0
            for number in shard.again:
                its = provenance.epoch(number)
                self.places.setdefault(its, []).append(shard.place(number))
            self.first = min(epoch, *self.places) if self.places else epoch
        else:
            assert isinstance(shard, LinkStation)
            epoch, numbers, self.positions = shard.left(track.wanted_of(shard))
            self.at = epoch, numbers["seen"]
            self._weight = self._epochs.weight(shard.level)
            self.first = min([epoch, *(provenance.epoch(each) // self._weight for each in self.positions)])
        flat = [each.left(track.wanted_of(each)) for each in behind(track) if isinstance(each, ChildrenStation)]
        self.flat = [
            FlatLeft(
                [renumbered(each, old, new) for each in left.begun],
                left.received,
                [renumbered(each, old, new) for each in left.held],
            )
            for left in flat
        ]

    def passes(self, first: int) -> list[int]:
        """Return the passes before an epoch, as the `shard` counts them."""
        return self._epochs.passes_before(first * self._weight)


def _joined(parts: Sequence[Sequence[FlatLeft]]) -> list[dict[str, Any]]:
    """Return what was received of the children of each flat map, of all parts together."""
    found = []
    for stage in zip(*parts, strict=True):
        begun = to_json([each for part in stage for each in part.begun])
        received = [each for part in stage for each in part.received]
        held = to_json([each for part in stage for each in part.held])
        found.append({"begun": begun, "received": received, "held": held})
    return found
