"""A state is taken back whole, by the same pipeline, or refused with a `StateError` that says why."""

from __future__ import annotations

import json
import random
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af
from asyncfeed.state.envelope import MAX_BYTES, MAX_CONTAINERS, MAX_DEPTH, opened, seal, unseal
from asyncfeed.state.fingerprint import Fingerprint, Part
from tests.state.described import crop, double, local_files, objects, of

items = af.items(range(10))
OWN = of(items.shuffle(seed=7).batch(32))
BODY = {
    "epoch": 3,
    "next": 40960,
    "beyond": [[41100, 41128]],
    "skipped": [],
    "rate": 0.5,
    "on": True,
    "no": None,
    "ä": "ü",
}

TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**500), 2**500) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


# -- there and back


@given(st.dictionaries(st.text(), TREES, max_size=5))
def test_a_body_comes_back_as_it_was(body: dict[str, Any]) -> None:
    state = seal(OWN, body)
    text = json.dumps(state)
    assert json.loads(text) == state
    for form in (
        state,
        text,
        text.encode(),
        bytearray(text.encode()),
        memoryview(text.encode()),
        json.dumps(state, indent=2),
    ):
        assert unseal(form, OWN) == body


def test_a_state_with_one_leaf_comes_back_as_it_was() -> None:
    """So the bridges save it. No more than one such form is taken off."""
    leaf = {"asyncfeed": json.dumps(seal(OWN, BODY))}
    for form in (leaf, json.dumps(leaf), json.dumps(leaf).encode()):
        assert unseal(form, OWN) == BODY
    for wrong in ({"asyncfeed": json.dumps(leaf)}, {"asyncfeed": ""}, {"asyncfeed": None}, {"asyncfeed": leaf}):
        for damaged in (wrong, json.dumps(wrong)):
            with pytest.raises(af.StateError):
                unseal(damaged, OWN)


def test_a_state_says_what_it_is_of() -> None:
    state = seal(OWN, BODY)
    assert sorted(state) == ["asyncfeed", "body", "checksum", "pipeline"]
    assert state["asyncfeed"] == 1
    assert [part[1] for part in state["pipeline"]["parts"]] == [
        "items(range(0, 10))",
        "shuffle(seed=7)",
        "batch(32)",
    ]
    assert len(json.dumps(state)) < 1000


def test_a_state_of_a_pipeline_that_differs_only_in_speed_fits() -> None:
    faster = of(items.shuffle(seed=7).prefetch(2).batch(32).prefetch(3))
    assert unseal(seal(OWN, BODY), faster) == BODY


@pytest.mark.parametrize(
    "value",
    [
        np.int64(3),
        np.float64(0.5),
        np.array([1]),
        (1, 2),
        {1: 2},
        {"a"},
        b"x",
        float("nan"),
        float("inf"),
        1 << 513,
        object(),
    ],
)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_body_that_is_not_json_is_refused_when_it_is_sealed(value: Any, depth: int) -> None:
    """Such a body is an error of the code that made it, so the error is no `StateError`."""
    for _ in range(depth):
        value = {"a": [1, value]}
    with pytest.raises(TypeError, match="body of a state cannot be saved"):
        seal(OWN, {"next": value})


def test_the_error_of_a_body_names_the_type() -> None:
    with pytest.raises(TypeError, match=r"numpy\.int64"):
        seal(OWN, {"next": [1, np.int64(3)]})
    with pytest.raises(TypeError):
        seal(OWN, [])  # type: ignore[arg-type]


# -- what differs, in words


def difference(before: af.Pipeline[Any], now: af.Pipeline[Any]) -> str:
    with pytest.raises(af.StateError) as caught:
        unseal(json.dumps(seal(of(before), BODY)), of(now))
    text = str(caught.value)
    assert text.startswith("the state is of another pipeline: ")
    return text.partition(": ")[2].partition(". A state fits")[0]


