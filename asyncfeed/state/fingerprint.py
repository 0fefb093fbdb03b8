"""The fingerprint of a pipeline: whether a saved state belongs to it, and if not, what differs.

Two pipelines with one fingerprint deliver the same items in the same order, as far as a description tells that.
What only changes the speed does not count: concurrency, `prefetch`, `cache`, `using`, attempts, time limits, the
memory, threads or processes, the folder or bucket that the files lie in, and how a store is reached. A stage says
in `tuning` and `only_tunes` what does not count, see `stages.base.Node`. `values` and `functions` say what data
and functions are known by.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from asyncfeed.state.values import Describer, digest

if TYPE_CHECKING:
    from asyncfeed.stages.base import Node, Source

MAX_TEXT = 200
"""Characters of a stage that a state shows, so that it stays small."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
canonical_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
"""Returns the JSON of a value with sorted keys, without spaces, in ASCII."""


class Part(NamedTuple):
    """A source or a stage of a pipeline, as a fingerprint knows it."""

    where: str
    """Which one it is: "source", "stage 2", "input 1, source"."""
    text: str
    """The call that makes it, as the user wrote it. It does not count."""
    digest: str
    """Stands for all that decides its data. Behind a dot, the same without what only decides which items go
    together, if there is something like this."""
    holds: str
    """How many items a source has, such as "1,000 files". Empty if that is not known, and for stages."""


@dataclass(frozen=True)
class Fingerprint:
    """What a pipeline is known by. Two are equal if their `value` is."""

    parts: tuple[Part, ...]

    @cached_property
    def value(self) -> str:
        """Stands for all parts: 32 hexadecimal digits."""
        text = json.dumps([[each.where, each.digest.partition(".")[0]] for each in self.parts])
        return sha256(text.encode()).hexdigest()[:32]

    @cached_property
    def text(self) -> str:
        """The canonical JSON of what a state says of the pipeline."""
        return canonical_json({"fingerprint": self.value, "parts": self.parts})


def fingerprint(source: Source, stages: Sequence[Node]) -> Fingerprint:
    """Return the fingerprint of a pipeline.

    It is the same in another process, under another version of Python, and on another machine with the same data.
    It takes up to some milliseconds, and 0.2 s for a million files, so keep it. Take it before a run begins:
    objects of the user's may change while they are used.

    Args:
        source: The source of the pipeline.
        stages: Its stages, as the user wrote them.
    """
    return Fingerprint(tuple(_parts(source, stages, "")))


def _parts(source: Source, stages: Sequence[Node], prefix: str) -> Iterator[Part]:
    inputs = source.inputs
    yield Part(f"{prefix}source", _text(source), _digest(source, inputs), "" if inputs else _holds(source))
    for number, each in enumerate(inputs, 1):
        yield from _parts(each.source, each.stages, f"{prefix}input {number}, ")
    for number, node in enumerate((each for each in stages if not each.only_tunes), 1):
        yield Part(f"{prefix}stage {number}", _text(node), _digest(node, ()), "")


def _digest(node: Node, inputs: tuple[object, ...]) -> str:
    # Each field for itself: a long one may use up what is looked at.
    found = {name: Describer(inputs).describe(value) for name, value in node.deciding().items()}
    each_alone = {name: value for name, value in found.items() if name not in node.regroups}
    whole, without = (
        digest(json.dumps([node.method, its], sort_keys=True).encode()) for its in (found, each_alone)
    )
    return f"{whole}.{without}" if node.regroups else whole


def _holds(source: Source) -> str:
    size = source.size()
    kind = "file" if source.delivers_files else "item"
    return "" if size is None else f"{size:,} {kind}{'' if size == 1 else 's'}"


def _text(node: Node) -> str:
    text = _ADDRESS.sub("", str(node)).encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
