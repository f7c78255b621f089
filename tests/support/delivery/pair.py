"""A partition's delivery and its naive twin side by side: every step compares them.

What is real here is all but the disk: the state, the ready queues, the schedule and the choice,
driven as :mod:`goq.broker.partition.partition` drives them.
"""

from __future__ import annotations

import random
from itertools import chain
from typing import Any, cast

from goq import limits
from goq.broker.partition.ready_state.ready_state import ReadyState, first_unfinished
from goq.config.topic import Ordering, TopicSettings
from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cancelled,
    Cause,
    CopyQueued,
    CopyStored,
    Corrupted,
    Dropped,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Moved,
    Nacked,
    Rescheduled,
    Reset,
    Skipped,
    Trimmed,
    Truncated,
    decode_events,
    dues,
    encode_events,
    token_of,
)
from goq.delivery.group.group import Group
from goq.delivery.group.key_locks import MessageAttributes
from goq.delivery.group.retry_policy import RetryPolicy
from goq.delivery.partition_state import PartitionState
from goq.delivery.selection.redelivery import AttributeColumns, RetryRule
from goq.delivery.selection.selector import ANY_RETRY, Selector
from goq.delivery.settlement import (
    DeadLetterTarget,
    FailureContext,
    Settlement,
    acknowledge,
    expire_due,
    extend,
    nack,
    reject,
    release_undelivered,
)
from goq.delivery.snapshot import snapshot_of
from goq.model import Receipt
from goq.storage.log.log import Log
from tests.support.delivery.log import Frame, MessageLog
from tests.support.delivery.model import (
    CORRUPT,
    DONE,
    FRESH,
    Message,
    State,
    Twin,
    canonical,
    check_sound,
    expanded,
)
from tests.support.delivery.selection_check import ChoiceCheck

START_MS = 10**12
_FAR_MS = 10**10


