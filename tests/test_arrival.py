"""Single messages to a server in async and ssp mode: what is applied, to which partitions, when."""

from dataclasses import replace

import numpy as np
import pytest

from ctrps.ps.arrival import Arrival
from ctrps.ps.effects import SCHEDULER, Load, Save
from ctrps.ps.late import STALENESS_BINS
from ctrps.ps.member import Limits
from ctrps.ps.messages import Pull, Pulled, Push, Pushed, Refused
from ctrps.ps.partition import NO_MARKS, PartitionState, contribute
from ctrps.ps.progress import NO_PROGRESS
from ctrps.ps.server import Server
from tests import naive
from tests.simjob import Setup, plain, row_bytes
from tests.test_machines import answers, identity, joined, orders


def server_of(setup: Setup, server_class: type[Server] = Server, **values) -> Server:
    args = (identity(), Limits(), 0.0, setup.model(), setup.settings, setup.mode_settings)
    return joined(server_class(*args), setup, **values)


def async_server(**values) -> Server:
    """Alone, with lanes of four batches."""
    return server_of(plain(103, mode="async", lanes=1, **values))


def push_of(server: Server, lane: int, batch: int, clock: int = 0, **values) -> Push:
    """What a worker would push that has just pulled."""
    model, plan = server.model, server.mode.plan
    ref = plan.batch(lane, batch)
    data = plain(103).data.minibatch(model, plan, ref)
    keys = tuple(s.keys for s in model.key_sets(data))
    part = contribute(model, data, server.partitions.pull(keys))
    rest = (-1, *part[2:])
    push = Push(1, 10 * lane + batch, 0, lane, batch, part.rows, clock, part.loss_sum, *rest)
    return replace(push, **values)


def send(server: Server, push: Push) -> list:
    found = answers(server.on_message("w", push, 0.0))
    server.check()
    return [m for m in found if not hasattr(m, "seq")]


def pull(server: Server, lane: int, batch: int, request: int = 1, **values) -> list:
    keys = tuple(k[:0] for k in push_of(server, lane, 0).keys)
    message = replace(Pull(1, request, 0, lane, batch, "train", keys), **values)
    return answers(server.on_message("w", message, 0.0))


def state(server: Server) -> tuple:
    mode = server.mode
    marks = mode.marks.tobytes(), mode.lowest.tobytes(), mode.staleness.tobytes(), mode.clock
    counted = server.partitions.progress.total()
    progress = counted.loss_sum, counted.histogram.tobytes()
    return row_bytes([server.partitions]), marks, server.partitions.step, progress


def test_a_push_is_applied_at_once_and_only_once():
    server = async_server()
    empty = state(server)
    first = push_of(server, 2, 0)
    assert send(server, first) == [Pushed(first.request, 0)]
    applied = state(server)
    assert applied != empty and server.partitions.step == 1
    assert send(server, replace(first, request=77)) == [Pushed(77, 0)]
    assert state(server) == applied
    other = replace(first, gradients=tuple(2 * g for g in first.gradients), request=78)
    assert send(server, other) == [Pushed(78, 0)]
    assert state(server) == applied


def test_a_gap_is_refused_with_the_batch_that_is_due():
    server = async_server()
    before = state(server)
    assert send(server, push_of(server, 2, 1)) == [Refused(21, "gap", 0, "")]
    assert state(server) == before
    send(server, push_of(server, 2, 0))
    assert send(server, push_of(server, 2, 1)) == [Pushed(21, 1)]


@pytest.mark.parametrize("batch", [-1, 4, 100])
def test_a_batch_that_the_lane_does_not_have_is_refused(batch):
    server = async_server()
    for number in range(4):
        send(server, push_of(server, 2, number))
    before, last = state(server), push_of(server, 2, 3)
    (refused,) = send(server, replace(last, batch=batch))
    assert (refused.why, refused.detail) == ("bad", "no such batch in this lane")
    assert state(server) == before
    assert pull(server, 2, batch)[0].why == "bad"


def test_an_answer_tells_the_clock_and_the_mark_of_the_lane():
    server = async_server()
    (answer,) = pull(server, 2, 0, request=5)
    assert (answer.request, answer.clock, answer.mark) == (5, 0, -1)
    send(server, push_of(server, 3, 0))
    send(server, push_of(server, 2, 0))
    (answer,) = pull(server, 2, 1)
    assert (answer.clock, answer.mark) == (2, 0)
    assert (pull(server, 3, 0)[0].mark, pull(server, 0, 0)[0].mark) == (0, -1)


def test_staleness_is_what_was_applied_between_pull_and_push():
    server = async_server()
    for lane, clock in [(0, 0), (1, 0), (2, 0), (3, 3), (4, 9)]:
        send(server, push_of(server, lane, 0, clock=clock))
    assert server.mode.staleness[:4].tolist() == [3, 1, 1, 0]
    server.mode.clock = 1000
    send(server, push_of(server, 5, 0))
    assert server.mode.staleness[STALENESS_BINS - 1] == 1


