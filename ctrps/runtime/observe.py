"""A run seen from another process: where its page is, what it answers, and what is left of it."""

import http.client
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ctrps.errors import ClusterError, ConfigError
from ctrps.runtime.facts import FOUND, PAGE, STATE, config_of, plain, read_json
from ctrps.runtime.history import History
from ctrps.sections import parse_address

ASK_S = 5.0
MOST_BYTES = 64 << 20
WELL = ("healthy", "starting", "finished")


@dataclass(frozen=True)
class Observed:
    """What is known of a run.

    Attributes
    ----------
    health
        Of a running one ``healthy``, ``starting`` or ``degraded``; else ``finished``, ``stopped``
        or ``unreachable``.
    state
        As the run told it, now or last of all; may be empty.
    url
        Of its page, empty if there is none.
    summary
        Of a finished run.
    """

    health: str
    state: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    summary: dict[str, Any] = field(default_factory=dict)
    why: str = ""

    @property
    def well(self) -> bool:
        return self.health in WELL

    def as_dict(self) -> dict[str, Any]:
        """What ``ctrps status --json`` prints."""
        found = {"health": self.health, "url": self.url or None, "why": self.why or None}
        return {**self.state, **found, "summary": self.summary or None}


def find(place: str | None, here: Path) -> str | Path:
    """What a command was given, or the one run that is to be found here.

    Returns
    -------
    str or Path
        An address, or the folder of a run.

    Raises
    ------
    ConfigError
        It is neither, or there are several runs or none.
    """
    if place is None:
        return _only(here)
    if Path(place).is_dir():
        return Path(place).absolute()
    address = place.removeprefix("http://").rstrip("/")
    try:
        parse_address(address)
    except ConfigError:
        raise ConfigError(
            f"{place!r} is neither the folder of a run nor an address",
            hint="give the folder (output.dir), or the HOST:PORT of the run's page",
        ) from None
    return address


def _only(here: Path) -> Path:
    """The run in this folder, or the only one below ``runs`` whose page is open."""
    if is_run(here):
        return here
    found = sorted(path.parent for path in here.glob(f"runs/*/{FOUND}"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(path.relative_to(here)) for path in found[:5])
    raise ConfigError(
        f"several runs are here: {names}" if found else "no running job is to be found here",
        where=str(here),
        hint="give the folder of a run (output.dir), or the HOST:PORT of its page",
    )


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run, running or not."""
    return (folder / "config.resolved.yaml").is_file()


def observe(place: str | Path) -> Observed:
    """Ask a run how it is; of one that does not run, tell what it has left.

    Parameters
    ----------
    place
        As ``find`` returns it.

    Raises
    ------
    ConfigError
        The folder is not that of a run.
    """
    if isinstance(place, str):
        return _asked(place)
    if not is_run(place):
        raise ConfigError(
            "this folder is not that of a run",
            where=str(place),
            hint="give output.dir of a job, or the HOST:PORT of its page",
        )
    found = read_json(place / FOUND)
    url = found.get("url")
    if url:
        asked = _asked(str(url).removeprefix("http://").rstrip("/"))
        # Another process may have the port of one that was killed.
        if asked.state.get("run") == str(place.resolve()) or asked.state.get("run") == str(place):
            return asked
    summary, state = read_json(place / "summary.json"), read_json(place / STATE)
    if summary:
        return Observed("finished", state, summary=summary)
    if _held(place):
        why = found.get("said") or ("it has no page" if found else "it has no page yet")
        return Observed("unreachable" if found else "starting", state, why=str(why))
    why = "no process of it is running; the same command again goes on with it"
    return Observed("stopped", state, why=why)


def _asked(address: str) -> Observed:
    url = f"http://{address}/"
    try:
        state = ask(address, "/api/state")
    except ClusterError as error:
        return Observed("unreachable", url=url, why=error.what)
    return Observed(str(state.get("health", "unreachable")), state, url)


def ask(address: str, path: str) -> dict[str, Any]:
    """What a run's page answers.

    Raises
    ------
    ClusterError
        Nobody answers there, or not as ctrps does.
    """
    host, port = parse_address(address)
    connection = http.client.HTTPConnection(host, port, timeout=ASK_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(MOST_BYTES)
        found = json.loads(body) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ClusterError(f"no answer: {why.lower()}", where=address) from None
    finally:
        connection.close()
    if not isinstance(found, dict) or "health" not in found:
        raise ClusterError("what answers there is no run of ctrps", where=address)
    return found


def _held(folder: Path) -> bool:
    """Whether the process that took the folder is there; to try its lock would be in its way."""
    try:
        return psutil.pid_exists(int((folder / ".lock").read_text("ascii")))
    except (OSError, ValueError):
        return False


def frozen(folder: Path) -> str:
    """The page of a run with all its data in it, for a file that needs nothing else."""
    seen = observe(folder)
    history = History(folder).read()
    state = seen.state or _remains(folder, history)
    data = {
        "state": {**state, "health": seen.health, "problems": state.get("problems") or []},
        "health": seen.health,
        "history": history,
        "config": config_of(folder),
        "summary": seen.summary,
    }
    text = json.dumps(plain(data), allow_nan=False).replace("<", "\\u003c")
    page = PAGE.read_text("utf-8")
    before, mark, after = page.partition('<script id="frozen" type="application/json">')
    return before + mark + text + after.removeprefix("null")


def _remains(folder: Path, history: dict[str, Any]) -> dict[str, Any]:
    """A state from the figures alone, of a run that was killed before it could leave one."""
    columns = history["columns"]
    last = {name: column[-1] if column else None for name, column in columns.items()}
    tests = history["tests"]
    return {
        **last,
        **dict.fromkeys(("eta_s", "uptime_s", "staleness", "checkpoint", "pass_rows")),
        "version": "",
        "job": folder.name,
        "run": str(folder),
        "pid": 0,
        "phase": "ended",
        "model": "",
        "consistency": "",
        "passes": (last["pass"] or 0) + 1,
        "problems": [],
        "waits_for": "",
        "nodes": [],
        "test": tests[-1] if tests else None,
        "time": last["ts"] or time.time(),
    }
