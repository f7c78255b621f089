"""Requests that wait for an event of a message: they wake when it is durable, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from unittest.mock import Mock, call

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq import limits
from goq.broker.events import live_index as live_index_module
from goq.broker.events.live_index import LiveEventIndex
from goq.broker.log.pending_appends import Appended, Waiter
from goq.delivery.events.affected import affected_spans, affects
from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cancelled,
    Cause,
    CopyQueued,
    CopyStored,
    Leased,
    Matured,
    Moved,
    Reset,
    Trimmed,
    Truncated,
    token_of,
)
from goq.delivery.outbox import Outbox
from goq.errors import TooManyRequests
from goq.index_cache import IndexCache
from goq.storage.log.log import Log
from tests.support.broker.harness import run
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY

EPOCH = 1


def queued(*offsets: int) -> CopyQueued:
    spans = [(offset, offset + 1, 1) for offset in offsets]
    return CopyQueued("g", 0, spans, Cause.NACKED, "", 0, "t.dlq", 0, 7)


class HeldCommits:
    """The commits of an event log: nothing is committed before :meth:`commit_all`."""

    def __init__(self) -> None:
        self._waiters: list[tuple[int, Waiter[Appended]]] = []
        self.high_watermark = 0

    def complete_when_committed(self, end_offset: int, done: Waiter[Appended]) -> None:
        if end_offset <= self.high_watermark:
            done.set_result(Appended(end_offset - 1, 0))
        else:
            self._waiters.append((end_offset, done))

    def commit_all(self) -> None:
        for end, done in self._waiters:
            self.high_watermark = max(self.high_watermark, end)
            done.set_result(Appended(end - 1, 0))
        self._waiters.clear()


@contextmanager
def live_index(outbox: Outbox | None = None) -> Iterator[tuple[LiveEventIndex, HeldCommits]]:
    disk, commits = SimulatedDisk(), HeldCommits()
    log = Log.open(DIRECTORY, disk)
    with ThreadPoolExecutor(1) as executor:
        index = LiveEventIndex(
            log, commits, outbox or Outbox(), EPOCH, disk, executor, IndexCache()
        )
        yield index, commits
    log.close()


def is_woken(index: LiveEventIndex, commits: HeldCommits, offset: int, *events: AnyEvent) -> bool:
    """Return whether a request for a message wakes when the events are durable; never before."""
    changed = asyncio.Event()
    with index.watch(offset, changed):
        commits.commit_all()
        changed.clear()
        index.on_record(events, 100)
        assert not changed.is_set()
        commits.commit_all()
        return changed.is_set()


ABOUT_5: list[AnyEvent] = [
    Leased("g", "c", 9, [(3, 6, 1)]),
    Acked("g", 1, [(5, 6)]),
    Cancelled([(0, 2), (5, 9)]),
    Moved(5, 0),
    Matured(9, 6),
    Matured(9, 10),
    Trimmed(6),
    queued(1, 5),
]
ABOUT_OTHERS: list[AnyEvent] = [
    Leased("g", "c", 9, [(3, 5, 1), (6, 8, 1)]),
    Acked("g", 1, [(6, 7)]),
    Moved(4, 0),
    Matured(9, 5),
    Trimmed(5),
    queued(4, 6),
]


@pytest.mark.parametrize("event", ABOUT_5, ids=repr)
def test_an_event_about_a_message_wakes_the_request_for_it(event: AnyEvent) -> None:
    with live_index() as (index, commits):
        assert is_woken(index, commits, 5, event)
        assert is_woken(index, commits, 5, ABOUT_OTHERS[0], event)
        with index.watch(5, asyncio.Event()):
            assert index.is_watched(event)
        assert not index.is_watched(event)


@pytest.mark.parametrize("event", ABOUT_OTHERS, ids=repr)
def test_an_event_about_other_messages_wakes_no_request(event: AnyEvent) -> None:
    with live_index() as (index, commits):
        assert not is_woken(index, commits, 5, event)
        with index.watch(5, asyncio.Event()):
            assert not index.is_watched(event)
        with index.watch(4, asyncio.Event()), index.watch(6, asyncio.Event()):
            assert index.is_watched(event)


@pytest.mark.parametrize("event", [Reset("g", 0), Truncated(9)], ids=repr)
def test_an_event_about_all_messages_wakes_each_request(event: AnyEvent) -> None:
    with live_index() as (index, commits):
        assert is_woken(index, commits, 5, event)


def test_a_stored_copy_wakes_the_requests_for_the_messages_of_its_entry() -> None:
    outbox = Outbox()
    outbox.add(token_of(0, 3), queued(7), [])
    with live_index(outbox) as (index, commits):
        index.on_record([Moved(1, 0), queued(1, 5)], 100)
        stored = CopyStored(token_of(EPOCH, 1), 0)
        assert not is_woken(index, commits, 4, stored)
        index.on_record([queued(1, 5)], 100)
        again = CopyStored(token_of(EPOCH, 3), 0)
        assert is_woken(index, commits, 5, again)
        before_the_start = CopyStored(token_of(0, 3), 0)
        assert not is_woken(index, commits, 5, before_the_start)


def test_every_request_for_a_message_is_woken_and_one_that_left_is_not() -> None:
    with live_index() as (index, commits):
        first, second, gone = (asyncio.Event() for _ in range(3))
        index.on_record([Moved(4, 0)], 100)
        with index.watch(5, first), index.watch(5, second):
            commits.commit_all()
            first.clear()
            second.clear()
            with index.watch(5, gone):
                gone.clear()
            index.on_record([Moved(5, 0)], 100)
            commits.commit_all()
        assert (first.is_set(), second.is_set(), gone.is_set()) == (True, True, False)


def test_what_was_queued_before_a_request_wakes_it_once_it_can_be_read() -> None:
    with live_index() as (index, commits):
        begun, late = asyncio.Event(), asyncio.Event()
        index.on_record([Moved(5, 0)], 100)
        with index.watch(5, begun):
            assert not begun.is_set()
            commits.commit_all()
            assert begun.is_set()
        with index.watch(5, late):
            assert late.is_set()


def test_so_many_requests_wait_for_events_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRACE_WATCHES_MAX", 2)

    async def test() -> None:
        with live_index() as (index, _):
            for _ in range(3):
                with index.watch(1, asyncio.Event()), index.watch(2, asyncio.Event()):
                    with pytest.raises(TooManyRequests) as caught:
                        index.watch(3, asyncio.Event()).__enter__()
                    assert caught.value.retry_after_ms

    run(test())


@pytest.mark.parametrize("count", [1, 100])
def test_an_event_is_looked_at_once_however_many_requests_wait(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Ten thousand may wait: each event would hold the event loop for as many comparisons."""
    looked_at = Mock(wraps=affected_spans)
    monkeypatch.setattr(live_index_module, "affected_spans", looked_at)
    with live_index() as (index, commits), ExitStack() as requests:
        changed = [asyncio.Event() for _ in range(count)]
        for offset, each in enumerate(changed):
            requests.enter_context(index.watch(offset, each))
        for each in changed:
            each.clear()
        event = Acked("g", 1, [(0, count)])
        index.on_record([event], 100)
        assert looked_at.mock_calls == [call(event)]
        assert len(commits._waiters) == 1, "one waits for the commit for all of them"
        commits.commit_all()
        assert all(each.is_set() for each in changed)


@given(
    watched=st.lists(st.integers(0, 60), max_size=12),
    ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=9),
)
def test_the_requests_that_wake_are_those_for_messages_of_the_event(
    watched: list[int], ranges: list[tuple[int, int]]
) -> None:
    event = Acked("g", 1, [(start, start + count) for start, count in ranges])
    with live_index() as (index, commits), ExitStack() as requests:
        changed = [asyncio.Event() for _ in watched]
        for offset, each in zip(watched, changed, strict=True):
            requests.enter_context(index.watch(offset, each))
        commits.commit_all()
        for each in changed:
            each.clear()
        assert index.is_watched(event) == any(affects(event, offset) for offset in watched)
        index.on_record([event], 100)
        commits.commit_all()
        expected = [affects(event, offset) for offset in watched]
        assert [each.is_set() for each in changed] == expected
    assert not index.is_watched(Reset("g", 0))
