"""An object store as a value: which one, how it is reached, and what is checked."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from asyncfeed.attempts.retry import Policy, Retry
from asyncfeed.errors import PipelineError
from asyncfeed.reading.file import File
from asyncfeed.reading.obstore_exit import wait_for_obstore
from asyncfeed.reading.reader import Store
from asyncfeed.reading.urls import WEB, Location, check_endpoint, check_host, parse

if TYPE_CHECKING:
    from asyncfeed.reading.obstore_reader import ObstoreReader

Verify = Literal["size", "etag"]

POLICY = Policy(
    retry=Retry(),
    throttled=Retry(attempts=32, seconds=600.0, max_delay=1.0),
    timeout=10.0,
    bytes_per_second=1e6,
    hedge="auto",
)
"""A store that gets too many requests may refuse most of them for seconds. So an object may be refused more often
than it may fail, and for longer: all feeds wait for their turns then. Later objects wait for it, so its delays are
short. Fewer requests are made meanwhile anyhow."""

# Functions registered first are called last: runs, which are stopped when the interpreter ends, register later.
atexit.register(wait_for_obstore)


@dataclass(frozen=True, repr=False)
class ObjectStore(Store):
    """A bucket of S3, Google Cloud Storage or Azure, or a web server. It needs the extra `asyncfeed[cloud]`.

    The path of a file is its URL. A store is pickled without secrets, unless `options` or `credential_provider`
    hold some.

    Args:
        url: Scheme and bucket, such as `s3://bucket`.
        endpoint: The address of a server that speaks the protocol of S3, of Google Cloud Storage or of Azure. An
            `http://` address is allowed here, and so is a private one.
        allow_http: Whether `http://` URLs are read.
        anonymous: Whether requests are not signed. Otherwise credentials are needed.
        verify: "size" compares the size of each object with the listed one. "etag" compares the version, too, and
            takes about 1.5 times as long for small objects.
        credential_provider: A function, sync or async, that returns credentials as `obstore.auth` describes.
        options: Settings of obstore for this kind of store, such as `region`.
        client_options: Settings of obstore's HTTP client, such as `proxy_url`.
        max_requests: Most requests that a run has under way. By default these are 256, and the first 32 must be
            answered before there are more.
        client: An obstore store to use, for `memory://`.

    Example:
        >>> ObjectStore("s3://bucket", anonymous=True, options={"region": "eu-west-1"})
        ObjectStore('s3://bucket', anonymous=True, options=<region>)
    """

    url: str
    endpoint: str | None = None
    allow_http: bool = False
    anonymous: bool = False
    verify: Verify = "size"
    credential_provider: Callable[[], Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    client_options: Mapping[str, Any] = field(default_factory=dict)
    max_requests: int | None = None
    client: Any = None

    def __post_init__(self) -> None:
        scheme, _, name = self.url.partition("://")
        base, key = parse(f"{scheme}://{name.rstrip('/')}/key")
        if key != "key":
            raise PipelineError("files: an ObjectStore is a whole bucket or host, without a folder")
        object.__setattr__(self, "url", base)
        check_host(base, allow_http=self.allow_http, endpoint=self.endpoint is not None)
        if self.endpoint is not None:
            check_endpoint(self.endpoint)
            object.__setattr__(self, "endpoint", self.endpoint.rstrip("/"))
            if self.scheme in WEB and self.endpoint != base:
                raise PipelineError("files: the endpoint of a web server is the server itself")
        if self.verify not in ("size", "etag"):
            raise PipelineError(f'files: verify must be "size" or "etag", not {self.verify!r}')
        if self.max_requests is not None and (not isinstance(self.max_requests, int) or self.max_requests < 1):
            raise PipelineError(f"files: max_requests must be at least 1, not {self.max_requests!r}")
        if (self.scheme == "memory") != (self.client is not None):
            raise PipelineError(
                "files: memory:// needs client=, an obstore MemoryStore, and other schemes take none"
            )
        if self.anonymous and self.credential_provider is not None:
            raise PipelineError("files: anonymous=True sends no credentials, so leave credential_provider out")

    reads_on_loop: ClassVar[bool] = True

    @property
    def policy(self) -> Policy:
        """How it is read if `load` says nothing else.

        Within a minute, a read that failed is repeated up to five times, and within ten minutes up to 31 times if
        the store refused it because it gets too many requests. A request may take 10 s, and a second more for
        each megabyte. A slow request is made a second time.
        """
        return POLICY

    @property
    def scheme(self) -> str:
        """The scheme of the store."""
        return self.url.partition(":")[0]

    @property
    def identity(self) -> str:
        """The URL of the store, and the address that it is reached at."""
        return f"{self.url} {self.endpoint or ''}"

    @property
    def reached(self) -> ObjectStore:
        """The store without what readers do with it. Those that are reached alike share a client."""
        return replace(self, verify="size", max_requests=None)

    @property
    def limited(self) -> ObjectStore:
        """The store that stands for all whose requests count together: those of a server, or else of a bucket."""
        together = self.endpoint is not None and self.scheme not in WEB
        return replace(self.reached, url=f"{self.scheme}://all") if together else self.reached

    def file(self, key: str, size: int | None = None, etag: str | None = None) -> File:
        """Return the object of a key, without a request.

        >>> ObjectStore("s3://bucket").file("a.npy").path
        's3://bucket/a.npy'
        """
        return File(f"{self.url}/{key}", size, etag=etag, store=self)

    def key(self, file: File) -> str:
        """Return the name of a file in this store. Raises `PipelineError` if its URL is of another store."""
        start = f"{self.url}/"
        if self.scheme not in WEB and file.path.startswith(start):
            return file.path[len(start) :]
        location: Location = parse(file.path)
        if location.base != self.url:
            raise PipelineError(f"{location.base} is not {self.url}, which was to read it")
        return location.key

    def reader(self) -> ObstoreReader:
        """Return a reader. It opens nothing before it is used."""
        from asyncfeed.reading.obstore_reader import ObstoreReader  # noqa: PLC0415 - it knows the event loop

        return ObstoreReader(self)

    def __hash__(self) -> int:
        return hash((self.url, self.endpoint))

    def __repr__(self) -> str:
        shown = [repr(self.url)]
        shown += [f"endpoint={self.endpoint!r}"] if self.endpoint is not None else []
        shown += ["allow_http=True"] if self.allow_http else []
        shown += ["anonymous=True"] if self.anonymous else []
        shown += ['verify="etag"'] if self.verify == "etag" else []
        shown += ["credential_provider=..."] if self.credential_provider is not None else []
        for name in ("options", "client_options"):
            held: Mapping[str, Any] = getattr(self, name)
            shown += [f"{name}=<{', '.join(sorted(held))}>"] if held else []
        return f"ObjectStore({', '.join(shown)})"
