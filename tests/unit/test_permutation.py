"""The permutation: exact, uniform, and the same for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
