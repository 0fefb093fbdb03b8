"""Consumers that hypothesis draws: they wait or give up, do other things meanwhile, and leave when they like."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

import asyncfeed as af
from tests.engine.failing import Oops


class Consumer(NamedTuple):
    """Somebody who draws from a feed."""

    most: int
    """After how many items it leaves."""
    way: str
    """How it leaves; "cancelled" is at a time, whatever it has by then."""
    at: float
    """When it is cancelled."""
    patience: list[float | None]
    """How long it waits for an item before it gives up, and comes again; one after the other."""
    pauses: list[float | None]
    """How long it does something else after each."""

    async def draw(self, feed: af.Feed[Any], got: list[Any]) -> None:
        """Draw until it has enough, or there is nothing more."""
        turn = 0
        while len(got) < self.most:
            try:
                got.append(await asyncio.wait_for(anext(feed), self.patience[turn % len(self.patience)]))
            except TimeoutError:
                pass
            except StopAsyncIteration:
                return
            if (pause := self.pauses[turn % len(self.pauses)]) is not None:
                await asyncio.sleep(pause)
            turn += 1

    async def consume(self, pipeline: af.Pipeline[Any], limit: int | None, got: list[Any]) -> None:
        """Open a feed, draw, and leave."""
        feed = pipeline.open(memory_limit=limit)
        await self.draw(feed, got)
        if self.way == "aclose":
            await feed.aclose()
        elif self.way == "close":
            feed.close()
        elif self.way == "stop":
            feed.stop("enough")
        if self.way in ("aclose", "close", "stop"):
            for _ in range(2):
                with pytest.raises(af.ClosedError):
                    await anext(feed)

    async def main(self, pipeline: af.Pipeline[Any], limit: int | None) -> tuple[list[Any], bool]:
        """Return what it got, and whether an item has failed."""
        got: list[Any] = []
        try:
            if self.way == "cancelled":
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.consume(pipeline, limit, got), self.at)
            else:
                await self.consume(pipeline, limit, got)
        except Oops:
            return got, True
        return got, False


def consumers(most: int) -> st.SearchStrategy[Consumer]:
    """Return consumers that want up to so many items."""
    waits = st.lists(st.sampled_from([0.0, 0.0005, 0.004, 1.0]), max_size=4)
    return st.builds(
        Consumer,
        st.integers(0, most),
        st.sampled_from(["dropped", "aclose", "close", "stop", "cancelled"]),
        st.sampled_from([0.0001, 0.003, 0.02, 0.5, 5.0]),
        waits.map(lambda each: [*each, None]),  # who never waits never gets anything
        st.lists(st.sampled_from([None, 0.0, 0.002, 1.0]), min_size=1, max_size=4),
    )


def patient(most: int) -> st.SearchStrategy[Consumer]:
    """Return consumers that draw to the end."""
    return consumers(most).map(lambda each: each._replace(most=most))


def is_part_of(part: list[Any], whole: list[Any]) -> bool:
    """Return whether these are items of the whole, in its order."""
    rest = iter(whole)
    return all(item in rest for item in part)
