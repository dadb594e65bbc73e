"""The stream from the owner of partitions to their standby, and what is held back for it.

First goes the state, then every push that the owner takes, in the order in which it takes them. A
standby is the same state machine fed with the same pushes, so it comes to the same bits. Nothing
that shows progress leaves the owner before the standby has it: in sync mode the answer to a pull
of the next version, in all modes what the status says of marks, steps and checkpoints. The reasons
are in ``docs/protocol.md`` section 6.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ctrps.ps.arrival import Arrival
from ctrps.ps.effects import Effects, Send
from ctrps.ps.messages import Arrays, Copied, Copy, Push
from ctrps.ps.partition import PartitionSet, PartitionState
from ctrps.ps.sync import Stepwise
from ctrps.ps.table import RowSet

IN_FLIGHT = 16
"""Messages on their way to a standby."""

MOST_BYTES = 64 << 20
"""Pushes that wait for a standby; with more the owner takes no other, and workers send again."""

PIECE_BYTES = 16 << 20
"""Rows of a partition that one message brings."""


@dataclass(slots=True)
class Facts:
    """What a server reports of its progress.

    Attributes
    ----------
    step
    lowest : int32[lanes]
        The last batch of each lane that all partitions have; empty in sync mode.
    saved, files
        The last checkpoint saved.
    """

    step: int
    lowest: np.ndarray
    saved: int
    files: list[tuple[int, str, int, str]]


class Copies:
    """The owner's end of a stream.

    Parameters
    ----------
    pair : int
        Number of owner and standby, given by the scheduler and never used again.
    standby : int
        Node number.
    retry_s : float

    Attributes
    ----------
    protected : bool
        The standby has the whole state: from now on it may take the owner's place.
    copied : int
        Messages that the standby has.
    last : int
        Messages of the stream so far.
    """

    def __init__(self, pair: int, standby: int, retry_s: float):
        self.pair = pair
        self.standby = standby
        self.protected = False
        self.copied = self.last = 0
        self.facts = Facts(0, np.zeros(0, np.int32), -1, [])
        self._retry_s = retry_s
        self._queue: deque[Copy] = deque()
        self._notes: deque[tuple[int, int, int, int, list[tuple[int, str, int, str]]]] = deque()
        self._held: deque[tuple[int, Send]] = deque()
        self._state_end = -1
        self._sent = 0
        self._bytes = 0
        self._due = 0.0

    # -- what is sent ---------------------------------------------------------------------------

    def begin(
        self,
        partitions: PartitionSet,
        mode: Stepwise | Arrival,
        owned: tuple[int, ...],
        facts: Facts,
    ) -> None:
        """Send the state: the rows of each partition, how far they are, and what waits."""
        self.facts = facts
        numbers = [partitions.pass_, partitions.step, partitions.rows_seen]
        if isinstance(mode, Arrival):
            states = partitions.snapshot(mode.marks)
            numbers += [mode.clock, mode.staleness_before]
        else:
            states = partitions.snapshot()
            numbers += [0, 0]
        for number in owned:
            for piece in _pieces(states[number]):
                self._add("rows", [number], piece)
        if partitions.can_undo:
            self._add("undo", [], partitions.undo_arrays())
        self._add("end", numbers, (mode.staleness.copy(),))
        self._state_end = self.last
        self._bytes = 0
        if isinstance(mode, Stepwise):
            for push in mode.buffered():
                self.add_push(push)

    def add_push(self, push: Push) -> None:
        """Send a push that the owner has taken; its keys are in it."""
        numbers = [push.pass_, push.lane, push.batch, push.rows, push.clock]
        arrays = (*push.keys, *push.gradients, *push.counts, *push.scores)
        self._add("push", numbers, arrays, push.loss_sum)

    def add_turn(self, pass_: int) -> None:
        """Send the beginning of another pass."""
        self._add("turn", [pass_], ())

    def _add(self, what: str, numbers: list[int], arrays: Arrays, loss_sum: float = 0.0) -> None:
        self._queue.append(Copy(self.pair, self.last, what, numbers, loss_sum, arrays))
        self._bytes += sum(a.nbytes for a in arrays)
        self.last += 1

    @property
    def full(self) -> bool:
        """Whether too much waits for the standby."""
        return self._bytes > MOST_BYTES

    def send(self, now: float) -> Effects:
        """What may be sent now; all that is not acknowledged, if that is long ago."""
        if self._queue and now >= self._due:
            self._sent = self.copied
        effects: Effects = []
        while self._sent < self.last and self._sent - self.copied < IN_FLIGHT:
            effects.append(Send(self.standby, self._queue[self._sent - self.copied]))
            self._sent += 1
        if effects:
            self._due = now + self._retry_s
        return effects

    def on_copied(self, message: Copied, now: float) -> Effects:
        """The standby has all before ``message.seq``; returns what may leave now."""
        if message.pair != self.pair or not self.copied < message.seq <= self._sent:
            return []
        for _ in range(message.seq - self.copied):
            gone = self._queue.popleft()
            # The state does not count: it is as large as it is, and pushes wait behind it.
            if gone.seq >= self._state_end:
                self._bytes -= sum(a.nbytes for a in gone.arrays)
        self.copied, self._due = message.seq, now + self._retry_s
        self._learn()
        effects: Effects = []
        while self._held and self._held[0][0] <= self.copied:
            effects.append(self._held.popleft()[1])
        return effects + self.send(now)

    # -- what is held back ----------------------------------------------------------------------

    def protect(self, shown: int) -> bool:
        """Begin to hold back; True if that is new.

        The standby must have the state, and the first ``shown`` messages: all of which others have
        seen the effect.
        """
        if self.protected or self.copied < max(self._state_end, shown):
            return False
        self.protected = True
        return True

    def note(self, lane: int, lowest: int, step: int) -> None:
        """What has just been sent brings a lane, or all of them (sync), this far."""
        self._notes.append((self.last, lane, lowest, step, []))

    def note_saved(self, checkpoint: int, files: list[tuple[int, str, int, str]]) -> None:
        """A checkpoint has been saved of what has been sent."""
        self._notes.append((self.last, -1, checkpoint, -1, files))
        self._learn()

    def turn(self, facts: Facts) -> None:
        """Another pass: the standby has all of the one before, or it would not have begun."""
        self._notes.clear()
        self.facts = facts

    def hold(self, seq: int, answer: Send) -> Send | None:
        """The answer if it may leave now; else it leaves when the standby has ``seq`` messages."""
        if not self.protected or seq <= self.copied:
            return answer
        self._held.append((seq, answer))
        return None

    def release(self) -> Effects:
        """The stream ends: nothing is held back any more."""
        return [answer for _, answer in self._held]

    def forget(self) -> None:
        """Another view: nobody waits for the answers that are held."""
        self._held.clear()

    def _learn(self) -> None:
        facts = self.facts
        while self._notes and self._notes[0][0] <= self.copied:
            _, lane, lowest, step, files = self._notes.popleft()
            if files or step < 0:
                facts.saved, facts.files = lowest, files
            elif lane < 0:
                facts.step = step
            else:
                facts.step += max(lowest - int(facts.lowest[lane]), 0)
                facts.lowest[lane] = max(lowest, int(facts.lowest[lane]))


def _pieces(state: PartitionState) -> Iterable[Arrays]:
    """The rows of a partition in messages, its progress with each of them."""
    row_bytes = max(t.rows.shape[1] * t.rows.itemsize + 8 for t in state.tables)
    size = max(PIECE_BYTES // row_bytes, 1)
    longest = max(len(t.keys) for t in state.tables)
    for first in range(0, max(longest, 1), size):
        part = slice(first, first + size)
        rows = tuple(a for t in state.tables for a in (t.keys[part], t.rows[part]))
        yield (*rows, state.marks, *state.progress)


def take_rows(
    partitions: PartitionSet, marks: dict[int, np.ndarray], number: int, arrays: Arrays
) -> None:
    """At the standby: a message of rows."""
    count = 2 * len(partitions.tables)
    pairs = zip(arrays[0:count:2], arrays[1:count:2], strict=True)
    partitions.load([RowSet(keys, rows) for keys, rows in pairs])
    marks[number] = arrays[count]
    partitions.progress.load(number, list(arrays[count + 1 :]))


def as_push(copy: Copy, tables: int, view: int) -> Push:
    """The push in a message of the stream."""
    pass_, lane, batch, rows, clock = copy.numbers
    keys, gradients, counts = (copy.arrays[n * tables : (n + 1) * tables] for n in range(3))
    named = (view, copy.seq, pass_, lane, batch, rows, clock, copy.loss_sum, -1)
    return Push(*named, keys, gradients, counts, copy.arrays[3 * tables :])
