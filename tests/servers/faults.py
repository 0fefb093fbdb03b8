"""What goes wrong between a client and a server: drawn from a seed, and done to an answer.

The server of `objects.py` and the proxy of `proxy.py` share it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

REASONS = {
    200: "OK",
    206: "Partial Content",
    301: "Moved",
    307: "Temporary Redirect",
    403: "Forbidden",
    404: "Not Found",
    412: "Precondition Failed",
}
CODES = {
    401: "InvalidToken", 403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange",
    429: "TooManyRequests", 500: "InternalError", 503: "SlowDown",
}  # fmt: skip
ROUND = "again=1"
"""What a redirect to the same object adds to the query, so that the requests that follow one can be counted."""


@dataclass
class Rule:
    """A fault of some requests: the next `times`, or a share `rate` of all, of the keys that `where` accepts.

    `per_key` is how many requests of one key may meet it.
    """

    kind: str
    times: int | None = None
    rate: float = 1.0
    where: Callable[[str], bool] = lambda key: True
    value: object = None
    per_key: int | None = None
    met: Counter[str] = field(default_factory=Counter)
    """Number of requests that met it, by their key. It is counted only if `per_key` is given."""


@dataclass
class Faults:
    """What goes wrong. The n-th request for a key meets the same fault whenever it comes, if the seed is the same.

    Kinds, and what `value` is:

    * "delay": the answer comes later, by `value` seconds.
    * "slow tail": the same, but half of the answers come after `value` seconds, a quarter after twice that time, an
      eighth after four times that time, and so on up to 32 times.
    * a status such as "503" or "429": `value` is the time of a Retry-After header, if there is to be one.
    * "reset": the connection is reset before the answer. "cut": it is closed after half of the body.
    * "drip": the body comes a byte at a time, each after `value` seconds.
    * "stall": there is no answer. "stall in the body": half of the body comes.
    * "wrong length": half of the body, as if that were all. "wrong range": another part, as the header says.
    * "changed": another version of the object, from now on.
    * "other etag": one answer is of another version. A request for the right version gets a 412.
    * "redirect": to the address `value`, or to the same object.
    """

    seed: int = 0
    delay: float = 0.0
    """Seconds before each answer."""
    rules: list[Rule] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    """Number of requests by their key, as far as there were rules."""

    def add(
        self,
        kind: str,
        *,
        times: int | None = None,
        rate: float = 1.0,
        where: Callable[[str], bool] = lambda key: True,
        value: object = None,
        per_key: int | None = None,
    ) -> None:
        """Add a fault."""
        self.rules.append(Rule(kind, times, rate, where, value, per_key))

    def pick(self, key: str) -> Rule | None:
        """Return the fault that a request for a key meets."""
        if not self.rules:
            return None
        self.asked[key] += 1
        for place, rule in enumerate(self.rules):
            if rule.times == 0 or not rule.where(key) or (rule.rate < 1 and self._drawn(key, place) >= rule.rate):
                continue
            if rule.per_key is not None:
                if rule.met[key] == rule.per_key:
                    continue
                rule.met[key] += 1
            if rule.times is not None:
                rule.times -= 1
            return rule
        return None

    def late(self, key: str, rule: Rule | None) -> float:
        """Return after how many seconds a request is answered."""
        if rule is None or rule.kind not in {"delay", "slow tail"}:
            return self.delay
        assert isinstance(rule.value, float)
        longer = 1
        if rule.kind == "slow tail":
            drawn = self._drawn(key, -1)
            while drawn < 0.5 and longer < 32:
                drawn, longer = 2 * drawn, 2 * longer
        return self.delay + longer * rule.value

    def _drawn(self, key: str, place: int) -> float:
        """Return a number from 0 to 1 that belongs to this request and this rule."""
        text = f"{self.seed} {self.asked[key]} {place} {key}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48


@dataclass
class Answer:
    """An answer of a server. `length` is what its header says of the body, if the body is not sent."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    length: int | None = None

    def head(self) -> bytes:
        """Return the answer up to its body."""
        length = len(self.body) if self.length is None else self.length
        lines = [f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Answer')}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def refused(status: int, method: str = "GET", retry_after: object = None) -> Answer:
    """Return the answer of a store that does not give what was asked for."""
    code = CODES.get(status, "Error")
    text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
    headers = {"Content-Type": "application/xml"}
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    return Answer(status, headers, b"" if method == "HEAD" else text.encode())


def instead(rule: Rule | None, method: str, target: str) -> Answer | None:
    """Return what a fault answers without looking at the object; None if it looks."""
    if rule is None:
        return None
    if rule.kind.isdigit():
        return refused(int(rule.kind), method, rule.value)
    if rule.kind == "redirect":
        where = rule.value or f"{target}{'&' if '?' in target else '?'}{ROUND}"
        return Answer(307, {"Location": str(where)})
    return None


def spoiled(rule: Rule | None, answer: Answer, method: str, headers: dict[str, str]) -> tuple[Answer, str]:
    """Return an answer as a fault leaves it, and what happens to the connection after it.

    That is "" for nothing, "close", or "stall" if nothing follows. `headers` are those of the request.
    """
    kind = "" if rule is None else rule.kind
    out, body = answer.headers, answer.body
    if kind == "other etag" and "etag" in {name.lower() for name in out}:
        if "if-match" in headers:
            return refused(412, method), ""
        other = {name: f'"other-{value.strip(chr(34))}"' for name, value in out.items() if name.lower() == "etag"}
        return Answer(answer.status, {**out, **other}, body, answer.length), ""
    if answer.status not in (200, 206) or method == "HEAD":
        return answer, ""
    if kind == "wrong range":
        return Answer(answer.status, _moved(out), body), ""
    if kind == "wrong length":
        return Answer(answer.status, out, body[: len(body) // 2]), ""
    if kind in {"cut", "stall in the body"}:
        half = Answer(answer.status, out, body[: len(body) // 2], len(body))
        return half, "close" if kind == "cut" else "stall"
    return answer, ""


def _moved(headers: dict[str, str]) -> dict[str, str]:
    """Return headers that tell of another range than was asked for."""
    made = dict(headers)
    for name, value in headers.items():
        if name.lower() == "content-range":
            span, _, size = value.removeprefix("bytes ").partition("/")
            start, stop = map(int, span.split("-"))
            made[name] = f"bytes {start + 5}-{stop + 5}/{size}"
    return made
