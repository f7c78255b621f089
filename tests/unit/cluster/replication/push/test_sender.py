"""What a leader pushes to a follower, and what it knows of the follower by the reports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from goq import limits
from goq.clock import ManualClock
from goq.cluster.replication.fetch.follower_update import FramedUpdate
from goq.cluster.replication.fetch.session import FetchSession
from goq.cluster.replication.leader import LeaderReplica, ReplicaBounds
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import LogUpdate, PartitionKey, PartitionUpdate, Position
from goq.cluster.replication.push.protocol import Push, decode_message
from goq.cluster.replication.push.sender import PushSender
from goq.errors import InvalidFrame
from tests.support.broker.harness import run

EPOCH = 4
KEY, OTHER = PartitionKey("t", 1, 0), PartitionKey("t", 1, 1)
FRAME = b"12345678"
PIECE = 3


class Leader:
    """A leader of messages alone, whose frames have one message of eight bytes each.

    A push has at most ``PIECE`` of them, and nothing before ``in_memory_from`` is in memory.
    """

    def __init__(self, key: PartitionKey, end: int) -> None:
        self.key = key
        self.end = end
        self.leader_epoch = EPOCH
        self.in_memory_from = 0
        self.high_watermark = 0
        self.stored: list[tuple[str, int, bool]] = []

    @property
    def pushable_ends(self) -> LogOffsets:
        return LogOffsets(self.end, 0)

    @property
    def bounds(self) -> ReplicaBounds:
        return ReplicaBounds(0, 0, LogOffsets(self.high_watermark, 0))

    def recent_update(self, position: Position, ends: LogOffsets) -> FramedUpdate | None:
        start = position.ends.messages
        if start < self.in_memory_from:
            return None
        count = min(PIECE, ends.messages - start)
        watermark = LogOffsets(self.high_watermark, 0)
        messages, events = LogUpdate(0, 0, count * len(FRAME)), LogUpdate(0, 0, 0)
        head = PartitionUpdate(self.key, EPOCH, watermark, messages, events)
        return FramedUpdate(head, [memoryview(FRAME)] * count, LogOffsets(start + count, 0))

    def on_stored(
        self, node: str, ends: LogOffsets, _now_ms: int, caught_up_ms: int | None
    ) -> None:
        self.stored.append((node, ends.messages, caught_up_ms is not None))


class Stream:
    def __init__(self) -> None:
        self.sent: list[Push] = []
        self.is_open = True

    def send(self, *parts: bytes | memoryview) -> bool:
        message = decode_message(b"".join(parts))
        assert isinstance(message, Push)
        self.sent.append(message)
        return self.is_open

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)


class Scene:
    """A session whose follower has reported where it is, and its sender."""

    def __init__(self) -> None:
        self.leaders = {KEY: Leader(KEY, 5), OTHER: Leader(OTHER, 2)}
        self.session = FetchSession("follower", 7)
        self.stream = Stream()
        self.may_push = True
        self.failures = 0
        leaders = cast(dict[PartitionKey, LeaderReplica], self.leaders)
        self.clock = ManualClock()
        self.sender = PushSender(
            self.stream,
            self.session,
            leaders,
            self.clock,
            may_push=lambda _key: self.may_push,
            on_failure=self._on_failure,
        )
        for key in self.leaders:
            self.report(key, 1)
        self.session.pushes = self.sender

    def _on_failure(self) -> None:
        self.failures += 1

    def report(self, key: PartitionKey, end: int) -> None:
        """Have the follower report a position to which the last response led."""
        ends = LogOffsets(end, 0)
        self.session.expected[key] = ends
        self.session.set_position(Position(key, EPOCH, ends, LogOffsets(EPOCH, 0)))
        self.session.pending.clear()

    def position(self, key: PartitionKey = KEY) -> int:
        return self.session.positions[key].ends.messages

    async def pushed(self, *keys: PartitionKey) -> list[tuple[int, int]]:
        """Have partitions looked at; return the partition and messages of each update sent."""
        before = len(self.stream.sent)
        for key in keys:
            self.sender.enqueue(key)
        for _ in range(6):
            await asyncio.sleep(0)
        found = list[tuple[int, int]]()
        for push in self.stream.sent[before:]:
            assert push.head.session == 7
            assert push.head.clock_ms == self.clock.wall_ms()
            counts = [
                each.messages.frame_bytes // len(FRAME)
                for each in push.head.updates
                if each.messages
            ]
            assert bytes(push.frames) == FRAME * sum(counts)
            found += [(u.key.number, n) for u, n in zip(push.head.updates, counts, strict=True)]
        return found


def on_scene(test: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Scene())

    run(main())


def test_what_is_new_is_pushed_once_in_pieces_from_where_the_follower_is() -> None:
    async def test(scene: Scene) -> None:
        assert not scene.sender.covers(KEY)
        assert not scene.sender.has_pushed_all(KEY)
        assert await scene.pushed(KEY, KEY) == [(0, 3), (0, 1)]
        assert [push.head.number for push in scene.stream.sent] == [1, 2]
        assert scene.sender.covers(KEY)
        assert scene.sender.has_pushed_all(KEY)
        assert not scene.sender.covers(OTHER)
        assert await scene.pushed(KEY) == []
        scene.leaders[KEY].end = 6
        assert not scene.sender.has_pushed_all(KEY)
        assert await scene.pushed(KEY) == [(0, 1)]
        assert scene.session.pending == {}

    on_scene(test)


def test_partitions_that_change_in_one_turn_share_a_push() -> None:
    async def test(scene: Scene) -> None:
        scene.leaders[KEY].end = 3
        assert await scene.pushed(KEY, OTHER) == [(0, 2), (1, 1)]
        assert len(scene.stream.sent) == 1

    on_scene(test)


def test_a_new_high_watermark_is_pushed_without_frames() -> None:
    async def test(scene: Scene) -> None:
        await scene.pushed(OTHER)
        scene.leaders[OTHER].high_watermark = 2
        assert await scene.pushed(OTHER) == [(1, 0)]
        assert await scene.pushed(OTHER) == []
        bounds = scene.session.sent_bounds[OTHER]
        assert bounds == ReplicaBounds(0, 0, LogOffsets(2, 0))

    on_scene(test)


def test_reports_move_the_follower_and_say_when_it_has_everything() -> None:
    async def test(scene: Scene) -> None:
        await scene.pushed(KEY, OTHER)
        scene.sender.on_stored(1)
        assert (scene.position(KEY), scene.position(OTHER)) == (4, 2)
        assert scene.session.verified[KEY] is scene.session.positions[KEY]
        assert scene.session.positions[KEY].epochs == LogOffsets(EPOCH, 0)
        scene.sender.on_stored(2)
        assert scene.position(KEY) == 5
        assert scene.leaders[KEY].stored == [("follower", 4, False), ("follower", 5, True)]
        assert scene.leaders[OTHER].stored == [("follower", 2, True)]

    on_scene(test)


def test_a_report_may_be_of_several_pushes() -> None:
    async def test(scene: Scene) -> None:
        await scene.pushed(KEY)
        scene.sender.on_stored(2)
        assert scene.leaders[KEY].stored == [("follower", 5, True)]
        for number in (0, 1, 2, 3):
            with pytest.raises(InvalidFrame):
                scene.sender.on_stored(number)

    on_scene(test)


def test_a_report_of_a_push_that_is_not_under_way_is_refused() -> None:
    async def test(scene: Scene) -> None:
        await scene.pushed(KEY)
        for number in (0, 3):
            with pytest.raises(InvalidFrame):
                scene.sender.on_stored(number)
        assert scene.position() == 1
        scene.sender.on_stored(1)
        with pytest.raises(InvalidFrame):
            scene.sender.on_stored(1)

    on_scene(test)


def test_a_report_of_a_push_behind_another_counts_for_its_partition_alone() -> None:
    async def test(scene: Scene) -> None:
        await scene.pushed(KEY)
        await scene.pushed(OTHER)
        scene.sender.on_stored(0, [3])
        assert (scene.position(KEY), scene.position(OTHER)) == (1, 2)
        with pytest.raises(InvalidFrame):
            scene.sender.on_stored(0, [3])
        scene.sender.on_stored(1)
        assert scene.position(KEY) == 4
        scene.sender.on_stored(3)
        assert scene.position(KEY) == 5
        assert scene.leaders[OTHER].stored == [("follower", 2, True)]

    on_scene(test)


def test_a_push_of_two_partitions_that_is_reported_late_takes_neither_back() -> None:
    async def test(scene: Scene) -> None:
        scene.leaders[KEY].end = 3
        await scene.pushed(KEY, OTHER)
        scene.leaders[KEY].end = 4
        await scene.pushed(KEY)
        scene.sender.on_stored(0, [2])
        assert (scene.position(KEY), scene.position(OTHER)) == (4, 1)
        scene.sender.on_stored(2)
        assert (scene.position(KEY), scene.position(OTHER)) == (4, 2)
        assert scene.leaders[KEY].stored == [("follower", 4, True)]

    on_scene(test)


@pytest.mark.parametrize(("number", "others"), [(0, [1, 4]), (1, [0]), (4, []), (0, [])])
def test_a_report_with_a_push_that_is_not_under_way_counts_for_nothing(
    number: int, others: list[int]
) -> None:
    async def test(scene: Scene) -> None:
        await scene.pushed(KEY, OTHER)
        with pytest.raises(InvalidFrame):
            scene.sender.on_stored(number, others)
        assert (scene.position(KEY), scene.position(OTHER)) == (1, 1)

    on_scene(test)


def test_a_large_batch_is_a_push_of_its_own_behind_the_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "JOURNAL_ENTRY_BYTES_MAX", 2 * len(FRAME))

    async def test(scene: Scene) -> None:
        scene.leaders[KEY].end = 4
        assert await scene.pushed(KEY, OTHER) == [(1, 1), (0, 3)]
        assert [push.head.number for push in scene.stream.sent] == [1, 2]
        assert all(push.head.takes_others for push in scene.stream.sent)

    on_scene(test)


Change = Callable[[Scene], Any]
NOT_PUSHED: dict[str, Change] = {
    "of another leadership": lambda s: setattr(s.leaders[KEY], "leader_epoch", EPOCH + 1),
    "led elsewhere": lambda s: s.leaders.pop(KEY),
    "not verified": lambda s: s.session.verified.pop(KEY),
    "a response is under way": lambda s: s.session.expected.update({KEY: LogOffsets(3, 0)}),
    "a response is being made": lambda s: s.session.reading.add(KEY),
    "may not be pushed": lambda s: setattr(s, "may_push", False),
    "not in memory": lambda s: setattr(s.leaders[KEY], "in_memory_from", 2),
}


@pytest.mark.parametrize("why", NOT_PUSHED)
def test_a_partition_is_fetched_while_it_cannot_be_pushed(why: str) -> None:
    async def test(scene: Scene) -> None:
        NOT_PUSHED[why](scene)
        assert await scene.pushed(KEY) == []
        assert not scene.sender.covers(KEY)
        assert list(scene.session.pending) == [KEY]
        assert scene.session.updated.is_set()

    on_scene(test)


def test_a_partition_that_the_follower_does_not_ask_for_is_left_alone() -> None:
    async def test(scene: Scene) -> None:
        scene.session.forget(KEY)
        assert await scene.pushed(KEY) == []
        assert scene.session.pending == {}
        scene.session.end()
        assert await scene.pushed(OTHER) == []

    on_scene(test)


def test_what_is_no_longer_in_memory_is_fetched_once_the_pushes_are_stored() -> None:
    async def test(scene: Scene) -> None:
        assert await scene.pushed(KEY) == [(0, 3), (0, 1)]
        leader = scene.leaders[KEY]
        leader.end, leader.in_memory_from = 9, 8
        assert await scene.pushed(KEY) == []
        assert scene.sender.covers(KEY)
        assert scene.session.pending == {}
        leader.in_memory_from = 0
        assert await scene.pushed(KEY) == []  # not before it was fetched
        scene.sender.on_stored(1)
        assert scene.session.pending == {}
        scene.sender.on_stored(2)
        assert not scene.sender.covers(KEY)
        assert list(scene.session.pending) == [KEY]
        scene.report(KEY, 5)
        assert await scene.pushed(KEY) == [(0, 3), (0, 1)]

    on_scene(test)


def test_bytes_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    update_bytes = limits.PUSH_UPDATE_BYTES + PIECE * len(FRAME)
    monkeypatch.setattr(limits, "PUSH_IN_FLIGHT_BYTES_MAX", 2 * update_bytes)

    async def test(scene: Scene) -> None:
        scene.leaders[KEY].end = 20
        assert await scene.pushed(KEY) == [(0, 3), (0, 3)]
        assert scene.session.pending == {}
        scene.sender.on_stored(2)
        assert scene.position() == 7
        assert list(scene.session.pending) == [KEY]
        scene.report(KEY, 7)
        assert await scene.pushed(KEY) == [(0, 3), (0, 3)]

    on_scene(test)


def test_partitions_of_one_push_keep_to_the_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    update_bytes = limits.PUSH_UPDATE_BYTES + 2 * len(FRAME)

    async def test(scene: Scene) -> None:
        for end, expected in ((3, [(0, 2), (1, 1)]), (5, [(0, 2)])):
            scene.leaders[KEY].end = end
            monkeypatch.setattr(limits, "PUSH_IN_FLIGHT_BYTES_MAX", update_bytes + (end == 3))
            scene.leaders[OTHER].end = end - 1
            assert await scene.pushed(KEY, OTHER) == expected
            scene.sender.on_stored(len(scene.stream.sent))
        assert list(scene.session.pending) == [OTHER]

    on_scene(test)


def test_updates_that_are_too_large_for_one_message_are_several_pushes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    update_bytes = limits.PUSH_UPDATE_BYTES + 2 * len(FRAME)

    async def test(scene: Scene) -> None:
        for end, pushes in ((3, 1), (5, 2)):
            scene.leaders[KEY].end, scene.leaders[OTHER].end = end, end
            before = len(scene.stream.sent)
            monkeypatch.setattr(limits, "PUSH_BYTES_MAX", 2 * update_bytes - (pushes == 2))
            assert await scene.pushed(KEY, OTHER) == [(0, 2), (1, 2)]
            assert len(scene.stream.sent) == before + pushes
        scene.sender.on_stored(2)
        assert (scene.position(KEY), scene.position(OTHER)) == (5, 3)
        scene.sender.on_stored(3)
        assert (scene.position(KEY), scene.position(OTHER)) == (5, 5)

    on_scene(test)


def test_what_was_pushed_by_an_earlier_leadership_moves_nobody() -> None:
    async def test(scene: Scene) -> None:
        await scene.pushed(KEY)
        old = scene.leaders[KEY]
        scene.leaders[KEY] = Leader(KEY, 5)
        scene.sender.on_stored(1)
        assert scene.position() == 1
        assert old.stored == scene.leaders[KEY].stored == []
        scene.leaders[KEY] = old
        scene.session.forget_leadership(KEY)
        scene.sender.on_stored(2)
        assert scene.position() == 1
        assert not scene.sender.covers(KEY)

    on_scene(test)


def test_a_stream_that_takes_no_more_is_told() -> None:
    async def test(scene: Scene) -> None:
        await scene.pushed(OTHER)
        assert scene.failures == 0
        scene.stream.is_open = False
        scene.leaders[OTHER].end = 3
        await scene.pushed(OTHER)
        assert scene.failures == 1

    on_scene(test)


def test_what_was_sent_is_expected_and_no_longer_to_be_fetched() -> None:
    async def test(scene: Scene) -> None:
        scene.session.pending[OTHER] = None
        scene.session.stale.add(OTHER)
        await scene.pushed(OTHER)
        assert scene.session.expected[OTHER] == LogOffsets(2, 0)
        assert OTHER not in scene.session.pending
        assert OTHER not in scene.session.stale

    on_scene(test)
