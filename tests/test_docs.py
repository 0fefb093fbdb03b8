"""What the documents show runs."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import asyncfeed

ROOT = Path(__file__).parent.parent
PACKAGE = Path(asyncfeed.__file__).parent
MODULES = sorted(
    ".".join(("asyncfeed", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    """Every `>>>` in the package gives what it says."""
    result = doctest.testmod(importlib.import_module(name), optionflags=OPTIONS)
    assert result.failed == 0


def test_every_stage_shows_an_example() -> None:
    """A method of `Pipeline` that users call has an example in its docstring."""
    shown = {"explain", "indexed", "size"}  # these are for looking inside
    for name in dir(asyncfeed.Pipeline):
        member = getattr(asyncfeed.Pipeline, name)
        if callable(member) and not name.startswith("_") and name not in shown:
            assert ">>>" in (member.__doc__ or ""), name


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name
)
def test_examples_in_documents_run(path: Path) -> None:
    """Every `>>>` in README and docs gives what it says."""
    assert doctest.testfile(str(path), module_relative=False, optionflags=OPTIONS).failed == 0


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name
)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    """A relative link names a file that is there."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_every_test_that_the_guarantees_name_exists() -> None:
    """A promise without its test is none. Each line of the tables names at least one."""
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    for line in lines:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", line)
        assert named, line
        for file, test in named:
            assert re.search(
                rf"^(?:async )?def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE
            ), (
                file,
                test,
            )
