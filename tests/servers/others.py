"""Servers of others, each in a process of its own: localbucket, nginx and Azurite.

A test that needs one which is missing is skipped, and says how to install it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SECONDS = 30.0
"""Time for a server to start."""
NGINX = """
daemon off; worker_processes 1; pid {where}/pid; error_log stderr; {user}
events {{ worker_connections 512; }}
http {{
    access_log off; client_body_temp_path {where}/body; proxy_temp_path {where}/proxy; fastcgi_temp_path {where}/f;
    uwsgi_temp_path {where}/u; scgi_temp_path {where}/s;
    server {{ listen 127.0.0.1:{port} {tls}; root {where}/root; {certificate} }}
}}
"""


@contextmanager
def localbucket(where: Path) -> Iterator[str]:
    """Run localbucket. Its buckets are the folders below `where`. Return its address."""
    if importlib.util.find_spec("localbucket") is None:
        pytest.skip("needs localbucket: pip install localbucket")
    port = free_port()
    program = "import sys, localbucket; sys.argv = ['localbucket', *sys.argv[1:]]; localbucket.main()"
    with _running([sys.executable, "-c", program, "--port", str(port), str(where)], port):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def nginx(where: Path, certificate: Path | None = None) -> Iterator[str]:
    """Run nginx. It serves the files in `where / "root"`, over TLS if there is a certificate. Return its address."""
    folder = os.environ.get("ASYNCFEED_NGINX")
    found = shutil.which("nginx", path=None if folder is None else folder)
    if found is None:
        pytest.skip(
            "needs nginx: apt-get download nginx && dpkg -x nginx_*.deb nginx, and ASYNCFEED_NGINX=$PWD/nginx/usr/sbin"
        )
    port = free_port()
    text = NGINX.format(
        where=where,
        port=port,
        user="user root;" if os.geteuid() == 0 else "",
        tls="" if certificate is None else "ssl",
        certificate=""
        if certificate is None
        else f"ssl_certificate {certificate}; ssl_certificate_key {certificate};",
    )
    (where / "nginx.conf").write_text(text)
    with _running([found, "-p", str(where), "-c", str(where / "nginx.conf")], port):
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{port}"


@contextmanager
def azurite() -> Iterator[str]:
    """Run Azurite's blob service in memory. Return its address."""
    folder = os.environ.get("ASYNCFEED_AZURITE")
    found = shutil.which("azurite-blob", path=None if folder is None else folder)
    if found is None:
        pytest.skip("needs Azurite: npm install azurite, and ASYNCFEED_AZURITE=$PWD/node_modules/.bin")
    port = free_port()
    options = ["--silent", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
    with _running([found, *options, "--blobHost", "127.0.0.1", "--blobPort", str(port)], port):
        yield f"http://127.0.0.1:{port}"


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
        )
        try:
            deadline = time.monotonic() + SECONDS
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    pytest.fail(f"{command[0]} does not start: {said.read().decode(errors='replace')[-1000:]}")
                time.sleep(0.02)
            yield
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
        return


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        asking.settimeout(1)
        return asking.connect_ex(("127.0.0.1", port)) == 0
