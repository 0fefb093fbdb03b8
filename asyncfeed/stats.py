"""Statistics of a feed."""

from __future__ import annotations

import threading
from dataclasses import dataclass

NAME_WIDTH = 24
"""Width of the column of names, in characters. A longer name gets lines of its own."""


CACHE = "cache: "
"""What the names of counts of a cache begin with. Reading from a cache is no slow path."""
PACK = "pack: "
"""What the names of counts of a `pack` begin with. They are no slow paths, either."""


TURNS_SHARE = 0.05
"""Share of the time from which waits for turns are shown."""


@dataclass(frozen=True, slots=True)
class FeedStats:
    """A snapshot of a feed's statistics. Times are in seconds, sizes in bytes."""

    batches: int
    """Number of delivered items: batches, if the pipeline makes batches."""
    nbytes: int
    """Size of the delivered items."""
    seconds: float
    """Time from the first draw until the trainer saw the end or the feed was stopped.

    It has three parts: `consumer_waited`, `producer_waited`, and the time in which neither side waited, because
    the pipeline made the next item while the trainer worked. The trainer was busy for `seconds - consumer_waited`.
    All times are measured where the trainer takes the data: in `next()`, or where TensorFlow takes from its queue.
    An item that `tf.data` prefetches counts as taken at that moment.
    """
    consumer_waited: float
    """Time in which a consumer waited and no data was ready. Time in which several consumers wait counts once.
    Near zero, the pipeline is fast enough. Near `seconds`, the trainer waits for the pipeline."""
    producer_waited: float
    """Time in which data was ready and no consumer asked for it. Near `seconds`, the trainer is the slower
    side."""
    skipped: int
    """Number of items that `on_error="skip"` left out."""
    memory_used: int
    """Bytes in flight now: the items that exist, and the expected results of running calls if their size is
    known."""
    memory_peak: int
    """The largest number of bytes that were in flight. Bytes that are reserved for results of unknown size count
    against the limit, but not here."""
    memory_limit: int
    """The limit of the bytes in flight. If feeds share one: what this feed may use of it now."""
    concurrency: tuple[tuple[str, int], ...] = ()
    """The name of each stage that calls a function, and its number of calls at a time: the given number, or the
    number that "auto" has found."""
    slow_paths: tuple[tuple[str, int], ...] = ()
    """The slow paths that were taken, each with its stage, reason and number of times. Examples: batches whose
    files were loaded one by one, and items that went to TensorFlow one by one. Also what a cache and a `pack` did,
    under names that begin with "cache: " and "pack: "."""
    turns_waited: float = 0.0
    """How long calls that compute waited for their turn, added up: other stages or feeds computed. Calls with
    `concurrency=` above 1 and calls that wait for something take no turns."""
    other_feeds: int = 0
    """Number of other feeds of this process that run now, and share its threads."""

    def __str__(self) -> str:
        """Return the numbers as a table that is 54 characters wide."""
        import textwrap  # noqa: PLC0415 - only a shown table needs it

        lines = []
        for name, value, rate in self._rows():
            if len(name) <= NAME_WIDTH:
                lines.append(f"{name:<{NAME_WIDTH}}{value:>14}{rate:>16}".rstrip())
            else:  # the name of a stage, which has no rate
                *above, last = textwrap.wrap(name, NAME_WIDTH + 14, subsequent_indent="  ")
                lines += [*above, f"{last:<{NAME_WIDTH + 16}}{value:>14}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the numbers as a table for a notebook."""
        from html import escape  # noqa: PLC0415 - only a shown table needs it

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
        if self.turns_waited >= TURNS_SHARE * seconds and self.other_feeds:
            feeds = f"beside {self.other_feeds:,} feed{'' if self.other_feeds == 1 else 's'}"
            rows.append(("calls waited for turns", f"{self.turns_waited:.2f} s", feeds))
        if self.skipped:
            rows.append(("skipped", f"{self.skipped:,}", ""))
        rows += [(f"at a time: {name}", f"{count:,}", "") for name, count in self.concurrency]
        for name, count in self.slow_paths:
            if count:
                rows.append((name if name.startswith((CACHE, PACK)) else f"slow: {name}", f"{count:,}", ""))
        return rows


class SlowPaths:
    """Counts slow paths by their reason. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def note(self, reason: str, count: int = 1) -> None:
        """Count one more for this reason, or several."""
        with self._lock:
            self._counts[reason] = self._counts.get(reason, 0) + count

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
