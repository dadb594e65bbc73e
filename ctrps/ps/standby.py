"""A standby: the partitions of an owner, fed with the same pushes, ready to take its place."""

from dataclasses import replace

import numpy as np

from ctrps.errors import LocalProtocolError
from ctrps.models import Model
from ctrps.ps.arrival import Arrival
from ctrps.ps.copies import as_push, take_rows
from ctrps.ps.late import ModeSettings
from ctrps.ps.messages import Copied, Copy, Pushed
from ctrps.ps.partition import PartitionSet
from ctrps.ps.plan import DataFile, Plan, PlanSettings
from ctrps.ps.semi import Semi
from ctrps.ps.sync import Stepwise


class Modes:
    """What decides when a push is applied, of the job's consistency mode.

    Parameters
    ----------
    model
    settings
        Of the plan.
    mode_settings
    """

    def __init__(self, model: Model, settings: PlanSettings, mode_settings: ModeSettings):
        self.model = model
        self.settings = settings
        self.mode_settings = mode_settings

    def make(
        self, partitions: PartitionSet, plan: Plan, owned: tuple[int, ...]
    ) -> Stepwise | Arrival:
        """For the partitions of one owner, in one pass."""
        if self.settings.mode == "sync":
            return Stepwise(partitions, plan, owned)
        mode = Semi if self.settings.mode == "semi" else Arrival
        return mode(partitions, plan, owned, self.mode_settings)


class Standby:
    """What a standby holds of its owner.

    Parameters
    ----------
    pair : int
        Number of the two, given by the scheduler.
    modes
    files
        The training data.
    owned
        Partitions of the owner.

    Attributes
    ----------
    mode
        None until the whole state is here.
    """

    def __init__(
        self, pair: int, modes: Modes, files: tuple[DataFile, ...], owned: tuple[int, ...]
    ):
        self.pair = pair
        self.owned = owned
        self.partitions = PartitionSet(modes.model)
        self.mode: Stepwise | Arrival | None = None
        self._modes = modes
        self._files = files
        self._marks: dict[int, np.ndarray] = {}
        self._next = 0

    def on_copy(self, message: Copy) -> Copied:
        """Take the next message of the stream; any other is only answered."""
        if message.seq == self._next:
            self._take(message)
            self._next += 1
        return Copied(self.pair, self._next)

    def _take(self, message: Copy) -> None:
        partitions, arrays = self.partitions, message.arrays
        match message.what:
            case "rows":
                take_rows(partitions, self._marks, message.numbers[0], arrays)
            case "undo":
                partitions.load_undo(arrays)
            case "end":
                self._begin(message)
            case "push" if self.mode is not None:
                push = as_push(message, len(partitions.tables), -1)
                answer = self.mode.on_push("owner", push, 0.0)[0]
                if not isinstance(answer.message, Pushed):
                    raise LocalProtocolError(f"a standby refused what its owner took: {answer}")
            case "turn" if self.mode is not None:
                (pass_,) = message.numbers
                partitions.turn(pass_)
                self.mode.turn(self._plan(pass_))

    def _begin(self, message: Copy) -> None:
        partitions = self.partitions
        partitions.pass_, step, rows, clock, staleness = message.numbers
        mode = self._modes.make(partitions, self._plan(partitions.pass_), self.owned)
        mode.staleness[:] = message.arrays[0]
        if isinstance(mode, Arrival):
            # What is compensated or refused the owner has decided.
            mode.settings = replace(mode.settings, compensation=0.0, refuse_stale=False)
            mode.restore(self._marks)
            mode.clock, mode.staleness_before = clock, staleness
        else:
            partitions.step, partitions.rows_seen = step, rows
        self.mode = mode

    def _plan(self, pass_: int) -> Plan:
        return Plan(self._files, self._modes.settings, pass_)

    def promoted(self) -> Stepwise | Arrival:
        """The mode of an owner."""
        if self.mode is None:
            raise LocalProtocolError("a standby without its owner's state was promoted")
        if isinstance(self.mode, Arrival):
            self.mode.settings = self._modes.mode_settings
        return self.mode
