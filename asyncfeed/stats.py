"""What a feed did, as numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FeedStats:
    """A snapshot of a feed; times in seconds, sizes in bytes."""

    batches: int
    """Items delivered: batches, where the pipeline makes batches."""
    nbytes: int
    """What the delivered items held."""
    seconds: float
    """How long the run has lasted."""
    consumer_waited: float
    """How long consumers waited for data. Near zero, the pipeline is fast enough; near `seconds`, it is what
    the trainer waits for."""
    producer_waited: float
    """How long ready data waited for a consumer. Near `seconds`, the trainer is the slower of the two."""
    skipped: int
    """Items left out because `on_error="skip"` allowed it."""
    memory_used: int
    """Bytes in flight now."""
    memory_peak: int
    """The most bytes that were in flight."""
    memory_limit: int
    """What bounds them."""
    concurrency: tuple[tuple[str, int], ...] = ()
    """The name of each stage that calls a function, and how many calls at a time it may make: what was asked
    for, or what "auto" has found."""

    def __str__(self) -> str:
        """Return the numbers as a table."""
        seconds = max(self.seconds, 1e-9)
        rows = [
            ("batches", f"{self.batches:,}", f"{self.batches / seconds:,.0f} /s"),
            ("bytes", _size(self.nbytes), f"{_size(self.nbytes / seconds)}/s"),
            ("trainer waited for data", f"{self.consumer_waited:.2f} s", f"{self.consumer_waited / seconds:.0%}"),
            ("data waited for trainer", f"{self.producer_waited:.2f} s", f"{self.producer_waited / seconds:.0%}"),
            ("most memory in flight", _size(self.memory_peak), f"of {_size(self.memory_limit)}"),
        ]
        if self.skipped:
            rows.append(("skipped", f"{self.skipped:,}", ""))
        rows += [(f"at a time: {name}", f"{count:,}", "") for name, count in self.concurrency]
        return "\n".join(f"{name:<24}{value:>14}{rate:>16}" for name, value, rate in rows)


def _size(nbytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"
