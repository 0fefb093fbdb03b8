"""The errors are the tree that their module draws."""

from __future__ import annotations

import asyncfeed as af
from asyncfeed import errors


def test_the_tree_is_as_drawn() -> None:
    """What each error is, so that `except` clauses of the standard library catch it, too."""
    for error, bases in {
        errors.PipelineError: (errors.AsyncfeedError, ValueError),
        errors.StoreError: (errors.AsyncfeedError, OSError),
        errors.Unavailable: (errors.StoreError,),
        errors.TimedOut: (errors.Unavailable, TimeoutError),
        errors.Corrupt: (errors.StoreError,),
        errors.ClosedError: (errors.AsyncfeedError,),
    }.items():
        assert error.__bases__ == bases
        assert getattr(af, error.__name__) is error
        assert error.__name__ in (errors.__doc__ or "")


def test_no_other_error_is_public() -> None:
    """Each is raised somewhere: one that is only announced would be caught in vain."""
    public = {
        name
        for name in dir(af)
        if isinstance(getattr(af, name), type) and issubclass(getattr(af, name), Exception)
    }
    assert public == {
        "AsyncfeedError", "PipelineError", "StoreError", "Unavailable", "TimedOut", "Corrupt", "StateError", "ClosedError",
    }  # fmt: skip
