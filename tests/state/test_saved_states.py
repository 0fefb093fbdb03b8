"""States that were saved by earlier versions open, and go on where they stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af

STATES = Path(__file__).parent / "saved_states.json"
"""States by version, pipeline and number of items that were received."""
CUTS = (0, 1, 4)


def noisy(number: Any, rng: np.random.Generator) -> float:
    return float(number) + float(rng.random())


def tenfold(number: float) -> float:
    return 10.0 * number


def most(number: Any) -> bool:
    return int(number) % 3 != 1


def fails_for_some(number: int) -> int:
    if number % 9 == 4:
        raise ValueError(number)
    return number


def copies(number: Any) -> list[Any]:
    return [number] * (int(number) % 3)


NUMBERS = af.items(range(40))
PIPELINES: dict[str, af.Pipeline[Any]] = {
    "maps in a batch": NUMBERS.shuffle(seed=1).map(noisy, rng=True).map(tenfold).batch(4),
    "over an end of an epoch": NUMBERS.shuffle(seed=2).repeat(2).map(noisy, rng=True).batch(7),
    "behind a filter": NUMBERS.filter(most).map(noisy, rng=True).map(tenfold).batch(3),
    "failures": NUMBERS.map(fails_for_some, on_error="skip", skip_limit=10).map(tenfold).batch(5),
    "children": NUMBERS.flat_map(copies).map(tenfold).batch(5),
    "two batches": NUMBERS.map(tenfold).batch(3).map(np.ndarray.tolist).batch(2, collate=list).map(str),
    "a buffer": NUMBERS.map(tenfold).shuffle(buffer=9, seed=3).map(noisy, rng=True).batch(4).repeat(2),
    "a merge": af.mix(NUMBERS.map(tenfold), NUMBERS.map(noisy, rng=True), seed=4).map(tenfold).batch(4),
    "an array": af.arrays(np.arange(30)).shuffle(seed=5).map(noisy, rng=True).batch(4, drop_remainder=True),
    "windows": af.arrays(np.arange(60)).window(8, stride=2).shuffle(seed=6).map(np.sum).batch(4),
}


def values(feed: Any) -> list[Any]:
    return [item.tolist() if hasattr(item, "tolist") else item for item in feed]


def save() -> dict[str, dict[str, Any]]:
    """Return states of today."""
    states: dict[str, dict[str, Any]] = {}
    for name, pipeline in PIPELINES.items():
        for cut in CUTS:
            with pipeline.open() as feed:
                for _ in range(cut):
                    next(feed)
                states.setdefault(name, {})[str(cut)] = feed.state_dict()
    return states


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("version", json.loads(STATES.read_text()) if STATES.exists() else ())
def test_a_state_of_an_earlier_version_goes_on(version: str, name: str) -> None:
    whole = values(PIPELINES[name])
    for cut, state in json.loads(STATES.read_text())[version][name].items():
        with PIPELINES[name].open(state=state) as feed:
            assert values(feed) == whole[int(cut) :], cut


@pytest.mark.parametrize("name", PIPELINES)
def test_a_state_of_today_goes_on(name: str) -> None:
    whole = values(PIPELINES[name])
    for cut, state in save()[name].items():
        with PIPELINES[name].open(state=state) as feed:
            assert values(feed) == whole[int(cut) :], cut