def test_the_first_of_two_that_were_pulled_together_counts_as_stale_as_the_pair(monkeypatch):
    server, seen = async_server(), []
    note = lambda parts, stale, scale: seen.append(stale)  # noqa: E731
    monkeypatch.setattr(server.partitions, "apply_late", note)
    for lane, clock in [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (5, 5)]:
        send(server, push_of(server, lane, 0, clock=clock))
    assert server.mode.staleness[:2].tolist() == [4, 2]
    assert seen == [0, 1, 1, 1, 1, 0]


def test_the_pass_is_complete_with_the_last_batch_and_turns():
    server = async_server()
    plan = server.mode.plan
    for lane in range(len(plan.lengths)):
        for batch in range(plan.lengths[lane]):
            assert not server.mode.complete
            send(server, push_of(server, lane, batch, clock=server.mode.clock))
    assert server.mode.complete and server.mode.missing() == []
    assert server.partitions.rows_seen == plan.rows == 103
    assert server.mode.staleness[0] == server.mode.clock == plan.steps
    assert server.partitions.progress.total().report()["rows"] == 103
    server.on_message(SCHEDULER, orders(2, pass_=1), 0.0)
    assert (server.partitions.pass_, server.partitions.step) == (1, 0)
    assert (server.mode.marks == -1).all() and server.mode.clock == plan.steps
    assert server.partitions.progress.total().report()["rows"] == 0


# -- partitions at different marks ----------------------------------------------------------------


def saved(server: Server, checkpoint: int = 3) -> dict[int, PartitionState]:
    """The partitions as a cut that may be anywhere saves them."""
    effects = server.on_message(SCHEDULER, orders(2 + checkpoint, cut=[checkpoint, 0, -1]), 0.0)
    (save,) = [effect for effect in effects if isinstance(effect, Save)]
    assert (save.checkpoint, save.pass_) == (checkpoint, 0)
    return save.partitions


def restored(setup: Setup, states: dict[int, PartitionState], **values) -> Server:
    server = Server(identity(), Limits(), 0.0, setup.model(), setup.settings, setup.mode_settings)
    joined(server, setup, restore=3, **values)
    owned = {p: states[p] for p in server.owned}
    server.on_loaded(1, owned, 0, 0, 0.0)
    server.check()
    return server


def test_each_partition_takes_what_it_misses():
    """Half of the partitions were saved after batch 0 of a lane, the others after batch 1."""
    setup = plain(103, mode="async", lanes=1)
    server = server_of(setup)
    pushes = [push_of(server, 2, 0)]
    send(server, pushes[0])
    early = saved(server, 3)
    # As if just pulled: a stale gradient is applied with other constants.
    pushes.append(push_of(server, 2, 1, clock=1))
    send(server, pushes[1])
    late = saved(server, 4)
    later = restored(setup, {p: (early if p % 2 else late)[p] for p in range(64)})
    assert later.mode.lowest[2] == 0
    assert later.mode.marks[:, 2].tolist() == [1, 0] * 32
    assert pull(later, 2, 1)[0].mark == 0

    assert send(later, replace(pushes[1], request=50, clock=0)) == [Pushed(50, 1)]
    assert row_bytes([later.partitions]) == row_bytes([server.partitions])
    assert later.mode.marks[:, 2].tolist() == [1] * 64
    histograms = [s.partitions.progress.total().histogram for s in (later, server)]
    assert (histograms[0] == histograms[1]).all()
    assert later.partitions.rows_seen == server.partitions.rows_seen
    assert send(later, pushes[1]) == [Pushed(pushes[1].request, 1)]
    assert row_bytes([later.partitions]) == row_bytes([server.partitions])


def test_a_gap_of_one_partition_is_a_gap():
    setup = plain(103, mode="async", lanes=1)
    server = server_of(setup)
    states = saved(server, 3)
    for batch in range(2):
        send(server, push_of(server, 2, batch))
    late = saved(server, 4)
    late[17] = states[17]
    later = restored(setup, late)
    before = state(later)
    assert send(later, push_of(later, 2, 2)) == [Refused(22, "gap", 0, "")]
    assert state(later) == before


def test_marks_and_progress_go_with_the_partition():
    setup = plain(103, mode="async", lanes=1)
    server = server_of(setup)
    for lane, batch in [(2, 0), (2, 1), (0, 0)]:
        send(server, push_of(server, lane, batch))
    states = saved(server)
    halves = [
        restored(setup, states, owners=owners, addresses=[[0, "a:1"], [1, "b:1"]])
        for owners in ([0] * 32 + [1] * 32, [1] * 32 + [0] * 32)
    ]
    assert [half.mode.lowest[2] for half in halves] == [1, 1]
    rows = [half.partitions.progress.total().report()["rows"] for half in halves]
    assert sum(rows) == server.partitions.progress.total().report()["rows"] > 0
    assert row_bytes([h.partitions for h in halves]) == row_bytes([server.partitions])


