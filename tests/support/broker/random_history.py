"""A broker under everything at once, on a clock that steps, told to the ledger that all tests use.

The ledger's times only rise: they are of a clock that is not set. So a lease and a retry have their
length by it, whatever the wall clock does. That one is only set back, so a due time by it is never
asked for sooner.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

from goq.broker.broker import Broker
from goq.broker.dlq.search import DeadLetterQuery, DeadLetterSearch
from goq.broker.group.message_changes import MessageChanges
from goq.broker.outbox.dead_letter_headers import read_dead_letter
from goq.broker.partition.partition import Partition
from goq.broker.topic.publisher import RoutedMessage
from goq.broker.topic.topic import Topic
from goq.client import LogMessage, Published
from goq.clock import ManualClock
from goq.errors import Conflict
from goq.model import Message, MessageId, Receipt
from tests.support.broker.harness import MemoryMetadata, leased, options, quiet
from tests.support.broker.partition_internals import state_of
from tests.support.broker.rebuild import Copy
from tests.support.delivery.model import canonical
from tests.support.eventually import until
from tests.support.ledger.ledger import Delivered, Ledger, Marked, Outcome, Sent, Settlement, Verb
from tests.support.storage.folder_copy import copy_in_use

HOUR_MS = 3_600_000
TOPIC, GROUP = "t", "g"
_KEYS = (b"a", b"b", b"c", b"d", b"e")
_TENANTS = (None, None, "x", "y", "z")


class Life:
    """A topic ``t`` with a group ``g``, and what the ledger knows of both."""

    def __init__(self, seed: int, clock: ManualClock) -> None:
        self.chance = random.Random(seed)
        self.clock = clock
        self.ledger = Ledger()
        self.held: dict[Receipt, None] = {}
        self.shown: list[str] = []
        self._record = self.ledger.producer("p")
        self._latest_us = clock.uptime_us()

    @property
    def latest_us(self) -> int:
        """The time that has passed, and later than any that was asked for."""
        self._latest_us = max(self._latest_us + 1, self.clock.uptime_us())
        return self._latest_us

    def _told_us(self, wall_ms: int) -> int:
        """Return a time of the wall clock as it is now, by the clock of the ledger."""
        return wall_ms * 1000 - self.clock.jumped_us

    def bind(self, broker: Broker) -> None:
        """Go on with a broker that was started."""
        self.broker = broker

    @property
    def topic(self) -> Topic:
        return self.broker.topic(TOPIC)

    async def publish(self) -> None:
        """Publish some messages of all kinds, in one call."""
        sent: list[Sent] = []
        placed: list[RoutedMessage] = []
        is_plain = self.chance.random() < 0.2
        for _ in range(self.chance.choice((1, 1, 3, 10))):
            index = self.chance.randrange(len(_KEYS))
            key, lane, tenant, due_ms = None, None, None, 0
            if not is_plain:
                key = _KEYS[index] if self.chance.random() < 0.6 else None
                # a frame all in the default lane goes where the topic's settings move that to
                lane = self.chance.choice((0, 3)) if key else self.chance.choice((None, 0, 2))
                tenant = _TENANTS[index] if key else self.chance.choice(_TENANTS)
                if self.chance.random() < 0.25:
                    due_ms = self.clock.wall_ms() + self.chance.choice((5, 500, HOUR_MS // 2))
            value = b"%d" % len(self._record.sent)
            sent.append(
                self._record.sending(
                    value, key, lane=lane, tenant=tenant, due_us=due_ms and self._told_us(due_ms)
                )
            )
            message = Message(value, key, lane=lane, tenant=tenant, deliver_at_ms=due_ms)
            partition = 0 if key is None and self.chance.random() < 0.5 else None
            placed.append(RoutedMessage(partition, message))
        client_id = ("shop", None, "till")[len(self._record.sent) % 3]
        stored = await self.topic.publisher.publish_messages(placed, client_id)
        for each, at in zip(sent, stored, strict=True):
            where = MessageId(TOPIC, at.partition, at.offset)
            self._record.stored(each, Published(where, at.time_us, False))

    async def receive(self, count: int | None = None, visibility_ms: int | None = None) -> int:
        """Lease some messages; return how many came."""
        visibility_ms = visibility_ms or self.chance.choice((20, 500, 30_000, HOUR_MS))
        asked_us = self.latest_us
        deadline_us = self._told_us(self.clock.wall_ms() + visibility_ms)
        found = await self.topic.receiver.receive(
            GROUP, options(count or self.chance.randint(1, 8), visibility_ms=visibility_ms)
        )
        for delivery in found:
            for offset, attempt, value in leased([delivery]):
                place = (delivery.partition, offset)
                self.held[Receipt(delivery.partition, delivery.token, offset, offset + 1)] = None
                self.ledger.deliveries.append(
                    Delivered(
                        place, attempt, delivery.token, "c", value, deadline_us, asked_us, asked_us
                    )
                )
        return sum(delivery.message_count for delivery in found)

    async def settle(self, verb: Verb, chosen: Sequence[Receipt], lasts_ms: int = 0) -> None:
        """Ack, nack, extend or reject, also what is not leased any more."""
        asked_us = self.latest_us
        lasts_us = self._told_us(self.clock.wall_ms() + lasts_ms) - asked_us
        settler = self.topic.settler
        if verb == "ack":
            done, failed = await settler.acknowledge(GROUP, chosen)
        elif verb == "extend":
            done, failed = await settler.extend(GROUP, chosen, self.clock.wall_ms() + lasts_ms)
        elif verb == "nack":
            done, failed = await settler.nack(GROUP, chosen, lasts_ms, "")
        else:
            done, failed = await settler.reject(GROUP, chosen, "")
        lost = [each.receipt for each in failed]
        assert done + len(lost) == len(chosen)
        for receipt in chosen:
            outcome = Outcome.REFUSED if receipt in lost else Outcome.DONE
            if verb != "extend" or outcome is Outcome.REFUSED:
                self.held.pop(receipt, None)
            self.ledger.settlements.append(
                Settlement(
                    verb,
                    (receipt.partition, receipt.start),
                    receipt.token,
                    "c",
                    lasts_us,
                    asked_us,
                    asked_us,
                    outcome,
                )
            )

    async def settle_some(self) -> None:
        """Settle some of what was ever received and not let go of."""
        if self.held:
            count = min(len(self.held), self.chance.randint(1, 6))
            chosen = self.chance.sample(list(self.held), count)
            verbs: tuple[Verb, ...] = ("ack", "nack", "extend", "reject")
            verb = self.chance.choices(verbs, (6, 3, 2, 1))[0]
            lasts_ms = self.chance.choice((0, 100, 5_000)) if verb in ("nack", "extend") else 0
            await self.settle(verb, chosen, lasts_ms)

    async def mark(self) -> None:
        """Cancel a message, move it, or give it another time."""
        stored = [s.published.id for s in self._record.sent[-60:] if s.published is not None]
        if not stored:
            return
        place = self.chance.choice(stored)[1:]
        marking = MessageChanges(self.topic.partitions[place[0]], place[1], [GROUP])
        asked_us, due_ms = self.latest_us, self.clock.wall_ms() + self.chance.choice((5, HOUR_MS))
        verb = self.chance.choice(("cancel", "move", "move", "reschedule"))
        outcome = Outcome.DONE
        try:
            if verb == "cancel":
                await marking.cancel("")
            elif verb == "move":
                await marking.move(self.chance.randrange(3))
            else:
                await marking.reschedule(due_ms)
        except Conflict:
            outcome = Outcome.REFUSED
        self.ledger.marks.append(
            Marked(verb, place, self._told_us(due_ms), asked_us, self.latest_us, outcome)
        )

    def step_clock(self) -> None:
        """Let time pass, or set the clock."""
        steps = (1, 20, 300, 20_000, HOUR_MS, -HOUR_MS)
        self.clock.advance_ms(self.chance.choices(steps, (8, 8, 6, 3, 1, 1))[0])
        self.tick()

    def tick(self) -> None:
        """Have every partition see what time it is."""
        _ = self.latest_us
        for topic in self.broker.topics.values():
            for partition in topic.partitions:
                partition._timers._on_time()

    async def copy(self, metadata: MemoryMetadata, source: Path, target: Path) -> tuple[Copy, list]:
        """Copy the folder as it is, and return it with the states as they are."""
        await until(lambda: not any(p.outbox_entries for p in self.topic.partitions))
        await self._come_to_rest()
        copy_in_use(source, target)
        states = [deepcopy(canonical(state_of(p))) for p in self.topic.partitions]
        rows = dict(metadata.rows)
        return (
            Copy(target, self.clock.now_us, rows, dict(metadata.group_settings), metadata.epoch),
            states,
        )

    async def drain(self) -> None:
        """Let all that was held run out, and take and acknowledge all that is left."""
        self.clock.advance_ms(100 * HOUR_MS)
        with suppress(TimeoutError):  # the check says what is left
            await until(self._is_drained)
        await until(lambda: not any(p.outbox_entries for p in self.topic.partitions))

    async def _is_drained(self) -> bool:
        """Take and acknowledge what is due; return whether nothing is left."""
        self.tick()
        await self._come_to_rest()
        while await self.receive(50, HOUR_MS):
            await self.settle("ack", list(self.held))
        return all(map(_is_done, self.topic.partitions))

    async def _come_to_rest(self) -> None:
        """Return when nothing is built anew, and nothing is on its way to the disk."""
        for partition in self.topic.partitions:
            await partition.rebuilt()
            await quiet(partition)

    async def check(self) -> None:
        """Check the ledger against what the broker has, once all is drained."""
        log = [m for partition in self.topic.partitions for m in _log(partition)]
        dead = []
        if (graves := self.broker.topics.get(TOPIC + ".dlq")) is not None:
            async for found in DeadLetterSearch(graves, DeadLetterQuery()).run():
                origin = read_dead_letter(found.message.headers).origin
                assert origin is not None
                dead.append(tuple(MessageId.parse(origin.id)[1:]))
        ledger = self.ledger
        ledger.check_deliveries(log)
        ledger.check_times()
        ledger.check_order()
        ledger.check_fates(log, dead)
        for partition in self.topic.partitions:
            if not _is_done(partition):
                ledger.complain(f"partition {partition.identity.number} is not done")
        ledger.raise_violations()


def _is_done(partition: Partition) -> bool:
    group = state_of(partition).group(GROUP)
    return group.taken.floor == partition.end_offset and not list(group.outstanding())


def _log(partition: Partition) -> list[LogMessage]:
    found = []
    for view in partition.read(0, messages_max=100_000).frames:
        header = view.header
        for offset, message in enumerate(
            view.messages(0, header.message_count), header.base_offset
        ):
            found.append(
                LogMessage(
                    TOPIC,
                    partition.identity.number,
                    offset,
                    header.append_time_us,
                    message.value,
                    message.key,
                    (),
                )
            )
    return found
