"""The permutation: exact, uniform, and the same for ever."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.randomness import permutation
from asyncfeed.randomness.permutation import LIMIT, SMALL, Permutation


def places(*numbers: int) -> np.ndarray:
    """Return places as the permutation takes them."""
    return np.array(numbers, np.uint64)


@pytest.mark.parametrize("n", [*range(70), 1000, SMALL - 1, SMALL, SMALL + 1, 5000, 65535, 65536, 65537, 300_007])
def test_every_number_stands_at_exactly_one_place(n: int) -> None:
    """Nothing is lost and nothing comes twice, for squares, primes and powers of two alike."""
    found = Permutation(n, 7, 3)(np.arange(n, dtype=np.uint64))
    assert np.array_equal(np.sort(found), np.arange(n))


@given(st.integers(1, LIMIT), st.integers(0), st.integers(0, 1000), st.data())
def test_of_any_size_it_is_a_bijection_where_it_is_looked_at(
    n: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    """Different places hold different numbers, all in range, whichever are asked for together."""
    some = data.draw(st.lists(st.integers(0, n - 1), unique=True, min_size=1, max_size=50))
    permutation = Permutation(n, seed, epoch)
    found = permutation.numbers(places(*some))
    assert len(set(found)) == len(some)
    assert all(0 <= number < n for number in found)
    assert permutation.numbers(places(some[-1])) == found[-1:]


def test_the_numbers_never_change() -> None:
    """Checkpoints depend on these values: a change of them is a change of every user's order."""
    ten = np.arange(10, dtype=np.uint64)
    assert Permutation(10, 0, 0).numbers(ten) == [0, 7, 8, 2, 5, 9, 4, 6, 3, 1]
    assert Permutation(10**6, 7, 2).numbers(ten[:5]) == [610571, 757675, 220996, 8987, 884607]
    assert Permutation(2**62, 2**64 - 1, 9).numbers(ten[:2]) == [2229686983500060381, 4236376570267192387]


@pytest.mark.parametrize("n", [50, 10_000])
def test_seed_and_epoch_each_make_another_order(n: int) -> None:
    """Also (seed 1, epoch 2) and (seed 2, epoch 1) have nothing to do with each other."""
    every = np.arange(n, dtype=np.uint64)
    orders = {tuple(Permutation(n, s, e).numbers(every)) for s in range(5) for e in range(5)}
    assert len(orders) == 25


def test_small_permutations_are_uniform_over_all_permutations() -> None:
    """Each of the 24 orders of four items comes up equally often, by a chi-square test."""
    every = np.arange(4, dtype=np.uint64)
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(4800):
        order = tuple(Permutation(4, seed, 0).numbers(every))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    # 49.7 is the 99.9th percentile for 23 degrees of freedom; the seeds are fixed, so this never flickers.
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 49.7