def test_of_another_pass_marks_are_left_out():
    server = async_server()
    send(server, push_of(server, 2, 0))
    states = {p: s._replace(marks=NO_MARKS, progress=NO_PROGRESS) for p, s in saved(server).items()}
    later = restored(plain(103, mode="async", lanes=1), states)
    assert (later.mode.marks == -1).all() and later.partitions.step == 0
    assert row_bytes([later.partitions]) == row_bytes([server.partitions])


def test_a_server_without_partitions_has_all_batches_and_acknowledges():
    server = server_of(plain(103, mode="async", lanes=1), owners=[9] * 64)
    assert server.mode.complete and server.mode.missing() == []
    push = push_of(server, 2, 1)
    nothing = {n: tuple(a[:0] for a in getattr(push, n)) for n in ARRAYS}
    assert send(server, replace(push, **nothing)) == [Pushed(21, 3)]
    assert pull(server, 2, 1)[0].mark == 3


ARRAYS = ("keys", "gradients", "counts", "scores")


# -- a moved partition -----------------------------------------------------------------------------


class AnyView(Server):
    """Takes messages of every view: a negative control."""

    def _misplaced(self, message):
        return super()._misplaced(replace(message, view=self.view))


def moved(server_class: type[Server]) -> tuple[Server, Push]:
    """A server that has taken over all partitions, and a push from when it had half of them."""
    setup = plain(103, mode="async", lanes=1)
    whole = server_of(setup)
    states = saved(whole)
    server = server_of(setup, server_class, owners=[0] * 32 + [1] * 32)
    push = push_of(whole, 2, 0)
    mine = [naive.partition_of(keys, 6) for keys in push.keys]
    for name in ("keys", "gradients", "counts"):
        arrays = zip(getattr(push, name), mine, strict=True)
        push = replace(push, **{name: tuple(a[np.array(p) < 32] for a, p in arrays)})
    assert len(push.keys[0]) < len(push_of(whole, 2, 0).keys[0])
    effects = server.on_message(SCHEDULER, orders(2, view=2, restore=3), 0.0)
    assert effects == [Load(2, 3, 0, tuple(range(64)))]
    server.on_loaded(2, states, 0, 0, 0.0)
    return server, push


def test_a_push_of_an_older_view_is_refused_as_it_lacks_keys():
    server, push = moved(Server)
    before = state(server)
    assert send(server, push) == [Refused(push.request, "view", 2, "")]
    assert state(server) == before


def test_control_without_the_check_of_the_view_keys_are_lost():
    """The mark rises in partitions whose keys the push does not bring."""
    server, push = moved(AnyView)
    whole = push_of(server, 2, 0, view=2)
    send(server, push)
    assert send(server, whole) == [Pushed(whole.request, 0)]
    held = server.partitions.tables[-1]
    assert (held.find(whole.keys[-1]) == 0).any()


# -- ssp -------------------------------------------------------------------------------------------


def ssp_server(staleness: int) -> Server:
    """Five lanes of 10 or 12 batches."""
    return server_of(plain(103, mode="ssp", lanes=5, staleness=staleness))


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_pull_waits_until_every_lane_is_within_the_bound(staleness):
    server = ssp_server(staleness)
    for batch in range(staleness + 1):
        assert isinstance(pull(server, 0, batch)[0], Pulled)
        send(server, push_of(server, 0, batch))
    ahead = staleness + 1
    assert pull(server, 0, ahead, request=8) == []
    (wait,) = pull(server, 0, ahead, request=8)
    assert wait == Refused(8, "wait", -1, "lane 1 is at batch -1")
    for lane in (1, 2, 3):
        assert send(server, push_of(server, lane, 0)) == [Pushed(10 * lane, 0)]
    done, answer = send(server, push_of(server, 4, 0))
    assert done == Pushed(40, 0)
    assert (answer.request, answer.clock, answer.mark) == (8, staleness + 5, staleness)


def test_a_finished_lane_holds_nobody_back():
    server = ssp_server(0)
    lengths = server.mode.plan.lengths.tolist()
    longest = lengths.index(max(lengths))
    for batch in range(max(lengths)):
        for lane, length in enumerate(lengths):
            if batch < length:
                assert isinstance(pull(server, lane, batch)[0], Pulled)
                send(server, push_of(server, lane, batch))
    assert min(lengths) < lengths[longest] and server.mode.complete
    assert isinstance(pull(server, longest, lengths[longest] - 1)[0], Pulled)


def test_a_repeated_lane_waits_only_once_for_each_batch():
    server = ssp_server(0)
    send(server, push_of(server, 0, 0))
    assert [pull(server, 0, b, request=n) for n, b in enumerate((1, 2, 1, 2))] == [[]] * 4
    assert len(server.mode._waiting) == 2
    for lane in (1, 2, 3):
        send(server, push_of(server, lane, 0))
    _, answer = send(server, push_of(server, 4, 0))
    assert answer.request == 2
    server.on_message(SCHEDULER, orders(2, view=2), 0.0)
    assert not server.mode._waiting


def test_async_never_waits():
    server = async_server()
    assert isinstance(pull(server, 0, 2)[0], Pulled)
    assert Arrival._release(server.mode) == []
