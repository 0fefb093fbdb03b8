"""Statistics of a feed."""

from __future__ import annotations

import threading
from dataclasses import dataclass

NAME_WIDTH = 24
"""Characters for the name of a figure that has a rate."""


@dataclass(frozen=True, slots=True)
class FeedStats:
    """A snapshot of a feed; times in seconds, sizes in bytes."""

    batches: int
    """Number of delivered items: batches, if the pipeline makes batches."""
    nbytes: int
    """Size of the delivered items."""
    seconds: float
    """Time since the first draw, until the trainer has seen the end or the feed was stopped.

    It has three parts: `consumer_waited`, `producer_waited`, and the time in which neither waited, because the
    pipeline made the next item while the trainer worked. The trainer was busy for `seconds - consumer_waited`.
    They are measured where the trainer takes the data: in `next()`, or where TensorFlow takes from its queue. An
    item that `tf.data` prefetches counts as taken then.
    """
    consumer_waited: float
    """How long a consumer waited and no data was ready; time in which several wait counts once. Near zero, the
    pipeline is fast enough. Near `seconds`, the trainer waits for the pipeline."""
    producer_waited: float
    """How long data was ready and no consumer asked for it. Near `seconds`, the trainer is the slower side."""
    skipped: int
    """Items left out because `on_error="skip"` allowed it."""
    memory_used: int
    """Bytes in flight now: what was made, and what running calls will make, as far as its weight is known."""
    memory_peak: int
    """The most bytes that were in flight. Memory that is set aside for results of unknown weight counts for the
    limit, and not here."""
    memory_limit: int
    """What bounds them."""
    concurrency: tuple[tuple[str, int], ...] = ()
    """The name of each stage that calls a function, and the number of calls at a time: the number that was given,
    or that "auto" has found."""
    slow_paths: tuple[tuple[str, int], ...] = ()
    """Slow paths that were taken, with the stage, the reason and the number of times: batches whose files were
    loaded one by one, items that went to TensorFlow one by one."""

    def __str__(self) -> str:
        """Return the numbers as a table that is 54 characters wide."""
        import textwrap  # noqa: PLC0415 - few need it

        lines = []
        for name, value, rate in self._rows():
            if len(name) <= NAME_WIDTH:
                lines.append(f"{name:<{NAME_WIDTH}}{value:>14}{rate:>16}".rstrip())
            else:  # a stage, which has no rate
                *above, last = textwrap.wrap(name, NAME_WIDTH + 14, subsequent_indent="  ")
                lines += [*above, f"{last:<{NAME_WIDTH + 16}}{value:>14}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the numbers as a table for a notebook."""
        from html import escape  # noqa: PLC0415 - few need it

        cells = (tuple(map(escape, row)) for row in self._rows())
        rows = (f"<tr><th>{name}</th><td>{value}</td><td>{rate}</td></tr>" for name, value, rate in cells)
        return "<table>\n" + "\n".join(rows) + "\n</table>"

    def _rows(self) -> list[tuple[str, str, str]]:
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
        rows += [(f"slow: {name}", f"{count:,}", "") for name, count in self.slow_paths if count]
        return rows


class SlowPaths:
    """Counts slow paths by their reason. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def note(self, reason: str) -> None:
        """Count one more for this reason."""
        with self._lock:
            self._counts[reason] = self._counts.get(reason, 0) + 1

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Return each reason and how many times it was noted."""
        with self._lock:
            return tuple(self._counts.items())


def _size(nbytes: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"
