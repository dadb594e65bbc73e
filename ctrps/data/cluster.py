"""Work of ``ctrps extract`` as tasks of a Dask cluster.

The cluster runs functions of this package that its workers import, on plain data: settings and
names of files. Everything else is in files of a folder that all share, each with its final name
only once it is whole. So a task may run again, after its worker has died or while a worker that
was given up still runs it.

Dask is imported by whoever connects, not before.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ctrps
from ctrps.data.memory import peak_bytes
from ctrps.errors import ClusterError, ConfigError, CtrpsError

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_S = 10
WORKERS_S = 60
"""How long to wait for the first worker, and for another when all are gone."""

LOOK_S = 5.0
TRIES = 4
"""Runs of a task that fails by no fault of its input, before the whole run does."""

TOPIC = "ctrps extract"
SHARED = frozenset({"windows", "lines"})
"""Stages of which each share does its own rows; of others, every share does all."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[str, int, float], None]


@dataclass(frozen=True, slots=True)
class Mark:
    """A file that says, by being there, that a folder is the one of this run."""

    path: Path

    def check(self, inputs: Sequence[Path]) -> str | None:
        """What is not seen from here."""
        unseen = [path for path in (self.path, *inputs) if not path.exists()]
        if not unseen:
            return None
        return str(self.path.parent if unseen[0] == self.path else unseen[0])


class Cluster:
    """A Dask cluster whose workers see this run's folder; see ``connected``.

    Attributes
    ----------
    run : str
        Name of this run.
    workers : int
        How many there were at the start.
    threads : int
        Tasks that one of them ran at a time, at most.
    """

    def __init__(self, client: Client, address: str, mark: Mark, inputs: Sequence[Path]):
        self._client, self._address, self._mark = client, address, mark
        self._inputs = tuple(inputs)
        self.run = mark.path.name
        self.workers, self.threads = 0, 1

    def check(self) -> None:
        """Wait for a worker, and look what the workers are.

        Raises
        ------
        ClusterError
            There is none, one does not see the files, or has another version of this package.
        """
        try:
            self._client.wait_for_workers(1, timeout=WORKERS_S)
        except TimeoutError:
            raise self._no_workers() from None
        try:
            found = self._client.run(_looked, self._mark, self._inputs)
        except CtrpsError:
            raise
        except Exception as error:
            what = f"its workers cannot run ctrps: {type(error).__name__}: {error}"
            hint = f"install ctrps {ctrps.__version__} where they run"
            raise ClusterError(what, where=self._where, hint=hint) from None
        for worker, (version, unseen) in sorted(found.items()):
            if unseen:
                raise _blind(worker, unseen)
            if version != ctrps.__version__:
                what = f"it has ctrps {version}, and this is {ctrps.__version__}"
                raise ClusterError(what, where=f"Dask worker {worker}", hint="install the same")
        self.workers = len(found)
        self.threads = max(self._client.nthreads().values(), default=1)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Results of a function that workers import, in the order of the items.

        A task whose worker dies runs on another one.

        Raises
        ------
        CtrpsError
            As the first task that raised one.
        ClusterError
            A task has failed again and again, or scheduler or workers are gone.
        """
        running = {self._submit(function, item): at for at, item in enumerate(items)}
        tries = [1] * len(items)
        results: dict[int, Result] = {}
        yielded = 0
        while running:
            for future in self._done(list(running)):
                at = running.pop(future)
                error = future.exception()
                if isinstance(error, CtrpsError):
                    raise error
                if error is None:
                    results[at] = future.result()
                elif tries[at] < TRIES:
                    tries[at] += 1
                    running[self._submit(function, items[at])] = at
                else:
                    what = f"a task failed {TRIES} times: {type(error).__name__}: {error}"
                    hint = "see the logs of its workers, then go on with --resume"
                    raise ClusterError(what, where=self._where, hint=hint)
            while yielded in results:
                yield results.pop(yielded)
                yielded += 1

    def used(self) -> dict[str, tuple[float, int]]:
        """CPU seconds and most memory in bytes of each worker's process so far."""
        return self._client.run(_used, on_error="ignore")

    @property
    def _where(self) -> str:
        return f"Dask scheduler {self._address}"

    def _submit(self, function: Callable[[Item], Result], item: Item) -> Future[Result]:
        return self._client.submit(_task, self._mark, self._inputs, function, item, pure=False)

    def _done(self, futures: list[Future[Any]]) -> list[Future[Any]]:
        """Futures that have ended, once there are some."""
        from distributed import wait

        alone_since = None
        while True:
            try:
                found = wait(futures, timeout=LOOK_S, return_when="FIRST_COMPLETED")
            except TimeoutError:
                if self._client.scheduler_info()["workers"]:
                    alone_since = None
                elif alone_since is None:
                    alone_since = time.monotonic()
                elif time.monotonic() - alone_since > WORKERS_S:
                    raise self._no_workers() from None
                continue
            except self._lost_errors():
                hint = "start the cluster again, then go on with --resume"
                raise ClusterError("it is gone", where=self._where, hint=hint) from None
            return list(found.done)

    @staticmethod
    def _lost_errors() -> tuple[type[BaseException], ...]:
        from concurrent.futures import CancelledError

        from distributed import CancelledError as Cancelled

        return (CancelledError, Cancelled, OSError)

    def _no_workers(self) -> ClusterError:
        what = f"it has had no worker for {WORKERS_S} s"
        hint = f"start some, for example with: dask worker {self._address}"
        return ClusterError(what, where=self._where, hint=hint)


