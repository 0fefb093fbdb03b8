"""Imports optional libraries. If one is missing, the error names the extra that installs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from asyncfeed.errors import PipelineError


def installed(module: str, extra: str) -> Any:
    """Return a module. If it is missing, raise `PipelineError` that says which extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise PipelineError(
            f"this needs {module.partition('.')[0]}, which is not installed: pip install 'asyncfeed[{extra}]'"
        ) from None
