"""Moto's S3 server, in a process of its own: the only one of these with a real `If-Match`. It starts in a second."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CREDENTIALS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
CODE = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_numbers = itertools.count()
_state: dict[str, str] = {}


@contextmanager
def running() -> Iterator[None]:
    """Run the server, if moto is installed."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        yield
        return
    with subprocess.Popen(
        [sys.executable, "-c", CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        _state["endpoint"] = f"http://127.0.0.1:{int(process.stdout.readline())}"
        yield
        _state.clear()
        process.stdin.close()
        process.wait(20)


def endpoint() -> str:
    """Return the address of the server. Skip the test if there is none."""
    if not _state:
        pytest.skip("needs moto[server]")
    return _state["endpoint"]


def new_bucket() -> str:
    """Make a bucket, and return its name."""
    name = f"bucket-{next(_numbers)}"
    request = urllib.request.Request(f"{endpoint()}/{name}", method="PUT", headers=_headers())
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200
    return name


def _headers() -> dict[str, Any]:
    # Moto finds the service in it, and checks no signature.
    return {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20261122/us-east-1/s3/aws4_request"}
