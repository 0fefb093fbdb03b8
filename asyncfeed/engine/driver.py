"""The background thread and event loop of a run whose consumer has no loop."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading

from asyncfeed.engine.failed import fault
from asyncfeed.engine.run import Run

log = logging.getLogger("asyncfeed")

EXIT = "the interpreter exits"
"""The reason given for a stop at exit."""


class Driver:
    """A background thread that drives the event loop of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.thread = threading.Thread(target=self._drive, name=f"{run.name}-loop", daemon=True)

    def start(self) -> None:
        """Start the thread. If Ctrl-C interrupts this, the run can still be stopped."""
        # At exit Python freezes daemon threads. The run must close what it opened before that.
        atexit.register(self._at_exit)
        try:
            self.thread.start()
        except RuntimeError:  # the system has no more threads, or the interpreter is about to end
            atexit.unregister(self._at_exit)
            self.run.handoff.finish(stopped="its thread could not be started")
            self.run.unwatch()
            self.run.loop.close()
            raise

    def _drive(self) -> None:
        loop = self.run.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self.run.begin())
        except BaseException as error:  # noqa: BLE001 - no consumer may wait for a loop that has ended
            self.run.handoff.finish(fault(error))
        finally:
            try:
                leftover = asyncio.all_tasks(loop)  # tasks that the user's functions started on this loop
                for task in leftover:
                    task.cancel()
                if leftover:
                    loop.run_until_complete(asyncio.wait(leftover, timeout=self.run.grace.seconds))
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                self.run.unwatch()
                asyncio.set_event_loop(None)
                loop.close()
                atexit.unregister(self._at_exit)

    def join(self) -> None:
        """Wait until the run has closed everything, at most 1 s longer than its grace."""
        if self.run.forked or self.thread is threading.current_thread():
            return
        self.thread.join(self.run.grace.seconds + 1.0)
        if self.thread.is_alive():
            stuck = "\n".join(self.run.threads.stuck())
            log.warning("%s: its event loop is blocked by code that does not return\n%s", self.run.name, stuck)

    async def join_async(self) -> None:
        """Do what `join` does from an event loop, without blocking it."""
        await asyncio.get_running_loop().run_in_executor(None, self.join)

    def _at_exit(self) -> None:
        self.run.request_stop(EXIT)
        if self.thread.ident is not None:  # else another thread is just starting it, and the run will see the stop
            self.join()
