"""The list of repairs that `tests.tools.undo` undoes fits today's code."""

from __future__ import annotations

from collections import Counter

from tests.tools.undo import ROOT, repairs


def test_each_repair_is_in_the_code_once() -> None:
    missing = [each.name for each in repairs() if (ROOT / each.file).read_text("utf-8").count(each.now) != 1]
    assert missing == []


def test_no_repair_is_listed_twice() -> None:
    assert max(Counter(each.name for each in repairs()).values()) == 1
