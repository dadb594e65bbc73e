"""The errors that ctrps raises, by who must act on them.

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

Only ``ctrps.cli`` and its parts print an error or end the process.
"""


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

    Examples
    --------
    >>> print(CtrpsError("no such file", where="job.yaml:3:8", hint="check data.train"))
    job.yaml:3:8: no such file; check data.train

    Parts of a file may stand in the text, so it is shown as a terminal can show it.

    >>> print(CtrpsError("no column 'a\x1b[2Jb'", where="a.csv:1"))
    a.csv:1: no column 'a\x1b[2Jb'
    """

    exit_status = 1

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None):
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        text = f"{head}; {self.hint}" if self.hint else head
        return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


class ConfigError(CtrpsError):
    """The command line or a job file cannot be used as it is."""

    exit_status = 2


class DataError(CtrpsError):
    """An input file is missing, empty or holds something that cannot be read."""

    exit_status = 3


class CheckpointError(CtrpsError):
    """A model on disk is damaged, incomplete or of another kind than asked for."""

    exit_status = 3


class ClusterError(CtrpsError):
    """A node died, was never there, or did not answer within its time limit."""

    exit_status = 4


class RemoteProtocolError(ClusterError):
    """A peer sent bytes or a message that its protocol does not allow."""


class LocalProtocolError(CtrpsError):
    """A state machine was given an input that its own driver must never give it."""

    exit_status = 1


class RunFailed(CtrpsError):
    """A local cluster ended badly; the text names the process that failed first."""

    def __init__(self, what: str, *, exit_status: int, hint: str | None = None):
        super().__init__(what, hint=hint)
        self.exit_status = exit_status


class Stopped(CtrpsError):
    """The run ended early because it was told to.

    ``exit_status`` is 75 when a checkpoint lets the same command go on, and
    128 + the signal's number when there is none.
    """

    def __init__(self, what: str, *, exit_status: int, hint: str | None = None):
        super().__init__(what, hint=hint)
        self.exit_status = exit_status


class CtrpsWarning(UserWarning):
    """Something that is no error, but that a person should look at: what, where and what to do."""
