"""``ctrps`` with parts and buckets so small that little data has many of each.

``python -m tests.extract_small extract ...`` is that command; workers of Dask take this file as a
preload. With a variable ``STOP_AT=PATTERN NUMBER MARKER`` it stops for good when it opens the
NUMBERth file whose path fits PATTERN to write it, and says so by making the file MARKER.
"""

import fnmatch
import os
import sys
import threading
from pathlib import Path

from ctrps.data import buckets, deal, samples


def make_small() -> None:
    """In this process; not where this file is only imported, to be looked through for tests."""
    deal.PART_BYTES = 20_000
    deal.PART_ROWS = 100
    samples.KEPT_SHARE = 0.0
    buckets.BUCKET_TEXT_BYTES = 60_000
    buckets.RUN_EVENTS = 700
    if "STOP_AT" in os.environ:
        words = os.environ["STOP_AT"].split()
        stop_at(words[0], int(words[1]), Path(words[2]))


def dask_setup(worker: object) -> None:
    """Called by Dask in a worker that preloads this file."""
    make_small()


def stop_at(pattern: str, number: int, marker: Path) -> None:
    left = [number]

    def look(event: str, values: tuple[object, ...]) -> None:
        if event != "open" or str(values[1])[:1] not in "wa":
            return
        if fnmatch.fnmatch(str(values[0]), pattern):
            left[0] -= 1
            if left[0] == 0:
                marker.touch()
            if left[0] <= 0:
                threading.Event().wait()

    sys.addaudithook(look)


if __name__ == "__main__":
    from ctrps.cli import main

    make_small()
    main()
