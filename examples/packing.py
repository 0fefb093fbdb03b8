"""Pack documents into rows of 128 tokens for a language model: `python examples/packing.py`."""

from __future__ import annotations

import numpy as np

import asyncfeed as af

ROW = 128
TEXTS = [("the quick brown fox jumps over the lazy dog " * (1 + number % 7)).strip() for number in range(500)]


def tokens(text: str) -> np.ndarray:
    """Return a token for each word, and 1 at the end. A tokenizer of yours goes here."""
    return np.array([2 + sum(map(ord, word)) % 1000 for word in text.split()] + [1], np.int32)


def attention_mask(segment_ids: np.ndarray) -> np.ndarray:
    """Return which token may look at which: at earlier ones of its own document."""
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return np.tril(same & (segment_ids[:, :, None] > 0))


def main() -> None:
    """Pack, and say how much of the rows is padding."""
    rows = af.items(TEXTS).shuffle(seed=1).map(tokens).pack(ROW).batch(8)
    with rows.open() as feed:
        for batch in feed:
            mask = attention_mask(batch.segment_ids)
            assert batch.values.shape == batch.positions.shape == mask.shape[:2]
        counts = dict(feed.stats().slow_paths)
    filled, empty = counts["pack: places with data"], counts["pack: places with padding"]
    print(f"{len(TEXTS)} documents in {(filled + empty) // ROW} rows, {filled / (filled + empty):.1%} filled")


if __name__ == "__main__":
    main()
