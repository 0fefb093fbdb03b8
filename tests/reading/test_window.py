"""How many requests a reader has under way, without a loop or a clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncfeed.reading.window import MAX_BYTES, Window


def test_large_requests_are_limited_by_their_bytes() -> None:
    window = Window(512)
    begun = 0
    while window.is_open:
        window.begin(8 << 20)
        begun += 1
    assert begun == MAX_BYTES // (8 << 20)
    window.end(8 << 20)
    assert window.is_open


@given(
    most=st.integers(1, 600), acts=st.lists(st.tuples(st.sampled_from(["begin", "end"]), st.integers(0, 1 << 29)))
)
def test_one_request_is_always_allowed_and_never_more_than_the_most(
    most: int, acts: list[tuple[str, int]]
) -> None:
    window, under_way = Window(most), []
    for act, nbytes in acts:
        if act == "begin" and window.is_open:
            window.begin(nbytes)
            under_way.append(nbytes)
        elif act == "end" and under_way:
            window.end(under_way.pop(0))
        assert len(under_way) == window.under_way <= most
        assert under_way or window.is_open