def test_where_a_place_goes_is_uniform() -> None:
    """The first, a middle and the last place of a large permutation land in each tenth equally often."""
    n = 1_000_003
    some = places(0, n // 2, n - 1)
    tenths = np.array([Permutation(n, 1, epoch)(some) * np.uint64(10) // np.uint64(n) for epoch in range(3000)])
    for column in tenths.T:
        counts = np.bincount(column.astype(np.int64), minlength=10)
        assert ((counts - 300) ** 2 / 300).sum() < 27.9  # the 99.9th percentile for 9 degrees of freedom


def test_neighbours_do_not_stay_neighbours() -> None:
    """Where the next item lands says nothing about where this one did: the steps between them are uniform."""
    n = 2**20
    found = Permutation(n, 3, 0)(np.arange(n, dtype=np.uint64)).astype(np.int64)
    steps = np.diff(found) % n * 16 // n
    counts = np.bincount(steps, minlength=16)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 37.7  # 99.9 %, 15 degrees of freedom
    assert abs(np.corrcoef(found, np.arange(n))[0, 1]) < 0.004


def test_a_size_beyond_the_limit_is_refused() -> None:
    """The message says what is possible."""
    with pytest.raises(ValueError, match=r"0 to 2\*\*62 places, not 4611686018427387905"):
        Permutation(LIMIT + 1, 0, 0)


# -- statistics: each bound would stop perfectly random orders at most once in a million times

Z = 4.8916
"""A normal variable is farther from its mean, in standard deviations, with probability 1e-6."""


def chi_square_bound(degrees: int) -> float:
    """Return what a chi-square variable exceeds with probability 5e-7 (Wilson and Hilferty, 1931)."""
    part = 2 / (9 * degrees)
    return float(degrees * (1 - part + Z * sqrt(part)) ** 3)


def chi_square(counts: np.ndarray) -> float:
    """Return the chi-square statistic of counts that are expected to be equal."""
    expected = counts.mean()
    return float(((counts - expected) ** 2 / expected).sum())


def orders(n: int, pairs: list[tuple[int, int]]) -> np.ndarray:
    """Return what stands at every place, in a row for each (seed, epoch)."""
    every = np.arange(n, dtype=np.uint64)
    return np.array([Permutation(n, *pair)(every) for pair in pairs]).astype(np.int64)


EPOCHS = [(1, epoch) for epoch in range(100)]
SEEDS = [(seed, 0) for seed in range(100)]
SIZES = [1000, SMALL + 1, 10_007]
"""From a table, from the network, and one that is a prime."""


@pytest.fixture(params=["as it is", "network"])
def every_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small permutations come from a table, and here also from the network that makes the large ones."""
    if request.param == "network":
        monkeypatch.setattr(permutation, "SMALL", 0)


@pytest.mark.usefixtures("every_size")
def test_every_length_up_to_a_thousand_is_a_bijection() -> None:
    for n in range(1, 1001):
        found = orders(n, [(n, 0), (3, n)])
        assert np.array_equal(np.sort(found, axis=1), np.tile(np.arange(n), (2, 1))), n


def test_a_billion_places_sampled() -> None:
    """A million places hold a million numbers, everywhere alike, whether they are near each other or not."""
    n, count = 10**9, 10**6
    apart = np.unique(np.random.default_rng(1).integers(0, n, count))
    together = np.arange(n // 2, n // 2 + count)
    for places_ in (apart, together):
        found = Permutation(n, 7, 0)(places_.astype(np.uint64)).astype(np.int64)
        assert 0 <= found.min() <= found.max() < n
        assert len(np.unique(found)) == len(places_)
        assert chi_square(np.bincount(found * 1000 // n, minlength=1000)) < chi_square_bound(999)
        assert abs(np.corrcoef(found, places_)[0, 1]) * sqrt(len(found)) < Z
        assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) * sqrt(len(found)) < Z


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("pairs", [EPOCHS, SEEDS], ids=["epochs", "seeds"])
def test_the_place_says_nothing_about_the_number(n: int, pairs: list[tuple[int, int]]) -> None:
    """The correlations are as small as those of random orders: their squares add up to a chi-square variable."""
    found, every = orders(n, pairs), np.arange(n)
    squares = [np.corrcoef(each, every)[0, 1] ** 2 * (n - 1) for each in found]
    assert sum(squares) < chi_square_bound(len(pairs))
    tenths = np.zeros((10, 10), np.int64)
    for each in found:
        np.add.at(tenths, (every * 10 // n, each * 10 // n), 1)
    assert chi_square(tenths) < chi_square_bound(81)


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("pairs", [EPOCHS, SEEDS], ids=["epochs", "seeds"])
def test_one_order_says_nothing_about_the_next(n: int, pairs: list[tuple[int, int]]) -> None:
    """Of the next epoch, and of the next seed. One number in an order stays at its place, on average."""
    found = orders(n, pairs)
    both = list(zip(found[:-1], found[1:], strict=True))
    squares = [np.corrcoef(a, b)[0, 1] ** 2 * (n - 1) for a, b in both]
    assert sum(squares) < chi_square_bound(len(both))
    stayed = sum(int((a == b).sum()) for a, b in both)  # a Poisson variable
    assert abs(stayed - len(both)) < Z * sqrt(len(both)) + 1
    tenths = np.zeros((10, 10), np.int64)
    for a, b in both:
        np.add.at(tenths, (a * 10 // n, b * 10 // n), 1)
    assert chi_square(tenths) < chi_square_bound(81)


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("pairs", [EPOCHS, SEEDS], ids=["epochs", "seeds"])
@pytest.mark.parametrize("apart", [1, 2, 32])
def test_neighbours_are_as_far_apart_as_any_two(n: int, pairs: list[tuple[int, int]], apart: int) -> None:
    """Two numbers in an order follow each other up or down by one, on average, and all distances are alike."""
    found = orders(n, pairs)
    steps = (found[:, apart:] - found[:, :-apart]) % n
    near = int(((steps == 1) | (steps == n - 1)).sum())
    expected = len(pairs) * 2 * (n - apart) / (n - 1)
    assert abs(near - expected) < Z * sqrt(expected) + 1
    counts = np.bincount(((steps.ravel() - 1) * 20) // (n - 1), minlength=20)
    sizes = np.bincount((np.arange(n - 1) * 20) // (n - 1), minlength=20)
    expected_counts = steps.size * sizes / (n - 1)
    assert float(((counts - expected_counts) ** 2 / expected_counts).sum()) < chi_square_bound(19)


@pytest.mark.usefixtures("every_size")
def test_of_ten_items_each_stands_everywhere_equally_often() -> None:
    found = orders(10, [(seed, epoch) for seed in range(100) for epoch in range(100)])
    counts = np.array([np.bincount(column, minlength=10) for column in found.T])
    # Rows and columns each add up to the number of orders, so 81 of the 100 counts are free, and the sum of
    # squares is larger than for free counts by 10/9.
    assert chi_square(counts) * 9 / 10 < chi_square_bound(81)


def test_the_statistics_see_what_is_wrong() -> None:
    """A rotation, blocks that stay together, and an order that has hardly moved are each far beyond a bound."""
    n = 10_007
    every = np.arange(n)
    rotated = (every + 1234) % n
    steps = (rotated[1:] - rotated[:-1]) % n
    assert (steps == 1).sum() > 2 + Z * sqrt(2)
    blocks = np.concatenate(np.random.default_rng(0).permutation(every[:10_000].reshape(100, 100)))
    assert (np.diff(blocks) == 1).sum() > 1000
    moved = np.argsort(every + np.random.default_rng(0).normal(0, n / 2, n))
    assert abs(np.corrcoef(moved, every)[0, 1]) * sqrt(n) > Z