class Pair:
    """The state and its twin."""

    def __init__(
        self,
        settings: TopicSettings | None = None,
        orderings: dict[str, Ordering] | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self.settings = settings or TopicSettings()
        self.orderings = orderings or {}
        self.policy = policy or RetryPolicy(attempts_max=None, initial_ms=0, jitter=0.0)
        self.epoch = 1
        self.now_ms = START_MS
        self.twin = Twin()
        self.log = MessageLog(self.twin.messages)
        self.real = PartitionState()
        self.dispatch = self._open(self.real)
        self.history: list[tuple[AnyEvent, int, int]] = []
        self.receipts: list[Receipt] = []
        self.consumers: dict[int, str] = {}
        self.rotten: dict[int, int] = {}
        self.outbox_entries: dict[int, list[int]] = {}
        self.sequence = 0
        self.announced: dict[str, set[int]] = {}
        self.luck = 0.0
        self.key_count = 3
        self.has_tenants = False
        self.has_rows = True

    # Driving the real one

    def apply(self, event: AnyEvent) -> int:
        sequence = len(self.history)
        self.history.append((event, sequence, self.epoch))
        self.real.apply(event, sequence, self.epoch)
        return token_of(self.epoch, sequence)

    def _open(self, state: PartitionState) -> ReadyState:
        """Derive what is derived, as opening a partition does."""
        log = cast(Log, self.log)
        start, end = first_unfinished(log, state), log.end_offset
        dispatch = ReadyState.build(log, state, self.settings, self.now_ms, start=start, end=end)
        for group in state.groups.values():
            facts = {}
            for offset in {o for p in group.outstanding() for o in range(p.start, p.end)}:
                if offset < self.twin.end:
                    message = self.twin.messages[offset]
                    lane = state.moved.get(offset, message.lane)
                    fact = MessageAttributes(message.key, lane, self._tenant(dispatch, message))
                    if fact != (0, self.settings.default_lane, 0):
                        facts[offset] = fact
            group.restart_reading()
            group.restore_attributes(facts)
        return dispatch

    def _tenant(self, dispatch: ReadyState, message: Message) -> int:
        return dispatch.tenants.number(message.tenant) if message.tenant else 0

    def _open_anew(self) -> None:
        self.dispatch = self._open(self.real)
        self.twin.rank_by_offset()

    def _rebuild(self) -> None:
        """Build the queues again, as a partition does that goes on meanwhile."""
        log, state = cast(Log, self.log), self.real
        self.dispatch = ReadyState.build(
            log,
            state,
            self.settings,
            self.now_ms,
            start=first_unfinished(log, state),
            end=log.end_offset,
            tenants=self.dispatch.tenants.copy(),
        )
        for group in state.groups.values():
            group.restart_reading()
        self.twin.rank_by_offset()

    def configure(self, settings: TopicSettings) -> None:
        """Change the rules of lanes and tenants."""
        self.settings = settings
        if not self.dispatch.follows(settings):
            self._rebuild()

    def _group(self, name: str) -> Group:
        group = self.real.ensure_group(name)
        if group.scheduler is None and self.dispatch.lacks(group):
            self._rebuild()
        self.dispatch.scheduler_of(group)
        return group

    def _facts_of(self, reads_max: int) -> Any:
        reads = iter(range(reads_max))

        def facts_of(start: int, end: int) -> AttributeColumns | None:
            if next(reads, None) is None:
                return None
            is_gone = start in self.twin.gone
            facts = self.log.facts(start, end)
            first, last = min(
                ((s, e) for s, e in self.rotten.items() if s < facts.end and start < e),
                default=(facts.end, facts.end),
            )
            if start < first and is_gone:  # the run may be longer than what was asked for
                return AttributeColumns(self._gone_up_to(start), is_gone=True)
            if start < first:
                gone = (o for o in range(start, first) if o in self.twin.gone)
                return self.log.facts(start, next(gone, first))
            if any(o not in self.twin.corrupt for o in range(start, last)):
                self.corrupt(start, last)
            return AttributeColumns(min(last, facts.end), is_readable=False)

        return facts_of

    def _gone_up_to(self, start: int) -> int:
        """Return the end of a run of messages that compaction removed; bad bytes end it."""
        bad = {o for s, e in self.rotten.items() for o in range(s, e)} | self.twin.corrupt
        end = start + 1
        while end in self.twin.gone and end not in bad:
            end += 1
        return end

    # Steps

    def publish(self, messages: list[Message], *, is_plain: bool = False) -> None:
        """Append a frame; a message is delayed if it is due later than now."""
        start = self.twin.end
        for offset, message in enumerate(messages, start):
            due_ms = message.due_ms if message.due_ms > self.now_ms else 0
            self.twin.messages.append(message._replace(due_ms=due_ms))
            if due_ms:
                self.twin.waiting[offset] = due_ms
            else:
                self.twin.become_ready(offset)
        end = self.twin.end
        self.log.frames.append(Frame(start, end, is_plain))
        self.real.extend_to(end)
        rows = None if is_plain else self.log.rows_of(start, end)
        self.dispatch.published(start, end, rows, self.now_ms)

    def choice(self, name: str, reads_max: int = 10**6, rule: RetryRule = ANY_RETRY) -> Selector:
        """Return the choice that a receive makes."""
        group, facts_of = self._group(name), self._facts_of(reads_max)
        ordering, lane = self.orderings.get(name, Ordering.KEY), self.settings.default_lane

        def single_of(offset: int) -> tuple[int, int] | None:
            facts = facts_of(offset, offset + 1)
            if facts is None or facts.is_gone or not facts.is_readable or facts.groups is not None:
                return None
            return (facts.keys or (0,))[0], (facts.expires_ms or (0,))[0]

        now_ms = self.now_ms
        return Selector(self.real, group, ordering, lane, now_ms, facts_of, rule, single_of)

    def receive(
        self,
        name: str,
        messages_max: int,
        visibility_ms: int,
        reads_max: int = 10**6,
        rule: RetryRule = ANY_RETRY,
    ) -> int | None:
        """Lease messages; a receive with few reads is cut short before it has enough.

        The rule says which retries are left to others; they are not lost.
        """
        while True:
            ordering = self.orderings.get(name, Ordering.KEY)
            choice = self.choice(name, reads_max, rule)
            corrupt = len(self.twin.corrupt)
            for_others = self.twin.for_others(name, rule)
            choice.take(messages_max)
            flat = [(o, a) for start, end, a in choice.spans for o in range(start, end)]
            check = ChoiceCheck(self, name, ordering, flat, messages_max)
            check.allowed()
            assert not for_others & {offset for offset, _ in flat}
            # what is dropped on the way may have been in the way of something
            is_clean = corrupt == len(self.twin.corrupt) and not choice.skipped
            if is_clean and not choice._is_holding_full and not for_others:
                is_cut = choice._selection.is_full or choice.must_yield
                check.complete(is_whole=not is_cut)
            for cause, ranges in choice.skipped.items():
                self._skip(name, cause, [o for run in ranges for o in range(*run)], ranges)
            if not choice.must_repeat:
                break
        if not choice.spans:
            return None
        self.real.group(name).add_attributes(choice.attributes)
        deadline_ms = self.now_ms + visibility_ms
        consumer = rule.consumer or f"c{len(self.history)}"
        token = self.apply(Leased(name, consumer, deadline_ms, choice.spans))
        self.consumers[token] = consumer
        states = self.twin.states(name)
        for offset, attempt in flat:
            failures = states[offset][3] if offset in states else ()
            states[offset] = ("leased", attempt, deadline_ms, failures, token)
        self.receipts += [Receipt(0, token, start, end) for start, end, _ in choice.spans]
        return token

    def _skip(
        self, name: str, cause: Cause, offsets: list[int], ranges: list[tuple[int, int]]
    ) -> None:
        for offset in offsets:
            message = self.twin.messages[offset]
            state = self.twin.state_of(name, offset)
            if cause is Cause.TTL:
                assert self.twin.is_expired(offset, self.now_ms)
            elif cause is Cause.COMPACTED:
                assert offset in self.twin.gone
            else:
                assert cause is Cause.OTHER_GROUP
                assert message.only_group not in (None, name)
            assert state == FRESH or state[0] == "retry", (offset, state)
            self.twin.states(name)[offset] = DONE
        assert len(set(offsets)) == len(offsets)
        if cause is Cause.TTL and self.settings.dead_letter_expired:
            self._departs(
                CopyQueued(
                    name, 0, [(s, e, 0) for s, e in ranges], cause, "", self.now_ms, "dlq", 0, 7
                )
            )
        else:
            self.apply(Skipped(name, ranges, cause))

    def _departs(self, event: CopyQueued) -> None:
        """Apply a departure; its messages are numbered behind those before."""
        offsets = [o for start, end, _ in event.spans for o in range(start, end)]
        number = self.apply(event)
        departure = self.real.outbox.entries[number]
        assert departure.first_sequence == self.sequence
        assert departure.event == event
        self.sequence += len(offsets)
        self.outbox_entries[number] = offsets

    # Settling

    def failing(self, delay_ms: int | None = None, reason: str = "") -> FailureContext:
        self.luck = (self.luck + 0.37) % 1
        return FailureContext(
            self.now_ms, self.policy, DeadLetterTarget("dlq", 0, 7), self.luck, delay_ms, reason
        )

    def settle(
        self, how: str, name: str, receipts: list[Receipt], time_ms: int | None = None
    ) -> Settlement:
        """Settle as ``how`` says; ``time_ms`` is a delay, or for an extension the deadline."""
        settled, lost = self.twin.settle(name, receipts)
        before = canonical(self.real) if not settled else None
        failing = self.failing(time_ms, "busy")
        if how == "ack":
            answer = acknowledge(self.real, name, receipts)
        elif how == "extend":
            answer = extend(self.real, name, receipts, time_ms or 0)
        elif how == "nack":
            answer = nack(self.real, name, receipts, failing)
        else:
            answer = reject(self.real, name, receipts, failing)
        assert answer.settled == len(settled)
        assert [(r.token, r.start, r.end) for r in answer.void] == lost
        self._carry_out(name, answer.events, settled, time_ms, how)
        assert before is None or canonical(self.real) == before
        return answer

    def _carry_out(
        self,
        name: str,
        events: list[AnyEvent],
        settled: dict[int, int],
        delay_ms: int | None,
        how: str,
    ) -> None:
        """Apply the events of a decision, and to the twin what they should be."""
        states = self.twin.states(name)
        told: dict[int, int] = {}
        for event in events:
            for offset, attempt in _offsets(event):
                assert offset not in told
                assert isinstance(event, Acked | Extended | Nacked | Expired | Dropped | CopyQueued)
                told[offset] = event.token
                _, known, _, failures, token = states[offset]
                assert attempt in (known, 0)
                states[offset] = DONE
                if isinstance(event, Extended):
                    assert (how, event.deadline_ms) == ("extend", delay_ms)
                    states[offset] = ("leased", known, event.deadline_ms, failures, token)
                elif isinstance(event, Nacked | Expired):
                    cause = Cause.NACKED if isinstance(event, Nacked) else Cause.EXPIRED
                    assert cause == how + "ed"
                    due_ms = next(ms for (s, e, _), ms in dues(event) if s <= offset < e)
                    self._check_wait(due_ms - self.now_ms, known, delay_ms)
                    failure = (self.now_ms, self.consumers[token], cause, event.reason)
                    failures = (*failures, failure)[-limits.FAILURES_REMEMBERED_MAX :]
                    if offset not in self.twin.cancelled:
                        states[offset] = ("retry", known, due_ms, failures)
                elif isinstance(event, Acked):
                    assert how == "ack"
                else:
                    assert how == "reject" or self.policy.is_last(known)
                    is_copied = self.policy.dead_letters and offset not in self.twin.cancelled
                    assert isinstance(event, CopyQueued) == is_copied
                    assert event.cause == how + "ed"
            if isinstance(event, CopyQueued):
                self._departs(event)
                self._check_histories(event, states)
            else:
                self.apply(event)
        assert told == settled

    def _check_histories(self, event: CopyQueued, states: dict[int, State]) -> None:
        departure = list(self.real.outbox.entries.values())[-1]
        covered = sorted(o for start, end, _ in departure.histories for o in range(start, end))
        assert covered == sorted(o for o, _ in _offsets(event))
        for _, _, failures in departure.histories:
            assert failures[-1].cause == event.cause
            assert failures[-1].consumer == self.consumers[event.token]

    def _check_wait(self, wait_ms: int, attempt: int, delay_ms: int | None) -> None:
        assert not self.policy.is_last(attempt)
        if delay_ms is not None:
            assert wait_ms == delay_ms
            return
        plain_ms = min(self.policy.initial_ms * 2 ** (attempt - 1), self.policy.max_ms)
        assert abs(wait_ms - plain_ms) <= plain_ms * self.policy.jitter + 1

    def release_undelivered(self, name: str, token: int, spans: list[tuple[int, int, int]]) -> None:
        """Give back what never left: it counts as no attempt."""
        event = release_undelivered(self.real, name, token, spans, self.now_ms)
        states = self.twin.states(name)
        given = [o for s, e, _ in spans for o in range(s, e) if self.twin.held(name, token, o)]
        assert (event is not None) == bool(given)
        if event is None:
            return
        for offset in given:
            _, attempt, _, failures, _ = states[offset]
            state = ("retry", attempt - 1, self.now_ms, failures)
            states[offset] = DONE if offset in self.twin.cancelled else state
        self.apply(event)

    def give_back_all(self, name: str, token: int) -> None:
        """Give back all of a lease at once."""
        lease = self.real.group(name).leases[token]
        self.settle("nack", name, [Receipt(0, token, p.start, p.end) for p in lease.parts])

    # Time

    def move_clock(self, step_ms: int) -> None:
        """Move the clock, perhaps back, and do what it is time for."""
        self.now_ms += step_ms
        expired: dict[str, dict[int, int]] = {name: {} for name in self.twin.groups}
        wanted = {
            name: {
                o: s[4]
                for o, s in self.twin.outstanding(name, "leased").items()
                if s[2] <= self.now_ms
            }
            for name in self.twin.groups
        }
        for events in chain.from_iterable(
            expire_due(self.real, name, self.now_ms, self.failing)
            for name in list(self.real.groups)
        ):
            for event in events:
                assert isinstance(event, Expired | CopyQueued | Dropped)
                found = dict.fromkeys((o for o, _ in _offsets(event)), event.token)
                expired[event.group].update(found)
                self._carry_out(event.group, [event], found, None, "expir")
        assert expired == wanted
        self._mature()

    def _mature(self) -> None:
        twin, schedule = self.twin, self.dispatch.schedule
        while True:
            event = self.dispatch.mature(self.now_ms)
            if event is not None:
                assert event.up_to_ms <= self.now_ms
                self.apply(event)
            load = schedule.load_wanted(self.now_ms)
            if load is None:
                break
            self.dispatch.loaded(load, self.dispatch.load(cast(Log, self.log), load))
        due = sorted((due_ms, o) for o, due_ms in twin.waiting.items() if due_ms <= self.now_ms)
        for _, offset in due:
            del twin.waiting[offset]
            twin.become_ready(offset)

    # What happens to single messages

    def cancel(self, offset: int) -> None:
        due_ms = self.twin.waiting.get(offset)
        self.apply(Cancelled([(offset, offset + 1)], "not needed"))
        if due_ms is not None:
            self.dispatch.schedule.cancel(offset, due_ms)
        self.twin.cancel(offset)

    def move(self, offset: int, lane: int) -> None:
        self.apply(Moved(offset, lane))
        if offset not in self.twin.waiting:
            tenant = self._tenant(self.dispatch, self.twin.messages[offset])
            self.dispatch.moved(offset, lane, tenant, self.now_ms)
            again = offset in self.twin.lanes
            self.twin.become_ready(offset)
            if again or lane == self.twin.messages[offset].lane:
                self.twin.ranks[offset] = None  # it may stand there twice
        self.twin.lanes[offset] = lane

    def reschedule(self, offset: int, due_ms: int) -> None:
        message = self.twin.messages[offset]
        before_ms = self.twin.waiting[offset]
        tag = self._tenant(self.dispatch, message) << 8 | message.lane
        self.apply(Rescheduled(offset, due_ms))
        self.dispatch.schedule.reschedule(offset, tag, before_ms, due_ms)
        self.twin.waiting[offset] = due_ms

    def arrive(self) -> None:
        """The first departure is carried out."""
        if self.outbox_entries:
            number = next(iter(self.outbox_entries))
            del self.outbox_entries[number]
            self.apply(CopyStored(number, 0))

    # What happens to groups and to the log

    def reset(self, name: str, offset: int, end: int | None = None) -> None:
        self.apply(Reset(name, offset) if end is None else Reset(name, offset, end))
        states = self.twin.states(name)
        states.clear()
        self.twin.ends.pop(name, None)
        if end is not None:
            self.twin.ends[name] = end
        states.update(dict.fromkeys(range(self.twin.start, offset), DONE))

    def delete_group(self, name: str) -> None:
        self.apply(GroupDeleted(name))
        self.twin.groups.pop(name, None)
        self.twin.ends.pop(name, None)

    def trim(self, offset: int) -> None:
        self.apply(Trimmed(offset))
        self.dispatch.schedule.trim(offset)
        self.log.start_offset = offset
        self.twin.cut(offset, self.twin.end)

    def corrupt(self, start: int, end: int) -> None:
        self.apply(Corrupted(start, end, "bit rot"))
        self.twin.forget(set(range(start, end)))
        self.twin.corrupt |= set(range(start, end))

    def compact(self, start: int, end: int) -> None:
        """Remove the messages of a range, as compaction does: their offsets stay empty."""
        self.twin.gone |= set(range(start, end)) - self.twin.corrupt

    def lose(self, end_offset: int) -> None:
        """The messages from an offset on are lost after a power cut."""
        self.twin.gone = {offset for offset in self.twin.gone if offset < end_offset}
        self.apply(Truncated(end_offset))
        self.real.extend_to(end_offset)
        self.twin.cut(min(self.twin.start, end_offset), end_offset)
        self.log.truncate(end_offset)
        self.log.start_offset = self.twin.start
        self.rotten = {
            start: min(end, end_offset) for start, end in self.rotten.items() if start < end_offset
        }
        self.restart()

    # Recovery

    def release(self) -> None:
        self.dispatch.release()

    def restart(self) -> None:
        """Go on with the state that all events lead to."""
        fresh = self.replayed()
        assert canonical(fresh) == canonical(self.real)
        self._go_on_with(fresh)

    def restore(self) -> None:
        """Go on with the state that a snapshot leads to."""
        events = list(snapshot_of(self.real, self.real.end_offset))
        fresh = PartitionState()
        fresh.extend_to(self.real.end_offset)
        for event in decode_events(encode_events(events)):
            fresh.apply(event, 0, 0)
        assert canonical(fresh) == canonical(self.real)
        self._go_on_with(fresh)

    def _go_on_with(self, fresh: PartitionState) -> None:
        self.real = fresh
        self.epoch += 1
        self.announced = {}
        self._open_anew()

    def replayed(self) -> PartitionState:
        fresh = PartitionState()
        fresh.extend_to(self.real.end_offset)
        for event, sequence, epoch in self.history:
            fresh.apply(event, sequence, epoch)
        return fresh

    def go_on_damaged(self, damaged: PartitionState) -> None:
        """Go on with a state that damage led to, whatever it says."""
        self.real = damaged
        twin = self.twin
        twin.groups = {
            name: {o: s for o, s in expanded(damaged, name).items() if s not in (FRESH, CORRUPT)}
            for name in damaged.groups
        }
        ends = {name: group.end_offset for name, group in damaged.groups.items()}
        twin.ends = {name: end for name, end in ends.items() if end is not None}
        twin.corrupt = {o for run in damaged.corrupt for o in range(*run)}
        cancelled = damaged.cancelled.present(twin.start, twin.end)
        twin.cancelled = {o for run in cancelled for o in range(*run)}
        twin.lanes = dict(damaged.moved)
        twin.waiting = {}
        for offset in range(twin.start, twin.end):
            due_ms = damaged.rescheduled.get(offset, twin.messages[offset].due_ms)
            is_delayed = twin.messages[offset].due_ms and offset not in twin.cancelled
            if is_delayed and not damaged.maturity.has_matured(offset, due_ms):
                twin.waiting[offset] = due_ms
        leases = [lease for group in damaged.groups.values() for lease in group.leases.values()]
        self.consumers = {lease.token: lease.consumer for lease in leases}
        departures = damaged.outbox.entries.values()
        self.outbox_entries = {d.number: [] for d in departures}
        self.sequence = sum(n for _, _, n in damaged.outbox.sequences())
        self.epoch += 1
        self.announced = {}
        self._open_anew()

    def replay_damaged(self, rng: random.Random, lossy: tuple[type, ...]) -> PartitionState:
        """Replay with some events of the given kinds missing; the outcome is a sound state."""
        fresh = PartitionState()
        fresh.extend_to(self.real.end_offset)
        share = rng.choice([0.1, 0.3, 0.6])
        for event, sequence, epoch in self.history:
            if not isinstance(event, lossy) or rng.random() > share:
                fresh.apply(event, sequence, epoch)
        end = self.real.end_offset
        if fresh.known_end() > end:
            fresh.apply(Truncated(end), 0, 0)
        if fresh.start_offset < self.real.start_offset:
            fresh.apply(Trimmed(self.real.start_offset), 0, 0)
        check_sound(fresh)
        return fresh

    # Comparing

    def check(self) -> None:
        """Compare everything."""
        twin, real = self.twin, self.real
        states = check_sound(real)
        assert (real.start_offset, real.end_offset) == (twin.start, twin.end)
        for name in {*real.groups, *twin.groups}:
            found = states.get(name) or expanded(real, name)
            assert found == twin.view(name), name
        assert {o: n for o, n in real.moved.items() if o >= twin.start} == twin.lanes
        for offset in range(twin.start, twin.end):
            due_ms = twin.messages[offset].due_ms
            due_ms = real.rescheduled.get(offset, due_ms)
            is_waiting = bool(due_ms) and not real.maturity.has_matured(offset, due_ms)
            assert is_waiting == (offset in twin.waiting) or offset in twin.cancelled, offset
        assert list(real.outbox.entries) == list(self.outbox_entries)
        self._check_timers()

    def _check_timers(self) -> None:
        newly_due = False
        wanted = []
        for name in self.twin.groups:
            retries = self.twin.outstanding(name, "retry")
            due = {o for o, s in retries.items() if s[2] <= self.now_ms}
            newly_due |= bool(due - self.announced.get(name, set()))
            self.announced[name] = due
            wanted += [s[2] for s in retries.values() if s[2] > self.now_ms]
            wanted += [s[2] for s in self.twin.outstanding(name, "leased").values()]
        names = list(self.real.groups)
        advanced = [self.real.advance_retries(name, self.now_ms) for name in names]
        assert any(advanced) or not newly_due
        times_ms = [t for t in map(self.real.next_timer_ms, names) if t is not None]
        assert not wanted or (times_ms and min(times_ms) <= min(wanted))

    def drain(self) -> None:
        """Let all time pass and ack everything: each message comes out exactly as often as due."""
        self.policy = RetryPolicy(attempts_max=None, initial_ms=0, jitter=0.0)
        self.move_clock(_FAR_MS)
        names = {*self.twin.groups, *self.orderings}
        for name in sorted(names):
            while (token := self.receive(name, 1000, 1000)) is not None:
                held = self.twin.outstanding(name, "leased")
                receipts = [Receipt(0, token, o, o + 1) for o, s in held.items() if s[4] == token]
                self.settle("ack", name, receipts)
            left = {o: s for o, s in self.twin.view(name).items() if s not in (DONE, CORRUPT)}
            assert not left, (name, left)
        self.check()


def _offsets(event: AnyEvent) -> list[tuple[int, int]]:
    """Return offsets and attempts; 0 where the event says none."""
    if isinstance(event, Acked | Extended):
        return [(o, 0) for start, end in event.ranges for o in range(start, end)]
    assert isinstance(event, Nacked | Expired | Dropped | CopyQueued)
    return [(o, attempt) for start, end, attempt in event.spans for o in range(start, end)]
