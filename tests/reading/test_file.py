"""`File`: what is known about a file before it is read."""

from __future__ import annotations

import os
import pickle

from asyncfeed.reading.file import File


def test_a_file_shows_its_path_and_its_size_where_it_is_known() -> None:
    assert repr(File("a.npy", 17)) == "File('a.npy', 17 bytes)"
    assert repr(File("a.npy", 1)) == "File('a.npy', 1 byte)"
    assert repr(File("a.npy")) == "File('a.npy')"


def test_files_are_equal_by_all_they_know_and_hash_by_path() -> None:
    assert File("a", 1, 2) == File("a", 1, 2)
    assert File("a", 1, 2) != File("a", 1, 3)
    assert File("a", 1) != File("b", 1)
    assert File("a") != "a"
    assert hash(File("a", 1)) == hash(File("a", 2))


def test_a_file_is_a_path_costs_no_memory_and_can_be_pickled() -> None:
    file = File("a.npy", 17, 99)
    assert os.fspath(file) == "a.npy"
    assert file.nbytes == 0
    assert pickle.loads(pickle.dumps(file)) == file
