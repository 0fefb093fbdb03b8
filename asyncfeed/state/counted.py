"""Which fields of a description decide its data."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from asyncfeed.trees import same


def counted(value: Any) -> dict[str, object]:
    """Return the fields of a dataclass that decide which items come and in which order, by name.

    A field counts unless it is named in the `tuning` of the class, or is not compared. Of `on_error` it counts
    whether failed items are left out, and not how many may be.

    A field that has its default is left out. So a field that a later version adds changes nothing for those who do
    not use it. A default must therefore never get another meaning.
    """
    tuning = getattr(type(value), "tuning", ())
    if not isinstance(tuning, tuple):  # a field of the user's that happens to have this name
        tuning = ()
    found: dict[str, object] = {}
    for each in fields(value):
        own = getattr(value, each.name)
        usual = type(own) is type(each.default) and same(own, each.default)  # an array would compare each number
        if each.compare and each.name not in tuning and not usual:
            found[each.name] = "skip" if each.name == "on_error" else own
    return found
