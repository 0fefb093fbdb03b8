"""Merges the states of processes that each have one part of a pipeline, for any number of other processes.

A merged state has the bodies of all of them, and none of the numbers of their parts in its fingerprint::

    {"run": 0, "by epoch": False, "stage": 2, "uneven": "pad", "parts": [body, body, ...]}

This module knows no more of a body than whose it is. What the processes have left is found when a run goes on
(`engine/merged.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from asyncfeed.errors import StateError
from asyncfeed.state.envelope import opened, seal, unseal
from asyncfeed.state.fingerprint import Fingerprint, Part

_PART = {"index": int, "count": int, "stage": int, "uneven": str, "has shard": bool}
"""What a state says of its part, and the types."""


def merge_states(states: Iterable[dict[str, Any] | str | bytes]) -> dict[str, Any]:
    """Return one state of the states of all processes that train together, for any number of processes.

    Each process of another number opens the same merged state, on its own `shard(index, count)`, or without
    `shard` if it is the only one. Together they deliver what none of the earlier processes had received: each item
    of the epoch once. Later epochs are dealt out as always. The processes may have stopped at unequal progress,
    also in different epochs: the earlier epoch is finished first.

    Args:
        states: What `Feed.state_dict` returned in each process, or its JSON: one of each part, in any order.

    Returns:
        A state for `open(state=...)`, for `epochs(state=...)` and for `load_state_dict`. It is as large as all
        states together. The states of feeds that go on from it can be merged again.

    Raises:
        StateError: A part is missing or is there twice, the states are of different pipelines or of different
            numbers of parts, or their pipeline has no `shard`. Opening the merged state raises it if a stage
            behind `shard` depends on the items before: `take`, `skip`, `enumerate`, `window`, `scan`, `rebatch`.
            Put `shard` behind these.

    Order:
        The items that are left come in the order of the whole, item by item to each process in turn. That includes
        the items that stages of the earlier processes held, such as those of a batch that was not full. So the
        batches near this place have other items together than in a run without interruption. An item has the same
        random numbers in each process.

    Memory:
        A `shard` of a stream reads its epoch from the start, and drops what was received. Items that are reached
        by number are read only if they are left.

    Example:
        >>> import asyncfeed as af
        >>> def part(index, count):
        ...     return af.items(range(10)).shard(index, count).batch(2)
        >>> states = []
        >>> for index in range(2):
        ...     with part(index, 2).open() as feed:
        ...         print(next(feed))
        ...         states.append(feed.state_dict())
        [0 2]
        [1 3]
        >>> merged = af.merge_states(states)
        >>> for index in range(3):
        ...     with part(index, 3).open(state=merged) as feed:
        ...         print([batch.tolist() for batch in feed])
        [[4, 7]]
        [[5, 8]]
        [[6, 9]]
    """
    found = [opened(each) for each in states]
    if not found:
        raise StateError("there are no states to merge")
    parts = [_part_of(each["body"]) for each in found]
    _check_numbers(parts)
    order = sorted(range(len(parts)), key=lambda number: int(parts[number]["index"]))
    found, parts = [found[number] for number in order], [parts[number] for number in order]
    wholes = [
        whole(map(Part._make, each["pipeline"]["parts"]), part["stage"], has_shard=part["has shard"])
        for each, part in zip(found, parts, strict=True)
    ]
    for each, part in zip(wholes, parts, strict=True):
        unseal(seal(wholes[0], {}), each)  # raises if the pipelines differ, and says in what
        if (part["stage"], part["uneven"]) != (parts[0]["stage"], parts[0]["uneven"]):
            raise StateError(
                "the states are of different pipelines: their shard is another stage, or has another uneven="
            )
    bodies = [each["body"] for each in found]
    same = {key: bodies[0].get(key) for key in ("run", "by epoch")}
    if any({key: body.get(key) for key in same} != same for body in bodies):
        raise StateError(
            "the states are of different runs: all processes must have called open() with one epoch=, or epochs() "
            "with one start="
        )
    bodies = [{key: body[key] for key in body if key not in ("part", "by epoch")} for body in bodies]
    return seal(wholes[0], {**same, "stage": parts[0]["stage"], "uneven": parts[0]["uneven"], "parts": bodies})


def is_merged(body: dict[str, Any]) -> bool:
    """Return whether a body is of merged states."""
    return "parts" in body


def check_shard(body: dict[str, Any], stage: int, uneven: str) -> None:
    """Raise if a merged state is of a pipeline with another `shard`. The number of parts may be another one."""
    if (body.get("stage"), body.get("uneven")) != (stage, uneven):
        raise StateError(
            "the state is of another pipeline: its shard was another stage, or had another uneven=. Only index "
            "and count may differ"
        )


def passes_left(body: dict[str, Any]) -> int:
    """Return how many passes of the last `repeat` are over. In merged states, it is the smallest number of all."""
    try:
        if is_merged(body):
            return min(map(passes_left, body["parts"]))
        passes = body.get("passes")
        return int(passes[-1]) if passes else 0
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise StateError(f"the state is damaged: {error!r}") from error


def _part_of(body: dict[str, Any]) -> dict[str, Any]:
    part = body.get("part")
    if is_merged(body) and part is None:
        raise StateError("one of the states is merged already: merge the states of the feeds that went on from it")
    if part is None:
        raise StateError("the states cannot be merged: their pipeline must have one shard stage of its own")
    if type(part) is not dict or {key: type(value) for key, value in part.items()} != _PART:
        raise StateError("the state is damaged: it does not say which part it is of")
    return part


def _check_numbers(parts: list[dict[str, Any]]) -> None:
    counts = sorted({part["count"] for part in parts})
    if len(counts) > 1:
        raise StateError(f"the states are of different numbers of parts: {' and '.join(map(str, counts))}")
    (count,) = counts
    numbers = [part["index"] for part in parts]
    for number in numbers:
        if numbers.count(number) > 1:
            raise StateError(f"there are two states of part {number} of {count}")
    missing = sorted(set(range(min(count, len(parts) + 1))) - set(numbers))
    if missing or len(numbers) != count:
        raise StateError(f"there is no state of part {missing[0]} of {count}: give the states of all parts")


def whole(found: Iterable[Part], stage: object, *, has_shard: bool) -> Fingerprint:
    """Return what all parts of a pipeline are known by: everything without the `shard`, and the sizes behind it.

    Args:
        found: The fingerprint of one part.
        stage: The number of the `shard` among the stages.
        has_shard: Whether it is there. One process that works alone may leave it out.
    """
    parts = []
    number = 0
    for part in found:
        if part.where.startswith("stage "):
            if has_shard and part.where == f"stage {stage}":
                continue
            number += 1
            behind = isinstance(stage, int) and number >= stage
            digest = part.digest.rpartition(".")[2] if behind else part.digest
            parts.append(part._replace(where=f"stage {number}", digest=digest))
        else:
            parts.append(part)
    return Fingerprint(tuple(parts))
