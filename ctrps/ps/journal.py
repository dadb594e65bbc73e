"""What the scheduler must still know after it has died: all of it, small, and written whole.

Progress is not in it: servers report that, and the newest manifest says which checkpoint is there.
"""

from dataclasses import dataclass
from typing import Any, Self

from ctrps.ps.view import Pair, Placement

VERSION = 1


@dataclass(frozen=True, slots=True)
class Known:
    """A node that joined; ``out``: it is dead, has left or has said goodbye, for ever."""

    number: int
    role: str
    rank: int
    boot: str
    address: str
    out: bool


@dataclass(frozen=True, slots=True)
class Journal:
    """The state of a scheduler that no other node could tell.

    Attributes
    ----------
    config_digest, kernel_digest
        What nodes must bring along.
    plan_digest
        Of data and lanes.
    first_term, term
        Numbers of the first and of the present start of this job's scheduler.
    members
        By number.
    placement
        The newest view.
    pass_
        The present pass.
    next_checkpoint
        An id that was never used.
    rows, steps
        Trained and committed since the job was started.
    begun
        Step and rows with which the job began the present pass; empty before that.
    end
        Exit status and reason of a job that is over, else empty.
    """

    config_digest: str
    kernel_digest: str
    plan_digest: str
    first_term: int
    term: int
    members: tuple[Known, ...]
    placement: Placement
    pass_: int
    next_checkpoint: int
    rows: int
    steps: int
    begun: tuple[int, int] | tuple[()] = ()
    end: tuple[int, str] | tuple[()] = ()

    def pack(self) -> list[Any]:
        """As plain values, for the codec.

        Examples
        --------
        >>> journal = Journal("c", "k", "p", 1, 2, (Known(0, "server", 0, "b", "h:1", False),),
        ...                   Placement(1, (0, 0), (0,)), 3, 4, 500, 6)
        >>> Journal.unpack(journal.pack()) == journal
        True
        """
        members = [[m.number, m.role, m.rank, m.boot, m.address, m.out] for m in self.members]
        view = self.placement
        placement = [
            view.number,
            list(view.owners),
            list(view.servers),
            view.epoch,
            view.restore,
            [list(pair) for pair in view.pairs],
            view.next_pair,
            list(view.protected),
        ]
        digests = [self.config_digest, self.kernel_digest, self.plan_digest]
        terms, done = (
            [self.first_term, self.term],
            [self.rows, self.steps, list(self.begun), list(self.end)],
        )
        return [
            VERSION,
            *digests,
            *terms,
            members,
            placement,
            self.pass_,
            self.next_checkpoint,
            *done,
        ]

    @classmethod
    def unpack(cls, packed: Any) -> Self | None:
        """Undo ``pack``; None for what another version has written."""
        if not isinstance(packed, list) or not packed or packed[0] != VERSION:
            return None
        config, kernel, plan, first, term, members, placement, pass_, cut, *done = packed[1:]
        number, owners, servers, epoch, restore, pairs, next_pair, protected = placement
        began = (epoch, restore, tuple(Pair(*p) for p in pairs), next_pair, tuple(protected))
        view = Placement(number, tuple(owners), tuple(servers), *began)
        known = tuple(Known(*m) for m in members)
        rows, steps, begun, end = done
        ends = tuple(begun), tuple(end)
        return cls(config, kernel, plan, first, term, known, view, pass_, cut, rows, steps, *ends)
