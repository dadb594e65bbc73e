"""Kernels are compiled by one process of a machine at a time, and the others wait for it."""

import fcntl

import numpy as np
import pytest
from numba import njit

from ctrps.runtime import warm


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where compiled kernels are kept; not there yet."""
    folder = tmp_path / "not" / "yet"
    monkeypatch.setattr(warm, "cache_folder", lambda: folder)
    return folder


def compile_something() -> None:
    assert njit(lambda n: n + 1)(1) == 2


def taken(folder) -> bool:
    """Whether another process would have to wait."""
    with open(folder / "compiling.lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_who_compiles_holds_the_lock_until_it_is_done(folder):
    with warm.one_at_a_time():
        assert not folder.exists(), "nothing to compile yet"
        for _ in range(2):
            compile_something()
            assert taken(folder)
    assert not taken(folder)


def test_an_error_lets_the_others_go_on(folder):
    with pytest.raises(ZeroDivisionError), warm.one_at_a_time():
        compile_something()
        assert 1 // int(not taken(folder))
    assert not taken(folder)


def test_who_has_all_kernels_waits_for_nobody(folder):
    kernel = njit(lambda x: x.sum())
    kernel(np.ones(3))
    folder.mkdir(parents=True)
    with open(folder / "compiling.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with warm.one_at_a_time():
            assert kernel(np.ones(4)) == 4.0


def test_without_a_place_for_a_lock_each_compiles_for_itself(folder):
    folder.parent.parent.mkdir(exist_ok=True)
    folder.parent.write_text("a file where a folder should be")
    with warm.one_at_a_time():
        compile_something()