DIFFERENCES = {
    "stage 2 was batch(32), and is batch(64)": (items.shuffle().batch(32), items.shuffle().batch(64)),
    "source was items(range(0, 10)), and is items(range(0, 9))": (items.batch(2), af.items(range(9)).batch(2)),
    "source, files('/a/*.npy'), had 1,000 files, and now has 999 files": (local_files("/a", 1000), local_files("/a", 999)),
    "source, files('s3://b/*'), has other data than before (3 files)": (objects("b"), objects("b", size=2)),
    "stage 1, map(...), has another function or option, which this text does not show": (
        items.map(lambda x: x + 1), items.map(lambda x: x + 2),
    ),
    "stage 1 was map(double), and is map(crop)": (items.map(double), items.map(crop)),
    "stage 2, take(3), was not there": (items.shuffle().batch(2), items.shuffle().take(3).batch(2)),
    "stage 1, shuffle(), is not there now": (items.shuffle().batch(2), items.batch(2)),
    "stage 2, repeat(), is not there now": (items.batch(2).repeat(), items.batch(2)),
    "stage 1 was shuffle(), and is skip(1); stage 3 was batch(2), and is batch(3)": (
        items.shuffle().take(3).batch(2), items.skip(1).take(3).batch(3),
    ),
    "source was items(range(0, 10)), and is items(range(0, 9)); stage 1 was take(1), and is take(2); "
    "stage 2 was take(3), and is take(4); and 1 more": (
        items.take(1).take(3).take(5), af.items(range(9)).take(2).take(4).take(6),
    ),
    "input 2, stage 1 was take(1), and is take(2)": (
        af.concat(items, items.take(1)).batch(2), af.concat(items, items.take(2)).batch(2),
    ),
    "source was concat(items([1])), and is concat(items([1]), items([1])); input 2, source, items([1]), was not there": (
        af.concat(af.items([1])), af.concat(af.items([1]), af.items([1])),
    ),
    "stage 1, take(1), is not there now; input 2, stage 1, take(1), was not there": (
        af.concat(items, items).take(1), af.concat(items, items.take(1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", DIFFERENCES)
def test_the_error_names_what_differs(words: str) -> None:
    before, now = DIFFERENCES[words]
    found = difference(before, now)
    assert found == words


def test_the_texts_of_a_state_are_shown_without_signs_that_control_a_terminal() -> None:
    strange = Fingerprint((Part("source", "\x1b[31mitems()\n", "0" * 16, ""),))
    with pytest.raises(af.StateError) as caught:
        unseal(seal(strange, BODY), OWN)
    assert "\x1b" not in str(caught.value) and "\n" not in str(caught.value)


# -- damage


def changed(**values: Any) -> dict[str, Any]:
    """Return a state with these values, and with a right checksum unless one is given."""
    state = seal(OWN, BODY) | values
    rest = {key: value for key, value in state.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return rest | {"checksum": values.get("checksum", sha256(text.encode()).hexdigest())}


def deep(levels: int) -> Any:
    tree: Any = 1
    for _ in range(levels):
        tree = [tree]
    return tree


def endless() -> Any:
    tree: list[Any] = []
    tree.append(tree)
    return tree


def laughs() -> Any:
    tree: Any = [0] * 10
    for _ in range(12):
        tree = [tree] * 10
    return tree


PIPELINE = seal(OWN, BODY)["pipeline"]
WRONG: dict[str, Any] = {
    "nothing": None,
    "a number": 7,
    "a list": [1],
    "an empty dict": {},
    "an empty text": "",
    "a text that is not JSON": "{'asyncfeed': 1}",
    "JSON that is no state": '["asyncfeed"]',
    "bytes that are not UTF-8": b'{"asyncfeed": "\xff"}',
    "UTF-16": json.dumps(seal(OWN, BODY)).encode("utf-16"),
    "a text that was cut": json.dumps(seal(OWN, BODY))[:-1],
    "a text with more behind it": json.dumps(seal(OWN, BODY)) + "{}",
    "a key that is there twice": json.dumps(seal(OWN, BODY))[:-1] + ', "asyncfeed": 1}',
    "not a number": json.dumps(changed(body={"a": float("nan")})),
    "a number that is not finite": json.dumps(seal(OWN, {"a": 1})).replace('"a": 1', '"a": 1e999'),
    "a large number": changed(body={"a": 1 << 600}),
    "a number of a million digits": '{"asyncfeed": 1' + "0" * 10**6 + "}",
    "deep lists as text": '{"asyncfeed": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "many lists as text": "[" + "[]," * MAX_CONTAINERS + "1]",
    "deep lists": changed(body={"a": deep(MAX_DEPTH + 1)}),
    "lists that hold themselves": seal(OWN, {}) | {"body": {"a": endless()}},
    "lists that hold each other many times": seal(OWN, {}) | {"body": {"a": laughs()}},
    "a large text": " " * MAX_BYTES + "{}",
    "large bytes": b" " * (MAX_BYTES + 1),
    "a key that is no text": changed() | {"body": {1: 2}},
    "a key too many": changed(more=1),
    "a version as text": changed(asyncfeed="1"),
    "a version as truth": changed(asyncfeed=True),
    "an older version": changed(asyncfeed=0),
    "no checksum": {key: value for key, value in changed().items() if key != "checksum"},
    "a wrong checksum": changed(checksum="0" * 64),
    "a checksum that is a number": changed(checksum=3),
    "a body that is a list": changed(body=[1]),
    "a pipeline that is a list": changed(pipeline=[1]),
    "a pipeline without parts": changed(pipeline=PIPELINE | {"parts": []}),
    "a fingerprint that is a number": changed(pipeline=PIPELINE | {"fingerprint": 3}),
    "parts that are a dict": changed(pipeline=PIPELINE | {"parts": {}}),
    "a part that is short": changed(pipeline=PIPELINE | {"parts": [["source"]]}),
    "a part that is a number": changed(pipeline=PIPELINE | {"parts": [["source", "", "", 3]]}),
    "a part with a long text": changed(pipeline=PIPELINE | {"parts": [["source", "x" * 9999, "", ""]]}),
    "a number of numpy's": changed() | {"body": {"a": np.int64(3)}},
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_sound_state_is_a_state_error(what: str) -> None:
    with pytest.raises(af.StateError) as caught:
        unseal(WRONG[what], OWN)
    assert len(str(caught.value)) < 300
    assert not isinstance(caught.value, ValueError)


def test_a_state_of_a_newer_version_says_so_whatever_else_is_in_it() -> None:
    with pytest.raises(af.StateError, match="written by a newer asyncfeed"):
        unseal({"asyncfeed": 2, "other": {}}, OWN)


def test_the_fingerprint_decides_and_not_the_parts() -> None:
    with pytest.raises(af.StateError, match="its fingerprint is another"):
        unseal(changed(pipeline=PIPELINE | {"fingerprint": "0" * 32}), OWN)


def test_a_state_is_not_changed_by_looking_at_it() -> None:
    state = seal(OWN, BODY)
    before = json.dumps(state)
    unseal(state, OWN)
    assert opened(state) == state
    assert json.dumps(state) == before


# -- fuzzing


def mutated(data: bytes, random: random.Random) -> bytes:
    """Return a text with some of what storage and other programs do to it."""
    found = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 5])):
        at, end = sorted((random.randrange(len(found) + 1), random.randrange(len(found) + 1)))
        kind = random.randrange(6)
        if kind == 0:
            del found[at : at + random.choice([1, 2, end - at])]
        elif kind == 1 and at < len(found):
            found[at] ^= 1 << random.randrange(8)
        elif kind == 2:
            found[at:at] = random.choice(PIECES)
        elif kind == 3:
            found[at:at] = found[at:end]
        elif kind == 4:
            del found[random.choice([at, len(found)]) :]
        elif at < len(found):
            found[at : at + 1] = bytes([random.randrange(256)])
    return bytes(found)


PIECES = [b"[", b"]", b"{", b"}", b'"', b",", b":", b"\\", b"\\ud800", b"NaN", b"-Infinity", b"1e999", b"0", b"-", b"null", b"\0",
          b"\xff", b"9" * 50, b'"asyncfeed": 2,', b"[" * 2000, b'{"a":' * 2000]  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_a_damaged_text_is_a_state_error_and_nothing_else(seed: int) -> None:
    """In all 10,000 damaged texts. A text whose meaning has not changed is taken."""
    source = random.Random(seed)
    text = json.dumps(seal(OWN, BODY), indent=source.choice([None, 1])).encode()
    refused = 0
    for _ in range(1000):
        try:
            assert unseal(mutated(text, source), OWN) == BODY
        except af.StateError:
            refused += 1
    assert refused > 800


def replaced(tree: Any, random: random.Random) -> Any:
    """Return a tree with a value in it replaced."""
    if random.random() < 0.2 or not isinstance(tree, dict | list) or not tree:
        return random.choice(
            [
                None,
                True,
                0,
                -1,
                1 << 600,
                0.5,
                float("nan"),
                "",
                "x",
                [],
                {},
                [[]],
                {"a": 1},
                (1,),
                b"",
                np.int8(1),
            ]
        )
    found = dict(tree) if isinstance(tree, dict) else list(tree)
    key: Any = random.choice(list(tree)) if isinstance(tree, dict) else random.randrange(len(tree))
    if random.random() < 0.2:
        found.pop(key)
    else:
        found[key] = replaced(tree[key], random)
    return found


@pytest.mark.parametrize("sealed", [True, False])
def test_a_state_with_other_values_is_a_state_error_and_nothing_else(sealed: bool) -> None:
    """Also if its checksum is right, as that of a state which was made to do harm."""
    source = random.Random(sealed)
    for _ in range(2000):
        state = replaced(seal(OWN, BODY), source)
        if sealed and isinstance(state, dict):
            try:
                state = changed(**{str(key): value for key, value in state.items() if key != "checksum"})
            except TypeError:
                continue
        try:
            assert isinstance(unseal(state, OWN), dict)
        except af.StateError:
            pass
