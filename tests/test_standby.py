"""Owner and standby: the stream between them, what is held back, and who takes whose place."""

from dataclasses import replace

import numpy as np
import pytest

from ctrps.ps.copies import IN_FLIGHT, MOST_BYTES, Copies
from ctrps.ps.effects import SCHEDULER, Send
from ctrps.ps.fleet import Fleet
from ctrps.ps.member import Limits
from ctrps.ps.messages import Copied, Copy, Pull, Pulled, Push, Status, Welcome
from ctrps.ps.roster import Roster
from ctrps.ps.server import Holding, Server
from ctrps.ps.view import Pair
from tests.simjob import plain, row_bytes
from tests.test_machines import identity, orders, push_of, register

PAIR = (0, 1, 7, "s1:1")


class Two:
    """An owner, node 0, and its standby, node 1; messages between them wait to be passed on."""

    def __init__(self, setup):
        self.setup = setup
        self.sent: list = []
        self.owner, self.standby = (self._server(node, setup) for node in (0, 1))
        self.seq, self.now = 1, 0.0
        for node in (0, 1):
            self.obey(node, standbys=[PAIR])

    def _server(self, node, setup):
        server = Server(identity(), Limits(), 0.0, setup.model(), setup.settings)
        welcome = Welcome("boot", 0, node, node, *setup.manifest.pack())
        server.on_message(SCHEDULER, welcome, 0.0)
        return server

    def obey(self, node, **values):
        self.seq += 1
        server = (self.owner, self.standby)[node]
        effects = server.on_message(SCHEDULER, orders(self.seq, **values), 0.0)
        return self.keep(effects)

    def keep(self, effects):
        """Put aside what is for the standby; returns the rest that is sent."""
        sends = [e for e in effects if isinstance(e, Send)]
        self.sent += [e.message for e in sends if isinstance(e.message, Copy)]
        return [e.message for e in sends if not isinstance(e.message, Copy)]

    def pass_on(self, most=1000):
        """Bring messages to the standby, and its answers back; returns what the owner sends."""
        out = []
        while self.sent and most:
            most -= 1
            (back,) = self.standby.on_message("owner", self.sent.pop(0), 0.0)
            out += self.keep(self.owner.on_message(1, back.message, 0.0))
        return out

    def push(self, lane):
        return self.keep(self.owner.on_message("w", push_of(self.owner, lane), 0.0))

    def pull(self, batch, request):
        keys = tuple(k[:0] for k in push_of(self.owner, 0).keys)
        pull = Pull(1, request, 0, 0, batch, "train", keys)
        return self.keep(self.owner.on_message("w", pull, 0.0))

    def status(self):
        self.now += 1.5  # more than a beat
        return next(m for m in self.keep(self.owner.on_tick(self.now)) if isinstance(m, Status))


@pytest.fixture
def two():
    return Two(plain())


def test_the_standby_comes_to_the_same_bits(two):
    two.push(0)  # before the standby has anything, so it is part of the state
    two.pass_on()
    for lane in (1, 2, 3, 0, 1):
        two.push(lane)
    two.pass_on()
    mirror = two.standby.standby
    assert row_bytes([mirror.partitions]) == row_bytes([two.owner.partitions])
    assert mirror.partitions.step == two.owner.partitions.step == 1
    assert mirror.mode.missing() == two.owner.mode.missing() == [2, 3]
    found, wanted = mirror.partitions.progress.total(), two.owner.partitions.progress.total()
    assert found.loss_sum == wanted.loss_sum and (found.histogram == wanted.histogram).all()


def test_a_version_is_answered_when_the_standby_has_it(two):
    two.pass_on()
    assert two.status().protected == 7
    for lane in range(4):
        two.push(lane)
    assert two.pull(1, 50) == [], "the standby lacks step 0"
    assert two.status().step == 0
    answers = [m for m in two.pass_on() if isinstance(m, Pulled)]
    assert [(m.request, m.clock) for m in answers] == [(50, 1)]
    assert two.status().step == 1
    assert isinstance(two.pull(1, 51)[0], Pulled)


def test_before_it_is_protected_nothing_is_held_back(two):
    for lane in range(4):
        two.push(lane)
    assert isinstance(two.pull(1, 50)[0], Pulled)
    status = two.status()
    assert (status.protected, status.step) == (-1, 1)
    two.pass_on(len(two.sent) - 1)
    assert two.status().protected == -1, "others have seen a step that the standby lacks"
    two.pass_on()
    assert two.status().protected == 7


def test_a_standby_that_is_dropped_holds_nothing_back_any_more(two):
    two.pass_on()
    for lane in range(4):
        two.push(lane)
    assert two.pull(1, 50) == []
    assert [m.request for m in two.obey(0) if isinstance(m, Pulled)] == [50]
    assert two.status().protected == -1
    two.obey(1)
    assert two.standby.holding is Holding.NOTHING


