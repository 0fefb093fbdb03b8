"""Cuts a training over placed batches at any place, for `to_torch` and `to_jax`: an end of an epoch is an event, too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import asyncfeed as af

EPOCHS = 3
END = "end"


def noisy(x: Any, rng: Any) -> Any:
    return x + rng.random()


def three(x: Any) -> Any:
    return [10 * x, 10 * x + 1, 10 * x + 2][: 1 + int(x) % 3]


PIPELINES: dict[str, af.Pipeline[Any]] = {
    "shuffled": af.items(range(17)).shuffle(seed=7).batch(3),
    "buffer": af.items(lambda: iter(range(13))).shuffle(buffer=5, seed=1).batch(2),
    "random": af.items(range(9)).map(noisy, rng=True, seed=3).batch(2),
    "half a flat map": af.items(range(6)).shuffle(seed=2).flat_map(three).batch(2),
    "filter": af.items(range(20)).filter(lambda x: x % 3 > 0).batch(4),
    "queues": af.items(range(12)).batch(2).prefetch(3),
    "empty": af.items(range(4)).filter(lambda x: x > 9).batch(2),
    "passes": af.items(range(5)).shuffle(seed=4).repeat(3).batch(4),
    "threads": af.items(range(11)).map(lambda x: x + 1.5, ordered=False, concurrency=1).batch(2),
}

cuts = st.lists(st.integers(0, 25), min_size=1, max_size=4)


class Training:
    """A program that draws events, and is killed. `sync` says whether it draws with `for` or with `async for`."""

    def __init__(self, data: Any, *, sync: bool = True) -> None:
        self.data = data
        self._sync = sync
        self.iterator: Any = None

    def draw(self, count: int) -> list[Any]:
        """Return the next events: (epoch, batch), or (epoch, END)."""
        if self._sync:
            return [self._next() for _ in range(count)]
        return asyncio.run(self._draw_async(count))

    def _next(self) -> Any:
        if self.iterator is None:
            self.iterator = iter(self.data)
        epoch = self.data.epoch
        try:
            return epoch, np.asarray(next(self.iterator)).tolist()
        except StopIteration:
            self.iterator = None
            return epoch, END

    async def _draw_async(self, count: int) -> list[Any]:
        events, iterator = [], None
        for _ in range(count):
            if iterator is None:
                iterator = aiter(self.data)
            epoch = self.data.epoch
            try:
                events.append((epoch, np.asarray(await anext(iterator)).tolist()))
            except StopAsyncIteration:
                iterator = None
                events.append((epoch, END))
        return events

    def state(self, way: str) -> Any:
        """Return a state of the batches or of the iterator, as it comes back from a file."""
        holder = self.iterator if way == "iterator" and self.iterator is not None else self.data
        return json.loads(json.dumps(holder.state_dict()))


class Loaded:
    """A loader, and the number of the epoch that it delivers, which a program saves beside its state."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.epoch = 0

    def __iter__(self) -> Any:
        yield from self.loader
        self.epoch += 1

    def state_dict(self) -> Any:
        return {"loader": self.loader.state_dict(), "epoch": self.epoch}

    def load_state_dict(self, state: Any) -> None:
        self.loader.load_state_dict(state["loader"])
        self.epoch = state["epoch"]


def loaded(data: Any, state: Any, way: str, *, sync: bool) -> Training:
    """Return a program that begins with a state."""
    training = Training(data, sync=sync)
    if state is not None and way == "iterator" and sync:
        training.iterator = iter(data)
        training.iterator.load_state_dict(state)
    elif state is not None:
        data.load_state_dict(state)
    return training


def check(make: Callable[[], Any], cut: Sequence[int], ways: Sequence[str], *, sync: bool = True) -> None:
    """Cut a training at several places, each time with the state of the last one."""
    whole = Training(make())
    expected: list[Any] = []
    while sum(event == END for _, event in expected) < EPOCHS:
        expected += whole.draw(1)
    assert [epoch for epoch, event in expected if event == END] == list(range(EPOCHS))
    state, events = None, []
    for number, count in enumerate([*cut, len(expected)]):
        way = ways[number % len(ways)]
        training = loaded(make(), state, way, sync=sync)
        events += training.draw(min(count, len(expected) - len(events)))
        assert events == expected[: len(events)]
        state = training.state(way)
    assert events == expected


ways = st.lists(st.sampled_from(["batches", "iterator"]), min_size=1, max_size=3)
