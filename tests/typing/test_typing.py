"""The public interface infers types as users write it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def test_usage_type_checks_strictly() -> None:
    """`api.py` passes mypy --strict: what is inferred, and what is refused."""
    api = pytest.importorskip("mypy.api")
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    out, err, code = api.run([*config, str(Path(__file__).parent / "api.py")])
    assert code == 0, out + err
