"""Handlers of the commands on schedules."""

from __future__ import annotations

from msgspec.structs import replace

from goq.cluster.metadata.commands import DeleteSchedule, PutSchedule, RecordScheduleRuns
from goq.cluster.metadata.features import has_earlier_runs
from goq.cluster.metadata.results import Accepted, Applied, CommandRejected
from goq.cluster.metadata.state import MetadataState
from goq.errors import GoqError
from goq.schedules.schedule_record import check_schedule_change, with_runs, with_schedule


def put_schedule(state: MetadataState, command: PutSchedule) -> Applied:
    """Create a schedule, or replace its record. ``value`` is its version."""
    record = command.schedule
    try:
        check_schedule_change(state.schedules, record)
    except GoqError as error:
        raise CommandRejected(error.code, error.detail) from None
    return Applied(
        replace(state, schedules=with_schedule(state.schedules, record)),
        Accepted(state.version, f"schedule {record.name} set", record.version),
    )


def delete_schedule(state: MetadataState, command: DeleteSchedule) -> Applied:
    """Delete a schedule."""
    kept = {name: each for name, each in state.schedules.items() if name != command.name}
    if len(kept) == len(state.schedules):
        raise CommandRejected("not_found", f"there is no schedule {command.name!r}")
    return Applied(
        replace(state, schedules=kept),
        Accepted(state.version, f"schedule {command.name} deleted"),
    )


def record_schedule_runs(state: MetadataState, command: RecordScheduleRuns) -> Applied:
    """Record the times that schedules have published for."""
    runs = command.runs
    if not has_earlier_runs(state):
        known = state.schedules
        runs = {
            name: run
            for name, run in runs.items()
            if name in known and run.due_ms > known[name].last_due_ms
        }
    return Applied(
        replace(state, schedules=with_runs(state.schedules, runs)),
        Accepted(state.version, f"runs of {len(command.runs)} schedules recorded"),
    )
