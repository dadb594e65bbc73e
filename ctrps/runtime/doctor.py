"""Whether this machine can run jobs: what is installed, what there is of it, what is permitted.

Each check says what it found and, where that is not well, what to do. Checks of other machines are
in ``ctrps.runtime.reach``.
"""

import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from ctrps import __version__
from ctrps.errors import ClusterError
from ctrps.runtime.security import can_encrypt, is_loopback, resolve
from ctrps.runtime.shared import can_share

OK, WARN, FAIL = "ok", "warn", "fail"
LEVELS = (FAIL, WARN, OK)
"""The worst first."""

PACKAGES = ("numpy", "numba", "pandas", "pyzmq", "msgpack", "pydantic", "typer", "psutil")
LEAST_PYTHON = (3, 11)
LEAST_MEMORY = 1 << 30
LEAST_DISK = 1 << 30
LEAST_FILES = 1024
"""Open files: each peer takes a few, and each block of a shard one."""

VECTORS = ("avx2", "fma")
"""Instructions of x86 without which the kernels take about twice as long."""

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination: a name, a level of ``LEVELS``, what was found, a remedy."""

    name: str
    level: str
    what: str
    hint: str = ""


def examine(folder: Path) -> list[Finding]:
    """All checks of this machine, in an order in which an earlier one explains a later one.

    Parameters
    ----------
    folder
        Where runs will be written: its disk is looked at.
    """
    looks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _packages,
        _cores,
        _memory,
        lambda: _disk(folder),
        _files,
        _huge_pages,
        _shared_memory,
        _kernel_cache,
        _encryption,
        _own_name,
        _loopback,
    )
    return [finding for look in looks for finding in look()]


def worst_first(findings: list[Finding]) -> list[Finding]:
    """In the order of what to see to; the order of the checks where they are as bad."""
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def _python() -> Iterator[Finding]:
    found = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yes = sys.version_info >= LEAST_PYTHON and platform.system() == "Linux"
    hint = "ctrps runs on Linux, with Python 3.11 or newer"
    yield Finding("python", OK if yes else FAIL, f"{found}, {system}", "" if yes else hint)


def _packages() -> Iterator[Finding]:
    found, absent = [f"ctrps {__version__}"], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            absent.append(name)
    if absent:
        hint = "install ctrps again with all that it needs"
        yield Finding("packages", FAIL, f"not installed: {', '.join(absent)}", hint)
    else:
        yield Finding("packages", OK, ", ".join(found))


def _cores() -> Iterator[Finding]:
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    flags = _cpu_flags()
    missing = [flag for flag in VECTORS if flags and flag not in flags]
    text = f"{usable} of {there} cores may be used"
    level, hint = OK, ""
    if missing:
        level, hint = WARN, "training is slower here; results are the same"
        text += f", without {' and '.join(missing)}"
    elif flags:
        text += f", with {' and '.join(VECTORS)}"
    yield Finding("processor", level, text, hint)


def _cpu_flags() -> set[str]:
    """Names of instruction sets of an x86 processor; none for others."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return set(next((line.split(":")[1].split() for line in lines if line[:5] == "flags"), ()))


def _memory() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    free = memory.available
    text = f"{_gb(free)} of {_gb(memory.total)} free"
    limit = _memory_limit()
    if limit is not None and limit < memory.total:
        text += f", limited to {_gb(limit)} by the container"
        free = min(free, limit)
    enough = free >= LEAST_MEMORY
    hint = "" if enough else "end other processes; a model takes 54 bytes a key and more"
    yield Finding("memory", OK if enough else WARN, text, hint)


def _memory_limit() -> int | None:
    """Of the control group of this process, where it can be told."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int(Path("/sys/fs/cgroup", name).read_text(encoding="ascii"))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return None


def _disk(folder: Path) -> Iterator[Finding]:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    text = f"{_gb(free)} free in {there}"
    if not os.access(there, os.W_OK):
        hint = "go to a folder of yours, or set output.dir"
        yield Finding("disk", FAIL, f"{text}, which may not be written to", hint)
        return
    enough = free >= LEAST_DISK
    yield Finding("disk", OK if enough else WARN, text, "" if enough else "make room")


def _files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < LEAST_FILES
    hint = f"for many nodes: ulimit -n {hard}" if few else ""
    yield Finding("open files", WARN if few else OK, f"at most {soft:,}", hint)


def _huge_pages() -> Iterator[Finding]:
    try:
        text = HUGE_PAGES.read_text(encoding="ascii")
    except OSError:
        yield Finding("huge pages", WARN, "this system does not tell")
        return
    chosen = text.partition("[")[2].partition("]")[0]
    hint = f"for large models: echo madvise > {HUGE_PAGES} (as root)"
    never = chosen == "never"
    yield Finding("huge pages", WARN if never else OK, chosen, hint if never else "")


def _shared_memory() -> Iterator[Finding]:
    yes = can_share()
    text = "processes of one machine exchange arrays through memory"
    hint = "they use loopback sockets instead, which takes more time"
    yield Finding(
        "shared memory", OK if yes else WARN, text if yes else "none", "" if yes else hint
    )


def _kernel_cache() -> Iterator[Finding]:
    hint = "set NUMBA_CACHE_DIR to a folder that may be written to"
    try:
        from ctrps.runtime.warm import cache_folder

        folder = cache_folder()
    except RuntimeError as error:  # Numba finds no place at all
        yield Finding("kernel cache", FAIL, " ".join(str(error).split())[:200], hint)
        return
    there = next(path for path in (folder, *folder.parents) if path.exists())
    warm = len(list(folder.glob("*.nbi"))) if folder.exists() else 0
    if not os.access(there, os.W_OK):
        yield Finding("kernel cache", FAIL, f"{folder} may not be written to", hint)
    elif not warm:
        hint = "the first run compiles, about a minute; `ctrps demo` does it"
        yield Finding("kernel cache", WARN, f"empty, in {folder}", hint)
    else:
        yield Finding("kernel cache", OK, f"{warm} kernels, in {folder}")


def _encryption() -> Iterator[Finding]:
    yes = can_encrypt()
    hint = "" if yes else "install pyzmq from its wheel; without it no job key can be used"
    yield Finding("encryption", OK if yes else FAIL, "CURVE" if yes else "no CURVE", hint)


def _own_name() -> Iterator[Finding]:
    name = socket.gethostname()
    hint = "other machines need an address: give one in cluster.scheduler, or mend /etc/hosts"
    try:
        address = resolve(name)
    except ClusterError:
        yield Finding("own name", WARN, f"{name} cannot be resolved", hint)
        return
    near = is_loopback(address)
    yield Finding("own name", WARN if near else OK, f"{name} is {address}", hint if near else "")


def _loopback() -> Iterator[Finding]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            socket.create_connection(listening.getsockname(), 5.0).close()
    except OSError as error:
        hint = "a firewall or sandbox forbids connections inside this machine"
        yield Finding("loopback", FAIL, str(error.strerror or error).lower(), hint)
    else:
        yield Finding("loopback", OK, "127.0.0.1 can be listened on and connected to")


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
