"""Epochs: one run over several epochs. The consumer sees when each epoch ends."""

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

    A loop may leave it early, by `break`. The rest of the epoch is then skipped when the next one begins. After
    `Epochs` has moved on, an earlier epoch delivers nothing more. Any number of threads or tasks may draw from it.

    Raises:
        ClosedError: From the first draw, if `Epochs` has moved on before.
    """

    def __init__(self, epochs: Epochs[T_co], place: int, number: int, length: int | None) -> None:
        self.number = number
        """The number of the epoch, counted from 0. It decides the order of a `shuffle` and the numbers of
        `rng`."""
        self._epochs = epochs
        self._feed = epochs.feed
        self._place = place
        self._length = length
        self._drawn = False

    def __iter__(self) -> Self:
        """Return the epoch itself: iterating continues with the next batch."""
        return self

    def __next__(self) -> T_co:
        """Return the next batch of this epoch."""
        if not self._drawn:
            self._begin()
        return self._feed.__next__(self._place)

    def __aiter__(self) -> Self:
        """Return the epoch itself: iterating continues with the next batch."""
        return self

    async def __anext__(self) -> T_co:
        """Return the next batch of this epoch. Cancelling the wait loses no batch."""
        if not self._drawn:
            self._begin()
        return await self._feed.__anext__(self._place)

    def _begin(self) -> None:
        """Raise if the epoch was over before its first draw. Delivering nothing would hide a mistake."""
        if self._epochs.place > self._place:
            raise ClosedError(
                f"epoch {self.number} is over: an epoch ends when the next one is asked for, and list(epochs) "
                "asks for all. Draw from each in turn: `for epoch in pipeline.epochs(n): for batch in epoch: ...`"
            )
        self._drawn = True

    def __len__(self) -> int:
        """Return the number of batches of the epoch. Raises `TypeError` if it is not known."""
        if self._length is None:
            raise TypeError(f"the length of {self!r} is not known, or it has no end")
        return self._length

    def __bool__(self) -> bool:
        """Return True, also for an epoch without batches."""
        return True

    def __repr__(self) -> str:
        return f"<Epoch {self.number}>"


class Epochs(Iterator[Epoch[T_co]], AsyncIterator[Epoch[T_co]], Generic[T_co]):
    """The epochs of one run, in order. `Pipeline.epochs` makes it.

    The run starts with the first draw. It reads ahead into the next epoch, so that epoch need not wait for its
    first batch. `feed` is the running pipeline, with `stats()`, `failure`, `skipped` and `stop()`. The run stops
    at the end of a `with` block, after the last epoch, or when the last reference to it is dropped.
    """

    def __init__(self, feed: Feed[T_co], count: int | None, start: int, length: int | None) -> None:
        self.feed = feed
        self._session = session_of(feed)
        self._count = count
        self._start = start
        self._length = length
        self._begun = 0
        self.place = -1
        """The place of the last epoch that was asked for. It equals the count after the end."""

    def __iter__(self) -> Self:
        """Return the epochs themselves: iterating continues with the next epoch."""
        return self

    def __next__(self) -> Epoch[T_co]:
        """Return the next epoch. The rest of the current epoch is skipped."""
        place = self.place = self._begun
        if place == self._count:
            if self._session.run is not None:
                self._session.go_to_epoch(place)
            self._session.stop("all epochs are over")  # this does not stop a coordinator
            self._session.wait_held()
            raise StopIteration
        self._begun += 1
        if place:
            self._session.go_to_epoch(place)
        return Epoch(self, place, self._start + place, self._length)

    def __aiter__(self) -> Self:
        """Return the epochs themselves: iterating continues with the next epoch."""
        return self

    async def __anext__(self) -> Epoch[T_co]:
        """Return the next epoch. The rest of the current epoch is skipped."""
        try:
            return next(self)
        except StopIteration:
            pass
        await self.feed.aclose()
        raise StopAsyncIteration

    def __len__(self) -> int:
        """Return the number of epochs. Raises `TypeError` if they have no end."""
        if self._count is None:
            raise TypeError("these epochs have no end")
        return self._count

    def __bool__(self) -> bool:
        """Return True, also for 0 epochs."""
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
        self.feed.__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        """Start on the running loop."""
        await self.feed.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.feed.__aexit__(kind, error, trace)
