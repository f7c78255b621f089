"""A ledger of what clients were told, and the check of it against what the node has.

Producers and consumers write down what they asked for and what was answered, with the times
around each request. A request without an answer may or may not have been carried out: that is
written down as *unknown* and allowed both ways. Everything else is a promise, and the checks find
every promise that was broken. They collect all violations and raise them together.

Times are microseconds of the wall clock, which the node on the same machine shares. A lease's
token rises with every lease of a partition, so tokens tell the order in which leases were given
even when the answers came in another order.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from math import inf
from typing import Any, Literal

from goq.client import Client, LogMessage, Published, PublishedBatch, ReceivedMessage
from goq.errors import Conflict, GoqError, LeaseLost, TimedOut
from goq.frame.hashes import partition_of
from goq.model import MessageId, Receipt, fence_of

Place = tuple[int, int]
"""Partition and offset."""
Verb = Literal["ack", "nack", "extend", "reject"]
Mark = Literal["cancel", "move", "reschedule"]
_ENDING = ("ack", "reject")

_SHOWN_MAX = 12
_AFTER_ERROR_S = 0.05
_TOLERANCE_US = 2_000  # the node counts times in milliseconds


class Outcome(Enum):
    """What is known of a settlement."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    """Not carried out, and nothing is said of the lease: the partition had no leader, say."""
    UNKNOWN = "unknown"


_WITHOUT_EFFECT = frozenset({Outcome.REFUSED, Outcome.FAILED})


@dataclass(slots=True)
class Sent:
    """A message that a producer began to send; ``published`` is the node's answer."""

    producer: str
    number: int
    value: bytes
    key: bytes | None
    lane: str | int | None = None
    tenant: str | None = None
    due_us: int = 0
    """When it was to be ready at the earliest; 0 if at once."""
    published: Published | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message as one receive handed it over."""

    place: Place
    attempt: int
    token: int
    consumer: str
    value: bytes | None
    lease_until_us: int
    asked_us: int
    answered_us: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """An attempt to settle one message under one lease. ``lasts_us``: a delay or visibility."""

    verb: Verb
    place: Place
    token: int
    consumer: str
    lasts_us: int
    asked_us: int
    answered_us: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Marked:
    """An attempt to cancel one message, to move it, or to give it the time ``due_us``."""

    verb: Mark
    place: Place
    due_us: int
    asked_us: int
    answered_us: int
    outcome: Outcome


class Violations(AssertionError):
    """Promises that were broken."""


class ProducerRecord:
    """What one producer sent, in its order; used by its thread and its callbacks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._guard = threading.Lock()
        self._waiting: deque[Sent] = deque()
        self.sent: list[Sent] = []
        self.stored_count = 0

    def sending(
        self,
        value: bytes,
        key: bytes | None = None,
        *,
        lane: str | int | None = None,
        tenant: str | None = None,
        due_us: int = 0,
    ) -> Sent:
        """Write down a message before it is handed to the client."""
        with self._guard:
            sent = Sent(self.name, len(self.sent), value, key, lane, tenant, due_us)
            self.sent.append(sent)
            self._waiting.append(sent)
        return sent

    def withdrawn(self, sent: Sent) -> None:
        """Take back the message written down last: the client says it did not take it."""
        with self._guard:
            assert self.sent.pop() is sent
            assert self._waiting.pop() is sent

    def stored(self, sent: Sent, published: Published) -> None:
        """Write down the answer for one message."""
        with self._guard:
            self._waiting.remove(sent)
            sent.published = published
            self.stored_count += 1

    def unknown(self, sent: Sent) -> None:
        """Write down that no answer will come for one message."""
        with self._guard:
            self._waiting.remove(sent)

    def batch_stored(self, batch: PublishedBatch) -> None:
        """Write down the answer for the messages that have waited longest."""
        with self._guard:
            for published in batch:
                self._waiting.popleft().published = published
            self.stored_count += len(batch)


