"""What was done to a topic, told message by message by whoever does it: what traces must say.

A broker runs on a clock that moves only when it is told, by whole milliseconds. Each thing that is
done is noted for the messages that it concerns, from the answer to it and from what the twin knows
of each group; nothing is taken from events.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from goq.broker.broker import Broker
from goq.broker.dlq.redrive import RemovalRequest, redrive
from goq.broker.dlq.search import DeadLetterQuery
from goq.broker.group.message_changes import MessageChanges
from goq.broker.outbox.dead_letter_headers import read_dead_letter
from goq.broker.partition.failure_policy import retry_policy
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.broker.topic.topic_leases import ReceiveRequest
from goq.broker.trace.trace import TracedStep
from goq.clock import ManualClock
from goq.errors import Conflict
from goq.model import Message, MessageId, Receipt
from tests.support.broker.harness import leased, quiet
from tests.support.broker.partition_internals import state_of
from tests.support.eventually import until

TOPIC, DEAD = "t", "t.dlq"
GROUPS = ("g", "h")
Told = tuple[Any, ...]
"""A step: time, name, and what else it says."""


@dataclass(slots=True)
class Held:
    """A message in a consumer's hands."""

    consumer: str
    attempt: int
    deadline_ms: int
    token: int
    told: dict[str, Any]


@dataclass(slots=True)
class Standing:
    """What a group was told of the messages of one topic."""

    held: dict[int, Held] = field(default_factory=dict)
    waits: dict[int, int] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    end: int | None = None
    behind: set[int] = field(default_factory=set)
    """The messages that were there, behind the end, when it was set."""

    def is_behind(self, offset: int) -> bool:
        return self.end is not None and offset >= self.end


