"""The stored record of a schedule, and the rules of its changes.

A record is replaced as a whole, with its version as the condition. What the runner records of the
times it has published for is no such change: it is merged into the record that is there.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from goq import limits
from goq.errors import Conflict, InvalidInput
from goq.schedules.timetable import Timetable


class ScheduleRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule. Times are Unix milliseconds, 0 for none.

    ``messages`` is a JSON array of messages as a publish takes them. It is due by ``cron`` in the
    zone ``tz``, or each ``every_ms``. ``principal`` is the id of the token that created it: it may
    publish what that token may. ``resumed_ms`` is when it was created or resumed; no earlier time
    is made up for. ``last_due_ms`` is the last time that it has published for, and ``problem`` why
    nothing was published then, empty if it was.
    """

    name: str
    topic: str
    messages: str
    cron: str
    tz: str
    every_ms: int
    principal: str
    created_ms: int
    resumed_ms: int
    paused_ms: int = 0
    last_due_ms: int = 0
    problem: str = ""
    version: int = 1

    @property
    def timetable(self) -> Timetable:
        """When the schedule is due."""
        return Timetable(self.cron, self.tz, self.every_ms, self.created_ms)

    def is_ahead_of(self, time_ms: int) -> bool:
        """Whether it has published for times so far ahead that the clock was set back since."""
        return self.done_until_ms - time_ms > limits.SCHEDULE_AHEAD_MS_MAX

    @property
    def done_until_ms(self) -> int:
        """The time after which due times count."""
        return max(self.resumed_ms, self.last_due_ms)

    def does_the_same_as(self, other: ScheduleRecord) -> bool:
        """Return whether another schedule publishes the same at the same times."""
        mine = (self.topic, self.messages, self.cron, self.tz, self.every_ms)
        return mine == (other.topic, other.messages, other.cron, other.tz, other.every_ms)


class ScheduleRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run of a schedule for a due time; ``problem`` says why nothing was published."""

    due_ms: int
    problem: str = ""


def check_schedule_change(schedules: Mapping[str, ScheduleRecord], record: ScheduleRecord) -> None:
    """Raise ``Conflict`` if a record does not follow the stored one, ``InvalidInput`` for one more
    than there may be."""
    known = schedules.get(record.name)
    version = 0 if known is None else known.version
    if record.version != version + 1:
        raise Conflict(f"schedule {record.name} was changed at the same time; try again")
    if known is None and len(schedules) >= limits.SCHEDULES_MAX:
        raise InvalidInput(f"there are {limits.SCHEDULES_MAX} schedules, the most there may be")


def with_schedule(
    schedules: Mapping[str, ScheduleRecord], record: ScheduleRecord
) -> dict[str, ScheduleRecord]:
    """Return the schedules with one more or another one, which knows all earlier runs."""
    known = schedules.get(record.name)
    if known is not None and known.last_due_ms > record.last_due_ms:
        record = replace(record, last_due_ms=known.last_due_ms, problem=known.problem)
    return {**schedules, record.name: record}


def with_runs(
    schedules: Mapping[str, ScheduleRecord], runs: Mapping[str, ScheduleRun]
) -> dict[str, ScheduleRecord]:
    """Return the schedules after some runs; those of schedules that are gone are left out."""
    known = {name: schedules[name] for name in runs if name in schedules}
    return {**schedules, **{name: with_run(each, runs[name]) for name, each in known.items()}}


def with_run(record: ScheduleRecord, run: ScheduleRun) -> ScheduleRecord:
    """Return a schedule after a run. An earlier one than the last changes nothing, unless the clock
    was set back."""
    if record.is_ahead_of(run.due_ms):
        record = replace(record, last_due_ms=0, resumed_ms=min(record.resumed_ms, run.due_ms))
    if run.due_ms <= record.last_due_ms:
        return record
    return replace(record, last_due_ms=run.due_ms, problem=run.problem)
