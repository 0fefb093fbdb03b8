"""What merged states mean: the order over all processes, epochs, what is refused, and what it costs."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.errors import StateError
from asyncfeed.state.envelope import seal
from asyncfeed.state.fingerprint import Fingerprint, Part
from tests.searching import sampled

Make = Callable[[int, int], af.Pipeline[Any]]
numbers = af.items(range(24))


def draw(pipeline: af.Pipeline[Any], count: int | None = None, state: Any = None) -> tuple[list[Any], Any]:
    """Return the next items, and the state after them."""
    with pipeline.open(state=state) as feed:
        return list(itertools.islice(feed, count)), json.dumps(feed.state_dict())


def merged(make: Make, count: int, *cuts: int | None, state: Any = None) -> tuple[list[list[Any]], Any]:
    """Return what each process received, and their merged states."""
    drawn = [draw(make(index, count), cuts[index % len(cuts)], state) for index in range(count)]
    return [items for items, _ in drawn], af.merge_states([its for _, its in drawn])


def flat(received: list[list[Any]]) -> list[int]:
    return sorted(int(each) for items in received for batch in items for each in np.ravel(batch))


def rest_of(make: Make, count: int, state: Any) -> list[list[Any]]:
    return [draw(make(index, count), None, state)[0] for index in range(count)]


def in_steps(received: list[list[Any]]) -> list[list[int]]:
    """Return the samples of each step of all processes together: first those that the batches begin with."""
    return [[int(each) for row in zip(*step, strict=True) for each in row] for step in zip(*received, strict=True)]


# -- once, and in one order


@sampled(16)
@pytest.mark.parametrize("pair", range(64))
def test_any_number_of_processes_delivers_the_rest_once(pair: int) -> None:
    """Each process stops at another place, one of them before its first batch, and one fails at an item.

    There are 1 to 8 processes before, and 1 to 8 after.
    """
    old, new = 1 + pair % 8, 1 + 3 * (pair // 8 + pair % 8) % 8  # each pair, and of the first ones each number

    def fails(item: int) -> int:
        if item == bad:
            raise ValueError(item)
        return item

    def make(index: int, count: int) -> af.Pipeline[Any]:
        return af.items(range(101)).shuffle(seed=1).shard(index, count, uneven="keep").map(fails).batch(3)

    for bad in (-1, 50):  # noqa: B007 - `fails` reads it
        received, states = [], []
        for index in range(old):
            with make(index, old).open() as feed:
                try:
                    received.append(list(itertools.islice(feed, index * 2 % 7)))
                except ValueError:
                    received.append([])
                    states.append(draw(make(index, old), 0)[1])
                    continue
                states.append(feed.state_dict())
        bad = -1  # noqa: PLW2901 - it is mended
        assert flat([*received, *rest_of(make, new, af.merge_states(states))]) == list(range(101))


@sampled(3)
@pytest.mark.parametrize("product", [6, 8, 12])
@pytest.mark.parametrize("order", [numbers, numbers.shuffle(seed=3), numbers.filter(lambda _: True)])
def test_all_processes_together_follow_one_order(order: af.Pipeline[Any], product: int) -> None:
    """The n-th step has the same samples whatever the number of processes, if they take as many together."""
    expected = [list(each) for each in np.array(list(order)).reshape(-1, product)]
    for count in range(1, product + 1):
        if product % count:
            continue

        def make(index: int, count: int) -> af.Pipeline[Any]:
            return order.shard(index, count).batch(product // count)

        assert in_steps(rest_of(make, count, None)) == expected
        received, state = merged(make, count, 1)
        for other in (each for each in range(1, product + 1) if not product % each):
            assert in_steps(received) + in_steps(rest_of(make, other, state)) == expected


def test_the_order_of_the_rest_is_that_of_the_whole() -> None:
    received, state = merged(lambda index, count: numbers.shard(index, count), 3, 5, 1, 3)
    assert flat(received) == [0, 1, 2, 3, 5, 6, 8, 9, 12]
    assert rest_of(lambda index, count: numbers.shard(index, count), 2, state) == [
        [4, 10, 13, 15, 17, 19, 21, 23],
        [7, 11, 14, 16, 18, 20, 22, 4],  # padded with the first item of the rest
    ]


def test_batches_by_number_stay_whole() -> None:
    """A `shard` behind `batch` deals out batches. So what is left is dealt out in the same batches."""

    def make(index: int, count: int) -> af.Pipeline[Any]:
        return numbers.batch(4).shard(index, count)

    _, state = merged(make, 2, 1, 2)
    assert [[each.tolist() for each in items] for items in rest_of(make, 3, state)] == [
        [[8, 9, 10, 11]],
        [[16, 17, 18, 19]],
        [[20, 21, 22, 23]],
    ]


def test_items_that_pad_do_not_count() -> None:
    """With 'pad', an item may come more than once. The rest has each item that nobody received as its own."""

    def make(index: int, count: int) -> af.Pipeline[Any]:
        return af.items(range(5)).shard(index, count, uneven="pad")

    received, state = merged(make, 4, 0, 2, 2, 2)
    assert received == [[], [1, 0], [2, 1], [3, 2]]
    assert rest_of(make, 1, state) == [[0, 4]]


def test_items_that_were_dropped_are_left() -> None:
    """With 'drop', the rest is what nobody received. It is dealt out as an epoch is."""

    def make(index: int, count: int) -> af.Pipeline[Any]:
        return af.items(range(11)).shard(index, count, uneven="drop")

    received, state = merged(make, 4, 1)
    assert flat(received) == [0, 1, 2, 3]
    assert rest_of(make, 3, state) == [[4, 7], [5, 8], [6, 9]]


def test_a_shuffle_and_a_take_behind_the_shard_stay_as_they_were() -> None:
    """Their items are reached by number, so what the earlier parts had left is known."""

    def make(index: int, count: int) -> af.Pipeline[Any]:
        return numbers.shard(index, count).shuffle(seed=4).take(5)

    wholes = [list(make(index, 3)) for index in range(3)]
    received, state = merged(make, 3, 1, 4, 2)
    left = [each for items in wholes for each in items if each not in itertools.chain(*received)]
    assert flat(rest_of(make, 2, state)) == sorted([*left, *left[: len(left) % 2]])[: len(left) + 1]
    assert flat(rest_of(make, 1, state)) == sorted(left)


def test_without_a_shard_one_process_goes_on_alone() -> None:
    def make(index: int, count: int) -> af.Pipeline[Any]:
        whole = numbers.prefetch(2) if count > 1 else numbers  # it decides nothing
        whole = whole.shuffle(buffer=4, seed=2)
        return (whole.shard(index, count) if count > 1 else whole).batch(2)

    received, state = merged(make, 3, 1, 2)
    more, state = merged(make, 1, 2, state=state)
    more += [draw(make(index, 2), 1, state)[0] for index in range(2)]
    states = [draw(make(index, 2), 1, state)[1] for index in range(2)]
    assert flat([*received, *more, *rest_of(make, 4, af.merge_states(states))]) == list(range(24))


# -- epochs


def test_an_earlier_epoch_is_finished_first() -> None:
    """Processes may stop in different epochs. All others then begin in the earliest of these."""

    def make(index: int, count: int) -> af.Pipeline[Any]:
        return af.items(range(8)).shuffle(seed=1).shard(index, count)

    expected = [list(epoch) for epoch in af.items(range(8)).shuffle(seed=1).epochs(3)]
    states: list[Any] = []
    received: list[list[int]] = [[], [], []]
    for index, cut in enumerate([1, 6]):
        epochs = make(index, 2).epochs(3)
        with epochs.feed:
            drawn = itertools.islice(((epoch.number, item) for epoch in epochs for item in epoch), cut)
            for number, item in drawn:
                received[number].append(item)
            states.append(epochs.feed.state_dict())
    state = af.merge_states(states)
    began = set()
    for index in range(3):
        for epoch in make(index, 3).epochs(3, state=state):
            began.add(epoch.number)
            items = list(epoch)
            received[epoch.number] += items
    assert began == {0, 1, 2}
    for number, whole in enumerate(expected):
        assert set(received[number]) == set(whole)
        assert len(received[number]) <= len(whole) + 2  # padded


def test_later_epochs_are_dealt_out_as_always() -> None:
    def make(index: int, count: int) -> af.Pipeline[Any]:
        return numbers.shuffle(seed=1).shard(index, count).repeat(3)

    _, state = merged(make, 4, 2, 5, 1)
    for index, items in enumerate(rest_of(make, 3, state)):
        assert items[-16:] == list(make(index, 3))[-16:]


def test_a_part_may_have_nothing_left_of_an_epoch_that_is_repeated_without_end() -> None:
    def make(index: int, count: int) -> af.Pipeline[Any]:
        return af.items(range(8)).shard(index, count, uneven="keep").repeat()

    _, state = merged(make, 2, 4, 11)
    assert [draw(make(index, 5), 3, state)[0] for index in range(5)] == [
        [0, 0, 0], [2, 2, 1], [4, 4, 2], [6, 6, 3], [7, 4, 4],
    ]  # fmt: skip


# -- several merges


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 4), min_size=1, max_size=5), counts=st.lists(st.integers(1, 5), min_size=9))
def test_the_state_stays_small(cuts: list[int], counts: list[int]) -> None:
    """Each merge within one epoch adds one layer. A merge in a later epoch drops the layers before."""

    def make(index: int, count: int) -> af.Pipeline[Any]:
        return af.items(range(500)).shard(index, count, uneven="keep").batch(2).repeat(3)

    state = None
    for number, count in enumerate(counts[:8]):
        _, state = merged(make, count, *cuts, state=state)
        assert len(json.dumps(state)) < 700 + 1000 * count + 100 * count * sum(counts[: number + 1])
    drawn = [draw(make(index, 2), None, state) for index in range(2)]
    state = af.merge_states([its for _, its in drawn])
    _, state = merged(make, 1, 0, state=state)
    assert len(json.dumps(state)) < 4096


def test_states_that_were_not_used_can_be_merged() -> None:
    """The processes of another number may stop before their first batch, or only some of them."""

    def make(index: int, count: int) -> af.Pipeline[Any]:
        return numbers.shard(index, count).batch(2)

    received, state = merged(make, 3, 1, 2)
    more, state = merged(make, 2, 0, 1, state=state)
    assert flat([*received, *more, *rest_of(make, 1, state)]) == list(range(24))


# -- what is refused


def refused(states: list[Any]) -> str:
    with pytest.raises(StateError) as raised:
        af.merge_states(states)
    return str(raised.value)


def test_a_merge_says_what_is_wrong() -> None:
    def states(make: Make, count: int) -> list[Any]:
        return [draw(make(index, count), 1)[1] for index in range(count)]

    def make(index: int, count: int) -> af.Pipeline[Any]:
        return numbers.shard(index, count).map(abs).batch(2)

    good = states(make, 3)
    assert "no states" in refused([])
    assert "no state of part 1 of 3" in refused([good[2], good[0]])
    assert "two states of part 0 of 3" in refused([*good, good[0]])
    assert "different numbers of parts: 2 and 3" in refused([*good, states(make, 2)[0]])
    assert "stage 1 was map(abs), and is map(int)" in refused(
        [good[0], *states(lambda index, count: numbers.shard(index, count).map(int).batch(2), 3)[1:]]
    )
    assert "another uneven" in refused(
        [
            good[0],
            *states(lambda index, count: numbers.shard(index, count, uneven="keep").map(abs).batch(2), 3)[1:],
        ]
    )
    assert "must have one shard" in refused([draw(numbers.batch(2), 1)[1]])
    assert "merged already" in refused([af.merge_states(good)])
    with make(0, 3).open(epoch=1) as feed:
        assert "different runs" in refused([feed.state_dict(), *good[1:]])
    assert "checksum" in refused([good[0].replace('"run": 0', '"run": 1'), *good[1:]])


def test_a_merged_state_is_of_one_pipeline() -> None:
    _, state = merged(lambda index, count: numbers.shuffle(seed=1).shard(index, count).batch(2), 2, 1)
    for other, said in (
        (numbers.shuffle(seed=2).shard(0, 2).batch(2), "stage 1 was shuffle(seed=1), and is shuffle(seed=2)"),
        (numbers.shard(0, 2).shuffle(seed=1).batch(2), "its shard was another stage"),
        (numbers.shuffle(seed=1).shard(0, 2, uneven="keep").batch(2), "another uneven"),
        (numbers.shuffle(seed=1).shard(0, 2).shard(0, 2).batch(2), "shard(0, 2), was not there"),
    ):
        with pytest.raises(StateError) as raised:
            draw(other, None, state)
        assert said in str(raised.value)


@pytest.mark.parametrize(
    "behind",
    [
        lambda p: p.filter(lambda _: True).take(5),
        lambda p: p.filter(lambda _: True).skip(2),
        lambda p: p.filter(lambda _: True).enumerate(),
        lambda p: p.filter(lambda _: True).window(3, stride=1),
        lambda p: p.batch(4).rebatch(3),
    ],
)
def test_a_stage_that_depends_on_the_items_before_is_refused(behind: Any) -> None:
    """Each process would count its own items, and another number of processes would get others."""
    _, state = merged(lambda index, count: behind(numbers.shard(index, count)), 2, 1)
    with pytest.raises(StateError, match=r"cannot be merged: (take|skip|enumerate|window|rebatch)\(.*before"):
        draw(behind(numbers.shard(0, 3)), None, state)


def test_a_batch_that_was_half_taken_apart_is_refused() -> None:
    def make(index: int, count: int) -> af.Pipeline[Any]:
        return numbers.shard(index, count).batch(4).unbatch()

    _, state = merged(make, 2, 3)
    with pytest.raises(StateError, match="in the middle of a batch"):
        draw(make(0, 3), None, state)


# -- what it costs


def test_nothing_that_was_received_is_read_again() -> None:
    read: list[int] = []

    class Dataset:
        def __len__(self) -> int:
            return 10**9

        def __getitem__(self, number: int) -> int:
            read.append(number)
            return number

    def make(index: int, count: int) -> af.Pipeline[Any]:
        return af.items(Dataset(), concurrency=1).shuffle(seed=1).shard(index, count).batch(8).prefetch(1)

    received, state = merged(make, 4, 3, 0, 5)
    seen = set(flat(received))
    read.clear()
    more = [draw(make(index, 3), 4, state)[0] for index in range(3)]
    assert not seen & set(flat(more))
    assert not seen & set(read)
    assert len(set(read)) == len(read) < 5000


def test_a_merge_of_inputs_begins_in_its_epoch() -> None:
    """Also if the consumer has left the epoch before, so that the state has nothing but the epoch."""
    whole = af.mix(numbers.filter(lambda _: True), numbers.filter(lambda _: True), seed=1)
    epochs = whole.epochs(2)
    with epochs.feed:
        begun = iter(epochs)
        next(iter(next(begun)))
        next(begun)
        state = epochs.feed.state_dict()
    epochs = whole.epochs(2, state=state)
    with epochs.feed:
        first = next(iter(next(iter(epochs))))
        state = epochs.feed.state_dict()
    (rest,) = (list(epoch) for epoch in whole.epochs(2, state=state))
    assert [first, *rest] == [list(epoch) for epoch in whole.epochs(2)][1]


# -- damage


def _places(tree: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [at, *(found for key, each in inner for found in _places(each, (*at, key)))]


def sealed(state: Any, body: dict[str, Any]) -> Any:
    """Return a state with another body, and with the checksum of it."""
    return seal(Fingerprint(tuple(Part(*each) for each in state["pipeline"]["parts"])), body)


@pytest.mark.parametrize("run", ["x", None, 1.5, [1], -1, True])
def test_a_state_that_does_not_count_the_runs_is_damaged(run: Any) -> None:
    state = json.loads(draw(numbers.batch(2), 1)[1])
    with pytest.raises(StateError, match="does not say how many runs were before"):
        numbers.batch(2).open(state=sealed(state, {**state["body"], "run": run}))


@pytest.mark.parametrize("run", ["x", None, 1])
def test_parts_of_different_runs_are_damaged(run: Any) -> None:
    """`merge_states` refuses them, so this state was tampered with."""

    def make(index: int, count: int) -> af.Pipeline[Any]:
        return numbers.shard(index, count).batch(2)

    _, state = merged(make, 2, 1)
    body = json.loads(json.dumps(state["body"]))
    body["parts"][1]["run"] = run
    with pytest.raises(StateError, match="its parts are of different runs"):
        draw(make(0, 3), 1, sealed(state, body))


@settings(max_examples=200)
@given(seed=st.integers(0, 10**9))
def test_a_rest_that_was_tampered_with_is_a_state_error_or_a_rest(seed: int) -> None:
    """The checksum protects it from accidents, and not from somebody who can write one."""
    random = Random(seed)
    makes: list[Make] = [
        lambda index, count: numbers.shard(index, count).flat_map(lambda x: [x] * 3).shuffle(buffer=3).batch(2),
        lambda index, count: numbers.filter(lambda _: True).shard(index, count).batch(2).repeat(2),
    ]
    make = random.choice(makes)
    _, state = merged(make, 3, *(random.randrange(5) for _ in range(3)))
    if random.random() < 0.7:
        state = json.loads(draw(make(1, 2), random.randrange(4), state)[1])
    body = json.loads(json.dumps(state["body"]))
    rests = ("rest", "stage", "uneven", "parts")
    known = [each for each in _places(body)[1:] if each[0] in rests and not {"stations", "passes"} & {*each}]
    *way, last = random.choice(known)
    tree = body
    for key in way:
        tree = tree[key]
    values = [-1, 0, 1, 10**6, 10**30, "x", None, [], {}, [0], [[1, 2]], True, 1.5, -(10**12)]
    tree[last] = random.choice(values)
    with contextlib.suppress(StateError):
        draw(make(1, 2), 6, sealed(state, body))
