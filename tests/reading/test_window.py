"""How many requests a store gets at a time, without a loop or a clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.reading.window import MAX_BYTES, Window


def test_a_store_that_gets_too_many_requests_gets_fewer_and_then_more_again() -> None:
    window = Window(100)
    answer(window, 1000)
    numbers = [window.begin(0) for _ in range(100)]
    assert not window.is_open
    for number in numbers:
        window.shrink(number)
        window.end(0)
    assert window.limit == 92, "one answer of a hundred that were under way together counts"
    answer(window, 10_000)
    assert window.limit == 100


def test_it_begins_with_some_requests_and_soon_has_all() -> None:
    window = Window(256)
    assert window.limit == 32
    answer(window, 32 + 64 + 128 + 256)
    assert window.limit > 150


def test_what_was_too_many_is_what_was_under_way() -> None:
    window = Window(512)
    numbers = [window.begin(0) for _ in range(10)]
    window.shrink(numbers[-1])
    assert window.limit <= 10


def test_large_requests_are_limited_by_their_bytes() -> None:
    window = Window(512)
    begun = 0
    while window.is_open:
        window.begin(8 << 20)
        begun += 1
    assert begun == MAX_BYTES // (8 << 20)
    window.end(8 << 20)
    assert window.is_open


def begin_all(window: Window) -> None:
    while window.is_open:
        window.begin(0)


def answer_one(window: Window) -> None:
    window.grow()
    window.end(0)


def answer(window: Window, count: int) -> None:
    """Answer so many requests, with as many under way as are allowed, and none left."""
    for _ in range(count):
        begin_all(window)
        answer_one(window)
    while window.under_way:
        window.end(0)


@given(
    most=st.integers(1, 600),
    acts=st.lists(st.tuples(st.sampled_from("begin end grow shrink".split()), st.integers(0, 1 << 29))),
)
def test_one_request_is_always_allowed_and_never_more_than_the_most(
    most: int, acts: list[tuple[str, int]]
) -> None:
    window, under_way = Window(most), []
    for act, nbytes in acts:
        if act == "begin" and window.is_open:
            under_way.append((window.begin(nbytes), nbytes))
        elif under_way:
            number, nbytes = under_way[0]
            if act == "grow":
                window.grow()
            elif act == "shrink":
                window.shrink(number)
            elif act == "end":
                window.end(under_way.pop(0)[1])
        assert 1 <= window.limit <= most
        assert len(under_way) <= most
        assert under_way or window.is_open
