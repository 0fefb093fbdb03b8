"""What a function is known by, in every process and every version of Python.

===================================== ==========================================================================
a function of a module or a class     its qualified name, such as `Reader.decode`, without the module
a function defined in a function      the same: `main.<locals>.decode`
a lambda                              the names, constants and operators in it, and the defaults of its parameters
a method of an object                 the name, and what the object is known by
`functools.partial`                   the function and the arguments
===================================== ==========================================================================

The code of a function with a name may change: the positions in a state stay valid. So nothing tells that a filter
of this name now keeps other items. A lambda has no name, so another lambda is another function. Three things are
not noticed: the order of what is in a lambda (`a - b` and `b - a`), the values of variables that a function has
captured, and the module. Captured values are left out because they may change while the program runs.

This module needs nothing but Python, so that it can be compared under several versions.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any

LAMBDA = "<lambda>"
_LOADS = ("LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST")
"""The instructions that name a constant. Which of them are used depends on the version of Python."""
_TESTS = ("IS_OP", "CONTAINS_OP")
_OPERATORS = ("BINARY_OP", "COMPARE_OP")


def contents(code: CodeType) -> list[list[str]]:
    """Return the names, the constants and the operators in a piece of code, sorted, each once.

    Versions of Python compile the same code to other instructions, but to the same sets.

    >>> contents((lambda row: row["x"] > 3).__code__)
    [['row'], ["'x'", '3'], ['>']]
    """
    names: set[str] = set()
    constants: set[str] = set()
    operators: set[str] = set()
    for each in _nested(code):
        names.update(each.co_names, each.co_varnames, each.co_freevars, each.co_cellvars)
        for step in dis.get_instructions(each):
            if step.opname in _LOADS:
                constants.update(_plain(step.argval))
            elif step.opname == "KW_NAMES":  # 3.11 and 3.12; later versions load the names of arguments
                constants.update(_plain(each.co_consts[step.arg or 0]))
            elif step.opname in _OPERATORS:
                operators.add(step.argrepr.removeprefix("bool(").removesuffix(")"))
            elif step.opname in _TESTS:
                operators.add(f"{step.opname} {step.arg}")
    # Some versions have an operator for `x[key]`, an empty text in an f-string, and ".0" in a comprehension.
    return [sorted(names - {".0"}), sorted(constants - {"''"}), sorted(operators - {"[]"})]


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested(each)


def _plain(value: Any) -> Iterator[str]:
    """Yield the numbers and texts in a constant. Some versions make one tuple of what others keep apart."""
    if isinstance(value, tuple | frozenset):
        for each in value:
            yield from _plain(each)
    elif isinstance(value, slice):
        yield from _plain((value.start, value.stop, value.step))
    elif isinstance(value, int | float | complex | str | bytes) and not isinstance(value, bool):
        yield repr(value)
