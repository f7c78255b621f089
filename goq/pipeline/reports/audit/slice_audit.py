"""The fates of the messages of a slice in each group, and the rows that contradict others.

A slice has all rows about some offsets of a partition. The tables are of different times: the
groups are read first, then messages, then events. So a row may be missing because it was written
after a table was read, or trimmed. Each check compares only rows that are older than the groups'
rows by ``SLACK_US``, or that are of one log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from goq.delivery.events.event import SEQUENCE_BITS
from goq.pipeline.reports.audit.group_progress import SLACK_US, GroupProgress, LogProgress
from goq.pipeline.reports.audit.slice_rows import (
    KINDS,
    MESSAGE,
    NO_GROUP,
    NONE,
    TTL,
    Flags,
    Ints,
    Runs,
    SliceRows,
    bits_of,
)

FATES = (
    ("acknowledged", bits_of("ACKNOWLEDGED")),
    ("dead", bits_of("DEAD_LETTERED")),
    ("given up", bits_of("DROPPED")),
    ("expired", bits_of("TTL")),
    ("skipped", bits_of("SKIPPED")),
    ("redriven", bits_of("REDRIVEN")),
    ("cancelled", bits_of("CANCELLED")),
    ("damaged", bits_of("CORRUPTED")),
)
LOST = ("unaccounted", "overdue")
NO_ROW = "a group without its row in groups"
LACKS_LEASE = "the group lacks a lease that never ended"
LACKS_RETRY = "the group lacks a message that waits for its retry"
_IN_HAND = bits_of("DELIVERED", "EXTENDED", "NACKED", "EXPIRED")
_LEASED = bits_of("DELIVERED", "EXTENDED")
_GIVEN_BACK = bits_of("NACKED", "EXPIRED")
_ENDED = bits_of("ACKNOWLEDGED", "DEAD_LETTERED", "DROPPED")
_RESTARTS = bits_of("RESET", "GROUP_DELETED")
_FAR = 2**62


class Found(NamedTuple):
    """Offsets about which an audit says the same.

    ``what`` is ``fate``, ``fault``, or what only all slices together decide: ``held`` (leased),
    ``retry`` (to be delivered again) and ``fresh`` (not delivered yet).
    """

    what: str
    group: int
    name: str
    offsets: Ints


class SliceAudit:
    """The audit of one slice."""

    def __init__(self, log: LogProgress, rows: SliceRows) -> None:
        self._log = log
        is_message = rows.kind == MESSAGE
        self._messages = np.sort(rows.offset[is_message])
        events = rows.where(~is_message)
        is_ttl = (events.kind == KINDS["EXPIRED"]) & (events.lease == NONE)
        events = events._replace(kind=np.where(is_ttl, TTL, events.kind))
        self._of_all = _Events(events.where(events.group == NO_GROUP))
        numbers = np.flatnonzero(np.bincount(events.group[events.group != NO_GROUP])).tolist()
        self._of_group = {n: _Events(events.where(events.group == n)) for n in numbers}

    def known(self) -> Ints:
        """Return the offsets that are in a file, or damaged; sorted, each once."""
        events = self._of_all.rows
        damaged = events.offset[events.kind == KINDS["CORRUPTED"]]
        found = self._messages
        if len(damaged):
            found = np.sort(np.concatenate([found, damaged]))
        return found[np.diff(found, prepend=found[:1] - 1) > 0]

    def findings(self) -> Iterator[Found]:
        """Yield what is found in each group, and of messages that are in no group."""
        present = {n: group for n, group in self._log.groups.items() if group.is_there()}
        if not present and len(self._messages):
            yield Found("fate", NO_GROUP, "no group", self._messages)
        for number, group in present.items():
            yield from self._fates(group, self._of_group.get(number))
        for number, of_group in self._of_group.items():
            yield from self._faults(self._log.groups[number], of_group)
        repeated = self._messages[1:][np.diff(self._messages) == 0]
        if len(repeated):
            yield Found("fault", NO_GROUP, "a message is there twice", np.unique(repeated))
        for number, of_group in ((NO_GROUP, self._of_all), *self._of_group.items()):
            repeated = of_group.repeated()
            if len(repeated):
                yield Found("fault", number, "an event is there twice", repeated)

    def _fates(self, group: GroupProgress, of_group: _Events | None) -> Iterator[Found]:
        """Yield the fates of the messages in a group that has a row."""
        row, restart, log = group.row, group.restart, self._log
        assert row is not None
        offsets = self._messages[self._messages < row.end_offset]
        seen = self._of_all.bits_at(offsets, None)
        is_before = np.zeros(len(offsets), np.bool_)
        if restart is not None:
            is_before = offsets < restart.offset
        has_it = is_overdue = np.zeros(len(offsets), np.bool_)
        if of_group is not None:
            since = -1 if restart is None else restart.sequence
            seen = seen | of_group.bits_at(offsets, since)
            seen = seen | np.where(is_before, of_group.bits_at(offsets, None), 0)
            kind, due_us = of_group.in_hand_at(offsets, since)
            has_it = kind > 0
            ended_us = np.where(due_us == NONE, _FAR, due_us) + SLACK_US
            is_overdue = _is_in(kind, _LEASED) & (ended_us < row.time_us)
            if row.leased:
                is_overdue &= ended_us < (log.last_event_us or -_FAR)
        is_deleted = offsets < row.start_offset
        is_young = restart is not None and row.time_us < restart.time_us + SLACK_US
        cases = [(name, (seen & bits) != 0) for name, bits in FATES]
        cases += [
            ("passed over", is_before & ~has_it),
            ("deleted", has_it & is_deleted),
            ("overdue", is_overdue),
            ("outstanding", has_it),
            ("waiting", (offsets >= row.cursor) | is_young),
            ("deleted", is_deleted),
            ("unaccounted", np.ones(len(offsets), np.bool_)),
        ]
        chosen = np.select([flags for _, flags in cases], np.arange(len(cases)))
        for number, (name, _) in enumerate(cases):
            if len(found := offsets[chosen == number]):
                yield Found("fate", group.number, name, found)
            if name == "waiting":
                is_fresh = found >= max(row.cursor, row.start_offset)
                if restart is not None and restart.end_offset is not None:
                    is_fresh &= found < restart.end_offset
                yield Found("fresh", group.number, "", found[is_fresh])

    def _faults(self, group: GroupProgress, of_group: _Events) -> Iterator[Found]:
        """Yield what contradicts in the events of a group."""
        lives = of_group.lives(group, self._log)
        if lives is None:
            return
        row, restart, log = group.newest_row, group.restart, self._log
        checks = {
            "an ack without its delivery": lives.has_unknown_ack,
            "acknowledged twice": lives.acks > 1,
            "delivered after its ack": lives.last_delivered > lives.first_ack,
        }
        if row is not None:
            is_settled = lives.last_us + SLACK_US < row.time_us
            if restart is not None and restart.time_us + SLACK_US >= row.time_us:
                is_settled[:] = False
            is_stored = lives.offset >= row.start_offset
            is_stuck = (lives.offset == row.cursor) & is_stored & is_settled
            checks["the cursor is stuck at a message that is done"] = is_stuck & _is_in(
                lives.last_kind, _ENDED
            )
            checks["an event of a message that does not exist"] = (
                lives.offset >= row.end_offset
            ) & (lives.first_us + SLACK_US < row.time_us)
            cancelled = self._of_all.bits_at(lives.offset, None) & bits_of("CANCELLED")
            is_open = is_stored & is_settled & (cancelled == 0)
            for what, kinds in (("held", _LEASED), ("retry", _GIVEN_BACK)):
                found = lives.offset[_is_in(lives.last_kind, kinds) & is_open]
                if len(found):
                    yield Found(what, group.number, "", found)
        elif log.read_us is not None and not (restart is not None and restart.is_gone):
            checks[NO_ROW] = lives.first_us + SLACK_US < log.read_us
        for name, flags in checks.items():
            if flags.any():
                yield Found("fault", group.number, name, lives.offset[flags])


class _Lives(NamedTuple):
    """The events of a group by offset, since the group's last restart."""

    offset: Ints
    acks: Ints
    first_ack: Ints
    last_delivered: Ints
    last_kind: Ints
    """0 for an offset without an event since the restart."""
    last_us: Ints
    first_us: Ints
    has_unknown_ack: Flags


