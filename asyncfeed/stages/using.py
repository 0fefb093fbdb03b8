"""Using: what a run opens, and closes at its end, for the functions of later stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from asyncfeed.axes import Axes
from asyncfeed.errors import PipelineError
from asyncfeed.functions.resources import Resource, given
from asyncfeed.stages.base import Node
from asyncfeed.stages.steps import Indexed, Step


@dataclass(frozen=True)
class Using(Node):
    """Opens resources when a run begins. The functions of later stages get those that they have parameters for."""

    resources: tuple[Resource, ...]

    method: ClassVar[str] = "using"
    only_tunes: ClassVar[bool] = True
    arranges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.resources:
            raise PipelineError("using: give what to open by name, as in using(client=make_client)")
        for each in self.resources:
            if not callable(each.factory):
                raise PipelineError(
                    f"using: {each.name} must be a function that returns a context manager, not {each.factory!r}: "
                    f"what is open already can be given to a function by functools.partial"
                )

    @property
    def opens(self) -> tuple[Resource, ...]:
        """The resources."""
        return self.resources

    def index(self, upstream: Indexed) -> Indexed:
        """Return `upstream`: the items stay as they are."""
        return upstream

    def steps(self) -> Sequence[Step]:
        """Return no step: the run opens the resources before its steps begin."""
        return []

    @property
    def one_to_one(self) -> bool:
        """Whether each item that comes out is made of one that goes in: True."""
        return True

    def axes(self, upstream: Axes, *, endless: bool) -> Axes:
        """Return `upstream`: the items stay as they are."""
        return upstream

    def length(self, upstream: int) -> int:
        """Return `upstream`: as many items come out as go in."""
        return upstream

    def __str__(self) -> str:
        """Return the call that makes this stage."""
        return f"using({', '.join(map(repr, self.resources))})"


def with_resources(node: Node, stages: Sequence[Node]) -> Node:
    """Return a stage whose functions get the resources of the stages before it that they ask for."""
    open_ones = {each.name: each for earlier in stages for each in earlier.opens}
    if not open_ones or not node.functions:
        return node
    found: dict[str, Any] = {name: getattr(node, name) for name in node.functions}
    changed = {name: given(fn, open_ones) for name, fn in found.items()}
    changed = {name: fn for name, fn in changed.items() if fn is not found[name]}
    return replace(node, **changed) if changed else node
