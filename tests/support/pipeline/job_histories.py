"""Random lives of messages as rows of the exported tables, and what is true of them, told naively.

A history is one topic of one partition with two groups. The clock is set back now and then. What
is true is kept beside the rows while they come to be, or counted from them in plain loops.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from goq.pipeline.arrow.schema import EVENTS, GROUPS, MESSAGES

NOON = datetime(2025, 1, 15, 12, tzinfo=UTC)
LEASE = timedelta(seconds=20)
ORDER = ("acknowledged", "dead", "given up", "expired", "skipped", "cancelled")
Row = dict[str, Any]


@dataclass
class GroupState:
    """What a group knows: what it has, what is done, and where it began anew."""

    leases: dict[int, tuple[int, int, datetime]] = field(default_factory=dict)
    retries: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    ever: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    since: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    restart: int = 0

    def finish(self, offset: int, fate: str) -> None:
        self.leases.pop(offset, None)
        self.retries.pop(offset, None)
        self.done.add(offset)
        self.ever[offset].add(fate)
        self.since[offset].add(fate)

    def restart_at(self, offset: int) -> None:
        self.leases, self.retries, self.since = {}, {}, defaultdict(set)
        self.done, self.restart = set(range(offset)), offset


class History:
    """One topic. Call :meth:`step` as often as wished, then :meth:`stand`."""

    def __init__(self, seed: int) -> None:
        self.luck = random.Random(seed)
        self.topic = f"topic-{seed}"
        self.now = NOON + timedelta(seconds=self.luck.randrange(100_000))
        self.messages: list[Row] = []
        self.events: list[Row] = []
        self.groups_rows: list[Row] = []
        self.groups = {"billing": GroupState(), "mail": GroupState()}
        self.cancelled: set[int] = set()
        self.start = 0
        self.lease = 0

    def step(self) -> None:
        self.now += timedelta(milliseconds=self.luck.choice((1, 7, 900, 15_000, -40)))
        for group, state in self.groups.items():
            for offset, (lease, attempt, due) in list(state.leases.items()):
                if due < self.now:
                    self._fail(group, offset, lease, attempt, "EXPIRED", None)
        if self.luck.random() < 0.25 or not self.messages:
            return self._publish()
        group = self.luck.choice(list(self.groups))
        return self.luck.choices(
            (self._deliver, self._settle, self._skip, self._mark, self._restart, self._trim),
            (8, 8, 1, 1, 0.25, 0.2),
        )[0](group)

    def event(self, name: str, offset: int, group: str | None, **said: Any) -> None:
        row = dict.fromkeys(EVENTS.names) | {
            "message_id": f"{self.topic}:0:{offset}",
            "event": name,
            "time": self.now,
            "group": group,
            "topic": self.topic,
            "partition": 0,
            "offset": offset,
            "sequence": len(self.events),
        }
        self.events.append(row | said)

    def stand(self) -> None:
        """Add where the groups stand now."""
        for group in self.groups:
            row = dict.fromkeys(GROUPS.names, 0) | {
                "time": self.now,
                "topic": self.topic,
                "group": group,
                "start_offset": self.start,
                "end_offset": len(self.messages),
                "cursor": self.cursor(group),
                "leased": len(self.groups[group].leases),
                "lag": self._unfinished(group),
            }
            self.groups_rows.append(row)

    def _unfinished(self, group: str) -> int:
        finished = self.groups[group].done | self.cancelled
        return sum(offset not in finished for offset in range(self.start, len(self.messages)))

    def cursor(self, group: str) -> int:
        state = self.groups[group]
        taken = state.done | state.leases.keys() | state.retries.keys() | self.cancelled
        offset = self.start
        while offset in taken:
            offset += 1
        return offset

    def fates(self) -> dict[tuple[str, str], str]:
        """Return what is true now, by message and group."""
        return {
            (row["message_id"], group): self._fate(row["offset"], group)
            for row in self.messages
            for group in self.groups
        }

    def _fate(self, offset: int, group: str) -> str:
        state = self.groups[group]
        found = set(state.ever[offset] if offset < state.restart else state.since[offset])
        found |= {"cancelled"} if offset in self.cancelled else set()
        for fate in ORDER:
            if fate in found:
                return fate
        has_it = offset in state.leases or offset in state.retries
        if offset < state.restart and not has_it:
            return "passed over"
        if offset < self.start:
            return "deleted"
        return "outstanding" if has_it else "waiting"

    def _publish(self) -> None:
        offset = len(self.messages)
        is_delayed = self.luck.random() < 0.3
        due = self.now + timedelta(milliseconds=self.luck.randrange(2_000))
        row = dict.fromkeys(MESSAGES.names) | {
            "key": self.luck.choice((None, b"a", b"b", b"\xff")),
            "value": self.luck.choice((None, b"", b"12345")),
            "topic": self.topic,
            "partition": 0,
            "offset": offset,
            "timestamp": self.now,
            "headers": [],
            "message_id": f"{self.topic}:0:{offset}",
            "lane": self.luck.randrange(3),
            "deliver_at": due if is_delayed else None,
            "tenant": self.luck.choice((None, "acme", "globex")),
        }
        self.messages.append(row)

    def _deliver(self, group: str) -> None:
        state = self.groups[group]
        offset = self.luck.randrange(self.start, len(self.messages) + 1)
        taken = state.done | state.leases.keys() | self.cancelled
        if offset in taken or offset == len(self.messages):
            return
        attempt = state.retries.pop(offset, 0) + 1
        self.lease += 1
        state.leases[offset] = (self.lease, attempt, self.now + LEASE)
        told = {"attempt": attempt, "lease": self.lease, "due": self.now + LEASE}
        self.event("DELIVERED", offset, group, consumer="c", **told)

    def _settle(self, group: str) -> None:
        state = self.groups[group]
        if not state.leases:
            return
        offset = self.luck.choice(list(state.leases))
        lease, attempt, _ = state.leases[offset]
        how = self.luck.choice(("ack", "ack", "nack", "undo", "extend"))
        if how == "ack":
            self.event("ACKNOWLEDGED", offset, group, lease=lease)
            state.finish(offset, "acknowledged")
        elif how == "nack":
            self._fail(group, offset, lease, attempt, "NACKED", self.luck.choice(("bad", None)))
        elif how == "undo":
            self.event("NACKED", offset, group, lease=lease, attempt=attempt - 1, due=self.now)
            del state.leases[offset]
            state.retries[offset] = attempt - 1
        else:
            due = self.now + LEASE
            state.leases[offset] = (lease, attempt, due)
            self.event("EXTENDED", offset, group, lease=lease, due=due)

    def _fail(
        self, group: str, offset: int, lease: int, attempt: int, how: str, reason: str | None
    ) -> None:
        state = self.groups[group]
        told = {"lease": lease, "attempt": attempt, "reason": reason}
        if attempt < 3:
            self.event(how, offset, group, **told, due=self.now)
            del state.leases[offset]
            if offset not in self.cancelled:
                state.retries[offset] = attempt
            return
        name, fate = self.luck.choice((("DEAD_LETTERED", "dead"), ("DROPPED", "given up")))
        self.event(name, offset, group, **told)
        state.finish(offset, fate)

    def _skip(self, group: str) -> None:
        state = self.groups[group]
        offset = self.luck.randrange(self.start, len(self.messages) + 1)
        if offset in state.done | state.leases.keys() | {len(self.messages)}:
            return
        name, reason, fate = self.luck.choice(
            (("EXPIRED", "ttl", "expired"), ("SKIPPED", "other_group", "skipped"))
        )
        self.event(name, offset, group, reason=reason)
        state.finish(offset, fate)

    def _mark(self, _: str) -> None:
        offset = self.luck.randrange(self.start, len(self.messages) + 1)
        if offset == len(self.messages):
            return
        how = self.luck.choice(("MOVED", "RESCHEDULED", "CANCELLED"))
        if how == "MOVED":
            self.event(how, offset, None, reason=f"lane {self.luck.randrange(3)}")
        elif how == "CANCELLED":
            self.event(how, offset, None)
            self.cancelled.add(offset)
            for state in self.groups.values():
                state.retries.pop(offset, None)
        elif self.messages[offset]["deliver_at"] is not None:
            self.event(how, offset, None, due=self.now + timedelta(milliseconds=500))

    def _restart(self, group: str) -> None:
        if self.luck.random() < 0.3:
            self.event("GROUP_DELETED", 0, group)
            self.groups[group].restart_at(0)
            self.groups[group].ever.clear()
            return
        offset = self.luck.randrange(self.start, len(self.messages) + 1)
        self.event("RESET", offset, group)
        self.groups[group].restart_at(offset)

    def _trim(self, _: str) -> None:
        self.start = self.luck.randrange(self.start, min(self.start + 3, len(self.messages)) + 1)
        self.event("TRIMMED", self.start, None)
        for state in self.groups.values():
            for gone in [o for o in (*state.leases, *state.retries) if o < self.start]:
                state.leases.pop(gone, None)
                state.retries.pop(gone, None)


def deliveries(events: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return what was really handed out, by message and group, in order."""
    undone = {
        (e["message_id"], e["group"], e["lease"])
        for d in events
        if d["event"] == "DELIVERED"
        for e in events
        if e["event"] == "NACKED"
        and (e["message_id"], e["group"], e["lease"]) == (d["message_id"], d["group"], d["lease"])
        and e["attempt"] < d["attempt"]
    }
    found: dict[tuple[str, str], list[Row]] = {}
    for event in events:
        named = (event["message_id"], event["group"])
        if event["event"] == "DELIVERED" and (*named, event["lease"]) not in undone:
            found.setdefault(named, []).append(event)
    return found


