"""Rest: what is left of epochs that other processes have begun, dealt out to this one.

`merge_states` gives the states of W processes to any number of others. What the W have received is a `Layer`. If
these others are interrupted in the same epoch, and their states are merged, there is one more layer: it says what
they have received of what was left to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

from asyncfeed.position import Position, canonical, from_json, to_json
from asyncfeed.stages.base import Node, Source
from asyncfeed.stages.left import Left, Pair
from asyncfeed.stages.numbering import Numbering, Part, Strided
from asyncfeed.stages.shard import Shard, Uneven
from asyncfeed.stages.steps import Indexed
from asyncfeed.stages.together import fold, numbering

ALL = 1 << 62
"""Stands for the number of items of a part in an epoch that it has left."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the `shard` of a pipeline is, and which part it keeps."""

    index: int
    count: int
    stage: int
    """The number of the stage among those that decide something, from 1."""
    uneven: Uneven


@dataclass(frozen=True, slots=True)
class Layer:
    """What the parts have received. An item is known by its place in the part, or in a stream by its position."""

    count: int
    """Number of parts."""
    at: list[Pair]
    """The epoch in which each part was, and how many items of it have come to the part."""
    places: list[dict[int, list[int]]]
    """The places, by epoch, of items that came to the part and were not received."""
    positions: list[list[Position]]
    """The same as positions, if the items are a stream."""
    flat: list[dict[str, Any]]
    """What was received of the children that each `flat_map` behind the `shard` made."""

    @property
    def first(self) -> int:
        """The first epoch of which something is left."""
        return min([epoch for epoch, _ in self.at] + [epoch for each in self.places for epoch in each])

    @property
    def last(self) -> int:
        """The last epoch of which something was received."""
        return max(epoch for epoch, _ in self.at)

    def came(self, epoch: int) -> list[int]:
        """Return how many items of an epoch have come to each part."""
        return [ALL if at > epoch else came if at == epoch else 0 for at, came in self.at]

    def to_json(self) -> dict[str, Any]:
        """Return the layer as a part of a state."""
        places = [[[epoch, to_json(each)] for epoch, each in sorted(part.items())] for part in self.places]
        positions = [to_json(each) for each in self.positions]
        at = [list(each) for each in self.at]
        return {"count": self.count, "at": at, "places": places, "positions": positions, "flat": self.flat}


def layer_from(found: dict[str, Any]) -> Layer:
    """Return the layer that was made into JSON."""
    at = [(int(epoch), int(came)) for epoch, came in found["at"]]
    places = [{int(epoch): list(map(int, from_json(each))) for epoch, each in part} for part in found["places"]]
    positions = list(map(from_json, found["positions"]))
    if not len(at) == len(places) == len(positions) == found["count"] > 0:
        raise ValueError("a layer has not one entry for each part")
    if min(map(min, at)) < 0:
        raise ValueError("a part has received less than nothing")
    return Layer(len(at), at, places, positions, list(found["flat"]))


# -- descriptions


@dataclass(frozen=True)
class Described:
    """A source and stages, as the engine sees a pipeline."""

    source: Source
    stages: tuple[Node, ...]


def place_of_shard(stages: Sequence[Node]) -> Place | None:
    """Return where the `shard` is. Return None if there is none, or more than one."""
    deciding = [node for node in stages if not node.only_tunes]
    found = [(number, node) for number, node in enumerate(deciding, 1) if isinstance(node, Shard)]
    if len(found) != 1:
        return None
    ((number, node),) = found
    return Place(node.number, node.count, number, node.uneven)


def with_shard(source: Source, stages: Sequence[Node], place: Place) -> Described:
    """Return the description of a part, whichever part of these stages keep. They may have no `shard`."""
    number = 0
    at = 0
    while number < place.stage - 1 or (at < len(stages) and stages[at].only_tunes):
        number += not stages[at].only_tunes
        at += 1
    before, rest = stages[:at], stages[at:]
    node: Node
    if rest and isinstance(rest[0], Shard):
        node, rest = replace(rest[0], number=place.index, count=place.count), rest[1:]
    else:
        node = Shard(place.index, place.count, place.uneven).after(source, before)
    return Described(source, (*before, node, *rest))


# -- items by number


