"""Moves the functions of stages to worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from asyncfeed.errors import PipelineError
from asyncfeed.functions.checks import is_async
from asyncfeed.reading.scope import NOT_IN_PROCESS
from asyncfeed.stages.base import Node, check_count


def in_processes(stages: Sequence[Node], count: int | None) -> list[Node]:
    """Return the stages with `on="process"` where a stage has that option and a sync function.

    Raises `PipelineError` if there is none, or if a function cannot be sent to a process.
    """
    if count is not None:
        check_count("in_processes", "count", count, 1)
    moved = [_moved(node, count) for node in stages]
    if moved == [*stages]:
        raise PipelineError("in_processes: no load or map with a sync function is before it: put it behind these")
    return moved


def _moved(node: Node, count: int | None) -> Node:
    names = {each.name for each in fields(node)}
    if "on" not in names or is_async(getattr(node, node.functions[0])):
        return node
    if getattr(node, "on_loop", False):
        raise PipelineError(f"{node.method}: {NOT_IN_PROCESS}")
    return replace(node, **{"on": "process"} | ({} if count is None else {"concurrency": count}))