@contextmanager
def connected(
    address: str, folder: Path, inputs: Sequence[Path], progress: Progress | None
) -> Iterator[Cluster]:
    """A Dask cluster that works on a folder.

    Parameters
    ----------
    address
        Of its scheduler, as ``host:port`` or ``tcp://host:port``.
    folder, inputs
        Where results go, and files and folders that are read; all workers must see them.
    progress
        Called with what workers ``report``, from another thread.

    Raises
    ------
    ConfigError
        Dask is not installed, or the address is none.
    ClusterError
        There is no such scheduler, or as ``Cluster.check`` says.
    """
    try:
        from distributed import Client
    except ImportError:
        hint = "install it with: pip install 'ctrps[dask]'"
        raise ConfigError(
            "it needs the package distributed", where="--dask", hint=hint, id="E-PACKAGE"
        ) from None
    # It tells of every lost connection; what matters is told by errors.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=CONNECT_S)
    except ValueError as error:
        hint = "give HOST:PORT of a scheduler, for example tcp://10.0.0.1:8786"
        raise ConfigError(
            f"{address!r} is no address: {error}", where="--dask", hint=hint
        ) from None
    except OSError:
        what = f"no answer within {CONNECT_S} s"
        hint = "start it with: dask scheduler; it prints the address to give here"
        raise ClusterError(what, where=f"Dask scheduler {address}", hint=hint) from None
    with client, _marked(folder) as mark:
        cluster = Cluster(client, address, mark, inputs)
        cluster.check()
        if progress:
            client.subscribe_topic(TOPIC, _Told(cluster.run, progress).event)
        yield cluster


@contextmanager
def _marked(folder: Path) -> Iterator[Mark]:
    """A mark in a folder; tasks of earlier runs, whose marks are gone, fail."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("dask-*.mark"):
        old.unlink(missing_ok=True)
    mark = Mark(folder / f"dask-{secrets.token_hex(8)}.mark")
    mark.path.touch()
    try:
        yield mark
    finally:
        mark.path.unlink(missing_ok=True)


class _Told:
    """Adds up what the shares of a stage have done."""

    def __init__(self, run: str, progress: Progress):
        self._run, self._progress = run, progress
        self._done: dict[str, dict[str, tuple[int, float]]] = {}

    def event(self, event: tuple[float, Any]) -> None:
        _, (run, share, stage, rows, done) = event
        if run != self._run:
            return
        shares = self._done.setdefault(stage, {})
        shares[share] = rows, done
        every, parts = zip(*shares.values(), strict=True)
        total = sum(every) if stage in SHARED else max(every)
        self._progress(stage, total, min(parts))


def report(run: str, share: str, stage: str, rows: int, done: float) -> None:
    """Tell a run, from a task, what its share of a stage has done so far."""
    from distributed import get_worker

    get_worker().log_event(TOPIC, [run, share, stage, rows, done])


def threads_here() -> int:
    """Threads of the worker that runs this task."""
    from distributed import get_worker

    return int(get_worker().state.nthreads)


def _task(
    mark: Mark, inputs: Sequence[Path], function: Callable[[Item], Result], item: Item
) -> Result:
    """Run a function where the files of the run are there."""
    from distributed import get_worker

    unseen = mark.check(inputs)
    if unseen:
        raise _blind(get_worker().address, unseen)
    return function(item)


def _looked(mark: Mark, inputs: Sequence[Path]) -> tuple[str, str | None]:
    return ctrps.__version__, mark.check(inputs)


def _used() -> tuple[float, int]:
    return time.process_time(), peak_bytes()


def _blind(worker: str, unseen: str) -> ClusterError:
    hint = "mount the folder there under the same path"
    return ClusterError(f"it does not see {unseen}", where=f"Dask worker {worker}", hint=hint)
