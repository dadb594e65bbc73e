"""The servers of a job: who owns the partitions, who stands by, and what to do when one is lost."""

from dataclasses import replace

from ctrps.ps.member import Limits
from ctrps.ps.messages import Status
from ctrps.ps.roster import Node, Roster
from ctrps.ps.view import Pair, Placement


class Fleet:
    """The present placement, and the wait for servers in the place of lost ones.

    Parameters
    ----------
    roster
    limits
    wanted : int
        Owners that the job wants.
    replicas : int
        Standbys of each owner: 0 or 1.
    partitions : int

    Attributes
    ----------
    placement : Placement
    lost_at : float or None
        Since when an owner is missing that nobody could replace at once.
    """

    def __init__(self, roster: Roster, limits: Limits, wanted: int, replicas: int, partitions: int):
        self.placement = Placement()
        self.lost_at: float | None = None
        self._roster = roster
        self._limits = limits
        self._wanted = wanted
        self._replicas = replicas
        self._partitions = partitions

    @property
    def owners(self) -> list[Node]:
        """The owners of the placement, dead or alive."""
        return [self._roster[number] for number in self.placement.servers]

    @property
    def reports(self) -> list[Status]:
        """The newest status of each owner that has sent one."""
        return [n.status for n in self.owners if n.status is not None]

    def standbys(self) -> list[tuple[int, int, int, str]]:
        """Owner, standby, pair, and address of the standby: as orders say it."""
        return [(*pair, self._roster[pair.standby].address) for pair in self.placement.pairs]

    def go_on(self, placement: Placement, now: float) -> None:
        """Take up the placement of an earlier scheduler."""
        self.placement = placement
        self.lost_at = None if all(n.alive for n in self.owners) else now

    def ready(self, pass_: int) -> bool:
        """Every owner has reported the present placement and this pass."""
        at = (self.placement.number, pass_)
        return all(
            n.alive and n.status and n.status.ready and (n.status.view, n.status.pass_) == at
            for n in self.owners
        )

    def learn(self, node: Node) -> None:
        """An owner may have reported that its standby has everything."""
        number = node.status.protected if node.status else -1
        known = {pair.number for pair in self.placement.pairs if pair.owner == node.number}
        if number in known and number not in self.placement.protected:
            protected = (*self.placement.protected, number)
            self.placement = replace(self.placement, protected=protected)

    @property
    def outdated(self) -> bool:
        """Whether other servers would own partitions, were all placed anew."""
        there, owners = self._staying(), self.placement.servers
        most = min(self._wanted, len(there)) if self._replicas else len(there)
        return len(owners) < most or not set(owners) <= set(there)

    def _staying(self) -> list[int]:
        """The servers there are, but for those that leave; if all of them leave, all."""
        there = self._roster.alive("server")
        return [n.number for n in there if not n.leaves] or self._roster.numbers("server")

    def last(self, node: Node) -> bool:
        """Whether a server that leaves is still needed, because all of them leave."""
        return node.number in self._staying()

    def place(self, restore: int) -> None:
        """Place all partitions anew on the servers there are; they begin from a checkpoint."""
        there = self._staying()
        owners = there[: self._wanted] if self._replicas else there
        self.placement = self.placement.begun(self._partitions, owners, restore)
        self.lost_at = None
        self.pair_up()

    def pair_up(self) -> bool:
        """Give each owner without a standby one of the servers that are free; True if any was.

        First those that leave: they can go when their standby has everything.
        """
        before = self.placement
        if self._replicas and before.number > 0:
            for owner in sorted(before.servers, key=lambda n: not self._roster[n].leaves):
                free = self._free()
                if free and not any(pair.owner == owner for pair in self.placement.pairs):
                    chosen = max(free, key=lambda n: self._apart(owner, n))
                    self.placement = self.placement.paired(owner, chosen)
        return self.placement != before

    def _free(self) -> list[int]:
        taken = {*self.placement.servers, *(pair.standby for pair in self.placement.pairs)}
        there = self._roster.alive("server")
        return [n.number for n in there if n.number not in taken and not n.leaves]

    def _apart(self, owner: int, standby: int) -> bool:
        """Whether two servers are on different hosts: one that goes down takes only one of them."""
        a, b = (self._roster[n].address.rpartition(":")[0] for n in (owner, standby))
        return a != b

    def lose(self, node: Node, now: float) -> bool:
        """A server is dead; whether rows are gone with it, and all must go back."""
        self._part(node)
        if node.number not in self.placement.servers:
            return False
        safe = self._safe_pair(node.number)
        if safe and self.lost_at is None:
            self.placement = self.placement.promoted(safe)
            self.pair_up()
            return False
        self.lost_at = now if self.lost_at is None else self.lost_at
        return True

    def _part(self, standby: Node) -> None:
        """A server stands by for nobody any more; another one that is free does, if any is."""
        for pair in self.placement.pairs:
            if pair.standby == standby.number:
                self.placement = self.placement.parted(pair)
        self.pair_up()

    def let_go(self, node: Node, hands_over: bool) -> bool:
        """A server asks to leave; whether it may end now, as nothing is lost with it.

        If the job allows that it ``hands_over`` its rows, its standby takes its place.
        """
        self._part(node)
        safe = self._safe_pair(node.number)
        if safe and hands_over:
            self.placement = self.placement.promoted(safe)
            self.pair_up()
        return node.number not in self.placement.servers

    def _safe_pair(self, owner: int) -> Pair | None:
        for pair in self.placement.pairs:
            alive = self._roster[pair.standby].alive
            if pair.owner == owner and alive and pair.number in self.placement.protected:
                return pair
        return None

    def enough(self, now: float) -> bool:
        """Whether lost owners have been replaced, or have been waited for long enough."""
        there = len(self._roster.alive("server"))
        waited = self._waited(now) >= self._limits.server_wait_s
        return there >= self._needed or (there > 0 and waited)

    @property
    def _needed(self) -> int:
        """How many servers are waited for: not for those that have left."""
        return min(self._wanted, len(self.placement.servers))

    def given_up(self, now: float) -> str:
        """Why the job cannot go on without those that are missing; empty while it may."""
        waited = self._waited(now)
        if waited < self._limits.give_up_s:
            return ""
        lost = ", ".join(str(n) for n in self.owners if not n.alive)
        return f"{lost} is lost, and no other came for {waited:.0f} s"

    def waits_for(self, now: float) -> str:
        """In words."""
        some = self._roster.alive("server")
        limit_s = self._limits.server_wait_s if some else self._limits.give_up_s
        missing = self._roster.missing(self._needed, 0)
        return f"waiting for {missing}, {self._waited(now):.0f} s of {limit_s:.0f} s"

    def _waited(self, now: float) -> float:
        return 0.0 if self.lost_at is None else now - self.lost_at
