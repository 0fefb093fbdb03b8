"""What `using` opens for a run, and how the functions of the user get it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

from asyncfeed.errors import PipelineError


class Resource:
    """A name, and a function that returns a context manager. Two are equal if both are the same."""

    def __init__(self, name: str, factory: Callable[[], Any]) -> None:
        self.name = name
        self.factory = factory

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Resource):
            return NotImplemented
        return self.name == other.name and self.factory is other.factory

    def __hash__(self) -> int:
        return hash((self.name, id(self.factory)))

    def __repr__(self) -> str:
        return f"{self.name}={getattr(self.factory, '__name__', '...')}"


opened: ContextVar[Mapping[Resource, Any]] = ContextVar("asyncfeed.functions.resources.opened")
"""What the run has opened that the calling code belongs to."""


class Given:
    """A function that is called with the values of resources, as keyword arguments."""

    def __init__(self, fn: Callable[..., Any], resources: tuple[Resource, ...]) -> None:
        self.fn = fn
        self.resources = resources
        name = getattr(fn, "__name__", None)
        if isinstance(name, str):
            self.__name__ = name

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self.fn(*args, **self.values())

    def values(self) -> dict[str, Any]:
        """Return the values of the resources by name."""
        found = opened.get()
        return {each.name: found[each] for each in self.resources}

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and (self.fn, self.resources) == (other.fn, other.resources)

    def __hash__(self) -> int:
        return hash(self.resources)

    def __repr__(self) -> str:
        return repr(self.fn)


class GivenAsync(Given):
    """The same for an async function."""

    async def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return await self.fn(*args, **self.values())


class GivenStream(Given):
    """The same for an async generator function."""

    async def __call__(self, *args: Any) -> AsyncGenerator[Any]:
        """Call the function."""
        stream = self.fn(*args, **self.values())
        try:
            async for item in stream:
                yield item
        finally:
            await stream.aclose()


def given(fn: Any, resources: Mapping[str, Resource]) -> Any:
    """Return a function that gets the resources that `fn` has parameters for. Return `fn` if it has none."""
    asked = tuple(resources[name] for name in _asked(fn) if name in resources)
    if not asked:
        return fn
    inner = fn
    while isinstance(inner, partial):
        inner = inner.func
    call = inner if inspect.isroutine(inner) else type(inner).__call__
    if inspect.isasyncgenfunction(call):
        return GivenStream(fn, asked)
    return GivenAsync(fn, asked) if inspect.iscoroutinefunction(call) else Given(fn, asked)


def _asked(fn: Any) -> Iterable[str]:
    """Return the names of the parameters behind the first one, except those that a `partial` has set."""
    if not callable(fn):
        return ()
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (ValueError, TypeError):  # a function written in C may have no signature
        return ()
    known = fn.keywords if isinstance(fn, partial) else {}
    by_place = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    behind = parameters[1:] if parameters and parameters[0].kind in by_place else parameters
    usable = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return [each.name for each in behind if each.kind in usable and each.name not in known]


def resources_in(fn: object) -> tuple[Resource, ...]:
    """Return the resources that a function gets."""
    return fn.resources if isinstance(fn, Given) else ()


def refuse_in_process(stage: str, fn: object) -> None:
    """Raise if a function for another process asks for a resource, which is open in this one."""
    for each in resources_in(fn):
        raise PipelineError(
            f'{stage}: {fn!r} asks for {each.name!r}, which is open in this process: leave out on="process", or '
            "open it in the function"
        )
