"""The position of an item in its stream. Only this module knows what a position is made of.

There are three kinds of position. Users see them as `Failure.ordinal`:

* An item of a source has its number among the items of all epochs of the source. It is an `int`.
* A child is an element that a `flat_map` made of an item. It has the position of that item, and its own number
  among the children. It is a `tuple`.
* A group of items, such as a batch, has the positions of its members. It is a `range` or a `list`.

Each item has a position, so positions are plain Python types, which are cheap. The positions of a source's items
are a `range`, which makes a number only when it is needed. `zip` makes the positions of children in C. A class for
children would cost more: docs/decisions.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, repeat
from typing import Any, TypeAlias, cast

Position: TypeAlias = "int | tuple[Position, int] | Sequence[Position]"
"""The position of one item. Take it apart with the functions of this module only."""
Positions: TypeAlias = "Sequence[Position]"
"""The positions of several items, one for each, in their order."""


def children(parent: Position, numbers: range) -> Iterable[Position]:
    """Return the positions of the children of an item that have these numbers.

    >>> list(children(7, range(2)))
    [(7, 0), (7, 1)]
    """
    return zip(repeat(parent, len(numbers)), numbers, strict=True)


def child_of(position: Position) -> tuple[Position, int]:
    """Return the position of the item that a child was made of, and the number of the child.

    >>> child_of((7, 2))
    (7, 2)
    """
    return cast("tuple[Position, int]", position)


def members(positions: Positions) -> Position:
    """Return the position of a group, from the positions of its members."""
    return list(positions) if isinstance(positions, tuple) else positions


def parts(group: Position) -> Positions:
    """Return the positions of the members of a group."""
    return cast("Sequence[Position]", group)


def member(group: Position, number: int) -> Position:
    """Return the position of one member of a group."""
    return cast("Sequence[Position]", group)[number]


def join(left: Positions, right: Positions) -> Positions:
    """Return the positions `left` and then `right`. This is a `range` if `right` continues the range `left`.

    >>> join(range(3), range(3, 5)), join(range(1, 9, 4), range(9, 13, 4)), join(range(3), range(4, 5))
    (range(0, 5), range(1, 13, 4), [0, 1, 2, 4])
    """
    if not left:
        return right
    if not right:
        return left
    if (
        isinstance(left, range)
        and isinstance(right, range)
        and left.step == right.step
        and left.start + len(left) * left.step == right.start
    ):
        return range(left.start, right.stop, left.step)
    return [*left, *right]


def first_number(position: Position) -> int:
    """Return the number of the source's item that an item comes from. For a group, take its first member.

    >>> first_number((7, 0)), first_number([(7, 1), (8, 0)]), first_number([])
    (7, 7, 0)
    """
    while not isinstance(position, int):
        if not position:
            return 0
        position = position[0]
    return position


def in_epoch(position: Position, size: int) -> Position:
    """Return a position with its numbers counted from the start of their epochs. An epoch has `size` numbers.

    >>> in_epoch(17, 10), in_epoch((17, 3), 10), in_epoch(range(8, 12), 10)
    (7, (7, 3), [8, 9, 0, 1])
    """
    if isinstance(position, int):
        return position % size
    if isinstance(position, tuple):
        parent, number = position
        return in_epoch(parent, size), number
    return [in_epoch(each, size) for each in position]


def name(position: Position, name_of: Callable[[int], str]) -> str:
    """Return the name of an item in messages. `name_of` returns the name of an item of the source.

    >>> name((7, 2), "number {}".format), name(range(3), "number {}".format)
    ('number 7[2]', 'batch of number 0 to number 2')
    """
    if isinstance(position, int):
        return name_of(position)
    if isinstance(position, tuple):
        parent, number = position
        return f"{name(parent, name_of)}[{number}]"
    return f"batch of {name(position[0], name_of)} to {name(position[-1], name_of)}" if position else "empty batch"


def all_numbers(position: Position) -> list[int]:
    """Return all numbers that a position is made of, from left to right.

    >>> all_numbers([(7, 0), (7, 1)])
    [7, 0, 7, 1]
    """
    if isinstance(position, Sequence):
        return [number for each in position for number in all_numbers(each)]
    return [int(position)]


def single_number(position: Position) -> int | None:
    """Return the number of an item of a source. Return None for the position of a child or of a group."""
    if type(position) is int:  # checked first, because `isinstance(..., Sequence)` takes longer than all the rest
        return position
    return None if isinstance(position, Sequence) else int(position)


def equal(one: Position, other: Position) -> bool:
    """Return whether two positions are the same, whichever types of sequence and integer they are made of.

    >>> equal([range(2), (7, 0)], [(0, 1), (7, 0)]), equal(3, 4)
    (True, False)
    """
    return one is other or (first_number(one) == first_number(other) and canonical(one) == canonical(other))


def canonical(position: Position) -> Position:
    """Return the same value for all equal positions, whichever types of sequence and integer they are made of.

    >>> canonical([range(2), (7, 0)])
    ((0, 1), (7, 0))
    """
    kind = type(position)
    if kind is int:  # checked first, because `isinstance(..., Sequence)` takes longer than all the rest
        return position
    inner: Any = position
    if kind is tuple and len(inner) == 2 and type(inner[0]) is int and type(inner[1]) is int:
        return position  # most children
    if kind is range:
        return tuple(inner)
    if kind is tuple or kind is list or isinstance(position, Sequence):
        return tuple(map(canonical, inner))
    return int(inner)


def renumbered(position: Position, old: int, new: int) -> Position:
    """Return a position in a stream whose epochs have `new` numbers in place of `old`.

    >>> renumbered([(17, 0), 4], 10, 100)
    [(107, 0), 4]
    """
    if isinstance(position, tuple) and position:
        parent, number = position
        return renumbered(parent, old, new), number
    if isinstance(position, Sequence):
        return [renumbered(each, old, new) for each in position]
    epoch, ordinal = divmod(int(position), old)
    return epoch * new + ordinal


# -- in checkpoints

MOST = 1 << 24
"""Number of positions in an entry of a checkpoint. A hostile one may ask for as many as would fill the memory."""
NOWHERE: Position = ()
"""Stands for the position of an item that was received."""


def to_json(positions: Positions) -> list[Any]:
    """Return positions as JSON: for each run of numbers the step from the last one, and its length if above 1.

    Children that follow each other are written as the positions of their parents, and their numbers.

    >>> to_json([5, 6, 7, 9, (9, 0), (9, 1), [1, 2], NOWHERE])
    [[5, 3], 1, {'of': [9, -1], 'n': [[0, 2]]}, {'all': [[1, 2]]}, None]
    """
    found: list[Any] = []
    after = 0  # the number after the last run
    if type(positions) is range and positions.step == 1 and len(positions) > 1:
        return [[positions.start, len(positions)]]
    for kind, some in groupby(positions, type):
        if kind is tuple:
            for is_child, same in groupby(some, bool):
                if is_child:
                    parents, numbers = zip(*same, strict=True)
                    found.append({"of": to_json(parents), "n": to_json(numbers)})
                else:
                    found += [None for _ in same]
        elif kind is not int and issubclass(kind, Sequence):
            found += [{"all": to_json(each)} for each in cast("Iterable[Positions]", some)]
        else:
            after = _add_runs(cast("Iterable[int]", some), after, found)
    return found


def _add_runs(numbers: Iterable[int], after: int, found: list[Any]) -> int:
    """Add entries for numbers. `after` is the number after the last entry. Return the number after these."""
    step = count = 0
    for number in map(int, numbers):
        if number == after and count:
            count += 1
        else:
            if count:
                found.append([step, count] if count > 1 else step)
            step, count = number - after, 1
        after = number + 1
    found.append([step, count] if count > 1 else step)
    return after


def from_json(found: list[Any]) -> list[Any]:
    """Return the positions that `to_json` was given.

    >>> from_json([[5, 3], 1, {"of": [9, -1], "n": [[0, 2]]}, {"all": [[1, 2]]}, None])
    [5, 6, 7, 9, (9, 0), (9, 1), [1, 2], ()]
    """
    if _count(found) > MOST:
        raise ValueError("it has too many positions")
    return _positions(found)


def _count(found: list[Any]) -> int:
    """Return how many positions these are, with those that they are made of."""
    total = 0
    for each in found:
        if isinstance(each, dict):
            total += sum(map(_count, each.values()))
        else:
            total += each[1] if isinstance(each, list) else 1
    return total


def _positions(found: list[Any]) -> list[Any]:
    positions: list[Any] = []
    after = 0
    for each in found:
        if each is None:
            positions.append(NOWHERE)
        elif not isinstance(each, dict):
            step, count = (each, 1) if isinstance(each, int) else each
            start, after = after + step, after + step + count
            positions.extend(range(start, after))
        elif "all" in each:
            positions.append(_positions(each["all"]))
        else:
            positions += zip(_positions(each["of"]), _positions(each["n"]), strict=True)
    return positions
