"""The step of an algorithm whose items wait for others only for some time."""

from __future__ import annotations

import math

from asyncfeed.engine.channel import Channel
from asyncfeed.engine.operators.step import Step, StepSpec
from asyncfeed.stages.steps import Timed


class TimedStep(Step):
    """Passes chunks on to the algorithm, which is the first link of its emitter. Cuts it when the time is over.

    Invariants:

    * The time begins when the first of the items that the algorithm holds comes.
    * Items that are queued when the time is over are passed on first. So if the queues behind this step are full,
      because the consumer is slower than the stream, groups are full, too.
    * After a failure nothing is cut: what follows a failure is not sent.
    """

    def __init__(self, spec: StepSpec, timed: Timed, inbox: Channel) -> None:
        super().__init__(spec)
        self._timed = timed
        self._inbox = inbox

    def start(self) -> None:
        """Start the task that passes chunks on."""
        self.task(self._relay(), "relay")

    def drop(self) -> None:
        """Drop all queued chunks."""
        self._inbox.clear()

    async def _relay(self) -> None:
        algorithm, seconds, time = self._timed.algorithm, self._timed.seconds, self.context.loop.time
        when = math.inf
        await self.out.start()
        while not self.out.finished:
            chunk = await (self._inbox.get() if when == math.inf else self._inbox.get_until(when))
            if chunk is None:
                self.sending = True
                await self.out.cut()
                self.sending = False
                when = math.inf
                continue
            came, held, added, failed = time(), algorithm.held, len(chunk.items), chunk.failure is not None
            await self.send(chunk)
            del chunk
            if failed or not algorithm.held:
                when = math.inf
            elif not held or algorithm.held != held + added:  # it holds other items than before
                when = came + seconds
