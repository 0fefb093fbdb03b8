"""The step of a `prefetch` in the middle of a description."""

from __future__ import annotations

from asyncfeed.engine.channel import Channel
from asyncfeed.engine.operators.step import Step, StepSpec


class RelayStep(Step):
    """Passes chunks on. The queue of the `prefetch` is the channel in front of this step."""

    def __init__(self, spec: StepSpec, inbox: Channel) -> None:
        super().__init__(spec)
        self._inbox = inbox

    def start(self) -> None:
        """Start the task that passes chunks on."""
        self.task(self._relay(), "relay")

    def drop(self) -> None:
        """Drop all queued chunks."""
        self._inbox.clear()

    async def _relay(self) -> None:
        await self.out.start()
        while not self.out.finished:
            chunk = await self._inbox.get()
            await self.send(chunk)
            del chunk
