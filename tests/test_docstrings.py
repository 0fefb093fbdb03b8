"""Public docstrings have one shape, so that a reader can scan them."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

import asyncfeed as af

if TYPE_CHECKING:
    from collections.abc import Iterator

# `Processes` is for what only functions in processes need to know.
SECTIONS = ["Args", "Returns", "Yields", "Raises", "Order", "Memory", "Processes", "Example"]
MADE_BY_USERS = {"Coordinator", "File"}  # their class docstring describes what they are made of


def public() -> Iterator[tuple[str, Any, inspect.Signature | None]]:
    """Yield what is exported and its public methods: name, object, signature."""
    for name in [*af.__all__, "zip"]:
        value = getattr(af, name)
        if inspect.isfunction(value):
            yield name, value, inspect.signature(value)
            continue
        if not inspect.isclass(value):  # a decoder, which is called for another of its kind
            yield name, type(value), None
            yield f"{name}()", type(value).__call__, inspect.signature(type(value).__call__)
            continue
        yield name, value, inspect.signature(value.__init__) if name in MADE_BY_USERS else None
        for attribute in dir(value):
            member = inspect.getattr_static(value, attribute)
            ours = (getattr(member, "__module__", None) or "").startswith("asyncfeed")
            if inspect.isfunction(member) and ours and not attribute.startswith("_"):
                yield f"{name}.{attribute}", member, inspect.signature(member)


PUBLIC = {name: (value, signature) for name, value, signature in public()}


def faults(doc: str, signature: inspect.Signature | None) -> list[str]:
    """Return what is wrong with a docstring.

    A docstring without `Args` is allowed if there is no keyword-only option and it names each parameter as `code`.
    """
    heads = re.findall(r"^([A-Z]\w+):$", doc, re.MULTILINE)
    found = [f"{head} is not a section" for head in heads if head not in SECTIONS]
    known = [head for head in heads if head in SECTIONS]
    if known != sorted(set(known), key=SECTIONS.index):
        found.append(f"sections are in the order {known}")
    if ">>>" in doc and "Example" not in heads:
        found.append("the example is not in its section")
    if re.search(r"^(Raises|Memory|Order|Errors)\b.*[:.] ?\S", doc, re.MULTILINE):
        found.append("a section's text begins in the line of its name")
    _, _, rest = doc.partition("Args:\n")
    args = re.split(r"^\S", rest, maxsplit=1, flags=re.MULTILINE)[0]
    described = re.findall(r"^    \*{0,2}(\w+): ", args, re.MULTILINE)
    parameters = [each for each in signature.parameters.values() if each.name != "self"] if signature else []
    options = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    if "Args" not in heads and not options:
        return found + [f"{each.name} is not named" for each in parameters if f"`{each.name}`" not in doc]
    return found + [f"{each.name} is not in Args" for each in parameters if each.name not in described]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_docstring_has_sections_in_one_order_and_names_every_parameter(name: str) -> None:
    value, signature = PUBLIC[name]
    assert faults(inspect.getdoc(value) or "", signature) == []


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_docstring_begins_with_one_line(name: str) -> None:
    first, _, rest = (inspect.getdoc(PUBLIC[name][0]) or "").partition("\n")
    assert first.endswith((".", ":"))
    assert not rest or rest.startswith("\n")


def example(first: int, *, second: int = 0) -> None:
    """Stands for a public function."""


@pytest.mark.parametrize(
    "doc",
    [
        "Do it.",
        "Do it with `first` and `second`.",
        "Do it.\n\nArgs:\n    first: One.",
        "Do it.\n\nArgs:\n    first: One.\n    second: Two.\n\n>>> 1\n1",
        "Do it.\n\nMemory:\n    None.\n\nArgs:\n    first: One.\n    second: Two.",
        "Do it.\n\nArgs:\n    first: One.\n    second: Two.\n\nNote:\n    Nothing.",
        "Do it.\n\nMemory: none.\n\nArgs:\n    first: One.\n    second: Two.",
        "Do it.\n\nArgs:\n    first: One.\n\nRaises:\n    second: Two.",
    ],
)
def test_a_docstring_of_another_shape_is_found(doc: str) -> None:
    assert len(faults(doc, inspect.signature(example))) >= 1


@pytest.mark.parametrize(
    "doc",
    [
        "Do it.\n\nArgs:\n    first: One.\n    second: Two.\n\nRaises:\n    ValueError: Three.",
        "Do it.\n\nArgs:\n    first: One.\n    second: Two.\n\nExample:\n    >>> 1\n    1",
    ],
)
def test_a_docstring_of_this_shape_passes(doc: str) -> None:
    assert faults(doc, inspect.signature(example)) == []
