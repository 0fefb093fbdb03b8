"""Takes URLs of object stores apart. A URL with a password or a query string is refused and never shown."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from asyncfeed.errors import PipelineError

SCHEMES = ("s3", "gs", "az", "abfss", "https", "http", "memory")
"""The schemes that `ObjectStore` reads. `http` needs a word more, see `check_host`."""
WEB = ("https", "http")
"""The schemes of plain web servers: they cannot list, and their URLs are percent-encoded."""

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST = re.compile(r"[A-Za-z0-9.-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?")
_CONTAINER = re.compile(r"[a-z0-9$][a-z0-9-]*@[A-Za-z0-9.-]+")
_QUERY = re.compile(r"\?[^/]*=")


class Location(NamedTuple):
    """An object, or a pattern of objects."""

    base: str
    """The store: scheme and bucket, or scheme and host, without a slash at its end."""
    key: str
    """The name in the store, as the store has it: nothing in it is percent-encoded."""

    @property
    def scheme(self) -> str:
        """The scheme of the store."""
        return self.base.partition(":")[0]


def scheme_of(text: str) -> str | None:
    """Return the scheme of a URL in lower case; None if the text is no URL.

    >>> scheme_of("S3://bucket/a.npy"), scheme_of("data/a.npy")
    ('s3', None)
    """
    found = _URL.match(text)
    return found[1].lower() if found else None


def parse(url: str) -> Location:
    """Return where the object of a URL is.

    Raises `PipelineError` for a URL that cannot be right, or that holds a user name, a password, a query string or
    a fragment. The message shows only the scheme then.

    >>> parse("s3://bucket/train/*.npy")
    Location(base='s3://bucket', key='train/*.npy')
    >>> parse("https://example.org/a%20b.npy")
    Location(base='https://example.org', key='a b.npy')
    """
    scheme = scheme_of(url)
    if scheme not in SCHEMES:
        raise PipelineError(f"files: object stores have one of the schemes {', '.join(SCHEMES)}")
    rest = url.partition("://")[2]
    host, _, key = rest.partition("/")
    if scheme in WEB:
        if any(sign in rest for sign in "?#@"):
            raise _refused(scheme, "a user name, a password, a query string or a fragment")
        key = unquote(key)
    elif "@" in host and scheme != "abfss":
        raise _refused(scheme, "a user name or a password")
    elif "?" in host or _QUERY.search(key):
        raise _refused(scheme, "a query string")
    pattern = _HOST if scheme in WEB else _CONTAINER if scheme == "abfss" and "@" in host else _BUCKET
    if not pattern.fullmatch(host) and not (scheme == "memory" and not host):
        raise PipelineError(f"files: {scheme}://... names no bucket or host that can be right")
    _check_key(scheme, key)
    return Location(f"{scheme}://{host}", key)


def check_host(base: str, *, allow_http: bool, endpoint: bool) -> None:
    """Raise `PipelineError` for `http` without `allow_http`, and for a web server on a private address.

    A name that leads to a private address is not noticed: only a rule for outgoing connections stops that.
    """
    scheme = scheme_of(base)
    if allow_http or endpoint or scheme not in WEB:
        return
    if scheme == "http":
        raise PipelineError("files: http:// is neither encrypted nor signed; use https, or pass allow_http=True")
    host = urlsplit(base).hostname or ""
    try:
        private = not ipaddress.ip_address(host).is_global
    except ValueError:
        private = host == "localhost" or host.endswith((".localhost", ".internal", ".local"))
    if private:
        raise PipelineError(
            f"files: {host} is a private address; if you trust this server, pass endpoint={base!r}"
        )


def check_endpoint(endpoint: str) -> None:
    """Raise `PipelineError` for an endpoint that is no plain address of a server. Nothing of it is shown."""
    scheme = scheme_of(endpoint)
    host, _, path = endpoint.partition("://")[2].partition("/")
    if scheme not in WEB or not _HOST.fullmatch(host) or any(sign in path for sign in "?#@"):
        raise PipelineError(
            "files: endpoint must be https://host[:port] or http://host[:port], without a password"
        )


def _check_key(scheme: str, key: str) -> None:
    parts = key.split("/")
    if "\0" in key or ".." in parts or "." in parts:
        raise PipelineError(f"files: the key of this {scheme}:// URL holds '.', '..' or a NUL character")
    if "" in parts[:-1] or not key:
        raise PipelineError(f"files: this {scheme}:// URL has an empty part; write {scheme}://bucket/folder/*.npy")
    if key.endswith("/"):
        raise PipelineError(f"files: this {scheme}:// URL names a folder; write .../* for the objects in it")


def _refused(scheme: str, what: str) -> PipelineError:
    return PipelineError(
        f"files: {scheme}://... holds {what}; credentials come from the environment or credential_provider="
    )
