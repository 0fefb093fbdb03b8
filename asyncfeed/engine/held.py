"""What a run holds open for the functions of the user: the context managers of `using`.

One task enters and leaves all of them, because an async one may have to be left by the task that entered it.

Invariants:

* No step begins before all are entered. If one fails, the run fails with its error, and no step begins.
* All that were entered are left, in the opposite order, after all other tasks and all threads of the run have
  ended, or the grace is over.
* The task is cancelled while it enters them, if the run stops then. Later only the end of the grace cancels it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Any

from asyncfeed.engine.closing import complain
from asyncfeed.engine.provenance import is_own_cancellation
from asyncfeed.engine.threads import Threads
from asyncfeed.functions.resources import Resource

if TYPE_CHECKING:
    from asyncfeed.engine.plan import Description


class Held:
    """The open resources of a run."""

    def __init__(
        self,
        description: Description,
        loop: asyncio.AbstractEventLoop,
        threads: Threads,
        in_peace: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.resources = list(dict.fromkeys(_opens(description)))
        self.values: dict[Resource, Any] = {}
        self.error: BaseException | None = None
        """Why a resource could not be opened."""
        self.ready: asyncio.Future[None] = loop.create_future()
        """Done when all are open, or one could not be opened."""
        self.released: asyncio.Future[None] = loop.create_future()
        """Done when all must be closed."""
        self._loop = loop
        self._threads = threads
        self._in_peace = in_peace

    async def hold(self) -> None:
        """Open the resources, wait until they are released, and close them."""
        task = asyncio.current_task()
        try:
            async with AsyncExitStack() as stack:
                for each in self.resources:
                    self.values[each] = await self._enter(stack, each)
                with self._in_peace():
                    self.ready.set_result(None)
                    await self.released
                    await stack.aclose()
        except BaseException as error:
            if is_own_cancellation(error, task):
                raise
            if self.ready.done():
                complain(self._loop, "what using() has opened", error)
            else:
                self.error = error
        finally:
            if not self.ready.done():
                self.ready.set_result(None)

    async def _enter(self, stack: AsyncExitStack, resource: Resource) -> Any:
        try:
            manager = resource.factory()
            if hasattr(type(manager), "__aenter__"):
                return await stack.enter_async_context(manager)
            if not hasattr(type(manager), "__enter__"):
                raise TypeError(
                    f"using: {resource.name} gave no context manager, but {type(manager).__name__}: write "
                    "contextlib.nullcontext(value) for a value that needs no closing"
                )
            return await stack.enter_async_context(_OnThreads(manager, self._threads, resource.name))
        except Exception as error:
            error.add_note(f"asyncfeed: in using({resource!r})")
            raise


class _OnThreads:
    """A context manager that is entered and left on threads, as an async one."""

    def __init__(self, manager: Any, threads: Threads, name: str) -> None:
        self._manager = manager
        self._threads = threads
        self._name = name

    async def __aenter__(self) -> Any:
        entering = self._threads.submit(f"opening {self._name}", self._manager.__enter__)
        try:
            await asyncio.wait([entering])  # which does not cancel it
        except asyncio.CancelledError:
            await asyncio.wait([entering])
            if entering.exception() is None:  # what a thread has opened must be closed, too
                await self.__aexit__(*sys.exc_info())
            raise
        return entering.result()

    async def __aexit__(self, *error: object) -> bool:
        return bool(await self._threads.run(f"closing {self._name}", self._manager.__exit__, *error))


def _opens(description: Description) -> Iterator[Resource]:
    """Yield the resources of a description, those of its inputs first."""
    for each in description.source.inputs:
        yield from _opens(each)
    for node in description.stages:
        yield from node.opens