class _Events:
    """The events of one group, or of none, by offset and in the order of the log."""

    def __init__(self, rows: SliceRows) -> None:
        code = rows.sequence * (TTL + 1) + rows.kind
        rows = rows.where(np.lexsort((code, rows.offset)))
        self.rows = rows
        self._runs = Runs(rows.offset)

    def bits_at(self, wanted: Ints, since: int | None) -> Ints:
        """Return the kinds of events of each wanted offset, after a sequence if one is given."""
        if not self._runs.count:
            return np.zeros(len(wanted), np.int64)
        bits = np.left_shift(1, self.rows.kind)
        if since is not None:
            bits = np.where(self.rows.sequence > since, bits, 0)
        index = self._runs.index_of(wanted)
        return np.where(index < 0, 0, self._runs.any_bits(bits)[index])

    def in_hand_at(self, wanted: Ints, since: int) -> tuple[Ints, Ints]:
        """Return kind (0: none) and ``due`` of the last event that decides on each lease."""
        rows = self.rows
        last = self._runs.last((rows.sequence > since) & _is_in(rows.kind, _IN_HAND))
        index = self._runs.index_of(wanted)
        place = np.where(index < 0, -1, last[index])
        return np.where(place < 0, 0, rows.kind[place]), np.where(place < 0, 0, rows.due_us[place])

    def repeated(self) -> Ints:
        """Return the offsets of events that are there twice."""
        columns = (self.rows.offset, self.rows.sequence, self.rows.kind)
        is_same = np.logical_and.reduce([np.diff(column) == 0 for column in columns])
        return np.unique(self.rows.offset[1:][is_same])

    def lives(self, group: GroupProgress, log: LogProgress) -> _Lives | None:
        """Return what the events say of each offset; None if all are restarts."""
        rows = self.rows.where(~_is_in(self.rows.kind, _RESTARTS))
        if not len(rows.kind):
            return None
        runs = Runs(rows.offset)
        is_since = rows.sequence > (-1 if group.restart is None else group.restart.sequence)
        is_ack = rows.kind == KINDS["ACKNOWLEDGED"]
        is_delivery = rows.kind == KINDS["DELIVERED"]
        last = runs.last(is_since)
        return _Lives(
            offset=runs.values,
            acks=runs.total(is_since & is_ack),
            first_ack=runs.least(np.where(is_since & is_ack, rows.sequence, _FAR)),
            last_delivered=runs.most(np.where(is_since & is_delivery, rows.sequence, -1)),
            last_kind=np.where(last < 0, 0, rows.kind[last]),
            last_us=np.where(last < 0, _FAR, rows.time_us[last]),
            first_us=runs.least(rows.time_us),
            has_unknown_ack=runs.total(_is_unknown(rows, is_ack, is_delivery, log)) > 0,
        )


def _is_unknown(rows: SliceRows, is_ack: Flags, is_delivery: Flags, log: LogProgress) -> Flags:
    """Whether each row is an ack of a lease whose delivery should be in the export, and is not."""
    delivering = rows.lease & (2**SEQUENCE_BITS - 1)  # the sequence of the delivery
    first_sequence = log.first_sequence or 0
    unknown: Flags = is_ack & (rows.lease != NONE) & (delivering >= first_sequence)
    before = np.maximum.accumulate(np.where(is_delivery, np.arange(len(is_ack)), -1))
    is_of_last = (before >= 0) & (rows.offset[before] == rows.offset)
    unknown &= ~(is_of_last & (rows.lease[before] == rows.lease))
    if not unknown.any():
        return unknown
    handed = {
        (offset, lease)
        for offset, lease in zip(
            rows.offset[is_delivery].tolist(), rows.lease[is_delivery].tolist(), strict=True
        )
    }
    for place in np.flatnonzero(unknown).tolist():
        unknown[place] = (int(rows.offset[place]), int(rows.lease[place])) not in handed
    return unknown


def _is_in(kind: Ints, bits: int) -> Flags:
    found: Flags = (np.left_shift(1, kind) & bits) != 0
    return found
