"""Readers that do what no reader may, to see that ``benchmarks.fuzz`` notices."""

import os
import signal
from pathlib import Path
from random import Random

from benchmarks.fuzz import Reader
from ctrps.errors import DataError


def prepare(folder: Path) -> None:
    """Nothing is needed."""


def _make(prepared: Path, folder: Path, rng: Random | None) -> None:
    (folder / "input").write_text("valid" if rng is None else str(rng.randrange(4)))


def _reader(fault) -> Reader:
    """Reads what is valid, and one spoiled input in four; meets its fault in the others."""

    def read(folder: Path, rng: Random) -> int:
        text = (folder / "input").read_text()
        return 1 if text in ("valid", "0") else fault()

    return Reader(_make, read)


def _refuse():
    raise DataError("it is spoiled", where="input:1")


def _refuse_without_a_place():
    raise DataError("it is spoiled")


def _loop():
    while True:
        pass


def _crash():
    os.kill(os.getpid(), signal.SIGSEGV)


READERS = {
    "good": _reader(_refuse),
    "placeless": _reader(_refuse_without_a_place),
    "other exception": _reader(lambda: {}["a"]),
    "crash": _reader(_crash),
    "hang": _reader(_loop),
    "memory": _reader(lambda: len(b"x" * (64 << 20)) >> 26),
}