class Parts:
    """The parts of a pipeline by number, for one number of parts."""

    def __init__(self, source: Source, stages: Sequence[Node], shard: Shard, count: int) -> None:
        self.indexed: list[Indexed] = []
        self.numbers: list[Numbering] = []
        for index in range(count):
            own = [replace(node, number=index, count=count) if node is shard else node for node in stages]
            indexed, rest = fold(source, own)
            assert indexed is not None
            self.indexed.append(indexed)
            self.numbers.append(numbering(source, own[: len(own) - len(rest)], indexed))
        strided = [each for each in self.indexed if isinstance(each, Strided)]
        self.dealing = [each.part for each in strided] if len(strided) == count else None
        """How the places were dealt out. None if later stages have rearranged them."""
        self._whole = strided[0].whole if self.dealing else None

    def lengths(self, shard: Shard) -> list[int]:
        """Return the number of items of each part, without those that complete the last round."""
        if self.dealing is None:
            return list(map(len, self.indexed))
        return [_own(shard, part) for part in self.dealing]

    def pick(self, epoch: int, pairs: Sequence[Pair]) -> list[Any]:
        """Return the items at these places of parts."""
        if self._whole is None or self.dealing is None:
            return _gather(pairs, lambda part, own: self.indexed[part].pick(epoch, own))
        return self._whole.pick(epoch, self._places(pairs))

    def ordinals(self, pairs: Sequence[Pair]) -> list[int]:
        """Return the ordinals of the items at these places of parts."""
        if self.dealing is None:
            return _gather(pairs, lambda part, own: self.numbers[part].ordinals(own))
        return self._places(pairs)  # nothing else deals out

    def _places(self, pairs: Sequence[Pair]) -> list[int]:
        """Return the places in the whole. Nobody has left an item that completes the last round."""
        assert self.dealing is not None
        count, block = self.dealing[0].count, self.dealing[0].block
        if block == 1:
            return [place * count + part for part, place in pairs]
        return [(place // block * count + part) * block + place % block for part, place in pairs]


def _gather(pairs: Sequence[Pair], ask: Callable[[int, Sequence[int]], Sequence[Any]]) -> list[Any]:
    by_part: dict[int, tuple[list[int], list[int]]] = {}
    for number, (part, place) in enumerate(pairs):
        numbers, own = by_part.setdefault(part, ([], []))
        numbers.append(number)
        own.append(place)
    found: list[Any] = [None] * len(pairs)
    for part, (numbers, own) in by_part.items():
        for number, each in zip(numbers, ask(part, own), strict=True):
            found[number] = each
    return found


def _own(shard: Shard, part: Part) -> int:
    kept = replace(shard, number=part.number, count=part.count, uneven="keep")
    return part.length(kept.length(part.blocks))


class RestOfEpoch:
    """What is left of one epoch, dealt out once more for each layer."""

    def __init__(self, epoch: int, layers: Sequence[Layer], parts: Parts, shard: Shard) -> None:
        self._parts = parts
        block, least = (parts.dealing[0].block, parts.dealing[0].least) if parts.dealing else (1, 1)
        self._block = block
        self._left: list[Left] = []
        self._dealt: list[list[Part]] = []
        """How what is left after each layer but the last was dealt out."""
        lengths = parts.lengths(shard)
        for layer in layers:
            if self._left:
                size = len(self._left[-1])
                dealt = [Part(number, layer.count, size, block, least) for number in range(layer.count)]
                self._dealt.append(dealt)
                lengths = [_own(shard, each) for each in dealt]
            held = [(part, place) for part, each in enumerate(layer.places) for place in each.get(epoch, ())]
            starts = list(map(min, layer.came(epoch), lengths))
            self._left.append(Left(lengths, starts, held, block))
        self._part = Part(shard.number, shard.count, len(self._left[-1]), block, least)
        self.length = self._part.length(shard.length(self._part.blocks))
        self._last: tuple[Sequence[int], list[Pair]] = (), []
        """The last places that were asked for: first their items, and then their ordinals."""

    def _pairs(self, places: Sequence[int]) -> list[Pair]:
        """Return the first part, and the place in it, of each of these places."""
        asked, pairs = self._last
        if asked != places:
            pairs = list(map(self._pair, self._part.places(places)))
            self._last = places, pairs
        return pairs

    def _pair(self, number: int) -> Pair:
        part, place = self._left[-1].pair(number)
        for left, dealt in zip(self._left[-2::-1], self._dealt[::-1], strict=True):
            part, place = left.pair(dealt[part].places([place])[0])
        return part, place

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places."""
        return self._parts.pick(epoch, self._pairs(places))

    def ordinals(self, places: Sequence[int]) -> list[int]:
        """Return the ordinals of the items at these places."""
        return self._parts.ordinals(self._pairs(places))

    def place(self, ordinal: int) -> int:
        """Return the first place at which the item with this ordinal is."""
        part = self._parts.numbers[0].part_of(ordinal)
        number = self._left[0].number(part, self._parts.numbers[part].place(ordinal))
        for left, dealt in zip(self._left[1:], self._dealt, strict=True):
            part = number // self._block % len(dealt)
            number = left.number(part, dealt[part].place(number))
        return self._part.place(number)

    def name(self, epoch: int, ordinal: int) -> str:
        """Return the name of the item with this ordinal."""
        return self._parts.numbers[self._parts.numbers[0].part_of(ordinal)].name(epoch, ordinal)


class Rest(Numbering):
    """The items of a part, by number, with their ordinals. Of some epochs, it has what others have left."""

    def __init__(
        self,
        usual: Indexed,
        numbers: Numbering,
        layers: Sequence[Layer],
        parts: Callable[[int], Parts],
        shard: Shard,
    ) -> None:
        super().__init__(usual)
        self.on_thread = usual.on_thread
        self._numbers = numbers
        self._layers = layers
        self._parts = parts
        self._shard = shard
        self._of: dict[int, RestOfEpoch | None] = {}
        wholes = [sum(parts(layer.count).lengths(shard)) for layer in layers]
        self._most = max(len(usual), *wholes)
        self.size = numbers.size if isinstance(usual, Strided) else 0
        """Number of ordinals in an epoch. 0 if it has another one for each number of parts."""

    def _rest(self, epoch: int) -> RestOfEpoch | None:
        if epoch not in self._of:
            layers = [layer for layer in self._layers if layer.last >= epoch]
            rest = None
            if layers:
                rest = RestOfEpoch(epoch, layers, self._parts(layers[0].count), self._shard)
            self._of = {**self._of, epoch: rest}  # a thread may look
        return self._of[epoch]

    def __len__(self) -> int:
        """Return a number that no epoch has more items than."""
        return self._most

    def length(self, epoch: int) -> int:
        """Return the number of items of an epoch."""
        rest = self._rest(epoch)
        return len(self._indexed) if rest is None else rest.length

    def pick(self, epoch: int, places: Sequence[int]) -> list[Any]:
        """Return the items at these places."""
        return (self._rest(epoch) or self._indexed).pick(epoch, places)

    def key(self, epoch: int, place: int) -> str:
        """Return the name of the item at this place."""
        rest = self._rest(epoch)
        if rest is None:
            return self._indexed.key(epoch, place)
        return rest.name(epoch, rest.ordinals([place])[0])

    def ordinals(self, places: Sequence[int], epoch: int = 0) -> Sequence[int]:
        """Return the ordinals of the items at these places."""
        rest = self._rest(epoch)
        return self._numbers.ordinals(places, epoch) if rest is None else rest.ordinals(places)

    def place(self, ordinal: int, epoch: int = 0) -> int:
        """Return the place of the item with this ordinal."""
        rest = self._rest(epoch)
        return self._numbers.place(ordinal, epoch) if rest is None else rest.place(ordinal)

    def name(self, epoch: int, ordinal: int) -> str:
        """Return the name of the item with this ordinal."""
        return (self._rest(epoch) or self._numbers).name(epoch, ordinal)


def rest_by_number(source: Source, arranged: Sequence[Node], layers: Sequence[Layer]) -> Rest | None:
    """Return what a run over these stages has by number. Return None if its `shard` deals out a stream."""
    indexed, rest = fold(source, arranged)
    folded = arranged[: len(arranged) - len(rest)]
    shard = next((node for node in folded if isinstance(node, Shard)), None)
    if indexed is None or shard is None:
        return None
    return Rest(
        indexed, numbering(source, folded, indexed), layers, cache(partial(Parts, source, folded, shard)), shard
    )


# -- streams


class EpochOfStream(NamedTuple):
    """What the parts of one layer have received of an epoch of a stream."""

    came: list[int]
    held: list[set[Position]]

    def has(self, number: int, position: Position) -> bool:
        """Return whether the item with this number, at this position, was received."""
        part = number % len(self.came)
        return number < self.came[part] and canonical(position) not in self.held[part]


class RestOfStream:
    """What other processes have left of the epochs of a stream."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._held = [[set(map(canonical, each)) for each in layer.positions] for layer in layers]

    def of(self, epoch: int) -> list[EpochOfStream]:
        """Return what was received of an epoch, layer by layer."""
        return [
            EpochOfStream(layer.came(epoch), held)
            for layer, held in zip(self._layers, self._held, strict=True)
            if layer.last >= epoch
        ]


def with_rest(stages: Sequence[Node], layers: Sequence[Layer]) -> list[Node]:
    """Return the stages, with a `shard` that deals out what others have left of a stream."""
    left = RestOfStream(layers)
    return [replace(node, left=left) if isinstance(node, Shard) else node for node in stages]
