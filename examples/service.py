"""Training inside an async service: the pipeline runs in the service's own loop and never blocks it.

A small service answers requests while it fine-tunes on a stream of records that it fetches itself. Nothing here
needs a framework: `fetch` stands for a client of yours, `step` for a training step.
"""

from __future__ import annotations

import asyncio

import numpy as np

import asyncfeed as af

RECORDS = 2_000
EPOCHS = 2


async def fetch(number: int) -> tuple[np.ndarray, int]:
    """Fetch one record, as an HTTP client would: it waits, and others are under way meanwhile."""
    await asyncio.sleep(0.005)
    return np.full(16, number, np.float32), number % 10


def normalise(record: tuple[np.ndarray, int], rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Prepare a record: a sync function, so it runs on a thread and the loop goes on."""
    values, label = record
    return values / RECORDS + rng.normal(0, 0.01, values.shape).astype(np.float32), label


def step(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Train on one batch."""
    return weights + 0.01 * values.mean(axis=0)


async def train() -> np.ndarray:
    """Train for some epochs; cancelling this task stops the pipeline."""
    pipeline = (
        af.items(range(RECORDS))
        .shuffle(seed=7)
        .map(fetch, concurrency=64)
        .map(normalise, rng=True)
        .batch(32, drop_remainder=True)
        .prefetch(4)
    )
    weights = np.zeros(16, np.float32)
    async with pipeline.epochs(EPOCHS) as epochs:
        async for epoch in epochs:
            async for values, _labels in epoch:
                weights = await asyncio.to_thread(step, weights, values)
            print(f"epoch {epoch.number}: weights around {weights.mean():.3f}")
        print(epochs.feed.stats())
    return weights


async def serve(answered: list[float], stop: asyncio.Event) -> None:
    """Answer a request every 10 ms, and note how late each answer was."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while not stop.is_set():
        due += 0.010
        await asyncio.sleep(due - loop.time())
        answered.append(loop.time() - due)


async def main() -> None:
    """Serve and train at the same time."""
    answered: list[float] = []
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(answered, stop))
        weights = await group.create_task(train())
        stop.set()
    print(f"trained: weights around {weights.mean():.3f}")
    print(f"meanwhile {len(answered)} requests answered, the slowest {max(answered) * 1e3:.1f} ms late")


if __name__ == "__main__":
    asyncio.run(main())
