"""Cells of a CSV file."""

from __future__ import annotations

TRUTH = {"true": True, "false": False, "1": True, "0": False}
"""The texts that are a bool, in upper or lower case. `bool` itself would read "False" as True."""


def as_bool(text: str) -> bool:
    """Return the truth value that a text means."""
    try:
        return TRUTH[text.lower()]
    except KeyError:
        raise ValueError("a bool is written as true, false, 1 or 0") from None
