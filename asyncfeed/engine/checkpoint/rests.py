"""The rest of epochs that other processes have begun: see `stages/rest.py` for how it is dealt out.

The state of a run over such a rest has it, too:

::

    "rest": {"stage": number of the shard, "uneven": "pad", "layers": [layer, ...]}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asyncfeed.engine.checkpoint.children import ChildrenStation
from asyncfeed.engine.checkpoint.gates import FlatLeft
from asyncfeed.engine.checkpoint.stations import Station
from asyncfeed.errors import StateError
from asyncfeed.position import from_json
from asyncfeed.stages.base import Node
from asyncfeed.stages.rest import (
    Described,
    Layer,
    Place,
    Rest,
    layer_from,
    place_of_shard,
    rest_by_number,
    with_rest,
    with_shard,
)

if TYPE_CHECKING:
    from asyncfeed.engine.checkpoint.track import Track
    from asyncfeed.engine.plan import Description


@contextmanager
def damage() -> Iterator[None]:
    """Raise `StateError` in place of what a damaged state causes."""
    try:
        yield
    except StateError:
        raise
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise StateError(f"the state is damaged: {error!r}") from error


class RestOfRun:
    """What a run must know of a rest.

    Args:
        description: The description. It has a `shard`.
        found: The rest, as in a state.
        layers: The same, parsed.
    """

    def __init__(self, description: Described, found: dict[str, Any], layers: list[Layer]) -> None:
        self.description = description
        self._found = found
        self._layers = layers
        self.epochs = max(each.last for each in layers) - min(each.first for each in layers) + 1
        """Number of epochs that may be empty for this part."""

    def prepare(self, arranged: Sequence[Node]) -> tuple[list[Node], Rest | None]:
        """Return the stages of the run, and the items that they have by number, if these are dealt out."""
        with damage():
            by_number = rest_by_number(self.description.source, arranged, self._layers)
        return list(arranged) if by_number is not None else with_rest(arranged, self._layers), by_number

    def leave_out(self, track: Track) -> None:
        """Let flat maps send no child that was received, and let the states of the run have the rest."""
        track.rest = self._found
        flat = [each for each in behind(track) if isinstance(each, ChildrenStation)]
        with damage():
            for layer in self._layers:
                for station, of_parts in zip(flat, layer.flat, strict=True):
                    begun, received, held = of_parts["begun"], map(int, of_parts["received"]), of_parts["held"]
                    station.leave_out(FlatLeft(from_json(begun), list(received), from_json(held)))


def rest_of(description: Description, state: dict[str, Any]) -> RestOfRun | None:
    """Return the rest that a state is of, if it is of one."""
    found = state.get("rest")
    if found is None:
        return None
    with damage():
        layers = list(map(layer_from, found["layers"]))
        place = place_of_shard(description.stages) or Place(0, 1, found["stage"], found["uneven"])
        described = with_shard(description.source, description.stages, place)
        return RestOfRun(described, found, layers)


def behind(track: Track) -> list[Station]:
    """Return the stations behind the `shard`."""
    assert track.shard is not None
    return track.stations[track.stations.index(track.shard) + 1 :]
