"""Which results of a stage can be sent, and in which order: decided without a loop."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.epoch_end import epoch_end
from asyncfeed.errors import Failure
from asyncfeed.stages.steps import Chunk
from asyncfeed.trees import total_size
from tests.engine.inside import CompletionBuffer, Entry, Outcomes, ReorderBuffer

EPOCHS = st.lists(st.lists(st.integers(0, 6), max_size=6), min_size=1, max_size=3)
"""For each epoch, how many items each of its entries has."""
SEEDS = st.integers(0, 2**32)
FAILURE = Failure(ValueError(), "map(f)", 0, None, 0)


def entries_of(epochs: list[list[int]]) -> list[Entry]:
    """Return the entries, each epoch ended by its last."""
    entries: list[Entry] = []
    number = 0
    for epoch, sizes in enumerate(epochs):
        for place, size in enumerate([*sizes, 0]):
            items: list[Any] = [(epoch, number + each) for each in range(size)]
            boundary = epoch_end(0) if place == len(sizes) else None
            entries.append(Entry(Chunk(items, range(number, number + size), boundary, nbytes=100 * size), number))
            number += size
    return entries


def send(buffer: ReorderBuffer, epochs: list[list[int]], seed: int) -> tuple[list[Any], list[Any]]:
    """Let groups of items be done on a random schedule, and send what is ready: what was sent, and what was lost.

    The end of an epoch is sent as its number.
    """
    random = Random(seed)
    arriving = deque(entries_of(epochs))
    groups: list[tuple[Entry, int, int]] = []
    sent: list[Any] = []
    lost: list[Any] = []
    ends = failures = failed = charged = 0
    while arriving or groups or len(buffer):
        if arriving and random.random() < 0.5:
            entry = arriving.popleft()
            buffer.add(entry)
            charged += entry.charged
            start = 0
            while start < len(entry.items):
                stop = random.randint(start + 1, len(entry.items))
                groups.append((entry, start, stop))
                start = stop
        if groups and random.random() < 0.7:
            entry, start, stop = groups.pop(random.randrange(len(groups)))
            entry.accept(start, entry.items[start:stop])
            if random.random() < 0.2:
                lost.append(entry.items[start])
                how = random.choice([None, FAILURE])
                failures += how is FAILURE
                entry.set_missing(start, how)
            assert entry.results(start, stop) == [each for each in entry.items[start:stop] if each not in lost]
            entry.taken += stop - start
            if entry.completed is not None:
                entry.completed.extend(range(start, stop))
        piece = buffer.ready()
        if piece is not None:
            assert len(piece.positions) == len(piece.results)
            assert piece.nbytes == total_size(piece.results)
            charged += piece.charge_change - piece.nbytes
            assert all(failure is FAILURE and index <= len(piece.results) for index, failure in piece.failures)
            failed += len(piece.failures)
            sent += piece.results
            if piece.boundary is not None:
                sent.append(ends)
                ends += 1
    assert (buffer.held, buffer.empty_entries, charged) == (0, 0, 0)
    assert buffer.sent_total == sum(map(sum, epochs))
    assert failed == failures
    return sent, lost


def items_of(epochs: list[list[int]]) -> list[list[Any]]:
    per_epoch: list[list[Any]] = [[] for _ in epochs]
    for entry in entries_of(epochs):
        for item in entry.items:
            per_epoch[item[0]].append(item)
    return per_epoch


@given(EPOCHS, SEEDS)
def test_results_are_sent_in_the_order_of_their_items_and_the_end_of_an_epoch_after_them(
    epochs: list[list[int]], seed: int
) -> None:
    sent, lost = send(ReorderBuffer(), epochs, seed)
    expected: list[Any] = []
    for epoch, items in enumerate(items_of(epochs)):
        expected += [*(item for item in items if item not in lost), epoch]
    assert sent == expected


@given(EPOCHS, SEEDS)
def test_results_that_are_sent_as_they_come_stay_in_their_epoch(epochs: list[list[int]], seed: int) -> None:
    sent, lost = send(CompletionBuffer(), epochs, seed)
    for epoch, items in enumerate(items_of(epochs)):
        end = sent.index(epoch)
        assert sorted(sent[:end]) == [item for item in items if item not in lost]
        sent = sent[end + 1 :]
    assert sent == []


@pytest.mark.parametrize("buffer", [ReorderBuffer, CompletionBuffer])
def test_nothing_is_ready_of_a_buffer_that_was_cleared(buffer: type[ReorderBuffer]) -> None:
    made = buffer()
    made.add(Entry(Chunk([1, 2], range(2), nbytes=16), 0))
    made.clear()
    assert made.ready() is None
    assert (len(made), made.held) == (0, 0)


def test_no_value_of_the_users_is_taken_for_an_outcome() -> None:
    outcomes = Outcomes()
    outcomes.values.append(FAILURE)
    outcomes.add_missing(None)
    outcomes.leave_out(2)
    assert len(outcomes) == 4
    assert outcomes.missing == {1: None, 2: None, 3: None}
