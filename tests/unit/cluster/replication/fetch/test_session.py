"""What a leader remembers of a follower between two of its requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from goq import limits
from goq.cluster.replication.fetch.session import FetchSession
from goq.cluster.replication.leader import ReplicaBounds
from goq.cluster.replication.progress import LatestRequest, LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import PartitionKey, Position

KEY = PartitionKey("t", 1, 0)
OTHER = PartitionKey("t", 1, 1)
BOUNDS = ReplicaBounds(0, 0, LogOffsets(5, 2))


def position(ends: LogOffsets, key: PartitionKey = KEY) -> Position:
    return Position(key, 3, ends, LogOffsets(3, 3))


def leader_of(*followers: str) -> Any:
    progress = ReplicaProgress("a", LogOffsets(0, 0), in_sync=("a",), min_insync=1)
    progress.set_replicas(["a", *followers], 0)
    logs = SimpleNamespace(
        messages=SimpleNamespace(segments=[]), events=SimpleNamespace(segments=[])
    )
    return SimpleNamespace(progress=progress, logs=logs)


class _Pushes:
    def __init__(self) -> None:
        self.calls: list[tuple[str, PartitionKey]] = []

    def enqueue(self, key: PartitionKey) -> None:
        self.calls.append(("enqueue", key))

    def forget(self, key: PartitionKey) -> None:
        self.calls.append(("forget", key))


def pushed_to(session: FetchSession) -> list[tuple[str, PartitionKey]]:
    pushes: Any = _Pushes()
    session.pushes = pushes
    return pushes.calls


def test_a_position_is_verified_only_where_the_last_response_led() -> None:
    session = FetchSession("b", 7)
    session.set_position(position(LogOffsets(1, 1)))
    session.expect(KEY, LogOffsets(4, 2))
    session.set_position(position(LogOffsets(4, 1)))
    assert session.verified == {}
    session.set_position(position(LogOffsets(4, 2)))
    assert session.verified == {KEY: position(LogOffsets(4, 2))}
    session.set_position(position(LogOffsets(5, 2)))
    assert session.verified == {}


def test_nothing_is_expected_without_a_position_or_after_an_unknown_response() -> None:
    session = FetchSession("b", 7)
    session.expect(KEY, LogOffsets(4, 2))
    assert session.expected == {}
    session.set_position(position(LogOffsets(1, 1)))
    session.expect(KEY, LogOffsets(4, 2))
    session.expect(KEY, None)
    assert session.expected == {}


def test_a_partition_waits_in_turn_for_a_response_and_wakes_it() -> None:
    session = FetchSession("b", 7)
    session.set_position(position(LogOffsets(1, 1), OTHER))
    session.set_position(position(LogOffsets(1, 1)))
    session.enqueue(OTHER)
    assert list(session.pending) == [OTHER, KEY]
    assert session.updated.is_set()
    assert list(session.active) == [OTHER, KEY]


def test_with_a_stream_a_partition_is_pushed_and_waits_for_no_fetch() -> None:
    session = FetchSession("b", 7)
    calls = pushed_to(session)
    session.enqueue(KEY)
    assert calls == [("enqueue", KEY)]
    assert not session.pending
    assert not session.updated.is_set()


def test_a_partition_that_is_not_asked_for_any_more_is_forgotten_whole() -> None:
    session = FetchSession("b", 7)
    session.set_position(position(LogOffsets(1, 1)))
    session.expect(KEY, LogOffsets(4, 2))
    session.set_position(position(LogOffsets(4, 2)))
    session.sent_bounds[KEY] = BOUNDS
    session.stale.add(KEY)
    calls = pushed_to(session)
    session.forget(KEY)
    known = (session.positions, session.expected, session.sent_bounds, session.verified)
    assert not any(known)
    assert not any((session.stale, session.active, session.pending, session.rests))
    assert calls == [("forget", KEY)]


def test_another_leadership_forgets_where_the_follower_is_and_not_that_it_asks() -> None:
    session = FetchSession("b", 7)
    session.set_position(position(LogOffsets(1, 1)))
    session.expect(KEY, LogOffsets(1, 1))
    session.sent_bounds[KEY] = BOUNDS
    session.stale.add(KEY)
    session.forget_leadership(KEY)
    assert not any((session.expected, session.sent_bounds, session.verified, session.stale))
    assert KEY in session.positions
    assert KEY in session.pending


def test_each_request_counts_for_a_follower_at_rest_and_none_after_it() -> None:
    session, leader = FetchSession("b", 7), leader_of("b")
    follower = leader.progress.follower("b")
    session.set_position(position(LogOffsets(0, 0)))
    session.begin_rest(KEY, leader)
    assert not session.active
    session.latest.at_ms = 50
    assert (follower.last_fetch_ms, follower.caught_up_ms) == (50, 50)
    session.end_rest(KEY)
    session.latest.at_ms = 90
    assert (follower.last_fetch_ms, follower.caught_up_ms) == (50, 50)
    assert list(session.active) == [KEY]
    assert not session.rests


def test_a_position_ends_a_rest() -> None:
    session, leader = FetchSession("b", 7), leader_of("b")
    session.set_position(position(LogOffsets(0, 0)))
    session.begin_rest(KEY, leader)
    session.set_position(position(LogOffsets(0, 0)))
    assert not session.rests
    assert list(session.active) == [KEY]


def test_a_node_without_a_replica_does_not_rest() -> None:
    session = FetchSession("b", 7)
    session.set_position(position(LogOffsets(0, 0)))
    session.begin_rest(KEY, leader_of("c"))
    assert not session.rests
    assert list(session.active) == [KEY]


def test_removed_segments_end_a_rest_at_the_next_look_for_them() -> None:
    for log in ("messages", "events"):
        session, leader = FetchSession("b", 7), leader_of("b")
        session.set_position(position(LogOffsets(0, 0)))
        session.begin_rest(KEY, leader)
        session.end_rests_with_other_segments(limits.REST_CHECK_MS)
        assert KEY in session.rests
        getattr(leader.logs, log).segments = []
        session.end_rests_with_other_segments(2 * limits.REST_CHECK_MS - 1)
        assert KEY in session.rests
        session.end_rests_with_other_segments(2 * limits.REST_CHECK_MS)
        assert KEY not in session.rests


def test_a_session_that_is_over_pushes_nothing_and_wakes_who_waits() -> None:
    session = FetchSession("b", 7)
    pushed_to(session)
    session.end()
    assert session.is_over
    assert session.pushes is None
    assert session.updated.is_set()


def test_a_follower_that_rests_with_another_request_counts_by_that_one() -> None:
    follower = leader_of("b").progress.follower("b")
    follower.note_fetch(10, is_caught_up=False)
    assert (follower.last_fetch_ms, follower.caught_up_ms) == (10, None)
    follower.note_caught_up(7)
    assert follower.caught_up_ms == 7
    follower.note_caught_up(5)
    assert follower.caught_up_ms == 7
    follower.begin_rest(LatestRequest(20))
    follower.note_fetch(30, is_caught_up=False)
    assert (follower.last_fetch_ms, follower.caught_up_ms) == (30, 20)