class TraceTwin:
    """Does things by chance to a topic ``t``, and notes what must come of them."""

    def __init__(self, seed: int, clock: ManualClock) -> None:
        self.chance = random.Random(seed)
        self.clock = clock
        self.steps: dict[MessageId, list[dict[str, Any]]] = defaultdict(list)
        self.groups: dict[tuple[str, str], Standing] = defaultdict(Standing)
        self.scheduled: dict[MessageId, int] = {}
        self.expires: dict[MessageId, int] = {}
        self.cancelled: set[MessageId] = set()
        self.ends: dict[str, int] = defaultdict(int)
        self.copied: dict[MessageId, bytes] = {}
        self._leaving: list[tuple[dict[str, Any], MessageId, str]] = []

    def bind(self, broker: Broker) -> None:
        """Go on with a broker that was started."""
        self.broker = broker

    def tell(self, at: MessageId, event: str, **known: Any) -> dict[str, Any]:
        step = {"time_us": self.clock.wall_us(), "event": event, **known}
        self.steps[at].append(step)
        return step

    async def act(self) -> None:
        """Do one thing, and let all that follows from it come to rest."""
        kinds = {
            self.publish: 18,
            self.receive: 24,
            self.settle: 24,
            self.give_up_receive: 3,
            self.lose_consumer: 2,
            self.mark: 8,
            self.pass_time: 14,
            self.set_back: 2,
            self.delete_group: 1,
            self.put_back: 4,
        }
        (work,) = self.chance.choices(list(kinds), list(kinds.values()))
        await work()
        await self.rest()

    async def rest(self) -> None:
        """Let the timers see what time it is, and wait until nothing is under way."""
        topics = list(self.broker.topics.values())
        for partition in [p for topic in topics for p in topic.partitions]:
            partition._timers._on_time()
        self._note_time()
        for topic in list(self.broker.topics.values()):
            for partition in topic.partitions:
                await until(lambda p=partition: not p.outbox_entries)
                await partition.rebuilt()
        for topic in self.broker.topics.values():
            for partition in topic.partitions:
                await quiet(partition)
        self._note_copies()

    def _topic(self, name: str = TOPIC) -> Topic:
        return self.broker.topic(name)

    def _some_topic(self) -> Topic:
        names = [name for name in (TOPIC, DEAD) if name in self.broker.topics]
        return self._topic(self.chance.choices(names, (9, 1)[: len(names)])[0])

    def _id(self, topic: str, offset: int) -> MessageId:
        return MessageId(topic, 0, offset)

    async def publish(self) -> None:
        messages: list[Message] = []
        now_ms = self.clock.wall_ms()
        for _ in range(self.chance.choice((1, 1, 2, 5))):
            due_ms = now_ms + self.chance.choice((1, 50, 5_000)) if self._is_rare(0.3) else 0
            expires_ms = (due_ms or now_ms) + 2_000 if self._is_rare(0.15) else 0
            messages.append(Message(b"v", deliver_at_ms=due_ms, expires_at_ms=expires_ms))
        placed = [RoutedMessage(0, message) for message in messages]
        found = await self._topic().publisher.publish_messages(placed)
        for message, stored in zip(messages, found, strict=True):
            at = self._id(TOPIC, stored.offset)
            self.ends[TOPIC] = stored.offset + 1
            self.tell(at, "PUBLISHED")
            if message.deliver_at_ms:
                self.scheduled[at] = message.deliver_at_ms
                self.tell(at, "SCHEDULED", due_ms=message.deliver_at_ms)
            if message.expires_at_ms:
                self.expires[at] = message.expires_at_ms

    def _is_rare(self, share: float) -> bool:
        return self.chance.random() < share

    async def receive(self, *, returns: bool = False) -> None:
        topic, group = self._some_topic(), self.chance.choice(GROUPS)
        standing, partition = self.groups[topic.name, group], topic.partitions[0]
        await self.broker.group_admin.remember(topic, group)
        visibility_ms = self.chance.choice((20, 500, 30_000))
        consumer = self.chance.choice(("one", "two"))
        asked = ReceiveRequest(consumer, self.chance.randint(1, 6), 2**20, 0, visibility_ms)
        deliveries = await topic.receiver.receive(group, asked)
        for delivery in deliveries:
            for offset, attempt, _value in leased([delivery]):
                told = self.tell(
                    self._id(topic.name, offset),
                    "DELIVERED",
                    group=group,
                    consumer=consumer,
                    attempt=attempt,
                    until_ms=delivery.deadline_ms,
                )
                standing.waits.pop(offset, None)
                standing.taken.add(offset)
                standing.held[offset] = Held(
                    consumer, attempt, delivery.deadline_ms, delivery.token, told
                )
            if returns:
                partition.leases.undo_receive(group, delivery.token, delivery.spans)
                for start, end, attempt in delivery.spans:
                    for offset in range(start, end):
                        self._ends(standing, topic.name, offset, "RETURNED", group, waits=attempt)
                        held = self.steps[self._id(topic.name, offset)]
                        held[-1]["attempt"] = attempt
        self._note_skipped(topic, group, standing)

    def _note_skipped(self, topic: Topic, group: str, standing: Standing) -> None:
        """What the group counts as taken now, and did not before, was passed over by the call."""
        known = state_of(topic.partitions[0]).group(group)
        for offset in range(self.ends[topic.name]):
            at = self._id(topic.name, offset)
            is_waiting = bool(known.retries.within(offset, offset + 1))
            was_lost = offset in standing.waits and not is_waiting
            is_new = offset in known.taken and offset not in standing.taken
            is_new = is_new and not standing.is_behind(offset)
            if at in self.cancelled or not (was_lost or is_new):
                continue
            standing.waits.pop(offset, None)
            standing.taken.add(offset)
            if 0 < self.expires.get(at, 0) <= self.clock.wall_ms():
                self.tell(at, "EXPIRED", group=group, reason="ttl")
            else:
                assert at in self.copied, "only what is for another group is passed over"
                self.tell(at, "SKIPPED", group=group, reason="other_group")

    async def give_up_receive(self) -> None:
        await self.receive(returns=True)

    def _ends(
        self,
        standing: Standing,
        topic: str,
        offset: int,
        event: str,
        group: str,
        *,
        waits: int | None = None,
        is_over: bool = False,
        **known: Any,
    ) -> None:
        held = standing.held.pop(offset)
        if not is_over:
            held.told.pop("until_ms")
        at = self._id(topic, offset)
        told = {"attempt": held.attempt, "consumer": held.consumer, **known}
        self.tell(at, event, group=group, **told)
        if waits is not None and at not in self.cancelled:
            standing.waits[offset] = waits

    def _fails(
        self, topic: Topic, group: str, offset: int, event: str, delay_ms: int | None, reason: str
    ) -> None:
        """Note that an attempt failed, and what comes of it."""
        standing, at = self.groups[topic.name, group], self._id(topic.name, offset)
        held = standing.held[offset]
        policy = retry_policy(topic.settings)
        known = {"reason": reason} if reason else {}
        is_over = event == "EXPIRED"
        if event == "REJECTED" or policy.is_last(held.attempt):
            self._ends(standing, topic.name, offset, event, group, is_over=is_over, **known)
            if policy.dead_letters and at not in self.cancelled:
                step = self.tell(at, "DEAD_LETTERED", group=group)
                self._leaving.append((step, at, group))
            else:
                self.tell(at, "DROPPED", group=group)
            return
        wait_ms = policy.wait_ms(held.attempt, 0.5) if delay_ms is None else delay_ms
        self._ends(standing, topic.name, offset, event, group, waits=1, is_over=is_over, **known)
        if wait_ms and at not in self.cancelled:
            due_ms = self.clock.wall_ms() + wait_ms
            self.tell(at, "RETRY_SCHEDULED", group=group, due_ms=due_ms)

    async def settle(self) -> None:
        topic, group = self._some_topic(), self.chance.choice(GROUPS)
        standing = self.groups[topic.name, group]
        if not standing.held:
            return
        count = min(len(standing.held), self.chance.choice((1, 2, 8)))
        chosen = self.chance.sample(sorted(standing.held), count)
        verb = self.chance.choices(("ack", "nack", "extend", "reject"), (6, 4, 2, 2))[0]
        reason = self.chance.choice(("", "busy"))
        delay_ms = self.chance.choice((None, 0, 700))
        deadline_ms = self.clock.wall_ms() + 900

        receipts = [Receipt(0, standing.held[o].token, o, o + 1) for o in chosen]
        settler = topic.settler
        if verb == "ack":
            done, lost = await settler.acknowledge(group, receipts)
        elif verb == "extend":
            done, lost = await settler.extend(group, receipts, deadline_ms)
        elif verb == "nack":
            done, lost = await settler.nack(group, receipts, delay_ms, reason)
        else:
            done, lost = await settler.reject(group, receipts, reason)
        assert (done, lost) == (len(chosen), [])
        for offset in chosen:
            held, at = standing.held[offset], self._id(topic.name, offset)
            if verb == "ack":
                self._ends(standing, topic.name, offset, "ACKNOWLEDGED", group)
            elif verb == "extend":
                held.deadline_ms = deadline_ms
                known = {"consumer": held.consumer, "attempt": held.attempt}
                self.tell(at, "EXTENDED", group=group, until_ms=deadline_ms, **known)
            elif verb == "nack":
                self._fails(topic, group, offset, "NACKED", delay_ms, reason)
            else:
                self._fails(topic, group, offset, "REJECTED", None, reason)

    async def lose_consumer(self) -> None:
        topic, group = self._topic(), self.chance.choice(GROUPS)
        standing = self.groups[topic.name, group]
        if standing.held:
            token = self.chance.choice([held.token for held in standing.held.values()])
            topic.partitions[0].leases.end_leases(group, [token], "gone")
            for offset in [o for o, held in standing.held.items() if held.token == token]:
                self._fails(topic, group, offset, "EXPIRED", 0, "gone")

    async def mark(self) -> None:
        """Cancel a message, move it or give it another time."""
        if not self.ends[TOPIC]:
            return
        at = self._id(TOPIC, self.chance.randrange(self.ends[TOPIC]))
        marking = MessageChanges(self._topic().partitions[0], at.offset, GROUPS)
        verb = self.chance.choice(("cancel", "move", "move", "reschedule", "reschedule"))
        try:
            if verb == "cancel":
                await marking.cancel("why not")
                self.tell(at, "CANCELLED", reason="why not")
                self._cancel(at)
            elif verb == "move":
                lane = self.chance.randrange(3)
                before = dict(state_of(self._topic().partitions[0]).moved)
                await marking.move(lane)
                if before.get(at.offset, self._topic().settings.default_lane) != lane or (
                    at.offset in before
                ):
                    self.tell(at, "MOVED", lane=lane)
            else:
                due_ms = self.clock.wall_ms() + self.chance.choice((-1, 40, 9_000))
                await marking.reschedule(due_ms)
                self.scheduled[at] = due_ms
                self.tell(at, "RESCHEDULED", due_ms=due_ms)
        except Conflict:
            return

    def _cancel(self, at: MessageId) -> None:
        self.cancelled.add(at)
        self.scheduled.pop(at, None)
        for (topic, _), standing in self.groups.items():
            if topic == at.topic:
                standing.waits.pop(at.offset, None)

    async def pass_time(self) -> None:
        self.clock.advance_ms(self.chance.choice((1, 30, 400, 2_000, 20_000)))

    def _note_time(self) -> None:
        """Note what has come to its time, as the timers of the partitions do."""
        now_ms = self.clock.wall_ms()
        for (name, group), standing in self.groups.items():
            over = [o for o, held in standing.held.items() if held.deadline_ms <= now_ms]
            for offset in over:
                topic = self._topic(name)
                self._fails(topic, group, offset, "EXPIRED", None, "visibility_timeout")
        for at in [at for at, due_ms in self.scheduled.items() if due_ms <= now_ms]:
            del self.scheduled[at]
            self.tell(at, "MATURED")

    async def set_back(self) -> None:
        """Set a group to another offset, at times with an end."""
        topic, group = self._topic(), self.chance.choice(GROUPS)
        floor = self.chance.randint(0, self.ends[TOPIC])
        end = self.chance.randint(floor, self.ends[TOPIC]) if self._is_rare(0.5) else None
        await self.broker.group_admin.remember(topic, group)
        await topic.partitions[0].reset(group, floor, end)
        standing = self.groups.pop((TOPIC, group), Standing())
        for held in standing.held.values():
            held.told.pop("until_ms")
        after = self.groups[TOPIC, group]
        after.taken, after.end = set(range(floor)), end
        after.behind = {o for o in range(self.ends[TOPIC]) if after.is_behind(o)}
        for offset in range(self.ends[TOPIC]):
            at = self._id(TOPIC, offset)
            is_out = offset in standing.held or offset in standing.waits
            is_taken, is_cancelled = offset in standing.taken, at in self.cancelled
            was_behind = standing.is_behind(offset)
            if offset in after.behind:
                is_told, reason = not was_behind, "behind the group's end"
            elif offset < floor:
                is_told, reason = was_behind or not is_taken, "passed over"
            elif was_behind:
                is_told, reason = True, "no longer behind the group's end"
            else:
                is_told, reason = is_taken, "to be delivered again"
            if is_out or (is_told and not is_cancelled):
                self.tell(at, "RESET", group=group, reason=reason)

    async def delete_group(self) -> None:
        topic, group = self._topic(), self.chance.choice(GROUPS)
        exists = group in state_of(topic.partitions[0]).groups
        await self.broker.group_admin.delete(topic, group)
        standing = self.groups.pop((TOPIC, group), Standing())
        for held in standing.held.values():
            held.told.pop("until_ms")
        for offset in standing.taken | standing.behind if exists else ():
            self.tell(self._id(TOPIC, offset), "GROUP_DELETED", group=group)

    async def put_back(self) -> None:
        """Redrive some dead letters."""
        if DEAD not in self.broker.topics:
            return
        dead = self._topic(DEAD)
        before = set(state_of(dead.partitions[0]).cancelled.present(0, self.ends[DEAD]))
        gone = {o for start, end in before for o in range(start, end)}
        taking = RemovalRequest(DeadLetterQuery(), (-1, -1), self.chance.choice((1, 3, 100)))
        await redrive(dead, self._topic(), self.clock.wall_ms(), taking)
        await until(lambda: not dead.partitions[0].outbox_entries)
        runs = state_of(dead.partitions[0]).cancelled.present(0, self.ends[DEAD])
        now = {o for start, end in runs for o in range(start, end)}
        for offset in sorted(now - gone):
            at = self._id(DEAD, offset)
            to = self._id(TOPIC, self.ends[TOPIC])
            self.tell(at, "REDRIVEN", to=to)
            self._cancel(at)
            self.tell(to, "PUBLISHED", origin=at)
            self.copied[to] = b""
            self.ends[TOPIC] += 1

    def _note_copies(self) -> None:
        """Note where what left has arrived, as the headers of the copies say."""
        if DEAD not in self.broker.topics:
            return
        partition = self._topic(DEAD).partitions[0]
        for offset in range(self.ends[DEAD], partition.end_offset):
            (view,) = partition.message_reader.read(offset, offset + 1, messages_max=1).frames
            index = offset - view.header.base_offset
            died = read_dead_letter(view.headers(index, index + 1)[0]).origin
            assert died is not None
            number = next(
                n
                for n, (_, origin, group) in enumerate(self._leaving)
                if (str(origin), group) == (died.id, died.group)
            )
            step, origin, _ = self._leaving.pop(number)
            step["to"] = self._id(DEAD, offset)
            self.tell(self._id(DEAD, offset), "PUBLISHED", origin=origin)
            self.ends[DEAD] = offset + 1


def as_told(steps: Sequence[TracedStep]) -> list[dict[str, Any]]:
    """Return steps of a trace as the twin has them."""
    found = []
    for each in steps:
        step = each.step
        told = {"time_us": step.time_us, "event": str(step.name)}
        names = ("group", "consumer", "attempt", "until_ms", "reason", "lane", "due_ms")
        told |= {name: value for name in names if (value := getattr(step, name)) is not None}
        if each.to is not None:
            told["to"] = each.to
        if each.origin is not None:
            told["origin"] = each.origin
        found.append(told)
    return found


def in_order(steps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return steps of one time by their groups: whose leases end first then is not promised."""
    return sorted(steps, key=lambda step: (step["time_us"], step.get("group", "")))