def waits(messages: Sequence[Row], events: Sequence[Row], until: str) -> list[Row]:
    """Return a row for each message and group that came so far, with its wait in milliseconds."""
    rows = {row["message_id"]: row for row in messages}
    found = []
    for (message_id, group), handed in deliveries(events).items():
        row, first = rows[message_id], handed[0]
        of_it = [e for e in events if e["message_id"] == message_id]
        acks = [e for e in of_it if (e["event"], e["group"]) == ("ACKNOWLEDGED", group)]
        if until == "acked" and not acks:
            continue
        lane, due = row["lane"], row["deliver_at"]
        for event in of_it:
            if event["sequence"] < first["sequence"] and event["event"] == "MOVED":
                lane = int(event["reason"].split()[1])
            if event["sequence"] < first["sequence"] and event["event"] == "RESCHEDULED":
                due = event["due"]
        ready = max(row["timestamp"], due or row["timestamp"])
        end = acks[0]["time"] if until == "acked" else first["time"]
        wait_ms = (end - ready) / timedelta(milliseconds=1)
        told = {"group": group, "lane": lane, "wait_ms": max(0.0, wait_ms), "early": wait_ms < 0}
        found.append(row | told)
    return found


def summary(waited: Sequence[Row], by: Sequence[str]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Return count, quantiles and maximum of waits, by some columns."""
    parts: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in waited:
        parts[tuple(row[name] for name in by)].append(row["wait_ms"])
    return {
        named: (
            len(found),
            *(round(sorted(found)[math.ceil(p * len(found)) - 1], 3) for p in (0.5, 0.9, 0.99)),
            round(max(found), 3),
        )
        for named, found in parts.items()
    }
