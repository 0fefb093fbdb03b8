"""The same with Keras' JAX backend, where JAX is installed; in a process of its own, as `test_keras_torch.py` says."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs JAX")
@pytest.mark.timeout(240)
def test_all_of_it_holds_with_jax() -> None:
    """Every test of `test_keras.py`."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "test_keras.py")]
    done = subprocess.run(
        command,
        cwd=HERE.parent.parent,
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
