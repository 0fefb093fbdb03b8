"""The limits that all feeds of a process share."""

from __future__ import annotations

from asyncfeed.sizes import Size, parse_bytes


def limits(*, memory: Size | None) -> None:
    """Set the memory limit that all feeds of this process share, if they have no `memory_limit` of their own.

    A feed may use what the others do not use, but for an eighth of the limit. That is kept for feeds that have
    little. Feeds whose trainers draw come to equal parts, if all of them need that much. A feed never waits for
    another one. A new limit holds at once, for feeds that run, too.

    Args:
        memory: Limit of the data in flight in all these feeds together, in bytes or as text such as "4GiB". None
            is the default: a quarter of the memory of the machine or the container, at most 1 GiB.

    Raises:
        PipelineError: `memory` is no size.

    Memory:
        Beside the limit, each feed may hold the item that its consumer waits for.

    Example:
        >>> import asyncfeed as af
        >>> af.limits(memory="2GiB")
        >>> af.limits(memory=None)
    """
    from asyncfeed.engine.limits.process_memory import process_memory  # noqa: PLC0415 - few programs set limits

    process_memory.set_limit(None if memory is None else parse_bytes(memory, "limits", "memory"))
