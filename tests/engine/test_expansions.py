"""The order in which the children of several items are sent: decided without a loop."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.epoch_end import epoch_end
from asyncfeed.errors import Failure
from asyncfeed.stages.steps import Turns, Work
from tests.engine.inside import Expansion, chunks_of, expansions_of

EPOCHS = st.lists(st.lists(st.integers(0, 5), max_size=7), min_size=1, max_size=3)
"""For each epoch, how many children each of its items has."""
SEEDS = st.integers(0, 2**32)


def in_turns(counts: list[int], cycle: int, block: int) -> list[tuple[int, int]]:
    """Return the children as TensorFlow's `interleave` gives them: its loop, in Python."""
    items = deque(enumerate(counts))
    places: list[deque[tuple[int, int]] | None] = [None] * cycle
    turn = given_in_turn = 0
    out: list[tuple[int, int]] = []
    while items or any(each is not None for each in places):
        place = places[turn]
        if place is None:
            if items:
                number, count = items.popleft()
                places[turn] = deque((number, child) for child in range(count))
                continue
        elif place:
            out.append(place.popleft())
            given_in_turn += 1
            if given_in_turn < block:
                continue
        else:
            places[turn] = None
        turn, given_in_turn = (turn + 1) % cycle, 0
    return out


def send(work: Work, epochs: list[list[int]], seed: int) -> list[list[tuple[int, int]]]:
    """Make children and take them on a random schedule; return what was sent in each epoch."""
    random = Random(seed)
    expansions = expansions_of(work)
    coming: list[Expansion] = []
    left: dict[int, int] = {}
    for counts in epochs:
        for number, count in enumerate(counts):
            expansion = Expansion(number, number, 0)
            left[id(expansion)] = count
            coming.append(expansion)
        coming.append(Expansion.end(epoch_end(0)))
    arriving, making = deque(coming), []
    sent: list[list[tuple[int, int]]] = [[]]
    while arriving or making or len(expansions):
        choices = ["arrive"] * bool(arriving) + ["make"] * bool(making) + ["take"]
        match random.choice(choices):
            case "arrive":
                expansion = arriving.popleft()
                expansions.add(expansion)
                if expansion.has_item:
                    making.append(expansion)
            case "make":
                expansion = random.choice(making)
                count = random.randint(0, left[id(expansion)])
                made = expansion.sent + len(expansion.children)
                expansion.children.extend((expansion.item, child) for child in range(made, made + count))
                expansion.nbytes += 3 * count
                left[id(expansion)] -= count
                if not left[id(expansion)]:
                    expansion.done = True
                    making.remove(expansion)
            case _:
                with chunks_of(random.randint(1, 4)):
                    piece = expansions.ready()
                if piece is None:
                    assert arriving or making or not len(expansions), "nothing is sent, and nothing comes"
                    continue
                assert piece.positions == piece.results  # both are (item, number of the child) here
                assert piece.nbytes == 3 * len(piece.results)
                sent[-1].extend(piece.results)
                if piece.boundary is not None:
                    sent.append([])
    assert sent.pop() == []
    return sent


def flat(**options: Any) -> Work:
    return Work(range, "thread", shape="flat", **options)


@given(EPOCHS, SEEDS)
def test_in_order_each_item_sends_all_its_children_before_the_next(epochs: list[list[int]], seed: int) -> None:
    """Whatever was made first."""
    expected = [[(n, child) for n, count in enumerate(counts) for child in range(count)] for counts in epochs]
    assert send(flat(), epochs, seed) == expected


@given(EPOCHS, SEEDS)
def test_as_they_come_nothing_is_lost_and_nothing_overtakes_the_end_of_an_epoch(
    epochs: list[list[int]], seed: int
) -> None:
    """The children of one item stay in order."""
    for counts, sent in zip(epochs, send(flat(ordered=False), epochs, seed), strict=True):
        assert Counter(n for n, _ in sent) == Counter({n: count for n, count in enumerate(counts) if count})
        for number, count in enumerate(counts):
            assert [child for n, child in sent if n == number] == list(range(count))


@given(EPOCHS, st.integers(1, 4), st.integers(1, 3), SEEDS)
def test_in_turns_the_order_is_that_of_tensorflow(
    epochs: list[list[int]], cycle: int, block: int, seed: int
) -> None:
    """It does not depend on what was made first; each epoch begins with the first place."""
    sent = send(flat(turns=Turns(cycle, block)), epochs, seed)
    assert sent == [in_turns(counts, cycle, block) for counts in epochs]


@pytest.mark.parametrize("options", [{}, {"ordered": False}, {"turns": Turns(2, 1)}], ids=str)
def test_the_failure_of_an_item_comes_after_its_children_and_before_what_follows(options: dict[str, Any]) -> None:
    """It is told apart from a failure from upstream, which ends the stream whatever the policy is."""
    expansions = expansions_of(flat(**options))
    failed, upstream = (Failure(ValueError(), "flat_map(f)", number, None, 0) for number in range(2))
    item = Expansion("item", 0, 0)
    item.children.extend("ab")
    item.failure, item.done = failed, True
    expansions.add(item)
    expansions.add(Expansion.end(None, upstream))
    results: list[Any] = []
    failures: list[tuple[int, Failure]] = []
    ended: list[Failure] = []
    while (piece := expansions.ready()) is not None:
        failures += [(len(results) + place, failure) for place, failure in piece.failures]
        results += piece.results
        ended += [piece.failure] if piece.failure is not None else []
        assert piece.boundary is None
    assert (results, failures, ended) == (["a", "b"], [(2, failed)], [upstream])
    assert not len(expansions)
