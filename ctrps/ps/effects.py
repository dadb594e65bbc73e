"""What a state machine asks of its driver.

A machine returns a list of effects and never waits: results of slow work come back as later
events, under the token of the effect. A peer is whatever the driver passed in with a message;
a machine only hands it back.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from ctrps.models import Minibatch
from ctrps.ps.journal import Journal
from ctrps.ps.messages import Arrays, Message
from ctrps.ps.partition import PartitionState
from ctrps.ps.plan import BatchRef, Manifest

Peer = Hashable
SCHEDULER: Peer = "scheduler"


@dataclass(frozen=True, slots=True)
class Send:
    """Hand ``message`` to the transport; it may be lost."""

    to: Peer
    message: Message


@dataclass(frozen=True, slots=True)
class Connect:
    """From now on these nodes can be reached at ``host:port``, and no others that were before."""

    addresses: dict[int, str]


@dataclass(frozen=True, slots=True)
class Prepare:
    """Read a batch and find its distinct keys; comes back as ``on_prepared``.

    ``pass_`` is -1 for a lane of the evaluation.
    """

    token: int
    pass_: int
    ref: BatchRef


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute a batch's gradient, or its scores; comes back as ``on_computed``.

    ``pass_``, ``lane`` and ``number`` name it, ``ref`` says where its rows lie.
    """

    token: int
    pass_: int
    lane: int
    number: int
    ref: BatchRef
    batch: Minibatch
    weights: Arrays
    purpose: str


@dataclass(frozen=True, slots=True)
class Load:
    """Read partitions of a checkpoint to go on in ``pass_``; comes back as ``on_loaded``."""

    epoch: int
    checkpoint: int
    pass_: int
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Save:
    """Write partitions of a checkpoint; comes back as ``on_saved``.

    The driver owns the arrays.
    """

    checkpoint: int
    view: int
    node: int
    pass_: int
    step: int
    partitions: dict[int, PartitionState]


@dataclass(frozen=True, slots=True)
class Commit:
    """Write the manifest of a checkpoint whose files are all saved; then ``on_committed``.

    ``files`` is ``(partition, name, bytes, digest)`` for every partition. ``step`` is the version
    in sync mode, and the number of batches that all partitions have in the others. ``border``: the
    pass is complete.
    """

    checkpoint: int
    pass_: int
    step: int
    border: bool
    files: tuple[tuple[int, str, int, str], ...]


@dataclass(frozen=True, slots=True)
class Remember:
    """Have this on disk, in the place of what was there, before any message of these effects."""

    journal: Journal


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The scores and labels of the whole test set, in row order; comes back as ``on_scored``."""

    scores: Arrays
    labels: Arrays


@dataclass(frozen=True, slots=True)
class Keep:
    """This committed checkpoint is the best so far: do not remove it when later ones come."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class Begin:
    """The node is welcome: the driver can open the files of the manifest."""

    node: int
    rank: int
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Log:
    """A line for people, with fields for machines."""

    text: str
    fields: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finish:
    """The machine has ended; the process shall end with this status and reason."""

    exit_status: int
    reason: str


Effect = (
    Send
    | Connect
    | Prepare
    | Compute
    | Load
    | Save
    | Commit
    | Remember
    | Evaluated
    | Keep
    | Begin
    | Log
    | Finish
)
Effects = list[Effect]
