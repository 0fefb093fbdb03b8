"""Draw 70 % of the samples from one source and 30 % from another: `python examples/mixing.py`."""

from __future__ import annotations

from collections import Counter

import numpy as np

import asyncfeed as af


def sample(source: str, number: int) -> dict[str, object]:
    """Return a sample that says where it comes from."""
    return {"x": np.full(16, number, np.float32), "source": source}


def main() -> None:
    """Mix an endless small source into a large one, and count what comes."""
    photos = af.items(range(7000)).shuffle(seed=1).map(lambda number: sample("photos", number))
    drawings = af.items(range(200)).shuffle(seed=2).repeat().map(lambda number: sample("drawings", number))
    batches = af.mix(photos, drawings, weights=[0.7, 0.3], seed=3).batch(50).take(100)
    counts: Counter[str] = Counter()
    for batch in batches:
        counts.update(batch["source"].tolist())
    for source, count in counts.most_common():
        print(f"{source}: {count / counts.total():.0%}")


if __name__ == "__main__":
    main()