class GroupConsumer:
    """A consumer of a group that writes down everything it asks and is told.

    ``repeats`` says that the client sends a request again by itself: a refusal may then mean that
    an earlier attempt was carried out, so it counts as unknown.
    """

    def __init__(
        self, ledger: Ledger, client: Client, name: str, topic: str, group: str, *, repeats: bool
    ) -> None:
        self._ledger = ledger
        self._client = client
        self._name = name
        self._topic = topic
        self._group = group
        self._repeats = repeats

    def receive(self, *, max: int, wait_s: float, visibility_s: float) -> list[ReceivedMessage]:
        """Receive messages; raise what the client raises."""
        asked_us = _now_us()
        messages = self._client.receive(
            self._topic,
            self._group,
            max_messages=max,
            wait=wait_s,
            visibility=visibility_s,
            consumer=self._name,
        )
        answered_us = _now_us()
        self._ledger.deliveries.extend(
            Delivered(
                (m.partition, m.offset),
                m.attempt,
                m.token,
                self._name,
                m.value,
                m.lease_until,
                asked_us,
                answered_us,
            )
            for m in messages
        )
        return messages

    def ack(self, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages; raise what the client raises."""
        self._settle("ack", messages, 0.0, {})

    def nack(self, messages: Sequence[ReceivedMessage], *, delay_s: float) -> None:
        """Give messages back; raise what the client raises."""
        self._settle("nack", messages, delay_s, {"delay": delay_s})

    def reject(self, messages: Sequence[ReceivedMessage]) -> None:
        """Give messages up; raise what the client raises."""
        self._settle("reject", messages, 0.0, {})

    def extend(self, messages: Sequence[ReceivedMessage], *, visibility_s: float) -> None:
        """Keep messages for longer; raise what the client raises."""
        self._settle("extend", messages, visibility_s, {"visibility": visibility_s})

    def _settle(
        self,
        verb: Verb,
        messages: Sequence[ReceivedMessage],
        lasts_s: float,
        details: Mapping[str, Any],
    ) -> None:
        places = {(m.partition, m.token, m.offset) for m in messages}
        outcomes: dict[tuple[int, int, int], Outcome] = {}
        outcome = Outcome.UNKNOWN
        asked_us = _now_us()
        try:
            settled = getattr(self._client, verb)(
                self._topic, self._group, [m.receipt for m in messages], **details
            )
            outcome = Outcome.DONE
            for failed in settled.failed:
                run = Receipt.parse(failed.receipt)
                token = fence_of(run.fenced_id, run.token)
                failure = Outcome.UNKNOWN if self._repeats else _failure(failed.code)
                for offset in range(run.start, run.end):
                    outcomes[run.partition, token, offset] = failure
            if settled.done + len(outcomes) != len(places) or not outcomes.keys() <= places:
                self._ledger.complain(
                    f"{verb} of {len(places)} messages answered {settled.done} done and"
                    f" {len(outcomes)} not"
                )
        finally:
            answered_us = _now_us()
            self._ledger.settlements.extend(
                Settlement(
                    verb,
                    (partition, offset),
                    token,
                    self._name,
                    round(lasts_s * 1e6),
                    asked_us,
                    answered_us,
                    outcomes.get((partition, token, offset), outcome),
                )
                for partition, token, offset in sorted(places)
            )


def _failure(code: str) -> Outcome:
    """Return the outcome of a receipt that was not settled, or perhaps not."""
    if code == LeaseLost.code:
        return Outcome.REFUSED
    return Outcome.UNKNOWN if code == TimedOut.code else Outcome.FAILED


class Marker:
    """Somebody who cancels, moves and reschedules messages and writes down what came of it."""

    def __init__(self, ledger: Ledger, client: Client) -> None:
        self._ledger = ledger
        self._client = client

    def some_stored(self, chance: random.Random) -> Sent | None:
        """Return a message of those that were confirmed last, if there is any."""
        record = chance.choice(list(self._ledger.producers.values()))
        stored = [sent for sent in record.sent[-50:] if sent.published is not None]
        return chance.choice(stored) if stored else None

    def cancel(self, message_id: MessageId) -> None:
        """Cancel a message; what the client raises is written down."""
        self._do("cancel", message_id, 0, lambda: self._client.cancel_message(message_id))

    def move(self, message_id: MessageId, lane: str) -> None:
        """Move a message to another lane; what the client raises is written down."""
        self._do("move", message_id, 0, lambda: self._client.set_message_priority(message_id, lane))

    def reschedule(self, message_id: MessageId, at_ms: int) -> None:
        """Give a message another time; what the client raises is written down."""
        self._do(
            "reschedule",
            message_id,
            at_ms * 1000,
            lambda: self._client.reschedule_message(message_id, at_ms),
        )

    def _do(self, verb: Mark, message_id: MessageId, due_us: int, ask: Callable[[], Any]) -> None:
        outcome = Outcome.UNKNOWN
        asked_us = _now_us()
        try:
            ask()
            outcome = Outcome.DONE
        except Conflict:
            outcome = Outcome.REFUSED
        except GoqError:
            time.sleep(_AFTER_ERROR_S)  # or a node that is down uses up all there is to mark
        place = (message_id.partition, message_id.offset)
        self._ledger.marks.append(Marked(verb, place, due_us, asked_us, _now_us(), outcome))


@dataclass
class Ledger:
    """Everything that the clients of one topic and one group were told."""

    producers: dict[str, ProducerRecord] = field(default_factory=dict)
    deliveries: list[Delivered] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    marks: list[Marked] = field(default_factory=list)
    _violations: list[str] = field(default_factory=list)

    def producer(self, name: str) -> ProducerRecord:
        """Return the record of a new producer."""
        assert name not in self.producers, f"there is a producer {name} already"
        self.producers[name] = ProducerRecord(name)
        return self.producers[name]

    def consumer(
        self, client: Client, name: str, topic: str, group: str, *, repeats: bool
    ) -> GroupConsumer:
        """Return a consumer that writes into this ledger."""
        return GroupConsumer(self, client, name, topic, group, repeats=repeats)

    @property
    def stored_count(self) -> int:
        """How many messages the node has confirmed."""
        return sum(record.stored_count for record in self.producers.values())

    @property
    def acked_count(self) -> int:
        """How many acks the node has confirmed."""
        return sum(s.verb == "ack" and s.outcome is Outcome.DONE for s in self.settlements)

    @property
    def given_up(self) -> set[Place]:
        """What the node has confirmed to be given up, but what may have been cancelled before."""
        cancelled = {
            mark.place
            for mark in self.marks
            if mark.verb == "cancel" and mark.outcome is not Outcome.REFUSED
        }
        done = {
            each.place
            for each in self.settlements
            if each.verb == "reject" and each.outcome is Outcome.DONE
        }
        return done - cancelled

    def summary(self) -> str:
        """Return what the ledger holds, in a line."""
        outcomes = Counter(
            f"{each.verb} {each.outcome.value}" for each in (*self.settlements, *self.marks)
        )
        sent = sum(len(record.sent) for record in self.producers.values())
        counted = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
        return (
            f"{sent} sent, {self.stored_count} stored, {len(self.deliveries)} delivered, {counted}"
        )

    def complain(self, violation: str) -> None:
        """Write down a broken promise."""
        self._violations.append(violation)

    def check(
        self,
        log: Sequence[LogMessage],
        partitions: int,
        group: Mapping[str, Any],
        dead: Sequence[Place] = (),
    ) -> None:
        """Check everything, once the group has drained the log and no client works any more.

        ``dead`` are the places that the dead letters come from.
        """
        self.check_log(log, partitions)
        self.check_deliveries(log)
        self.check_times()
        self.check_order()
        self.check_fates(log, dead)
        self.check_drained(group, Counter(message.partition for message in log))
        self.raise_violations()

    def raise_violations(self) -> None:
        """Raise what was found, if anything was."""
        if self._violations:
            shown = "\n  ".join(self._violations[:_SHOWN_MAX])
            raise Violations(f"{len(self._violations)} violations; {self.summary()}\n  {shown}")

    # The log

    def check_log(self, log: Iterable[LogMessage], partitions: int) -> None:
        """Check the whole log, as it was read back, against what was sent and confirmed."""
        stored: dict[Place, LogMessage] = {}
        by_value: dict[bytes | None, list[Place]] = defaultdict(list)
        ends = [0] * partitions
        for message in log:
            place = (message.partition, message.offset)
            if message.offset != ends[message.partition]:
                self.complain(f"{place} follows offset {ends[message.partition] - 1} in the log")
            ends[message.partition] = message.offset + 1
            stored[place] = message
            by_value[message.value].append(place)
        sent_by_value: dict[bytes | None, Sent] = {}
        for record in self.producers.values():
            for sent in record.sent:
                assert sent.value not in sent_by_value, "a ledger needs every value to be another"
                sent_by_value[sent.value] = sent
        for value, places in by_value.items():
            if len(places) > 1:
                self.complain(f"{_short(value)} is in the log at {places}")
            if value not in sent_by_value:
                self.complain(f"{_short(value)} is in the log at {places}, and nobody sent it")
        for record in self.producers.values():
            self._check_producer(record, stored)
        for message in stored.values():
            if message.key is not None and message.partition != partition_of(
                message.key, partitions
            ):
                self.complain(f"key {message.key!r} is in partition {message.partition}")

    def _check_producer(self, record: ProducerRecord, stored: Mapping[Place, LogMessage]) -> None:
        reached: dict[int, int] = {}
        for sent in record.sent:
            if sent.published is None:
                continue
            _, partition, offset = sent.published.id
            name = f"{sent.producer} number {sent.number}, confirmed at {(partition, offset)},"
            found = stored.get((partition, offset))
            if found is None:
                self.complain(f"{name} is not in the log")
            elif (found.value, found.key) != (sent.value, sent.key):
                self.complain(f"{name} is {_short(found.value)} in the log")
            elif found.timestamp != sent.published.timestamp:
                self.complain(f"{name} was stored at another time than was said")
            if offset <= reached.get(partition, -1):
                self.complain(f"{name} came after offset {reached[partition]}")
            reached[partition] = offset

    # Deliveries

    def check_deliveries(self, log: Sequence[LogMessage]) -> None:
        """Check what was handed over: whether it could be, and to one consumer at a time."""
        values = {(m.partition, m.offset): m.value for m in log}
        deliveries: dict[Place, list[Delivered]] = defaultdict(list)
        settlements: dict[Place, list[Settlement]] = defaultdict(list)
        for delivered in self.deliveries:
            deliveries[delivered.place].append(delivered)
        for settlement in self.settlements:
            settlements[settlement.place].append(settlement)
        for place, several in deliveries.items():
            several.sort(key=lambda delivered: delivered.token)
            violations = list(_check_life(several, settlements[place]))
            if place not in values:
                violations.append("delivered, and not in the log")
            elif any(values[place] != delivered.value for delivered in several):
                violations.append("delivered with other bytes than the log has")
            if violations:
                life = _life(several, settlements[place])
                self.complain(f"{place}: {'; '.join(violations)}\n    {life}")

    def check_times(self) -> None:
        """Check that nothing came before its time, or at all after it was cancelled."""
        due_us = {place: sent.due_us for place, sent in self._confirmed() if sent.due_us}
        for mark in self.marks:
            if mark.verb == "reschedule" and mark.outcome is not Outcome.REFUSED:
                known_us = due_us.get(mark.place, 0)
                due_us[mark.place] = (
                    mark.due_us if mark.outcome is Outcome.DONE else min(mark.due_us, known_us)
                )
        cancelled = {
            mark.place: mark.answered_us
            for mark in reversed(self.marks)
            if mark.verb == "cancel" and mark.outcome is Outcome.DONE
        }
        for each in self.deliveries:
            early_us = due_us.get(each.place, 0) - each.answered_us
            if early_us > 0:
                told = [str(mark) for mark in self.marks if mark.place == each.place]
                self.complain(
                    f"{each.place} was delivered {early_us} us before its time: {each}; {told}"
                )
            if each.asked_us > cancelled.get(each.place, each.asked_us):
                self.complain(f"{each.place} was delivered after it was cancelled")

    def check_order(self) -> None:
        """Check that first deliveries within a key and lane are in the order of publishing.

        Of messages that were ready at once and never moved; one that came for the first time in an
        answer that was lost shows it by its attempt, and may have come sooner than was seen.
        """
        first: dict[Place, Delivered] = {}
        for each in sorted(self.deliveries, key=lambda delivered: delivered.token):
            first.setdefault(each.place, each)
        moved = {mark.place for mark in self.marks}
        rows: dict[tuple[object, ...], list[Place]] = defaultdict(list)
        for place, sent in self._confirmed():
            if sent.key is not None and not sent.due_us and place in first and place not in moved:
                rows[place[0], sent.key, sent.lane, sent.tenant].append(place)
        for row, places in rows.items():
            least: float = inf
            for place in sorted(places, reverse=True):
                token = first[place].token
                if first[place].attempt == 1 and token > least:
                    self.complain(f"{place} of {row} came after one published later")
                least = min(least, token)

    def check_fates(self, log: Iterable[LogMessage], dead: Sequence[Place]) -> None:
        """Check that every message of the log ended once: acked, dead or cancelled."""
        ends: dict[Place, dict[str, set[Outcome]]] = defaultdict(lambda: defaultdict(set))
        for settlement in self.settlements:
            if settlement.verb in _ENDING:
                ends[settlement.place][settlement.verb].add(settlement.outcome)
        cancels: dict[Place, set[Outcome]] = defaultdict(set)
        for mark in self.marks:
            if mark.verb == "cancel":
                cancels[mark.place].add(mark.outcome)
        delivered = {each.place for each in self.deliveries}
        copies = Counter(dead)
        for message in log:
            place = (message.partition, message.offset)
            ways = ends[place]
            may_be_acked = bool(ways["ack"] - _WITHOUT_EFFECT)
            may_be_cancelled = bool(cancels[place] - {Outcome.REFUSED})
            if copies[place] > 1:
                self.complain(f"{place} is dead {copies[place]} times")
            if copies[place] and not ways["reject"] - _WITHOUT_EFFECT:
                self.complain(f"{place} is dead, and nobody gave it up")
            if copies[place] and Outcome.DONE in ways["ack"]:
                self.complain(f"{place} is dead, and was acked")
            if Outcome.DONE in ways["reject"] and not copies[place] and not may_be_cancelled:
                self.complain(f"{place} was given up, and is not dead")
            if not copies[place] and not may_be_cancelled:
                if place not in delivered:
                    self.complain(f"{place} is done, and nobody was given it")
                if not may_be_acked:
                    self.complain(f"{place} is done, and nobody has acked it")
        for place in copies.keys() - {(m.partition, m.offset) for m in log}:
            self.complain(f"{place} is dead, and not in the log")

    def check_drained(self, group: Mapping[str, Any], ends: Mapping[int, int]) -> None:
        """Check that the group has nothing left; ``ends`` are those of the partitions' logs."""
        names = ("lag", "ready", "leased", "retry", "scheduled", "blocked")
        left = {name: group[name] for name in names if group.get(name)}
        if left:
            self.complain(f"the group is not done: {left}")
        for partition in group["partitions"]:
            if partition["cursor"] != ends.get(partition["partition"], 0):
                self.complain(f"the group does not stand at the end: {partition}")

    def _confirmed(self) -> Iterator[tuple[Place, Sent]]:
        for record in self.producers.values():
            for sent in record.sent:
                if sent.published is not None:
                    yield (sent.published.id.partition, sent.published.id.offset), sent


def _check_life(deliveries: Sequence[Delivered], settlements: Sequence[Settlement]) -> list[str]:
    """Return what is wrong in the life of one message; deliveries in the order of leases."""
    found: list[str] = []
    by_token: dict[int, list[Settlement]] = defaultdict(list)
    for settlement in settlements:
        by_token[settlement.token].append(settlement)
    done_acks = [s for s in settlements if s.verb in _ENDING and s.outcome is Outcome.DONE]
    for ack in done_acks:
        found += [
            f"delivered to {later.consumer} after its {ack.verb} was confirmed"
            for later in deliveries
            if later.token > ack.token or later.asked_us > ack.answered_us
        ]
    # An ack that is sent again under its lease is settled again: its answer may have been lost.
    ends = {(ack.verb, ack.token, ack.verb != "ack" and ack.asked_us) for ack in done_acks}
    if len(ends) > 1:
        found.append(f"{done_acks[1].verb}ed more than once")
    for delivered in deliveries:
        found += _check_lease(delivered, by_token[delivered.token])
    for earlier, later in pairwise(deliveries):
        if earlier.token == later.token:
            found.append("handed over twice under one lease")
            continue
        if later.attempt <= earlier.attempt:
            found.append(f"attempt {later.attempt} came after attempt {earlier.attempt}")
        found += _check_hand_over(earlier, later, by_token[earlier.token])
    return found


def _check_lease(delivered: Delivered, settlements: Sequence[Settlement]) -> list[str]:
    """Return what is wrong in how the settlements under one lease were answered."""
    found: list[str] = []
    lease_until_us = delivered.lease_until_us
    is_over = may_be_over = is_acked = False
    for settlement in sorted(settlements, key=lambda s: s.asked_us):
        is_done = settlement.outcome is Outcome.DONE
        if is_done and is_over and not (is_acked and settlement.verb == "ack"):
            found.append(f"{settlement.verb} took effect after the message was settled")
        if settlement.outcome is Outcome.REFUSED:
            if not may_be_over and settlement.answered_us < lease_until_us - _TOLERANCE_US:
                found.append(f"{settlement.verb} was refused within the lease")
        elif settlement.verb == "extend":
            lease_until_us = _extended_until_us(lease_until_us, settlement)
        elif settlement.outcome is not Outcome.FAILED:
            may_be_over = True
            is_over |= is_done
            is_acked |= is_done and settlement.verb == "ack"
    return found


def _check_hand_over(
    earlier: Delivered, later: Delivered, settlements: Sequence[Settlement]
) -> list[str]:
    """Return what is wrong in that a message went from one lease to another."""
    found: list[str] = []
    lease_until_us = earlier.lease_until_us
    may_be_over = False
    for settlement in sorted(settlements, key=lambda s: s.asked_us):
        is_done = settlement.outcome is Outcome.DONE
        if is_done and settlement.asked_us > later.answered_us:
            found.append(f"{settlement.verb} under a lease that was lost to {later.consumer}")
        if settlement.verb == "extend":
            lease_until_us = _extended_until_us(lease_until_us, settlement)
        elif settlement.asked_us < later.answered_us:
            may_be_over |= settlement.outcome not in _WITHOUT_EFFECT
        if settlement.verb == "nack" and is_done:
            due_us = settlement.asked_us + settlement.lasts_us
            if later.answered_us < due_us - _TOLERANCE_US:
                found.append(f"delivered {due_us - later.answered_us} us before its delay was over")
    if not may_be_over and later.answered_us < lease_until_us - _TOLERANCE_US:
        found.append(
            f"given to {later.consumer} {lease_until_us - later.answered_us} us before the lease"
            f" of {earlier.consumer} was over"
        )
    return found


def _extended_until_us(lease_until_us: int, extension: Settlement) -> int:
    """Return until when a lease lasts at least."""
    extended_us = extension.asked_us + extension.lasts_us
    if extension.outcome is Outcome.DONE:
        return extended_us
    if extension.outcome is Outcome.UNKNOWN:
        return min(lease_until_us, extended_us)
    return lease_until_us


def _life(deliveries: Sequence[Delivered], settlements: Sequence[Settlement]) -> str:
    lines = [
        (
            d.answered_us,
            f"delivered to {d.consumer}, attempt {d.attempt}, lease {d.token:x},"
            f" asked {d.asked_us}, until {d.lease_until_us}",
        )
        for d in deliveries
    ]
    lines += [
        (
            s.answered_us,
            f"{s.verb} {s.outcome.value} by {s.consumer}, lease {s.token:x},"
            f" asked {s.asked_us}, for {s.lasts_us}",
        )
        for s in settlements
    ]
    return "\n    ".join(f"{time_us} {text}" for time_us, text in sorted(lines))


def read_log(client: Client, topic: str) -> list[LogMessage]:
    """Return all of a topic's log, one partition after the other."""
    found: list[LogMessage] = []
    for partition in client.describe_topic(topic).partitions:
        offset = 0
        while True:
            piece = client.read(topic, partition=partition.partition, offset=offset)
            assert not piece.damaged, f"damaged: {piece.damaged}"
            found.extend(piece.messages)
            if piece.next >= piece.end:
                break
            assert piece.next > offset, f"reading stands still at {offset}"
            offset = piece.next
    return found


def dead_places(client: Client, topic: str) -> list[Place]:
    """Return where the dead letters of a topic come from."""
    found: list[Place] = []
    after = None
    while True:
        answer = client.list_dead_letters(topic, limit=1000, after=after)
        origins = [letter.origin for letter in answer.messages if letter.origin is not None]
        found.extend((origin.partition, origin.offset) for origin in origins)
        after = answer.next
        if after is None:
            return found


def is_drained(client: Client, topic: str, group: str) -> bool:
    """Return whether a group has nothing left; False too while the node does not answer."""
    try:
        found = client.describe_group(topic, group)
        return found.lag == 0 and found.scheduled == 0
    except GoqError:
        return False


def _now_us() -> int:
    return time.time_ns() // 1000


def _short(value: bytes | None) -> str:
    return repr(value if value is None else value[:60])
