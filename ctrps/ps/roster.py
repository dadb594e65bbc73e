"""Who is in the job: registration, node numbers, ranks, and when each was last heard.

A node number is given once and never again, so it is the incarnation of a process. Whether a node
is dead is decided here by silence alone; what follows from a death is the scheduler's business.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ctrps.ps.effects import Peer
from ctrps.ps.journal import Known
from ctrps.ps.member import Limits
from ctrps.ps.messages import PROTOCOL, Register, Status


@dataclass(slots=True)
class Node:
    """A process that is, or was, in the job.

    It is out for ever when it was declared ``dead``, has said goodbye (``gone``), or has asked to
    leave and was ``released``.
    """

    number: int
    role: str
    rank: int
    boot: str
    address: str
    peer: Peer
    heard: float
    seq: int = -1
    status: Status | None = None
    dead: bool = False
    gone: bool = False
    released: bool = False

    @property
    def alive(self) -> bool:
        return not (self.dead or self.gone or self.released)

    @property
    def leaves(self) -> bool:
        """Whether it has asked to leave."""
        return self.status is not None and self.status.leaves

    def __str__(self) -> str:
        place = f" ({self.address})" if self.address else ""
        return f"{self.role} {self.rank}{place}"


class Roster:
    """All nodes that ever joined.

    Parameters
    ----------
    job, config_digest
        What a node must bring along to be let in.
    limits
    """

    def __init__(self, job: str, config_digest: str, limits: Limits):
        self.nodes: dict[int, Node] = {}
        self._job = job
        self._config_digest = config_digest
        self.kernel_digest = ""
        self._silent_s = {"worker": limits.worker_silent_s, "server": limits.server_silent_s}

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def get(self, number: int) -> Node | None:
        return self.nodes.get(number)

    def alive(self, role: str) -> list[Node]:
        """Live nodes of a role, by number."""
        return [node for node in self if node.role == role and node.alive]

    def numbers(self, role: str) -> list[int]:
        """Their numbers."""
        return [node.number for node in self.alive(role)]

    def known(self, boot: str) -> Node | None:
        """The node that registered under this boot before."""
        return next((node for node in self if node.boot == boot), None)

    def refusal(self, message: Register) -> tuple[str, str] | None:
        """Why a registration cannot be accepted, with both values; None if it can."""
        if message.protocol != PROTOCOL:
            return "protocol", f"protocol {message.protocol} there, {PROTOCOL} here"
        if message.role not in self._silent_s:
            return "job", f"unknown role {message.role[:20]!r}"
        if message.job != self._job:
            return "job", f"job {message.job[:60]!r} there, {self._job!r} here"
        if message.config_digest != self._config_digest:
            theirs = message.config_digest[:40]
            ours = self._config_digest
            return "digest", f"config {theirs} there, {ours} here: use the same job file"
        if self.kernel_digest and message.kernel_digest != self.kernel_digest:
            theirs, ours = message.kernel_digest[:40], self.kernel_digest
            return "kernel", f"kernels {theirs} there, {ours} here: they compute other bits"
        return None

    def replaced(self, message: Register) -> Node | None:
        """The node whose end the launcher of another one has seen."""
        if not message.replaces:
            return None
        return next((n for n in self.alive(message.role) if n.rank == message.rank), None)

    def admit(self, peer: Peer, message: Register, now: float) -> Node:
        """Take a new node in; the first one fixes which kernels the others must have."""
        self.kernel_digest = self.kernel_digest or message.kernel_digest
        taken = {node.rank for node in self.alive(message.role)}
        free = next(rank for rank in range(len(taken) + 1) if rank not in taken)
        rank = message.rank if 0 <= message.rank and message.rank not in taken else free
        number = len(self.nodes)
        node = Node(number, message.role, rank, message.boot, message.address, peer, now)
        self.nodes[number] = node
        return node

    def save(self) -> tuple[Known, ...]:
        """All nodes, for the journal."""
        return tuple(Known(n.number, n.role, n.rank, n.boot, n.address, not n.alive) for n in self)

    def restore(self, members: tuple[Known, ...], kernel_digest: str, now: float) -> None:
        """The nodes of an earlier scheduler: none is silent before it could have spoken."""
        self.kernel_digest = kernel_digest
        for m in members:
            node = Node(m.number, m.role, m.rank, m.boot, m.address, None, now, dead=m.out)
            self.nodes[m.number] = node

    def excuse(self, seconds: float, now: float) -> None:
        """For so long nobody could be heard."""
        for node in self:
            node.heard = min(node.heard + seconds, now)

    def bury(self, now: float) -> list[Node]:
        """Declare nodes dead, for ever, that have been silent too long; returns those."""
        silent = [n for n in self if n.alive and now - n.heard >= self._silent_s[n.role]]
        for node in silent:
            node.dead = True
        return silent

    def missing(self, servers: int, workers: int) -> str:
        """In words: how many nodes of each role are still to come."""
        return " and ".join(
            f"{wanted - have} of {wanted} {role}{'s' if wanted > 1 else ''}"
            for role, wanted in (("server", servers), ("worker", workers))
            if (have := len(self.alive(role))) < wanted
        )
