"""Padded batches of texts of similar length from compressed JSON lines: `python examples/json_lines.py`."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import numpy as np

import asyncfeed as af


def write(folder: Path) -> None:
    """Write four files of 500 texts of 1 to 100 words. Your files go here."""
    draw = np.random.default_rng(0)
    for number in range(4):
        rows = [{"text": "word " * count, "label": int(count % 2)} for count in draw.integers(1, 101, 500)]
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))


def tokenised(row: dict[str, object]) -> dict[str, np.ndarray]:
    """Return a token for each word. A tokenizer of yours goes here."""
    return {"tokens": np.array([len(word) for word in str(row["text"]).split()]), "label": np.array(row["label"])}


with tempfile.TemporaryDirectory() as place:
    write(Path(place))
    rows = af.files(f"{place}/*.jsonl.gz").interleave(af.json_lines, cycle=4)
    texts = rows.shuffle(seed=1, buffer=1_000).map(tokenised)
    similar = texts.bucket(boundaries=[25, 50, 75], size=32, length_of=lambda row: len(row["tokens"]))
    for name, batches in {"any length": texts.batch(32).pad(), "similar length": similar.pad()}.items():
        tokens = [batch["tokens"] for batch in batches]
        padding = np.mean(np.concatenate([each.ravel() for each in tokens]) == 0)
        print(f"{name}: {sum(map(len, tokens))} texts in {len(tokens)} batches, {padding:.0%} padding")
