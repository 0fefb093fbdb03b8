"""Translates the errors of obstore, which have no attributes: all that they know is in their text.

The text may hold addresses, what the server answered, and what a credential provider said. So none of it is shown.
Only a status, and a code of one word, are taken from it.
"""

from __future__ import annotations

import errno
import os
import re

from asyncfeed.errors import Corrupt, PipelineError, StoreError, TimedOut, Unavailable

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")
_METADATA = re.compile(r"/latest/api/token|169\.254\.169\.254|/computeMetadata/|metadata\.google")
_CERTIFICATE = re.compile(r"certificate|UnknownIssuer", re.IGNORECASE)

BEYOND = ("416", "StartTooLarge")
"""What a store says if a part begins behind the end of the object."""
NOT_ALLOWED = {
    "AccessDenied", "AuthorizationHeaderMalformed", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired", "AuthenticationFailed",
}  # fmt: skip
"""Codes that come with status 400 or 403, and mean that the credentials are wrong."""
KINDS = {"Timeout": "timeout", "Connect": "connection", "Request": "connection", "Interrupted": "interrupted"}

ODD = "obstore refuses keys with an empty part, the part '.' or '..', or a control character"
LEAVE_OUT = "files(...).filter(lambda file: ...), or load(..., on_error=Skip(max_count=...))"
_REFUSED = re.compile(r'InvalidPath \{.*?\bpath: "((?:[^"\\]|\\.)*)"', re.DOTALL)
_UNREADABLE = "invalid list response"
"""What obstore says of a page that it cannot parse: XML has no way to write some control characters."""


def refused_key(error: BaseException) -> str | None:
    """Return the key for which obstore refuses to list, as an error shows it; None for any other error."""
    text = str(error)
    if isinstance(error, ValueError) or _UNREADABLE in text:
        return "with a control character"
    found = _REFUSED.search(text) if type(error).__name__ == "InvalidPathError" else None
    return None if found is None else f"'{found[1]}'"


def is_beyond(error: BaseException) -> bool:
    """Return whether the part that was asked for begins behind the end of the object."""
    text = str(error)
    found = _STATUS.search(text)
    return "StartTooLarge" in text if found is None else found[1] == "416"


def is_changed(error: BaseException) -> bool:
    """Return whether the object is no longer the version that was asked for."""
    return type(error).__name__ == "PreconditionError"


def is_throttled(error: BaseException) -> bool:
    """Return whether the store says that it gets too many requests."""
    shown = translate(error, "")
    return isinstance(shown, Unavailable) and shown.kind == "throttled"


def translate(error: BaseException, path: str) -> Exception:
    """Return the error to show for an object, or for what was listed.

    * `FileNotFoundError`, `PermissionError`: the request fails again, however often it is sent.
    * `Corrupt`: the answer is not what was asked for.
    * `Unavailable`: the request may succeed later. Its `kind` says what happened.
    * `StoreError`: anything else that another request does not change.
    """
    name = type(error).__name__
    text = str(error)
    if isinstance(error, TimedOut):
        return TimedOut(f"{path}: {error}", kind="timeout")
    if isinstance(error, (StoreError, PipelineError, PermissionError)):
        return error
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if isinstance(error, ValueError):
        return StoreError(f"{path!r} cannot be read: {ODD}. Rename the object, or leave it out: {LEAVE_OUT}")
    if name in ("PermissionDeniedError", "UnauthenticatedError"):
        return denied(path, _named(text) or "the store refused the credentials, or found none")
    if name == "PreconditionError":
        return Corrupt(f"{path} changed since it was listed (another version is there now)")
    if name != "GenericError":
        return StoreError(f"{path}: obstore raised {name}")
    return _generic(text, path)


def _generic(text: str, path: str) -> Exception:
    status = _STATUS.search(text)
    if status is not None:
        return of_status(int(status[1]), text, path)
    if "UnexpectedRange" in text:
        return Corrupt(f"{path}: the store sent another part than was asked for", transient=True)
    if _METADATA.search(text):
        return denied(path, "no credentials were found; for a public bucket pass anonymous=True")
    if _CERTIFICATE.search(text):
        return denied(path, "the certificate of the server is not trusted")
    if "redirect without LOCATION" in text:
        return StoreError(f"{path}: the bucket is in another region; pass options={{'region': ...}}")
    if "non-partial" in text:
        return StoreError(f"{path}: the server cannot send parts of a file")
    found = _KIND.search(text)
    kind = KINDS.get(found[1], "other") if found else "other"
    return Unavailable(f"{path}: {SAID[kind]}", kind=kind)


SAID = {
    "timeout": "the store did not answer in time",
    "connection": "there is no connection to the store",
    "interrupted": "the connection to the store ended too early",
    "other": "the store did not answer as it should",
}


def of_status(status: int, text: str, path: str) -> Exception:
    """Return the error to show for an answer with this status. `text` is its body, or holds it."""
    code = _named(text)
    said = f"the store answered {status}{f' ({code})' if code else ''}"
    if status == 404:
        return FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}: {said}", path)
    if status in (401, 403) or code in NOT_ALLOWED:
        return denied(path, said)
    if status in (429, 503) or code in ("SlowDown", "Throttling"):
        return Unavailable(f"{path}: {said}: fewer requests are wanted", kind="throttled")
    if status == 408 or code == "RequestTimeout":
        return Unavailable(f"{path}: {said}", kind="timeout")
    if status >= 500:
        return Unavailable(f"{path}: {said}", kind="server")
    return StoreError(f"{path}: {said}")


def _named(text: str) -> str:
    """Return the code that the server gave; empty if there is none."""
    found = _CODE.search(text)
    return found[1] if found else ""


def denied(path: str, why: str) -> PermissionError:
    """Return the error to show for what is not allowed."""
    return PermissionError(errno.EACCES, why, path)
