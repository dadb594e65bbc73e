"""Every message between nodes, its fields and its frames.

A message is a frozen dataclass. Its class attribute ``KIND`` goes first on the wire, its plain
fields follow in the order of the class, and its arrays travel beside them; a field of arrays is a
tuple with one array per table of the model (or per kind of result). What one node has to say to
another at a time travels together, as one frame set. ``decode`` checks the type and range of every
field, so a state machine only ever meets messages of the right shape. What a message *means*, and
whether it comes at the right time, is for the machines.

``docs/protocol.md`` describes the conversation; section numbers below are of that page.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import numpy as np

from ctrps.codec import WIRE, Buffer, CodecError, Limits
from ctrps.codec import decode as decode_frames
from ctrps.codec import encode as encode_frames

PROTOCOL = 4
MAX_TEXT = 1 << 19

MOST = 1 << 62
"""Numbers in messages are from -1 to below this."""

MOST_TOGETHER = 8
"""Messages in one frame set; of the largest kind they have 72 arrays."""

SMALL_BYTES = 8192
"""An array up to this size travels in the first frame; ``MOST_TOGETHER`` messages fit there."""

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """What all messages have in common: they can be encoded."""

    KIND: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Register(Message):
    """Any node -> scheduler: I am here. Repeated until answered.

    ``boot`` is drawn at random by each process, so a repeat is recognised; ``address`` is where a
    server listens. ``role`` is ``server`` or ``worker``; ``rank`` is the wish of a launcher, -1 for
    none. ``replaces``: the launcher has seen the end of the node that had this rank.
    """

    KIND = "register"
    protocol: int
    role: str
    rank: int
    job: str
    config_digest: str
    kernel_digest: str
    boot: str
    address: str
    replaces: bool


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Scheduler -> node: you are in, under this number for ever.

    ``names`` and ``blocks`` are the data manifest (``ctrps.ps.plan.Manifest.pack``).
    """

    KIND = "welcome"
    boot: str
    term: int
    node: int
    rank: int
    names: str
    blocks: Arrays


@dataclass(frozen=True, slots=True)
class Status(Message):
    """Node -> scheduler: this is what I am. Answered by ``Orders``.

    Attributes
    ----------
    seq
        Counts up; an older status is not believed.
    seen
        Sequence number of the last orders obeyed.
    pass_, step
        Of a server: its version. Of a worker: the pass of its lanes, and -1.
    ready
        The view, pass and step are loaded and served.
    missing
        Server: lanes that it waits for, the first of them. Worker: lanes held.
    saved, missed
        Server: the last checkpoint id saved or missed, -1 for none.
    files
        Server: ``[partition, name, bytes, digest]`` of ``saved``.
    counters
        Figures for people: rows, rows per second, loss sums, resident bytes.
    fault, fault_status
        Why this node cannot go on, and the exit status that this means for the job.
    waits_for
        What it is waiting for, in words.
    lanes
        Worker: lanes that it has finished.
    results
        Worker, evaluating: scores float32 and labels float32 of each of ``lanes``, alternating.
        Server: histogram of progressive scores int64[bins, 2], staleness int64[bins], and, but for
        sync mode, int32[lanes] the last batch of each lane that all its partitions have.
    protected
        Server: the pair of ``Orders.standbys`` whose standby may take its place, -1 for none.
    leaves
        It has been asked to leave, and works until it is let go.
    unseen
        Worker: numbers int32[k] of the files of the manifest, training then test, that it does not
        see; no array if it sees all.
    """

    KIND = "status"
    node: int
    term: int
    seq: int
    seen: int
    view: int
    pass_: int
    step: int
    ready: bool
    missing: list[int]
    saved: int
    missed: int
    files: list[tuple[int, str, int, str]]
    counters: dict[str, float]
    fault: str
    fault_status: int
    waits_for: str
    lanes: list[int]
    results: Arrays
    protected: int = -1
    leaves: bool = False
    unseen: Arrays = ()


