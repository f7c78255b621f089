"""What a leader takes, what it leaves to whoever may lead by now, and what followers get of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.broker.partition.loader import open_logs
from goq.cluster.replication.follower import parse_frames
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import LogUpdate, PartitionKey, Position
from goq.config.topic import TopicSettings
from goq.errors import NotEnoughReplicas, NotLeader
from goq.frame.header import HEADER_BYTES, parse_header
from goq.frame.view import FrameView
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import append, frame_of

KEY = PartitionKey("t", 1, 0)


def leading(in_sync: tuple[str, ...]) -> LeaderReplica:
    logs = open_logs(Path("/t/0"), SimulatedDisk(), TopicSettings())
    progress = ReplicaProgress("n1", LogOffsets(0, 0), in_sync=in_sync, min_insync=2)
    progress.set_replicas(("n1", "n2", "n3"), 0)
    return LeaderReplica(KEY, 1, logs, progress)


def test_a_leader_that_others_may_have_replaced_takes_nothing_and_refuses_nothing_for_good() -> (
    None
):
    led = leading(("n1", "n2"))
    led.check_writable()
    led.has_session = lambda: False
    with pytest.raises(NotLeader):
        led.check_writable()


def test_a_leader_with_too_few_in_sync_takes_nothing() -> None:
    with pytest.raises(NotEnoughReplicas):
        leading(("n1",)).check_writable()


def test_it_is_sure_that_nobody_else_leads_when_each_in_sync_has_asked_after_an_answer() -> None:
    led = leading(("n1", "n2", "n3"))
    told: list[str] = []
    led.confirm(lambda: told.append("sure"))
    led.on_follower_request("n2", 7)  # may have been sent long before
    led.on_follower_request("n3", 8)
    led.on_follower_request("n2", 9)  # nor does another session say that it was sent later
    led.on_follower_request("n3", 8)
    assert not told
    assert [led.is_waiting_for(node) for node in ("n1", "n2", "n3")] == [False, True, False]
    led.on_follower_request("n2", 9)
    assert told == ["sure"]
    assert not led.is_waiting_for("n2")
    led.on_follower_request("n2", 9)
    assert told == ["sure"]


def test_who_is_in_sync_no_more_need_not_be_heard_and_who_is_to_be_must() -> None:
    led = leading(("n1", "n2"))
    led.progress.begin_change(("n1", "n2", "n3"))
    told: list[str] = []
    led.confirm(lambda: told.append("sure"))
    for _ in range(2):
        led.on_follower_request("n2", 1)
    assert not told
    led.set_in_sync(("n1", "n2"), 2, is_decided=True)
    assert told == ["sure"]


def test_a_leader_that_alone_is_in_sync_is_sure_at_once() -> None:
    told: list[str] = []
    leading(("n1",)).confirm(lambda: told.append("sure"))
    assert told == ["sure"]


def test_a_leader_that_hands_over_takes_nothing_and_what_it_has_still_becomes_safe() -> None:
    led = leading(("n1", "n2"))
    led.on_append(0, 7)
    led.stop_accepting()
    with pytest.raises(NotLeader):
        led.check_writable()
    led.on_fetch("n2", LogOffsets(7, 0), 1)
    assert led.progress.high_watermark == LogOffsets(7, 0)


def test_a_follower_that_is_pushed_to_is_caught_up_when_it_has_stored_all_there_was() -> None:
    leader = leading(("n1", "n2", "n3"))
    leader.on_append(0, 10)
    leader.on_stored("n2", LogOffsets(5, 0), 100, 90)
    assert leader.progress.caught_up_ms("n2") == 90
    leader.on_stored("n2", LogOffsets(6, 0), 120, None)
    assert leader.progress.caught_up_ms("n2") == 90
    assert leader.progress.follower_ends("n2") == LogOffsets(6, 0)
    leader.on_stored("n2", LogOffsets(7, 0), 130, 125)
    assert leader.progress.caught_up_ms("n2") == 125


def leading_with(*frames: int, epochs: tuple[int, ...] = ()) -> LeaderReplica:
    """Return a leader of messages with frames of so many each, 0 for the end of a segment."""
    logs = open_logs(Path("/t/0"), SimulatedDisk(), TopicSettings())
    written = 0
    for count in frames:
        if count:
            epoch = epochs[written] if epochs else 1
            append(logs.messages, [frame_of([b"v"] * count)], epoch=epoch)
            written += 1
        else:
            logs.messages.roll()
    ends = LogOffsets(logs.messages.end_offset, 0)
    progress = ReplicaProgress("n1", ends, in_sync=("n1",), min_insync=1)
    return LeaderReplica(KEY, 3, logs, progress)


def given(
    led: LeaderReplica, end: int, epoch: int = 1, *, is_checked: bool = True, bytes_max: int = 2**20
) -> tuple[LogUpdate, list[int]]:
    """Return what a follower of the messages gets: the update, and where its frames begin."""
    at = Position(KEY, 3, LogOffsets(end, 0), LogOffsets(epoch, -1), 0)
    update = led.read_update(at, is_checked=is_checked, bytes_max=bytes_max)
    assert update.head.messages is not None
    assert update.head.messages.frame_bytes == sum(map(len, update.buffers))
    return update.head.messages, [
        FrameView.parse(each).header.base_offset for each in update.buffers
    ]


def test_a_follower_of_another_epoch_is_refused() -> None:
    at = Position(KEY, 2, LogOffsets(0, 0), LogOffsets(-1, -1))
    update = leading_with(1).read_update(at, is_checked=True, bytes_max=9)
    assert "3" in update.head.refusal
    assert "2" in update.head.refusal
    assert (update.head.messages, update.buffers) == (None, [])


def write(led: LeaderReplica, *, keeps: bool = True) -> None:
    """Have the leader write a frame of one message, and keep it in memory."""
    log, frame = led.logs.messages, frame_of([b"v"])
    batch = log.begin(0)
    batch.add(
        parse_header(frame), memoryview(frame)[HEADER_BYTES:], append_time_us=0, leader_epoch=3
    )
    log.write(batch)
    log.commit(batch)
    quorum = led.quorums.messages
    assert quorum is not None
    if keeps:
        quorum.keep(batch)
    quorum.appended(batch.end_offset)


def at(end: int, *, leader_epoch: int = 3, rewrites: int = 0) -> Position:
    return Position(KEY, leader_epoch, LogOffsets(end, 0), LogOffsets(3, -1), rewrites)


def recent(led: LeaderReplica, position: Position, up_to: int) -> list[int] | None:
    """Return where the frames begin that a follower gets from memory, None if not from there."""
    found = led.recent_update(position, LogOffsets(up_to, 0))
    if found is None:
        return None
    assert found.head.messages is not None
    assert found.head.messages.frame_bytes == sum(map(len, found.buffers))
    offsets = [
        header.base_offset
        for each in found.buffers
        for header in (view.header for view in parse_frames(each))
    ]
    assert found.end_offsets == LogOffsets(offsets[-1] + 1 if offsets else position.ends[0], 0)
    return offsets


def test_a_follower_gets_from_memory_what_is_there_up_to_where_it_may_be_given_frames() -> None:
    led = leading_with(1, 1)
    write(led, keeps=False)
    for _ in range(3):
        write(led)
    assert recent(led, at(2), 6) is None, "it was not kept"
    assert [recent(led, at(end), 6) for end in (3, 4, 5, 6)] == [[3, 4, 5], [4, 5], [5], []]
    assert [recent(led, at(3), up_to) for up_to in (3, 4, 5)] == [[], [3], [3, 4]]
    assert recent(led, at(3, leader_epoch=2), 6) is None
    led.logs.messages.roll()
    write(led)
    assert recent(led, at(5), 7) == [5], "one segment at a time"
    assert recent(led, at(6), 7) == [6]
    log = led.logs.messages
    log.remove(log.detach_before(6))
    assert recent(led, at(5), 7) is None, "the log begins later"
    assert recent(led, at(6), 7) == [6]


def test_a_follower_that_may_have_what_compaction_removed_since_begins_anew() -> None:
    led = leading_with(1, 1, 0, 1, 0, 1)
    log = led.logs.messages
    log.rewrites.record(log.segments[1])  # the one with offset 2
    for end, resets in ((0, False), (1, True), (2, True), (3, False), (4, False)):
        update = led.read_update(at(end), is_checked=True, bytes_max=2**20).head
        assert update.messages is not None
        assert update.messages.must_reset is resets, end
        assert (recent(led, at(end), 4) is None) is (end < 4)
        knows = led.read_update(at(end, rewrites=1), is_checked=True, bytes_max=2**20).head
        assert knows.messages is not None
        assert not knows.messages.must_reset


def test_what_no_follower_is_pushed_is_not_offered_and_what_is_counts_as_given() -> None:
    led, offers = leading_with(1, 1), list[PartitionKey]()
    led.on_offer = offers.append
    batch = led.logs.messages.begin(0)
    frame = frame_of([b"v"] * 3)
    batch.add(
        parse_header(frame), memoryview(frame)[HEADER_BYTES:], append_time_us=0, leader_epoch=3
    )
    assert not led.quorums.messages.offer(batch)
    assert (offers, led.pushable_ends) == ([], LogOffsets(2, 0))
    led.is_pushed = lambda key: key == KEY
    assert led.quorums.messages.offer(batch)
    assert (offers, led.pushable_ends) == ([KEY], LogOffsets(5, 0))
    assert led.progress.ends == LogOffsets(2, 0)


@pytest.mark.parametrize(
    ("end", "epoch", "differs"),
    [
        (1, 1, False),
        (2, 1, False),  # where this leadership began, and the epoch before it
        (2, 2, True),
        (3, 3, False),  # offered, and not on this node's disk yet
        (5, 3, False),
        (6, 3, True),  # more than was ever offered
        (3, 2, True),
    ],
)
def test_a_log_that_has_what_was_offered_and_no_more_does_not_differ(
    end: int, epoch: int, differs: bool
) -> None:
    led = leading_with(1, 1)
    led.is_pushed = lambda _key: True
    batch = led.logs.messages.begin(0)
    frame = frame_of([b"v"] * 3)
    batch.add(
        parse_header(frame), memoryview(frame)[HEADER_BYTES:], append_time_us=0, leader_epoch=3
    )
    assert led.offer(0, batch)
    for _ in range(2):  # the second time the epoch is not read from the disk
        update, _ = given(led, end, epoch, is_checked=False)
        assert (update.diverges_at is not None) is differs


def test_each_new_high_watermark_is_told_once_to_whoever_waits_for_it() -> None:
    led = leading(("n1", "n2"))
    told, bounds, changes = list[tuple[str, int]](), list[PartitionKey](), list[None]()
    for name, quorum in zip(("messages", "events"), led.quorums, strict=True):
        assert quorum is not None
        quorum.follow(lambda offset, name=name: told.append((name, offset)))
    led.on_bounds_change = bounds.append
    led.on_high_watermark_change = lambda: changes.append(None)
    led.on_append(0, 7)
    assert (told, bounds, changes) == ([], [], [])
    led.on_fetch("n2", LogOffsets(5, 0), 1)
    assert told == [("messages", 5), ("events", 0)]
    assert (len(bounds), len(changes)) == (1, 1)
    led.on_fetch("n2", LogOffsets(5, 0), 2)
    led.on_fetch("n3", LogOffsets(7, 0), 2)
    assert (len(told), len(bounds), len(changes)) == (2, 1, 1)
    led.set_in_sync(("n1",), 1, is_decided=True)
    assert told[2:] == [("messages", 7), ("events", 0)]
    assert led.bounds.high_watermark == LogOffsets(7, 0)
    assert led.is_caught_up
