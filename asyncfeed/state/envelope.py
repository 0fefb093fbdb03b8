"""The outer form of a saved state: JSON with a version, the fingerprint of its pipeline, and a checksum.

::

    {"asyncfeed": 1,
     "pipeline": {"fingerprint": "...", "parts": [[where, text, digest, holds], ...]},
     "body": {...},
     "checksum": SHA-256 of the canonical JSON (sorted keys, no spaces, ASCII) of the other three}

Bridges save it as `{"asyncfeed": "..."}`, with the JSON as a text.

A state may come from anywhere. For any text and any object `unseal` returns a body or raises `StateError`. It runs
no code, and its time and memory are bounded by the size of the state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import SequenceMatcher
from hashlib import sha256
from itertools import chain
from math import isfinite
from typing import Any, Final, NoReturn

from asyncfeed.errors import StateError
from asyncfeed.state.fingerprint import Fingerprint, Part, canonical_json

VERSION: Final = 1
MAX_BYTES: Final = 64 << 20
"""Size of the largest state as JSON. A state takes 4 KB, and 8 bytes for each item that came out of order."""
MAX_CONTAINERS: Final = 1 << 20
"""Number of dicts and lists in a state. Each takes 30 times as much memory as its JSON."""
MAX_DEPTH: Final = 64
"""Dicts and lists within others."""
MAX_BITS: Final = 512
"""Size of the largest number. Positions have fewer than 100 bits."""
MAX_PARTS: Final = 10_000
MAX_TEXT: Final = 1000
"""Characters of a text about the pipeline."""
MAX_COMPARED: Final = 200
"""Number of parts that are compared to say what differs. The time grows with the square of it: 10 ms."""
SHOWN: Final = 3
"""Number of differences that an error names."""

_KEYS = {"asyncfeed", "body", "checksum", "pipeline"}
_KINDS = frozenset({int, float, bool, str, type(None), dict, list})


def seal(fingerprint: Fingerprint, body: dict[str, Any]) -> dict[str, Any]:
    """Return a state: JSON that only a pipeline with this fingerprint takes.

    Args:
        fingerprint: What the pipeline is known by.
        body: What the state says. It must be JSON as Python reads it: dicts with texts as keys, lists, texts,
            whole numbers, finite floats, bools and None. It becomes a part of the state, and is not copied.

    Raises:
        TypeError: The body is not JSON. It holds a tuple or a number of numpy's, for example.
    """
    fault = _fault(body) if type(body) is dict else "it is no dict"
    if fault:
        raise TypeError(f"the body of a state cannot be saved: {fault}")
    state: dict[str, Any] = {
        "asyncfeed": VERSION,
        "body": body,
        "pipeline": {"fingerprint": fingerprint.value, "parts": [list(each) for each in fingerprint.parts]},
    }
    # The same as the JSON of the state, without making the text of the pipeline again.
    text = f'{{"asyncfeed":{VERSION},"body":{canonical_json(body)},"pipeline":{fingerprint.text}}}'
    state["checksum"] = _checksum(text)
    return state


def unseal(state: object, fingerprint: Fingerprint) -> dict[str, Any]:
    """Return the body of a state.

    Args:
        state: What `seal` returned, or its JSON as text or bytes.
        fingerprint: What the pipeline that is to take the state is known by.

    Raises:
        StateError: The state is damaged, is of another pipeline, or was written by a newer version.
    """
    found = opened(state)
    if found["pipeline"]["fingerprint"] != fingerprint.value:
        raise StateError(_difference([Part(*each) for each in found["pipeline"]["parts"]], fingerprint))
    body: dict[str, Any] = found["body"]
    return body


def opened(state: object) -> dict[str, Any]:
    """Return a state whose form and checksum are right, of whatever pipeline it is.

    Args:
        state: What `seal` returned, or its JSON as text or bytes.

    Raises:
        StateError: The state is damaged, or was written by a newer version.
    """
    try:
        given = _parsed(state) if isinstance(state, str | bytes | bytearray | memoryview) else state
        if isinstance(given, dict) and given.keys() == {"asyncfeed"} and isinstance(given["asyncfeed"], str):
            given = _parsed(given["asyncfeed"])  # as the bridges save it: with one leaf
        if not isinstance(given, dict):
            raise StateError(f"a state is a dict, or its JSON, not {type(given).__name__}")
        found = dict(given)
        _check_form(found)
        text = canonical_json({key: found[key] for key in ("asyncfeed", "body", "pipeline")})
        if _checksum(text) != found["checksum"]:
            raise StateError("the state is damaged: its checksum is wrong")
    except (ValueError, TypeError, RecursionError, MemoryError, OverflowError) as error:
        raise StateError(f"the state is damaged: {type(error).__name__}") from None
    return found


def _parsed(state: str | bytes | bytearray | memoryview) -> object:
    if (len(state) if isinstance(state, str) else memoryview(state).nbytes) > MAX_BYTES:
        raise StateError(_TOO_LARGE)
    text = state if isinstance(state, str) else bytes(state).decode()
    if text.count("[") + text.count("{") > MAX_CONTAINERS:
        raise StateError(_TOO_LARGE)
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        # The text of the error may hold a part of the file, which may be any file.
        where = f", at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise StateError(f"the state is damaged: it is not JSON{where}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _check_form(state: dict[Any, Any]) -> None:
    version = state.get("asyncfeed")
    if type(version) is not int:
        raise StateError("this is no state of asyncfeed: it has no version")
    if version > VERSION:
        raise StateError("this state was written by a newer asyncfeed: install that version, or a later one")
    if version != VERSION or state.keys() != _KEYS:
        raise StateError(_DAMAGED)
    fault = _fault(state)
    if fault:
        raise StateError(f"the state is damaged: {fault}")
    pipeline = state["pipeline"]
    kinds = [type(state[key]) for key in ("body", "checksum", "pipeline")]
    if kinds != [dict, str, dict] or pipeline.keys() != {"fingerprint", "parts"}:
        raise StateError(_DAMAGED)
    if type(pipeline["fingerprint"]) is not str or type(pipeline["parts"]) is not list:
        raise StateError(_DAMAGED)
    if not 0 < len(pipeline["parts"]) <= MAX_PARTS or not all(map(_is_part, pipeline["parts"])):
        raise StateError(_DAMAGED)


def _is_part(value: object) -> bool:
    return (
        type(value) is list
        and len(value) == len(Part._fields)
        and all(type(each) is str and len(each) <= MAX_TEXT for each in value)
    )


def _fault(value: object) -> str:
    """Return why a value is no JSON that a state may hold. Return "" if it is.

    It goes through all values of one depth at a time, so it takes trees of any depth. It counts what it sees, so
    it takes trees that hold themselves.
    """
    size = containers = 0
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 2):
        kinds = set(map(type, level))
        for kind in kinds - _KINDS:
            return f"it holds a {kind.__module__}.{kind.__qualname__}, which JSON does not have"
        of: dict[type, list[Any]] = {int: [], float: [], str: [], dict: [], list: []}
        of.update(
            (kind, [each for each in level if type(each) is kind] if len(kinds) > 1 else level) for kind in kinds
        )
        dicts, lists = of[dict], of[list]
        if max(max(of[int], default=0), -min(of[int], default=0)).bit_length() > MAX_BITS:
            return "it holds a number that is too large"
        if not all(map(isfinite, of[float])):
            return "it holds a number that is not finite"
        keys = list(chain.from_iterable(dicts))
        if set(map(type, keys)) - {str}:
            return "a key is not text"
        containers += len(dicts) + len(lists)
        size += len(level) + sum(map(len, keys)) + sum(map(len, of[str]))
        if containers > MAX_CONTAINERS or size + len(keys) + sum(map(len, lists)) > MAX_BYTES:
            return "it is too large"
        if not dicts and not lists:
            return ""
        level = [*chain.from_iterable(map(dict.values, dicts)), *chain.from_iterable(lists)]
    return "it is too large"


def _checksum(text: str) -> str:
    if len(text) > MAX_BYTES:
        raise StateError(_TOO_LARGE)
    return sha256(text.encode("ascii")).hexdigest()


# -- what differs


def _difference(before: list[Part], now: Fingerprint) -> str:
    """Return in plain words how the pipeline of a state and another one differ."""
    found = list(_differences(*_middle(before, list(now.parts))))
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    words = "; ".join(found[:SHOWN]) or "its fingerprint is another"
    return (
        f"the state is of another pipeline: {words}{more}. A state fits a pipeline with the same data in the same "
        "order; what only changes the speed may differ"
    )


def _middle(old: list[Part], new: list[Part]) -> tuple[list[Part], list[Part]]:
    """Return the parts behind those that both begin with."""
    start = 0
    while start < min(len(old), len(new)) and _key(old[start]) == _key(new[start]):
        start += 1
    return old[start : start + MAX_COMPARED], new[start : start + MAX_COMPARED]


def _differences(old: list[Part], new: list[Part]) -> Iterator[str]:
    matcher = SequenceMatcher(None, list(map(_key, old)), list(map(_key, new)), autojunk=False)
    for kind, start, stop, other_start, other_stop in matcher.get_opcodes():
        if kind == "equal":
            continue
        gone, come = old[start:stop], new[other_start:other_stop]
        if list(map(_place, gone)) == list(map(_place, come)):
            yield from map(_change, gone, come)
            continue
        yield from (f"{each.where}, {_shown(each.text)}, is not there now" for each in gone)
        yield from (f"{each.where}, {_shown(each.text)}, was not there" for each in come)


def _key(part: Part) -> tuple[str, str]:
    return _place(part), part.digest


def _place(part: Part) -> str:
    """Return where a part is, without the number of the stage: it changes with the stages before it."""
    return part.where.rstrip("0123456789")


def _change(old: Part, new: Part) -> str:
    text, holds = _shown(new.text), _shown(new.holds)
    if old.text != new.text:
        return f"{new.where} was {_shown(old.text)}, and is {text}"
    if old.holds != new.holds:
        return f"{new.where}, {text}, had {_shown(old.holds) or 'items without a number'}, and now has {holds}"
    if new.where.endswith("source"):
        return f"{new.where}, {text}, has other data than before{f' ({holds})' if holds else ''}"
    return f"{new.where}, {text}, has another function or option, which this text does not show"


def _shown(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)


_DAMAGED: Final = "the state is damaged: it has not the form of a state"
_TOO_LARGE: Final = f"the state is too large: it may have {MAX_BYTES >> 20} MiB"
