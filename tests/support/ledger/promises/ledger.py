"""The ledger of what clients of one topic and group asked for and were told.

Nothing of goq is asked what it means: values tell messages apart, and times are those around each
request. What got no answer is *unknown*, and allowed both ways.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.ledger.promises.wire import Reply, Unanswered, Wire, as_us, now_us

DONE, REFUSED, UNKNOWN = "done", "refused", "unknown"


@dataclass(slots=True)
class Sent:
    """A message and what was said of it; ``result`` is the node's answer for it."""

    value: str
    said: Mapping[str, Any]
    asked_us: int
    answered_us: int = 0
    outcome: str = UNKNOWN
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The message id, empty if the node gave none."""
        return str(self.result.get("id", ""))


@dataclass(frozen=True, slots=True)
class Got:
    """A message as one receive handed it over."""

    value: str
    id: str
    receipt: str
    attempt: int
    consumer: str
    visibility_us: int
    lease_until_us: int
    asked_us: int
    answered_us: int
    message: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Settled:
    """A settlement of one message. ``lasts_us``: a delay or a visibility."""

    verb: str
    got: Got
    outcome: str
    code: str
    lasts_us: int | None
    asked_us: int
    answered_us: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A receive whose answer was lost: its messages may have had an attempt and a lease."""

    consumer: str
    visibility_us: int
    asked_us: int
    answered_us: int


class Ledger:
    """Everything that was sent, got and settled, in the order of the answers."""

    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        self.sent: dict[str, Sent] = {}
        self.got: list[Got] = []
        self.settled: list[Settled] = []
        self.lost: list[Lost] = []
        self._numbers = itertools.count()

    def publish(self, wire: Wire, said: Sequence[Mapping[str, Any]]) -> list[Sent]:
        """Publish messages in one request, once; each gets a value of its own."""
        rows = [Sent(f"v{next(self._numbers)}", each, now_us()) for each in said]
        self.sent |= {row.value: row for row in rows}
        messages = [{"value": row.value, **row.said} for row in rows]
        reply = _ask(wire, f"/v1/topics/{self.topic}/messages", {"messages": messages})
        for number, row in enumerate(rows):
            row.answered_us = now_us()
            if reply is not None and reply.is_done:
                row.outcome, row.result = DONE, reply.body["results"][number]
            elif reply is not None and not reply.is_unknown:
                row.outcome = REFUSED
        return rows

    def receive(
        self, wire: Wire, consumer: str, *, most: int = 10, wait_ms: int = 100, visibility_ms: int
    ) -> list[Got]:
        """Receive messages, once; none where no answer came."""
        said = {
            "consumer": consumer,
            "max_messages": most,
            "wait": f"{wait_ms}ms",
            "visibility": f"{visibility_ms}ms",
        }
        asked_us = now_us()
        reply = _ask(wire, f"{self._path}/receive", said)
        if reply is None or not reply.is_done:
            if reply is None or reply.is_unknown:
                self.lost.append(Lost(consumer, visibility_ms * 1000, asked_us, now_us()))
            return []
        found = [
            Got(
                each["value"],
                each["id"],
                each["receipt"],
                each["attempt"],
                consumer,
                visibility_ms * 1000,
                as_us(each["lease_until"]),
                reply.asked_us,
                reply.answered_us,
                each,
            )
            for each in reply.body["messages"]
        ]
        self.got.extend(found)
        return found

    def settle(
        self, wire: Wire, verb: str, messages: Sequence[Got], *, lasts_ms: int | None = None
    ) -> list[Settled]:
        """Settle messages in one request, once; ``lasts_ms`` is the delay or the visibility."""
        if not messages:
            return []
        said: dict[str, Any] = {"receipts": [each.receipt for each in messages]}
        if lasts_ms is not None:
            said["visibility" if verb == "extend" else "delay"] = f"{lasts_ms}ms"
        asked_us = now_us()
        reply = _ask(wire, f"{self._path}/{verb}", said)
        answered_us = now_us()
        codes: dict[str, str] = {}
        whole = UNKNOWN
        if reply is not None and reply.is_done:
            whole = DONE
            codes = {each["receipt"]: each["code"] for each in reply.body["failed"]}
            assert reply.body["settled"] + len(codes) == len(messages), (reply.body, said)
        elif reply is not None and not reply.is_unknown:
            whole = REFUSED
        rows = [
            Settled(
                verb,
                each,
                _outcome(codes[each.receipt]) if each.receipt in codes else whole,
                codes.get(each.receipt, ""),
                None if lasts_ms is None else lasts_ms * 1000,
                asked_us,
                answered_us,
            )
            for each in messages
        ]
        self.settled.extend(rows)
        return rows

    def counts(self, wire: Wire, as_of: str = "") -> Any:
        """Return what the node counts for the group."""
        return wire.must("GET", f"{self._path}{as_of and '?as_of=' + as_of}")

    def drain(self, wire: Wire, *, until: str = "lag scheduled") -> None:
        """Receive and acknowledge until nothing is left; the node stays up meanwhile."""
        while True:
            found = self.receive(wire, "drain", most=1000, wait_ms=200, visibility_ms=20_000)
            self.settle(wire, "ack", found)
            if not found and not any(self.counts(wire)[name] for name in until.split()):
                return

    def stored(self, wire: Wire, partitions: int) -> dict[str, Any]:
        """Return the whole log by value; fail where it is not what the answers said."""
        found: dict[str, Any] = {}
        for partition in range(partitions):
            for message in read_log(wire, self.topic, partition):
                value = message["value"]
                assert value not in found, f"stored twice: {found[value]} and {message}"
                found[value] = message
        for row in self.sent.values():
            if row.outcome == REFUSED:
                assert row.value not in found, f"refused, and stored: {row}"
            elif row.outcome == DONE and "duplicate_of" not in row.result:
                assert row.value in found, f"not in the log: {row}"
                told = (row.result["id"], row.result["timestamp"])
                assert told == (found[row.value]["id"], found[row.value]["timestamp"]), row
        return found

    def summary(self) -> str:
        """Return how much there is in the ledger."""
        return (
            f"{len(self.sent)} sent, {len(self.got)} got, {len(self.settled)} settled,"
            f" {len(self.lost)} receives without an answer"
        )

    @property
    def _path(self) -> str:
        return f"/v1/topics/{self.topic}/groups/{self.group}"


def read_log(wire: Wire, topic: str, partition: int, query: str = "") -> list[Any]:
    """Return all messages of a partition that a read of the log finds."""
    found: list[Any] = []
    offset = 0
    while True:
        path = f"/v1/topics/{topic}/messages?partition={partition}&offset={offset}&limit=1000"
        page = wire.must("GET", path + query)
        assert page["damaged"] == [], page["damaged"]
        found.extend(page["messages"])
        if page["next"] == page.get("end", offset):
            return found
        offset = page["next"]


def read_dead_letters(wire: Wire, topic: str) -> list[Any]:
    """Return all dead letters of a topic."""
    found: list[Any] = []
    after = ""
    while True:
        page = wire.must("GET", f"/v1/topics/{topic}/dead?limit=500{after}")
        found.extend(page["messages"])
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def _outcome(code: str) -> str:
    return UNKNOWN if code == "timed_out" else REFUSED


def _ask(wire: Wire, path: str, body: object) -> Reply | None:
    try:
        return wire.ask("POST", path, body)
    except Unanswered:
        time.sleep(0.01)  # a node that is down would be asked without a pause
        return None
