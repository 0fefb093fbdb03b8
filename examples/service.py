"""Training inside an async service: the pipeline runs in the service's own loop and never blocks it.

A small service answers requests while it fine-tunes on a stream of records that it fetches itself, and then while
it trains for fifty users at a time. Nothing here needs a framework: `fetch` stands for a client of yours, `step`
for a training step.
"""

from __future__ import annotations

import asyncio

import numpy as np

import asyncfeed as af

RECORDS = 2_000
EPOCHS = 2
USERS = 50


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
        due = max(due, loop.time())


def broken(record: np.ndarray) -> np.ndarray:
    """Fail, as the function of a user may."""
    raise ValueError(f"this user's function has a mistake, and {len(record)} values")


async def train_for(user: int) -> int:
    """Train for one of many users, whose trainers are not equally fast. Return the number of batches."""
    function = broken if user == 13 else np.sqrt
    pipeline = af.items(range(RECORDS)).shuffle(seed=user).map(lambda x: np.full(16, x)).map(function).batch(32)
    batches = 0
    async with pipeline.open() as feed:
        async for _ in feed:
            batches += 1
            await asyncio.sleep(0.001 * (1 + user % 5))  # the step: on a device, or on another machine
    return batches


async def train_many() -> None:
    """Train for fifty users. They share the threads and the memory of this process, and disturb nobody."""
    tasks = []
    for user in range(USERS):
        tasks.append(asyncio.create_task(train_for(user)))
        await asyncio.sleep(0.001)  # users come one after the other: to open a feed takes the loop 0.4 ms
    for user in range(4, USERS, 10):  # some of the slow ones change their minds
        tasks[user].cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    whole = sum(each == -(-RECORDS // 32) for each in ended)
    cancelled = sum(isinstance(each, asyncio.CancelledError) for each in ended)
    print(f"{whole} of {USERS} users have trained on everything, {cancelled} were cancelled, and one got:")
    print(next(f"{type(each).__name__}: {each}" for each in ended if isinstance(each, ValueError)))


async def main() -> None:
    """Serve and train at the same time: a long training of the service's own, then one for each user."""
    answered: list[float] = []
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(answered, stop))
        weights = await group.create_task(train())
        await group.create_task(train_many())
        stop.set()
    print(f"trained: weights around {weights.mean():.3f}")
    late = sorted(answered)[len(answered) * 99 // 100]
    print(f"meanwhile {len(answered)} requests answered, 99% of them at most {late * 1e3:.1f} ms late")


if __name__ == "__main__":
    asyncio.run(main())
