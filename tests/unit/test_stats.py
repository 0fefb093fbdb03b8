"""What a feed says about itself: numbers, as text and as a table for a notebook, its length, and what it is."""

from __future__ import annotations

import asyncio
import copy
import pickle
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncfeed as af
from asyncfeed.stats import SlowPaths
from tests.engine.outside import threads_ended


def stats(**given: Any) -> af.FeedStats:
    return af.FeedStats(10, 1000, 2.0, 0.5, 1.0, 0, 0, 100, 1000, **given)


def test_the_table_fits_a_narrow_terminal() -> None:
    """Names of stages are as long as their descriptions: they are wrapped, and nothing is lost."""
    name = "map(augment, concurrency=16, ordered=False, rng=True, seed=123456789, on_error='skip', skip_limit=10)"
    text = str(stats(concurrency=((name, 16), ("map(f)", 2)), slow_paths=(("load(npy()), one by one: why", 3),)))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 54
    words = " ".join(text.split())
    assert name in words.replace(" 16 at a time: map(f)", "")
    assert "slow: load(npy()), one by one: why 3" in words


def test_slow_paths_are_shown_where_there_were_any() -> None:
    """Otherwise the table says nothing of them."""
    assert "slow" not in str(stats())
    assert "slow" not in str(stats(slow_paths=(("why", 0),)))
    assert "slow: why" in str(stats(slow_paths=(("why", 1),)))


def test_waits_for_turns_are_shown_beside_other_feeds() -> None:
    assert "turns" not in str(stats(turns_waited=1.0))
    assert "turns" not in str(stats(turns_waited=0.01, other_feeds=60))
    assert "calls waited for turns          1.20 s beside 60 feeds" in str(stats(turns_waited=1.2, other_feeds=60))
    assert "beside 1 feed\n" in f"{stats(turns_waited=1.2, other_feeds=1)}\n"


def test_a_notebook_shows_a_table() -> None:
    """With the rows of the text; what the user named is escaped."""
    html = stats(concurrency=(("map(<lambda>)", 3),))._repr_html_()
    assert html.startswith("<table>")
    assert html.endswith("</table>")
    assert "<tr><th>at a time: map(&lt;lambda&gt;)</th><td>3</td><td></td></tr>" in html
    assert "<th>batches</th><td>10</td><td>5 /s</td>" in html


def test_slow_paths_are_counted_by_reason() -> None:
    """In the order in which they first came."""
    paths = SlowPaths()
    for reason in "bab":
        paths.note(reason)
    assert paths.counts() == (("b", 2), ("a", 1))


def save(folder: Path, number: int, array: Any) -> str:
    path = folder / f"{number:03}.npy"
    np.save(path, array)
    return str(path)


def slow(pipeline: af.Pipeline[Any], error: type[Exception] | None = None) -> tuple[tuple[str, int], ...]:
    with pipeline.open() as feed:
        if error is None:
            list(feed)
        else:
            with pytest.raises(error):
                list(feed)
        return feed.stats().slow_paths


def test_files_that_are_alike_take_no_slow_path(tmp_path: Path) -> None:
    """They are read straight into their rows."""
    for number in range(6):
        save(tmp_path, number, np.arange(3))
    assert slow(af.files(f"{tmp_path}/*.npy").load(af.npy).batch(3)) == ()


@pytest.mark.parametrize(
    ("case", "reason", "error"),
    [
        ("fortran", "an array is in Fortran order", None),
        ("ragged", "a file differs from the first in its header or size", ValueError),
        ("missing", "FileNotFoundError while a file was read", FileNotFoundError),
        ("corrupt", "Corrupt while a file was read", af.Corrupt),
        ("compressed", "the arrays are compressed, pickled, or too many", None),
        ("labels", "the samples do not fit together", ValueError),
    ],
)
def test_a_batch_that_is_loaded_file_by_file_is_counted(
    tmp_path: Path, case: str, reason: str, error: type[Exception] | None
) -> None:
    """By the stage and the reason: it is several times slower, and the data is the same."""
    paths, decoder = [], af.npy
    for number in range(4):
        array = np.asfortranarray(np.ones((3, 2))) if case == "fortran" else np.arange(3)
        if case == "ragged" and number == 3:
            array = np.arange(4)
        if case == "compressed":
            decoder = af.npz()
            paths.append(str(tmp_path / f"{number}.npz"))
            np.savez_compressed(paths[-1], x=array)
        else:
            paths.append(save(tmp_path, number, array))
    if case == "missing":
        Path(paths[1]).unlink()
    elif case == "corrupt":
        Path(paths[0]).write_bytes(b"")
    samples: list[Any] = [af.File(path) for path in paths]
    if case == "labels":
        samples = list(zip(samples, [np.zeros(each) for each in (1, 1, 1, 2)], strict=True))
    found = slow(af.items(samples).load(decoder).batch(4), error)
    assert [(each.rpartition(": ")[2], count) for each, count in found] == [(reason, 1)]
    assert found[0][0].startswith("load(")


