"""What a group is shown to have, against a twin that knows the state of every message."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from goq import limits
from goq.broker.partition.group_view import WINDOWED, GroupMessageStatus, GroupView, MessageStatus
from goq.config.topic import TopicSettings
from goq.delivery.events.event import Leased
from goq.delivery.events.transitions import MessageState
from goq.delivery.group.attempt_ranges import AttemptRange
from goq.delivery.group.group import DEFAULT_LANE
from goq.delivery.group.retry_policy import RetryPolicy
from goq.delivery.partition_state import PartitionState
from goq.model import Receipt
from tests.support.delivery.model import CORRUPT, DONE, FRESH, Message, State
from tests.support.delivery.pair import Pair
from tests.support.delivery.steps import GROUPS, random_pair, step

PARTS = (MessageState.LEASED, MessageState.RETRY, MessageState.BLOCKED)


def runs_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    found = list[tuple[int, int]]()
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = found[-1][0], offset + 1
        else:
            found.append((offset, offset + 1))
    return found


def each_of(parts: Iterable[AttemptRange], start: int, stop: int) -> dict[int, tuple[int, int]]:
    """Return attempt and time by offset, of those within bounds; each may be there once."""
    found = dict[int, tuple[int, int]]()
    for part in parts:
        for offset in range(max(part.start, start), min(part.end, stop)):
            assert offset not in found
            found[offset] = part.attempt, part.time_ms
    assert list(found) == sorted(found)
    return found


class Comparison:
    """The view of one group of a pair, and what the twin says it shows."""

    def __init__(self, pair: Pair, name: str) -> None:
        self.pair, self.twin, self.name, self.now_ms = pair, pair.twin, name, pair.now_ms
        self.view = GroupView(pair.real, name)
        self.states = self.twin.view(name)
        self.delayed = set(self.twin.waiting)
        fresh = {offset for offset, state in self.states.items() if state == FRESH}
        self.scheduled = fresh & self.delayed
        self.fresh = fresh - self.delayed
        self.leased = self.having("leased")
        self.retries = self.having("retry")
        self.due = {o: s for o, s in self.retries.items() if s[2] <= self.now_ms}
        self.unfinished = {*fresh, *self.leased, *self.retries}

    def having(self, kind: str) -> dict[int, State]:
        return {offset: state for offset, state in self.states.items() if state[0] == kind}

    def check(self, rng: random.Random) -> None:
        twin = self.twin
        start = rng.randint(twin.start, twin.end)
        stop = rng.randint(start, twin.end)
        self.check_counts()
        self.check_ranges(start, stop)
        self.check_queues()
        blocked = self.check_parts(start)
        self.check_windows(start, stop, blocked)
        for offset in range(twin.start, twin.end):
            if self.states[offset] != CORRUPT:
                self.check_status(offset, blocked)

    def check_counts(self) -> None:
        counts = self.view.counts(len(self.scheduled), self.now_ms)
        waiting = len(self.fresh) + len(self.retries) + len(self.leased)
        assert counts.lag == waiting
        assert counts.lag == counts.ready + counts.leased + counts.retry
        assert counts.ready == len(self.fresh) + len(self.due)
        assert counts.leased == self.view.leased_count == len(self.leased)
        assert counts.scheduled == len(self.scheduled)
        if not any(state == CORRUPT for state in self.states.values()):
            many = self.view.counts(10**9, self.now_ms)
            assert many.ready == len(self.due)
            assert many.scheduled == len(self.fresh) + len(self.scheduled)
        consumers = Counter(self.pair.consumers[state[4]] for state in self.leased.values())
        assert self.view.leased_by_consumer() == consumers

    def check_ranges(self, start: int, stop: int) -> None:
        view, states = self.view, self.states
        within = {offset for offset in self.unfinished if start <= offset < stop}
        assert view.unfinished_count(start, stop) == len(within)
        assert view.first_unfinished() == min(self.unfinished, default=None)
        assert view.first_due_retry(self.now_ms) == min(self.due, default=None)
        untaken = {o for run in view.untaken(start, stop) for o in range(run.start, run.end)}
        assert {o for o in untaken if states[o] != CORRUPT} == {
            offset for offset in range(start, stop) if states[offset] == FRESH
        }
        end = view.end_offset
        assert end == self.twin.ends.get(self.name)
        assert view.is_known == (self.name in self.pair.real.groups)
        last = stop if end is None else min(stop, end)
        assert view.taken_count(start, stop) == max(0, last - start) - len(
            [offset for offset in untaken if offset < last]
        )
        assert all(states[o] not in (FRESH,) for o in range(self.twin.start, view.cursor))
        assert end is None or view.ceiling == end

    def check_queues(self) -> None:
        default_lane, found = self.pair.settings.default_lane, Counter[int]()
        assert self.view.leased(len(self.leased) - 1) is None
        leased = self.view.leased(len(self.leased))
        assert leased is not None
        for (lane, tenant), count in leased.items():
            assert count
            assert tenant == 0 or self.pair.has_tenants
            found[default_lane if lane == DEFAULT_LANE else lane] += count
        assert found == Counter(self.twin.lane(offset) for offset in self.leased)
        assert self.view.ready_since_ms(self.now_ms, -1) is None

    def check_parts(self, start: int) -> set[int]:
        end, now_ms = self.twin.end, self.now_ms
        for state, held in ((MessageState.LEASED, self.leased), (MessageState.RETRY, self.retries)):
            parts = each_of(self.view.parts(state, start, now_ms), start, end)
            assert parts == {
                offset: each[1:3]
                for offset, each in held.items()
                if offset >= start and not (state is MessageState.RETRY and offset in self.due)
            }
            assert all(part.end > start for part in self.view.parts(state, start, now_ms))
        blocked = each_of(self.view.parts(MessageState.BLOCKED, 0, now_ms), 0, end)
        assert set(blocked.values()) <= {(0, 0)}
        later = each_of(self.view.parts(MessageState.BLOCKED, start, now_ms), 0, end)
        assert later == {offset: part for offset, part in blocked.items() if offset >= start}
        assert set(blocked) <= self.fresh
        assert self.view.counts(0, now_ms).blocked == len(blocked)
        assert all(self.twin.messages[offset].key for offset in blocked)
        return set(blocked)

    def check_windows(self, start: int, stop: int, blocked: set[int]) -> None:
        fresh = dict.fromkeys(self.fresh - blocked, (0, 0))
        expected = {
            MessageState.READY: fresh | {o: state[1:3] for o, state in self.due.items()},
            MessageState.EXPIRED: fresh,
            MessageState.SCHEDULED: dict.fromkeys(self.scheduled, (0, 0)),
            MessageState.CANCELLED: self.finished(self.twin.cancelled),
            MessageState.DONE: self.finished(
                {o for o, s in self.states.items() if s == DONE} - self.twin.cancelled
            ),
        }
        assert expected.keys() == WINDOWED
        delayed = runs_of(offset for offset in self.delayed if start <= offset < stop)
        readable = {offset for offset, state in self.states.items() if state != CORRUPT}
        for state, wanted in expected.items():
            window = self.view.window(state, delayed, start, stop, self.now_ms)
            found = each_of(window, 0, self.twin.end)
            assert all(
                start <= offset < stop for offset in found if state is not MessageState.READY
            )
            assert {o: e for o, e in found.items() if o in readable and start <= o < stop} == {
                offset: each for offset, each in wanted.items() if start <= offset < stop
            }, state
            first, last = self.view.bounds(state, start)
            assert all(first <= offset < last for offset in wanted if offset >= start), state
            assert first >= start
            assert last <= self.twin.end
            if state in (MessageState.READY, MessageState.EXPIRED, MessageState.SCHEDULED):
                assert last <= self.view.ceiling

    def finished(self, offsets: set[int]) -> dict[int, tuple[int, int]]:
        return dict.fromkeys(
            {o for o in offsets if self.states[o] == DONE} - {*self.leased, *self.retries}, (0, 0)
        )

    def check_status(self, offset: int, blocked: set[int]) -> None:
        twin, state, now_ms = self.twin, self.states[offset], self.now_ms
        message = twin.messages[offset]
        due_ms = twin.waiting.get(offset, 0)
        is_cancelled = offset in twin.cancelled
        status = MessageStatus(
            offset, twin.lane(offset), 0, due_ms, bool(due_ms), is_cancelled, None
        )
        found = self.view.message_status(status, now_ms, expires_ms=message.expires_ms)
        is_dead = any(
            offset in offsets
            for number, offsets in self.pair.outbox_entries.items()
            if self.pair.real.outbox.entries[number].event.group == self.name
        )
        if state[0] == "leased":
            consumer = self.pair.consumers[state[4]]
            expected = GroupMessageStatus(MessageState.LEASED, state[1], consumer, state[2])
        elif state[0] == "retry":
            kind = MessageState.READY if offset in self.due else MessageState.RETRY
            expected = GroupMessageStatus(kind, state[1], None, state[2])
        elif is_cancelled:
            expected = GroupMessageStatus(MessageState.CANCELLED, 0, None, None)
        elif state == DONE:
            expected = GroupMessageStatus(MessageState.DEAD if is_dead else MessageState.DONE)
        elif due_ms:
            expected = GroupMessageStatus(MessageState.SCHEDULED, time_ms=due_ms)
        elif twin.is_expired(offset, now_ms):
            expected = GroupMessageStatus(MessageState.EXPIRED)
        else:
            kind = MessageState.BLOCKED if offset in blocked else MessageState.READY
            expected = GroupMessageStatus(kind)
        assert found == expected, offset


@pytest.mark.parametrize("part", range(2))
def test_a_group_is_shown_as_the_twin_has_it(part: int) -> None:
    for seed in range(part * 12, (part + 1) * 12):
        rng = random.Random(seed)
        pair = random_pair(rng)
        try:
            for number in range(45):
                step(pair, rng)
                if number % 4 == 0:
                    for name in GROUPS:
                        Comparison(pair, name).check(rng)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


def test_what_waits_is_told_since_when() -> None:
    pair = Pair(TopicSettings(), GROUPS, RetryPolicy(None, 0, 0, 0.0, dead_letters=False))
    began_ms = pair.now_ms
    pair.publish([Message(1), Message(1), Message(2)])
    pair.move_clock(limits.READY_TIME_STEP_MS)
    pair.publish([Message(1)])
    token = pair.receive("b", 1, 1000)
    view = GroupView(pair.real, "b")
    assert view.ready_since_ms(pair.now_ms, 1) is None
    assert view.ready_since_ms(pair.now_ms, 2) == began_ms
    assert pair.receive("b", 10, 1000)
    assert view.ready_since_ms(pair.now_ms, 2) is None
    assert token is not None
    pair.settle("nack", "b", [Receipt(0, token, 0, 1)], 5)
    assert view.ready_since_ms(pair.now_ms + 4, 2) is None
    assert view.ready_since_ms(pair.now_ms + 5, 2) == pair.now_ms + 5
    pair.publish([Message(1)])
    assert view.ready_since_ms(pair.now_ms + 5, 2) == pair.now_ms


def test_a_group_without_a_consumer_has_no_queues_to_show() -> None:
    state = PartitionState()
    state.extend_to(5)
    view = GroupView(state, "g")
    assert not view.is_known
    assert view.ready_since_ms(1, 10) is None
    state.apply(Leased("g", "c", 9, [(0, 2, 1)]), 0, 1)
    assert GroupView(state, "g").is_known
    fresh = MessageStatus(3, 1, 0, 0, False, False, None)
    assert view.message_status(fresh, 10) == GroupMessageStatus(MessageState.READY, 0, None, None)
