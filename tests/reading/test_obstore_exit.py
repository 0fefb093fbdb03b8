"""The interpreter ends when no thread of obstore is about to return from asyncio."""

from __future__ import annotations

import _thread
import asyncio
import threading

import pytest

from asyncfeed.reading.obstore_exit import note_unheard, wait_for_obstore

pytest.importorskip("obstore")


class Loop:
    """Delivers until it is released."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.released = threading.Event()

    def call_soon_threadsafe(self) -> None:
        self.inside.set()
        self.released.wait()


def test_it_waits_for_a_delivery_of_a_thread_that_python_did_not_start() -> None:
    loop = Loop()
    _thread.start_new_thread(loop.call_soon_threadsafe, ())
    loop.inside.wait()
    waiting = threading.Thread(target=wait_for_obstore)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    loop.released.set()
    waiting.join()


def test_it_waits_no_longer_than_it_may() -> None:
    loop = Loop()
    _thread.start_new_thread(loop.call_soon_threadsafe, ())
    loop.inside.wait()
    wait_for_obstore(0.01)
    loop.released.set()


def test_it_does_not_wait_for_threads_of_python() -> None:
    loop = Loop()
    thread = threading.Thread(target=loop.call_soon_threadsafe)
    thread.start()
    loop.inside.wait()
    wait_for_obstore(float("inf"))
    loop.released.set()
    thread.join()


def test_it_waits_for_requests_whose_loop_was_closed() -> None:
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    loop.close()
    note_unheard([future])
    waiting = threading.Thread(target=wait_for_obstore)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    del future
    waiting.join()
