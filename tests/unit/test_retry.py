"""When a call that failed is made again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncfeed as af

SHARES = st.floats(0, 1)
DELAYS = st.floats(1e-6, 1e6)
RESET = ConnectionResetError("reset")


@given(st.integers(1, 2000), DELAYS, DELAYS, SHARES)
def test_the_longest_delay_doubles_up_to_a_limit(attempt: int, first: float, most: float, share: float) -> None:
    retry = af.Retry(attempts=3000, seconds=1e12, first_delay=first, max_delay=most)
    delay = retry.delay(RESET, attempt, 0.0, share)
    assert delay == pytest.approx(share * min(most, first * 2.0 ** min(attempt - 1, 60)))


@given(st.integers(1, 20), st.integers(1, 30), SHARES)
def test_there_are_as_many_attempts_as_were_asked_for(attempts: int, attempt: int, share: float) -> None:
    delay = af.Retry(attempts=attempts).delay(RESET, attempt, 0.0, share)
    assert (delay is None) is (attempt >= attempts)


@given(st.floats(0, 200), SHARES)
def test_no_attempt_begins_after_the_time_for_all(elapsed: float, share: float) -> None:
    delay = af.Retry(seconds=60).delay(RESET, 1, elapsed, share)
    assert (delay is None) if elapsed > 60 else (delay is None or elapsed + delay <= 60)


def test_a_server_that_says_when_to_come_back_is_believed() -> None:
    busy = af.Unavailable("busy", kind="throttled")
    busy.retry_after = 3.0  # type: ignore[attr-defined]
    assert af.Retry().delay(busy, 1, 0.0, 0.5) == 3.0
    assert af.Retry(seconds=2).delay(busy, 1, 0.0, 0.5) is None


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (af.Unavailable("503"), True), (af.TimedOut("late"), True), (TimeoutError(), True), (RESET, True),
        (BrokenPipeError(), True),
        (FileNotFoundError(), False), (PermissionError(), False), (OSError(), False), (ValueError(), False),
        (af.Corrupt("short"), False), (KeyboardInterrupt(), False),
    ],
    ids=repr,
)  # fmt: skip
def test_only_what_may_pass_is_worth_another_attempt(error: BaseException, again: bool) -> None:  # noqa: FBT001
    assert (af.Retry().delay(error, 1, 0.0, 0.5) is not None) is again
    assert (af.Retry(on=(ValueError,)).delay(error, 1, 0.0, 0.5) is not None) is isinstance(error, ValueError)


@pytest.mark.parametrize(
    "options",
    [
        {"attempts": 0}, {"attempts": True}, {"attempts": 2.0}, {"seconds": 0}, {"seconds": float("inf")},
        {"first_delay": -1}, {"max_delay": "1"}, {"on": ConnectionError}, {"on": (BaseException,)}, {"on": ("x",)},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_by_name(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(af.PipelineError, match=f"Retry: {name} must be"):
        af.Retry(**options)


async def fetch(x: int) -> int:
    return x


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retry": 3}, r"map: retry must be an asyncfeed.Retry\(...\) or None, not 3"),
        ({"timeout": 0}, "map: timeout must be a number of seconds above 0, not 0"),
        ({"timeout": float("nan")}, "map: timeout must be"),
    ],
    ids=str,
)
def test_options_of_a_map_are_checked_where_they_are_written(options: dict[str, Any], message: str) -> None:
    with pytest.raises(af.PipelineError, match=message):
        af.items([1]).map(fetch, **options)


@pytest.mark.parametrize("options", [{"retry": af.Retry()}, {"timeout": 1.0}], ids=str)
def test_a_sync_function_is_told_that_its_calls_cannot_be_cancelled(options: dict[str, Any]) -> None:
    with pytest.raises(af.PipelineError, match=f"map: {next(iter(options))} is for async functions"):
        af.items([1]).map(abs, **options)


def test_a_retry_is_shown_as_it_was_written() -> None:
    assert str(af.items([1]).map(fetch, retry=af.Retry(attempts=2), timeout=3.0)).endswith(
        ".map(fetch, retry=Retry(attempts=2), timeout=3.0)"
    )
    assert repr(af.Retry(on=(KeyError, OSError))) == "Retry(on=(KeyError, OSError,))"
