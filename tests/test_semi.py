"""Single messages to a server in semi mode: what waits for what, and what is applied together."""

from dataclasses import replace

import numpy as np
import pytest

from ctrps.config import load_job
from ctrps.errors import ConfigError
from ctrps.ps.messages import Pull, Pulled, Pushed, Refused
from ctrps.ps.partition import Contribution, PartitionSet
from ctrps.ps.server import Server
from ctrps.runtime.roles import mode_settings
from tests import naive_ps
from tests.simjob import plain, row_bytes
from tests.test_arrival import ARRAYS, push_of, restored, saved, server_of, state
from tests.test_machines import answers


def semi_server(**values) -> Server:
    """Five lanes of 10 or 12 batches; a step waits for three of them, up to a second."""
    values = {"lanes": 5, "quorum": 3, "window_s": 1.0, **values}
    return server_of(plain(103, batch_rows=2, mode="semi", **values))


def send(server: Server, push, now: float = 0.0, worker: str = "w") -> list:
    found = answers(server.on_message(worker, push, now))
    server.check()
    return [m for m in found if not hasattr(m, "seq")]


def tick(server: Server, now: float) -> list:
    found = answers(server.on_tick(now))
    server.check()
    return [m for m in found if not hasattr(m, "seq") and not hasattr(m, "boot")]


def pull(server: Server, lane: int, batch: int, request: int = 1) -> list:
    keys = tuple(k[:0] for k in push_of(server, lane, 0).keys)
    return answers(server.on_message("w", Pull(1, request, 0, lane, batch, "train", keys), 0.0))


def test_a_step_is_made_when_the_quorum_is_there_and_then_acknowledged():
    server = semi_server()
    empty = state(server)
    pushes = [push_of(server, lane, 0) for lane in (4, 0, 2)]
    for push in pushes[:2]:
        assert send(server, push) == []
        assert state(server) == empty
    done = send(server, pushes[2])
    assert done == [Pushed(push.request, 0) for push in sorted(pushes, key=lambda p: p.lane)]
    assert server.partitions.step == 3 and server.mode.clock == 1
    assert server.mode.lowest.tolist() == [0, -1, 0, -1, 0]
    assert server.partitions.rows_seen == sum(push.rows for push in pushes)


def test_the_step_has_the_bits_of_one_in_sync_in_any_order_of_arrival():
    twin, servers = None, [semi_server(), semi_server()]
    for lanes, server in zip([(4, 0, 2), (2, 4, 0)], servers, strict=True):
        twin = twin or PartitionSet(server.model)
        pushes = {lane: push_of(server, lane, 0) for lane in lanes}
        for push in pushes.values():
            send(server, push)
    rest = {lane: Contribution(p.rows, p.loss_sum, *_arrays(p)) for lane, p in pushes.items()}
    twin.apply(rest)
    found = [row_bytes([p]) for p in (twin, *(server.partitions for server in servers))]
    assert found[0] == found[1] == found[2]
    slow = naive_ps.Rows(twin.model)
    slow.apply(rest)
    keys = pushes[4].keys
    for number, weights in enumerate(twin.pull(keys)[:2]):
        expected = slow.weights(number, keys[number])
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=2e-5)


def _arrays(push):
    return push.keys, push.gradients, push.counts


def test_after_the_window_a_step_is_made_of_what_is_there():
    server = semi_server()
    first, second = (push_of(server, lane, 0) for lane in (1, 3))
    assert send(server, first, now=5.0) == send(server, second, now=5.8) == []
    assert tick(server, now=5.9) == []
    assert tick(server, now=6.0) == [Pushed(first.request, 0), Pushed(second.request, 0)]
    assert tick(server, now=9.0) == []
    # Between two ticks a push finds that the time is over.
    third, fourth = (push_of(server, lane, 0, clock=1) for lane in (0, 2))
    assert send(server, third, now=10.0) == []
    assert len(send(server, fourth, now=11.5)) == 2


def test_a_late_lane_joins_the_next_step_and_is_as_stale_as_steps_were_made():
    server = semi_server()
    late = push_of(server, 1, 0)
    for lane in (0, 2, 3):
        send(server, push_of(server, lane, 0))
    assert send(server, late) == []
    for lane in (0, 2):
        done = send(server, push_of(server, lane, 1, clock=1))
    assert [answer.mark for answer in done] == [1, 0, 1]
    assert server.mode.staleness[:3].tolist() == [5, 1, 0]


def test_every_copy_of_a_push_is_answered_and_counts_once():
    server = semi_server(quorum=2)
    push = push_of(server, 2, 0)
    assert send(server, push) == []
    (wait,) = send(server, replace(push, request=99), worker="v")
    assert wait == Refused(99, "wait", -1, "1 of 2 lanes are there for the next step")
    other = push_of(server, 3, 0)
    done = send(server, other)
    expected = [Pushed(push.request, 0), Pushed(99, 0), Pushed(other.request, 0)]
    assert sorted(done, key=lambda m: m.request) == sorted(expected, key=lambda m: m.request)
    before = state(server)
    assert send(server, replace(push, request=77)) == [Pushed(77, 0)]
    assert state(server) == before


