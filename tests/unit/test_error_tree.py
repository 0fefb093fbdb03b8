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
        errors.Corrupt: (errors.StoreError,),
        errors.StateError: (errors.AsyncfeedError, ValueError),
        errors.ClosedError: (errors.AsyncfeedError,),
    }.items():
        assert error.__bases__ == bases
        assert getattr(af, error.__name__) is error
        assert error.__name__ in (errors.__doc__ or "")


def test_unavailable_says_how_often_it_was_tried() -> None:
    """As data, beside the message."""
    assert errors.Unavailable("the store is away", attempts=3).attempts == 3