def test_a_promoted_standby_goes_on_where_its_owner_was(two):
    two.pass_on()
    for lane in (0, 1, 2, 3, 2):
        two.push(lane)
    two.pass_on()
    before = row_bytes([two.owner.partitions])
    promoted = two.standby
    two.obey(1, view=2, epoch=1, owners=[1] * 64, addresses=[[1, "s1:1"]])
    assert promoted.holding is Holding.SERVING
    assert promoted.owned == tuple(range(64))
    assert row_bytes([promoted.partitions]) == before
    assert (promoted.partitions.step, promoted.mode.missing()) == (1, [0, 1, 3])
    keys = tuple(k[:0] for k in push_of(promoted, 0).keys)
    again = promoted.on_message("w", Pull(2, 9, 0, 0, 0, "train", keys), 0.0)
    assert isinstance(again[0].message, Pulled), "the step before can be pulled again"


def test_of_another_pair_nothing_is_taken(two):
    wrong = [Copy(8, 0, "turn", [0], 0.0, ()), Copied(8, 1)]
    assert two.standby.on_message("owner", wrong[0], 0.0) == []
    assert two.owner.on_message(1, wrong[1], 0.0) == []


def empty(seq: int) -> Push:
    nothing = (np.zeros(0, np.uint64),)
    return Push(-1, seq, 0, 0, seq, 1, 0, 0.0, -1, nothing, nothing, nothing, nothing)


def test_what_is_not_acknowledged_is_sent_again():
    copies = Copies(3, 1, retry_s=2.0)
    for seq in range(2 * IN_FLIGHT):
        copies.add_push(empty(seq))
    first = [e.message.seq for e in copies.send(0.0)]
    assert first == list(range(IN_FLIGHT))
    assert copies.send(1.9) == []
    assert [e.message.seq for e in copies.send(2.0)] == first
    more = [e.message.seq for e in copies.on_copied(Copied(3, 4), 2.5)]
    assert more == list(range(IN_FLIGHT, IN_FLIGHT + 4))
    assert copies.on_copied(Copied(3, 4), 2.5) == [], "said twice"
    assert copies.on_copied(Copied(3, 2), 2.5) == [], "said late"
    assert [e.message.seq for e in copies.send(4.5)] == list(range(4, IN_FLIGHT + 4))


def test_pushes_behind_the_state_count_until_they_are_there(two):
    for lane in range(3):
        two.push(lane)
    waiting = [m for m in two.owner.copies._queue if m.what == "push"]
    size = sum(a.nbytes for m in waiting for a in m.arrays)
    assert two.owner.copies._bytes == size > 0
    two.pass_on(20)
    assert two.owner.copies._bytes == size
    two.pass_on()
    assert two.owner.copies._bytes == 0


def test_an_owner_with_too_much_for_its_standby_takes_no_push(two):
    two.pass_on()
    two.owner.copies._bytes = MOST_BYTES + 1
    assert two.push(0) == []
    two.owner.copies._bytes = 0
    assert two.push(0)


# -- who stands by for whom ---------------------------------------------------------------------


def fleet_of(hosts: list[str], owners: int) -> tuple[Fleet, Roster]:
    roster = Roster("sim", "digest", Limits())
    for n, host in enumerate(hosts):
        roster.admit(f"s{n}", register(boot=f"s{n}", address=f"{host}:{n}"), 0.0)
    fleet = Fleet(roster, Limits(), wanted=owners, replicas=1, partitions=8)
    fleet.place(-1)
    return fleet, roster


def protect(fleet: Fleet, number: int) -> None:
    fleet.placement = replace(fleet.placement, protected=(*fleet.placement.protected, number))


def test_standbys_are_on_other_hosts_where_there_are():
    fleet, _ = fleet_of(["a", "b", "a", "b"], 2)
    assert fleet.placement.servers == (0, 1)
    assert fleet.placement.pairs == (Pair(0, 3, 0), Pair(1, 2, 1))
    assert fleet.standbys() == [(0, 3, 0, "b:3"), (1, 2, 1, "a:2")]
    alone, _ = fleet_of(["a", "a"], 1)
    assert alone.placement.pairs == (Pair(0, 1, 0),)


def test_only_a_protected_standby_takes_its_owners_place():
    fleet, roster = fleet_of(["a", "b", "a", "b"], 2)
    protect(fleet, 0)
    roster[0].dead = True
    assert not fleet.lose(roster[0], 5.0), "nothing is gone"
    view = fleet.placement
    assert (view.number, view.epoch, view.servers) == (2, 1, (3, 1))
    assert view.owners == (3,) * 4 + (1,) * 4
    assert view.pairs == (Pair(1, 2, 1),) and view.protected == ()
    roster.admit("new", register(boot="new", address="a:9"), 6.0)
    assert fleet.pair_up() and fleet.placement.pairs[-1] == Pair(3, 4, 2)
    roster[1].dead = True
    assert fleet.lose(roster[1], 7.0), "its standby was not protected yet"
    assert fleet.lost_at == 7.0


def test_a_dead_standby_is_replaced_and_promotes_nobody():
    fleet, roster = fleet_of(["a", "b", "c"], 1)
    assert fleet.placement.pairs == (Pair(0, 1, 0),)
    protect(fleet, 0)
    roster[1].dead = True
    assert not fleet.lose(roster[1], 5.0)
    assert fleet.placement.pairs == (Pair(0, 2, 1),) and fleet.placement.protected == ()
    assert fleet.placement.number == 1, "owners are the same: workers need no other view"
    roster[0].dead = True
    assert fleet.lose(roster[0], 6.0)