def test_a_gap_is_refused():
    server = semi_server()
    assert send(server, push_of(server, 2, 1)) == [Refused(21, "gap", 0, "")]
    send(server, push_of(server, 2, 0))
    assert send(server, push_of(server, 2, 1)) == [Refused(21, "gap", 0, "")]


def test_the_next_pull_of_a_lane_waits_for_its_push_to_be_applied():
    server = semi_server(quorum=2)
    assert isinstance(pull(server, 2, 0)[0], Pulled)
    send(server, push_of(server, 2, 0))
    assert pull(server, 2, 1, request=8) == []
    assert pull(server, 2, 1, request=8)[0].why == "wait"
    *_, answer = send(server, push_of(server, 3, 0))
    assert (answer.request, answer.clock, answer.mark) == (8, 1, 0)


def test_a_pull_whose_push_does_not_come_begins_the_lane_again():
    server = semi_server()
    assert pull(server, 2, 1, request=8) == []
    assert pull(server, 2, 1, request=8) == [Refused(8, "behind", 0, "")]
    assert not server.mode._waiting


def test_at_the_end_of_a_pass_a_step_waits_for_the_lanes_that_are_left():
    server = semi_server(quorum=5)
    lengths = server.mode.plan.lengths.tolist()
    assert min(lengths) < max(lengths)
    for batch in range(max(lengths)):
        lanes = [lane for lane, length in enumerate(lengths) if batch < length]
        for lane in lanes:
            done = send(server, push_of(server, lane, batch, clock=batch))
        assert len(done) == len(lanes)
    assert server.mode.complete and server.mode.clock == max(lengths)
    assert server.partitions.rows_seen == 103
    assert server.mode.staleness[1:].sum() == 0


def test_a_late_push_is_scaled_or_refused():
    for refuse in (False, True):
        server = semi_server(stale_above=0, refuse_stale=refuse)
        late = push_of(server, 1, 0)
        for lane in (0, 2, 3):
            send(server, push_of(server, lane, 0))
        if refuse:
            assert send(server, late) == [Refused(late.request, "stale", 1, "")]
            continue
        applied = []
        server.partitions.apply_late = lambda parts, stale, seen=applied: seen.extend(parts)
        assert send(server, late, now=1.0) == []
        tick(server, now=2.0)
        for found, given in zip(applied[0].gradients, late.gradients, strict=True):
            assert found.tobytes() == (np.float32(0.5) * given).tobytes()
        assert server.mode.counted == {"stale_scaled": 1}


def test_each_partition_takes_what_it_misses():
    setup = plain(103, batch_rows=2, mode="semi", lanes=5, quorum=2, window_s=1.0)
    server = server_of(setup)
    early = saved(server, 3)
    pushes = [push_of(server, lane, 0) for lane in (2, 3)]
    for push in pushes:
        send(server, push)
    late = saved(server, 4)
    later = restored(setup, {p: (early if p % 2 else late)[p] for p in range(64)})
    assert later.mode.lowest[2] == -1 and later.mode.marks[:, 2].tolist() == [0, -1] * 32
    for push in pushes:
        done = send(later, replace(push, request=50 + push.lane))
    assert done == [Pushed(52, 0), Pushed(53, 0)]
    assert row_bytes([later.partitions]) == row_bytes([server.partitions])


def test_a_server_without_partitions_acknowledges_at_once():
    server = server_of(plain(103, mode="semi", quorum=4), owners=[9] * 64)
    push = push_of(server, 2, 1)
    nothing = {n: tuple(a[:0] for a in getattr(push, n)) for n in ARRAYS}
    (done,) = send(server, replace(push, **nothing))
    assert (done.request, done.mark) == (21, server.mode.plan.lengths[2] - 1)


# -- settings -------------------------------------------------------------------------------------


def test_a_quorum_is_of_the_lanes():
    semi = ["train.consistency=semi", "train.lanes=6"]
    assert mode_settings(load_job(None, semi, {})).quorum == 5
    stated = mode_settings(load_job(None, [*semi, "train.quorum=2", "train.window_ms=20"], {}))
    assert (stated.quorum, stated.window_s) == (2, 0.02)
    rows = [load_job(None, [*semi, f"model.kind={k}"], {}).train.batch_rows for k in ("lr", "fm")]
    assert rows == [170, 53]
    with pytest.raises(ConfigError, match=r"train.quorum: must be at most train.lanes \(6\)"):
        load_job(None, [*semi, "train.quorum=7"], {})


def test_compensation_is_refused_in_semi():
    with pytest.raises(ConfigError, match=r"compensation: is for .* async and ssp, not semi"):
        load_job(None, ["train.consistency=semi", "train.compensation=1"], {})
