"""The errors that ctrps raises, by who must act on them, each with an id.

::

    CtrpsError
      ConfigError          the user: command line or job file          exit 2
      DataError            the user: rows, files, empty inputs         exit 3
      CheckpointError      the operator: a model on disk               exit 3
      ClusterError         the operator: a node, an address, a limit   exit 4
        RemoteProtocolError  the peer sent what it must not
      LocalProtocolError   us: a state machine was misused             exit 1
      RunFailed            whoever the cause names                     as the cause says
      Stopped              nobody: the run was asked to stop           exit 75, 130 or 143

    CtrpsWarning           the user: what was asked for may not be what was meant

An error has the id of its class, or one of its own where the remedy is another: the pages of ids,
which `ctrps explain` shows, are in ``templates/errors.md``. Ids never change their meaning; text
may.

Only ``ctrps.cli`` and its parts print an error or end the process.
"""

import re

_TOLD = re.compile(r"\[E-[A-Z-]+\]")


def with_id(text: str, id: str) -> str:
    """A message for people, with the id at the end of its first line.

    An id that stands there already stays alone: the error came from another process.

    Examples
    --------
    >>> print(with_id("no such file\\n  more", "E-DATA-MISSING"))
    no such file [E-DATA-MISSING]
      more
    >>> print(with_id("worker 1: no such file [E-DATA-MISSING]", "E-CLUSTER"))
    worker 1: no such file [E-DATA-MISSING]
    """
    if _TOLD.search(text):
        return text
    first, *rest = text.split("\n", 1)
    return "\n".join([f"{first} [{id}]", *rest])


class CtrpsError(Exception):
    r"""An error with its place and its remedy.

    Parameters
    ----------
    what
        What happened, in a few words, with the offending text.
    where
        ``file:line:column``, a config key, a node and its address.
    hint
        What to do about it.
    id
        Names the kind of error, where its class is not enough to tell what to do.

    Examples
    --------
    >>> print(CtrpsError("no such file", where="job.yaml:3:8", hint="check data.train"))
    job.yaml:3:8: no such file; check data.train

    Parts of a file may stand in the text, so it is shown as a terminal can show it.

    >>> print(CtrpsError("no column 'a\x1b[2Jb'", where="a.csv:1"))
    a.csv:1: no column 'a\x1b[2Jb'
    """

    exit_status = 1
    id = "E-INTERNAL"

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        id: str | None = None,
    ):
        super().__init__(what)
        self.id = id or type(self).id
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        text = f"{head}; {self.hint}" if self.hint else head
        return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)

    @property
    def told(self) -> str:
        """The text that a person is shown, with the id."""
        return with_id(str(self), self.id)


class ConfigError(CtrpsError):
    """The command line or a job file cannot be used as it is."""

    exit_status = 2
    id = "E-CONFIG"


class DataError(CtrpsError):
    """An input file is missing, empty or holds something that cannot be read."""

    exit_status = 3
    id = "E-DATA"


class CheckpointError(CtrpsError):
    """A model on disk is damaged, incomplete or of another kind than asked for."""

    exit_status = 3
    id = "E-CHECKPOINT"


class ClusterError(CtrpsError):
    """A node died, was never there, or did not answer within its time limit."""

    exit_status = 4
    id = "E-CLUSTER"


class RemoteProtocolError(ClusterError):
    """A peer sent bytes or a message that its protocol does not allow."""

    id = "E-CLUSTER-PEER"


class LocalProtocolError(CtrpsError):
    """A state machine was given an input that its own driver must never give it."""

    exit_status = 1


def id_of(exit_status: int) -> str:
    """The id of an end of which only its status is known.

    Examples
    --------
    >>> id_of(4), id_of(75), id_of(143)
    ('E-CLUSTER', 'E-STOPPED', 'E-STOPPED')
    """
    known: dict[int, type[CtrpsError]] = {2: ConfigError, 3: DataError, 4: ClusterError}
    if exit_status in (75, 130, 143):
        return Stopped.id
    return known.get(exit_status, CtrpsError).id


class RunFailed(CtrpsError):
    """A local cluster ended badly; the text names the process that failed first."""

    def __init__(self, what: str, *, exit_status: int, hint: str | None = None):
        super().__init__(what, hint=hint, id=id_of(exit_status))
        self.exit_status = exit_status


class Stopped(CtrpsError):
    """The run ended early because it was told to.

    ``exit_status`` is 75 when a checkpoint lets the same command go on, and
    128 + the signal's number when there is none.
    """

    id = "E-STOPPED"

    def __init__(self, what: str, *, exit_status: int, hint: str | None = None):
        super().__init__(what, hint=hint)
        self.exit_status = exit_status


class CtrpsWarning(UserWarning):
    """Something that is no error, but that a person should look at: what, where and what to do."""