@dataclass(frozen=True, slots=True)
class Orders(Message):
    """Scheduler -> node: this is what I want of you. A whole picture every time.

    Attributes
    ----------
    owners
        Node number of the owner of each partition; empty before the first view.
    addresses
        ``[node, address]`` of the servers of the view.
    restore
        Checkpoint id that the partitions of the epoch begin from, -1 for none.
    leases
        Worker: ``[lane, first batch]`` to compute.
    cut
        ``[checkpoint id, pass, step]`` to save at, or empty.
    epoch
        The view in which the present rows began.
    standbys
        ``[owner, standby, pair, address of the standby]``.
    """

    KIND = "orders"
    term: int
    seq: int
    view: int
    owners: list[int]
    addresses: list[tuple[int, str]]
    restore: int
    pass_: int
    phase: str
    leases: list[tuple[int, int]]
    cut: list[int]
    reason: str
    exit_status: int
    epoch: int = 0
    standbys: list[tuple[int, int, int, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pull(Message):
    """Worker -> server: the weights of these keys, for this batch.

    Answered by ``Pulled`` when the server stands at the batch's step, perhaps much later, or by
    ``Refused``. ``purpose`` is ``train`` or ``evaluate``; evaluation is not gated and reads an
    absent key as zero.
    """

    KIND = "pull"
    view: int
    request: int
    pass_: int
    lane: int
    batch: int
    purpose: str
    keys: Arrays


@dataclass(frozen=True, slots=True)
class Pulled(Message):
    """Server -> worker: float32[k, dim] per table, in the order of the keys asked.

    ``clock`` counts the pushes that the server has applied, only to measure staleness; ``mark`` is
    the last batch of the lane that all partitions here have.
    """

    KIND = "pulled"
    request: int
    clock: int
    mark: int
    weights: Arrays


@dataclass(frozen=True, slots=True)
class Push(Message):
    """Worker -> server: add these gradients to the rows of these keys.

    Safe to send again: a partition takes a (pass, lane, batch) once. ``clock`` is the server's at
    the pull. ``loss_sum`` is that of the whole batch; the owner of partition ``lane mod
    partitions`` counts it, and it alone gets ``scores``: margins and labels, float32[rows].

    ``asked`` is the request number of the pull whose keys these gradients are for, and then
    ``keys`` is empty; or -1, and ``keys`` holds them.
    """

    KIND = "push"
    view: int
    request: int
    pass_: int
    lane: int
    batch: int
    rows: int
    clock: int
    loss_sum: float
    asked: int
    keys: Arrays
    gradients: Arrays
    counts: Arrays
    scores: Arrays


@dataclass(frozen=True, slots=True)
class Pushed(Message):
    """Server -> worker: the push is in the step or applied, or was before.

    ``mark`` is the last batch of the lane that all partitions here have.
    """

    KIND = "pushed"
    request: int
    mark: int


@dataclass(frozen=True, slots=True)
class Copy(Message):
    """Owner -> standby: the next part of what the owner has.

    ``pair`` is that of the two in ``Orders.standbys``, ``seq`` counts from 0. ``what`` is

    * ``rows``: keys and rows of each table, marks, progress of the partition ``numbers[0]``;
    * ``undo``: keys of the last step and weights before it, for each table;
    * ``end``: of the state: pass, step, rows, clock and staleness of the last push; staleness;
    * ``push``: pass, lane, batch, rows, clock, and the arrays of ``Push``, in the same order;
    * ``turn``: the pass that begins.
    """

    KIND = "copy"
    pair: int
    seq: int
    what: str
    numbers: list[int]
    loss_sum: float
    arrays: Arrays


@dataclass(frozen=True, slots=True)
class Copied(Message):
    """Standby -> owner: all messages before ``seq`` are here."""

    KIND = "copied"
    pair: int
    seq: int


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """The request cannot be served now, or never.

    Of a data message ``why`` is ``view`` or ``pass`` (``value``: the one here), ``behind`` (the
    lowest batch that can be pulled), ``gap`` (the batch that comes next), ``stale`` (how much),
    ``keys`` (send the push with its keys), ``wait`` or ``bad``; of a registration it is ``digest,
    job, protocol, kernel`` or ``role``, with both values in ``detail``.
    """

    KIND = "refused"
    request: int
    why: str
    value: int
    detail: str


@dataclass(frozen=True, slots=True)
class Bye(Message):
    """A node ends in order, with this exit status."""

    KIND = "bye"
    node: int
    exit_status: int
    reason: str


KINDS: dict[str, type[Message]] = {
    cls.KIND: cls
    for cls in (
        Register,
        Welcome,
        Status,
        Orders,
        Pull,
        Pulled,
        Push,
        Pushed,
        Copy,
        Copied,
        Refused,
        Bye,
    )
}


def _types(cls: type[Message]) -> list[tuple[str, Any]]:
    hints = get_type_hints(cls)
    return [(f.name, Arrays if hints[f.name] == Arrays else hints[f.name]) for f in fields(cls)]


_TYPES = {cls: _types(cls) for cls in KINDS.values()}


def encode(*messages: Message) -> list[Buffer]:
    """The frames of messages to one peer, at most ``MOST_TOGETHER``; large arrays are not copied.

    Examples
    --------
    >>> decode(encode(Pushed(request=3, mark=-1), Refused(4, "gap", 7, "")))
    [Pushed(request=3, mark=-1), Refused(request=4, why='gap', value=7, detail='')]
    """
    headers: list[list[Any]] = []
    arrays: list[np.ndarray] = []
    for message in messages:
        header: list[Any] = [message.KIND]
        for name, kind in _TYPES[type(message)]:
            value = getattr(message, name)
            if kind is Arrays:
                header.append(len(value))
                arrays.extend(value)
            else:
                header.append(value)
        headers.append(header)
    return encode_frames(headers, arrays, SMALL_BYTES)


def decode(frames: Sequence[Buffer], limits: Limits = WIRE) -> list[Message]:
    """The messages in ``frames``, in order.

    Raises
    ------
    CodecError
        For anything that is not exactly one to ``MOST_TOGETHER`` messages of known kinds.
    """
    headers, arrays = decode_frames(frames, limits)
    if not isinstance(headers, list) or not 1 <= len(headers) <= MOST_TOGETHER:
        raise CodecError("a frame set that holds no messages, or too many")
    messages: list[Message] = []
    at = 0
    for header in headers:
        message, at = _message(header, arrays, at)
        messages.append(message)
    if at != len(arrays):
        raise CodecError(f"a {messages[-1].KIND} with {len(arrays) - at} arrays too many")
    return messages


def _message(header: object, arrays: list[np.ndarray], at: int) -> tuple[Message, int]:
    """The message of a header, whose arrays begin at ``at``, and where those of the next do."""
    if not isinstance(header, list) or not header or not isinstance(header[0], str):
        raise CodecError("a frame set that is not a message")
    cls = KINDS.get(header[0])
    if cls is None:
        raise CodecError(f"a message of unknown kind {header[0][:40]!r}")
    types = _TYPES[cls]
    if len(header) != len(types) + 1:
        raise CodecError(f"a {cls.KIND} of {len(header) - 1} fields, not {len(types)}")
    values: list[Any] = []
    for (name, kind), value in zip(types, header[1:], strict=True):
        if kind is Arrays:
            if type(value) is not int or not 0 <= value <= len(arrays) - at:
                raise CodecError(f"{cls.KIND}.{name}: {str(value)[:40]} arrays are not there")
            values.append(tuple(arrays[at : at + value]))
            at += value
        elif (kind is int and type(value) is int and -1 <= value < MOST) or _fits(kind, value):
            # The first half is for speed: most fields are numbers.
            values.append(value)
        else:
            what = f"{str(value)[:40]!r} is not a valid {kind}"
            raise CodecError(f"{cls.KIND}.{name}: {what}")
    return cls(*values), at


def _fits(kind: Any, value: object) -> bool:
    """Whether a value read from the wire is of the declared type and within its range."""
    if kind is int:
        return type(value) is int and -1 <= value < MOST
    if kind is float:
        number = isinstance(value, float | int) and not isinstance(value, bool)
        return number and math.isfinite(value)  # type: ignore[arg-type]
    if kind is str:
        return isinstance(value, str) and len(value) <= MAX_TEXT
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is list:
        return isinstance(value, list) and all(_fits(inner[0], item) for item in value)
    if origin is tuple:
        return (
            isinstance(value, list) and len(value) == len(inner) and all(map(_fits, inner, value))
        )
    if origin is dict:
        return isinstance(value, dict) and all(_fits(inner[1], v) for v in value.values())
    return kind is Any or isinstance(value, kind)
