"""Cut a time series into windows, and predict the value after each: `python examples/time_series.py`."""

from __future__ import annotations

import numpy as np

import asyncfeed as af

PAST = 48


def main() -> None:
    """Fit a linear model on the first part of a noisy wave, and test it on the last part."""
    hours = np.arange(5000)
    series = np.sin(hours / 24) + 0.1 * np.random.default_rng(0).normal(size=len(hours))
    train = af.arrays(series[:4000]).window(PAST + 1).shuffle(seed=1).batch(64)
    test = af.arrays(series[4000:]).window(PAST + 1, stride=PAST).batch(64)

    weights = np.zeros(PAST)
    for epoch in train.epochs(3):
        for windows in epoch:
            past, following = windows[:, :-1], windows[:, -1]
            weights -= 0.01 * past.T @ (past @ weights - following) / len(past)
    errors = np.concatenate([windows[:, :-1] @ weights - windows[:, -1] for windows in test])
    print(f"error on {len(errors)} windows: {np.sqrt((errors**2).mean()):.2f}")


if __name__ == "__main__":
    main()
