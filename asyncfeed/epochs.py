"""Epochs: one run over several epochs, which the consumer can tell apart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from asyncfeed.errors import ClosedError
from asyncfeed.feed import session_of

if TYPE_CHECKING:
    from asyncfeed.feed import Feed

T_co = TypeVar("T_co", covariant=True)


class Epoch(Iterator[T_co], AsyncIterator[T_co], Generic[T_co]):
    """One epoch of a run: iterate it with `for` or `async for`.

    It can be left early, by `break`: the next epoch then begins without the rest of this one. Once `Epochs` has
    moved on, an earlier epoch delivers nothing more. Any number of threads or tasks may draw from it.

    Raises:
        ClosedError: From the first draw, if `Epochs` has moved on before.
    """

    def __init__(self, epochs: Epochs[T_co], place: int, number: int, length: int | None) -> None:
        self.number = number
        """The number of the epoch, as a `shuffle` and `map(rng=True)` count it: 0 is the first."""
        self._epochs = epochs
        self._feed = epochs.feed
        self._place = place
        self._length = length
        self._drawn = False

    def __iter__(self) -> Self:
        """Return the epoch itself: iterating goes on where it stands."""
        return self

    def __next__(self) -> T_co:
        """Return the next batch of this epoch."""
        if not self._drawn:
            self._begin()
        return self._feed.__next__(self._place)

    def __aiter__(self) -> Self:
        """Return the epoch itself: iterating goes on where it stands."""
        return self

    async def __anext__(self) -> T_co:
        """Return the next batch of this epoch; cancelling the wait loses nothing."""
        if not self._drawn:
            self._begin()
        return await self._feed.__anext__(self._place)

    def _begin(self) -> None:
        """Raise if the epoch was over before anybody drew from it: to deliver nothing would hide a mistake."""
        if self._epochs.place > self._place:
            raise ClosedError(
                f"epoch {self.number} is over: an epoch ends when the next one is asked for, as list(epochs) does "
                "at once. Draw from each when it comes: `for epoch in pipeline.epochs(n): for batch in epoch: ...`"
            )
        self._drawn = True

    def __len__(self) -> int:
        """Return how many batches the epoch has; raises `TypeError` if that is not known."""
        if self._length is None:
            raise TypeError(f"the length of {self!r} is not known, or it has no end")
        return self._length

    def __bool__(self) -> bool:
        """Return True: an epoch is something, however many batches it has."""
        return True

    def __repr__(self) -> str:
        return f"<Epoch {self.number}>"


class Epochs(Iterator[Epoch[T_co]], AsyncIterator[Epoch[T_co]], Generic[T_co]):
    """What `Pipeline.epochs` returns: the epochs of one run, in order.

    The run starts with the first batch that is drawn. It reads ahead across the end of an epoch, so no epoch waits
    for its first batch. `feed` is the running pipeline: its `stats()`, `failure`, `skipped` and `stop()`. The run
    stops at the end of a `with` block, after the last epoch, or when nobody holds it any more.
    """

    def __init__(self, feed: Feed[T_co], count: int | None, start: int, length: int | None) -> None:
        self.feed = feed
        self._session = session_of(feed)
        self._count = count
        self._start = start
        self._length = length
        self._begun = 0
        self.place = -1
        """The place of the epoch that was asked for last, or the count if the one after the last was."""

    def __iter__(self) -> Self:
        """Return the epochs themselves: iterating goes on where it stands."""
        return self

    def __next__(self) -> Epoch[T_co]:
        """Leave the epoch before, whatever is left of it, and return the next one."""
        place = self.place = self._begun
        if place == self._count:
            if self._session.run is not None:
                self._session.go_to_epoch(place)
            self._session.stop("all epochs are over")  # a coordinator goes on
            raise StopIteration
        self._begun += 1
        if place:
            self._session.go_to_epoch(place)
        return Epoch(self, place, self._start + place, self._length)

    def __aiter__(self) -> Self:
        """Return the epochs themselves: iterating goes on where it stands."""
        return self

    async def __anext__(self) -> Epoch[T_co]:
        """Leave the epoch before, whatever is left of it, and return the next one."""
        try:
            return next(self)
        except StopIteration:
            pass
        await self.feed.aclose()
        raise StopAsyncIteration

    def __len__(self) -> int:
        """Return how many epochs there are in all; raises `TypeError` if they have no end."""
        if self._count is None:
            raise TypeError("these epochs have no end")
        return self._count

    def __bool__(self) -> bool:
        """Return True: they are something, however many they are."""
        return True

    def __repr__(self) -> str:
        return f"<{self._begun} of {'endless' if self._count is None else self._count} epochs of {self.feed!r}>"

    def __enter__(self) -> Self:
        """Start on a background thread."""
        self.feed.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.feed.close()

    async def __aenter__(self) -> Self:
        """Start on the running loop."""
        await self.feed.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.feed.aclose()
