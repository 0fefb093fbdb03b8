"""Where the stream of a description begins: what is reached by number, and the stages that the engine runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile

from asyncfeed.numbered import Numbered
from asyncfeed.reading.listing import FileList
from asyncfeed.stages.base import Node, Source
from asyncfeed.stages.fetch import Fetch, Places
from asyncfeed.stages.segment import joined
from asyncfeed.stages.steps import Indexed
from asyncfeed.stages.together import fold, fold_over


def reached(
    source: Source, stages: Sequence[Node], instead: Indexed | None = None
) -> tuple[Indexed | None, int, list[Node]]:
    """Return the result of `fold`, the number of folded stages, and the remaining stages as the engine runs them.

    If picking an item calls the user's code, the source picks the numbers of the places, and one more stage reads
    the items. If the source can only be iterated, stages that leave out its first items are folded, and the source
    is opened after these items (`first_place`). If some items by number are given, they are returned `instead`.
    Stages whose functions are called together are one `Segment`.
    """
    indexed, rest = fold(source, stages)
    if instead is not None:
        indexed = instead
    if indexed is None and not source.inputs:
        rest = list(dropwhile(_leaves_out_first, stages))
    folded = len(stages) - len(rest)
    if indexed is not None and indexed.on_thread is not None:
        fetch = Fetch(indexed, indexed.on_thread, str(source))
        return Places(indexed), folded, joined(fetch.put(rest))
    run = joined(rest)
    only_order = all(node.arranges for node in stages[:folded])
    if instead is None and source.listed is not None and only_order and _take_numbers(run, source.listed):
        numbers = Numbered(len(source.listed), list, name=source.listed.path)
        indexed, _ = fold_over(numbers, stages[:folded])
    return indexed, folded, run


def _take_numbers(run: list[Node], files: FileList) -> bool:
    """Have the first stage that needs the files of a list take their numbers. Return whether it can.

    Then no `File` is made for the stages that only choose and order items.
    """
    place = next((at for at, node in enumerate(run) if not (node.arranges or node.is_queue)), None)
    over = None if place is None else run[place].over(files)
    if place is None or over is None:
        return False
    run[place] = over
    return True


def _leaves_out_first(node: Node) -> bool:
    return node.leaves_out_first > 0