def test_files_that_can_never_be_read_into_rows_are_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at the layout reads and unpacks a file: compressed ones would be read twice in every batch."""
    looks = []
    layout = type(af.npz).layout
    monkeypatch.setattr(type(af.npz), "layout", lambda *args: looks.append(1) or layout(*args))
    for number in range(8):
        np.savez_compressed(tmp_path / f"{number}.npz", x=np.arange(3))
    found = slow(af.files(f"{tmp_path}/*.npz").load(af.npz, concurrency=1).batch(2))
    assert [count for _, count in found] == [4]
    assert len(looks) == 1


def test_a_fault_of_our_own_is_not_hidden_by_the_slow_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is known to be the data's is tried again."""

    def breaks(*_: Any) -> None:
        raise ValueError("a bug")

    save(tmp_path, 0, np.arange(3))
    monkeypatch.setattr("asyncfeed.stages.read_rows.HeadedRows.read", breaks)
    with pytest.raises(ValueError, match="a bug"):
        list(af.files(f"{tmp_path}/*.npy").load(af.npy).batch(1))


def test_every_stage_that_calls_a_function_says_how_many_times_at_once() -> None:
    """`flat_map`, too."""

    async def main() -> list[str]:
        pipeline = af.items(range(3)).map(str, concurrency=2).flat_map(list, concurrency=3).filter(bool)
        async with pipeline.open() as feed:
            _ = [x async for x in feed]
            return [name.partition("(")[0] for name, count in feed.stats().concurrency if count]

    assert asyncio.run(main()) == ["map", "flat_map", "filter"]


# -- the feed itself


def test_the_length_of_a_feed_is_that_of_its_pipeline() -> None:
    """All items of one run, however many were drawn; a feed is true, whatever its length."""
    with af.items(range(7)).batch(2).open() as feed:
        assert len(feed) == 4
        next(feed)
        assert len(feed) == 4
        assert len(list(feed)) == 3
    with af.items([]).open() as feed:
        assert len(feed) == 0
        assert feed
    unknown = af.items(range(7)).filter(bool).open()
    assert unknown
    with pytest.raises(TypeError, match="not known"):
        len(unknown)
    assert len(list(unknown)) == 6


def test_a_feed_as_a_source_is_a_stream_of_what_is_left() -> None:
    """Its length is that of the whole run, and a part may have been drawn."""

    async def main() -> list[int]:
        async with af.items(range(5)).open() as feed:
            await anext(feed)
            pipeline = af.items(feed)
            assert pipeline.size() is None
            return [x async for x in pipeline]

    assert asyncio.run(main()) == [1, 2, 3, 4]


def test_a_feed_says_what_it_is_and_where_it_stands() -> None:
    """Its pipeline, its state, and how many items it has delivered."""
    feed = af.items(range(3)).open()
    assert repr(feed) == "<Feed of items(range(0, 3)), not started, delivered 0>"
    with feed:
        next(feed)
        assert ", delivered 1>" in repr(feed)
        list(feed)
        assert ", at its end, delivered 3>" in repr(feed)
    assert "stopped" not in repr(feed) or "the feed was closed" in repr(feed)
    feed = af.items([0]).map(lambda x: 1 // x).open()
    with pytest.raises(ZeroDivisionError):
        next(feed)
    assert ", failed with ZeroDivisionError, delivered 0>" in repr(feed)
    feed.close()
    feed = af.items([0]).open()
    feed.stop("enough")
    assert ", stopped: enough, delivered 0>" in repr(feed)


@pytest.mark.parametrize("send", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_feed_that_is_sent_says_to_send_the_pipeline(send: Callable[[Any], Any]) -> None:
    """Begun or not, and also where it is within something else; what is to be sent instead can be."""
    epochs = af.items(range(3)).epochs(2)
    with af.items(range(3)).open() as feed:
        for each in (feed, af.items(range(3)).open()):
            with pytest.raises(
                TypeError, match=r"Feed cannot be pickled or copied.*send the pipeline \(feed.pipeline"
            ):
                send(each)
        assert list(send(feed.pipeline) if send is not pickle.dumps else pickle.loads(send(feed.pipeline))) == [
            0,
            1,
            2,
        ]
    for each in (epochs, next(epochs)):
        with pytest.raises(TypeError, match="send the pipeline"):
            pickle.dumps(each)


def test_a_feed_that_is_stopped_lets_go_of_what_was_made_by_then() -> None:
    made: list[weakref.ref[Any]] = []

    class Thing:
        pass

    def make(_: int) -> Thing:
        thing = Thing()
        made.append(weakref.ref(thing))
        return thing

    feed = af.items(range(5)).map(make).open()
    next(feed)
    assert threads_ended()  # the run has ended: all is in the queue
    feed.stop()
    assert [each() for each in made] == [None] * 5
    feed.close()


def test_the_time_ends_where_the_feed_was_stopped_though_all_was_made_by_then() -> None:
    feed = af.items(range(3)).open()
    next(feed)
    time.sleep(0.05)
    feed.stop()
    epochs = af.items(range(3)).epochs(1)
    for epoch in epochs:
        next(epoch)
        time.sleep(0.05)
    for each in (feed, epochs.feed):
        seconds = each.stats().seconds
        assert seconds >= 0.05
        time.sleep(0.01)
        assert each.stats().seconds == seconds
    feed.close()
    epochs.feed.close()
