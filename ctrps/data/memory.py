"""The memory of this process: what it has, and what a limit leaves of it.

What is resident is asked of the system and not added up: the interpreter, libraries and compiled
kernels take their part, and so does what malloc keeps of arrays that are gone. What work is going
to take, those who do it say.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import resource
import sys
from pathlib import Path

MARGIN = 0.08
"""Share of a limit that nobody counts on: estimates are rough, and pages do not come one by one."""

OWN_BYTES = 320 << 20
"""What the interpreter, our libraries and kernels have at most. More than that, at the beginning,
is of a program that calls us, such as a notebook: it is not ours to bound."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Numbers of settings of glibc's mallopt."""

KEEPS_BYTES = 64 << 20
"""What malloc may keep of freed memory instead of asking the system for it again and again."""

_RESIDENT, _STATUS = Path("/proc/self/statm"), Path("/proc/self/status")


def peak_bytes() -> int:
    """Most memory that this process ever had resident."""
    try:
        # Not what getrusage says: that begins with what the starter of the process had.
        found = re.search(rb"^VmHWM:\s*([0-9]+) kB", _STATUS.read_bytes(), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int:
    """Memory that this process has resident; where the system does not tell, the most it had."""
    try:
        return int(_RESIDENT.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_bytes()


class Memory:
    """A limit of what this process may have resident.

    From here on its threads take memory of one heap, where the C library is glibc: of a heap for
    each, what one has freed is no use to another.
    """

    def __init__(self, limit_bytes: int):
        _call("mallopt", _ARENA_MAX, 1)
        _call("mallopt", _MMAP_THRESHOLD, KEEPS_BYTES // 2)
        _call("mallopt", _TRIM_THRESHOLD, KEEPS_BYTES)
        _call("malloc_trim", 0)
        self._others = max(resident_bytes() - OWN_BYTES, 0)
        self._usable = int(limit_bytes * (1 - MARGIN)) + self._others

    def left(self) -> int:
        """Bytes that may be taken; below 0 if too much is taken already."""
        _call("malloc_trim", 0)
        return self._usable - resident_bytes()

    def limit_mb(self, more_bytes: int) -> int:
        """The limit of which so many bytes would be left, in MB."""
        ours = resident_bytes() - self._others
        return math.ceil((ours + more_bytes) / (1 - MARGIN) / 2**20)

    def ease(self) -> None:
        """Give back to the system what is free, if there is little left."""
        if resident_bytes() > self._usable:
            _call("malloc_trim", 0)


def _call(name: str, *numbers: int) -> None:
    """Call a function of glibc; others lack it, and keep less memory, too."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function:
        function(*numbers)
