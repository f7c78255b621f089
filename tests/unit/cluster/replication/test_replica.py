"""A replica becomes what it is last told to be, whenever it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from goq.broker.partition.loader import PartitionLogs, open_logs
from goq.broker.topic.topic import Leadership
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import LogUpdate, PartitionKey, PartitionUpdate
from goq.cluster.replication.replica import Replica, ReplicaAssignment
from goq.config.topic import TopicSettings
from goq.errors import GoqError
from goq.frame.view import FrameView
from goq.storage.compaction.checkpoint import (
    CleanerCheckpoint,
    read_checkpoint,
    write_checkpoint,
)
from goq.storage.disk import Disk, RealDisk
from goq.storage.log.log import Log
from goq.storage.log.repair import Gap, scan_segment
from goq.storage.log.replicated import append_replicated
from tests.support.eventually import until
from tests.support.storage.disk import SimulatedCrash
from tests.support.storage.logs import append, frame_of

_PATIENCE_S = 30.0


class _Host:
    """A node that leads, and whose followers never fetch; its first work waits to be let go on."""

    name = "n1"
    journal = None

    def __init__(self) -> None:
        self.disk: Disk = RealDisk()
        self.began = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.calls: list[str] = []
        self.recorded: list[list[int]] = []

    async def in_thread(self, work: Callable[[], object]) -> object:
        self.began.set()
        await self.may_go_on.wait()
        return work()

    def settings(self, _topic: str) -> TopicSettings:
        return TopicSettings()

    def now_ms(self) -> int:
        return 0

    async def record_segments(self, _key: PartitionKey, logs: PartitionLogs) -> None:
        self.recorded += [[segment.end_offset for segment in log.segments[:-1]] for log in logs]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_: self.calls.append(name)


def test_a_replica_that_is_let_go_while_its_logs_are_opened_to_lead_is_closed(
    tmp_path: Path,
) -> None:
    """Its followers are gone too, so that what its logs hold will not be safe."""
    logs = open_logs(tmp_path, RealDisk(), TopicSettings())
    append(logs.messages, [frame_of([b"v"])])
    _close(logs)

    async def run() -> list[str]:
        host = _Host()
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, host)
        both = ("n1", "n2")
        replica.assign(ReplicaAssignment("n1", 1, both, both, 2, 1))
        async with asyncio.timeout(_PATIENCE_S):
            await host.began.wait()
            closing = asyncio.ensure_future(replica.close())
            await asyncio.sleep(0)
            host.may_go_on.set()
            await closing
        assert replica.as_leader is None
        return host.calls

    assert asyncio.run(run()) == ["start_serving", "stop_serving"]


class _CutShortDisk(RealDisk):
    """A disk on which the process ends after some files of a folder are removed."""

    files_left = 0

    def remove_dir(self, directory: Path) -> None:
        for name in self.names(directory)[: self.files_left]:
            self.remove(directory / name)
        raise SimulatedCrash


@pytest.mark.parametrize("files_left", range(4))
def test_a_log_that_begins_anew_never_counts_as_compacted(tmp_path: Path, files_left: int) -> None:
    host: Any = _Host()
    disk = host.disk = _CutShortDisk()
    disk.files_left = files_left
    logs = open_logs(tmp_path, disk, TopicSettings())
    append(logs.messages, [frame_of([b"v"])])
    log = logs.messages
    write_checkpoint(disk, log.directory, CleanerCheckpoint(1, 0))
    _close(logs)
    with pytest.raises(SimulatedCrash):
        Replica(PartitionKey("t", 1, 0), tmp_path, host)._reset_log(log, 0)
    assert read_checkpoint(disk, log.directory) == CleanerCheckpoint()


class _FollowingHost(_Host):
    """A node whose work is done at once."""

    def __init__(self, fsync: str) -> None:
        super().__init__()
        self.may_go_on.set()
        self.change_fsync(fsync)

    def change_fsync(self, fsync: str) -> None:
        self._settings = TopicSettings().changed({"fsync": fsync})

    def settings(self, _topic: str) -> TopicSettings:
        return self._settings

    async def stop_fetching(self, _key: PartitionKey) -> None:
        self.calls.append("stop_fetching")


@pytest.mark.parametrize(
    ("fsync", "later", "has_failed", "syncs"),
    [
        ("always", "always", False, 0),
        ("interval", "interval", False, 2),  # before it follows another, and before it leads
        ("interval", "always", False, 1),
        ("always", "interval", False, 2),
        ("always", "always", True, 0),
    ],
)
def test_a_follower_leads_with_the_logs_that_it_has_open(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fsync: str,
    later: str,
    has_failed: bool,
    syncs: int,
) -> None:
    synced: list[str] = []

    async def run() -> None:
        host = _FollowingHost(fsync)
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, host)
        both = ("n1", "n2")
        replica.assign(ReplicaAssignment("n2", 1, both, both, 2, 1))
        await until(lambda: replica.as_follower is not None)
        follower = replica.as_follower
        assert follower is not None
        logs = follower.logs
        append_replicated(logs.messages, [FrameView.parse(frame_of([b"v"]))], 0)
        if has_failed:
            logs.messages.failed = "its disk failed"
        host.change_fsync(later)
        monkeypatch.setattr(Log, "sync", lambda log: synced.append(log.directory.name))
        replica.assign(ReplicaAssignment("n3", 2, both, both, 2, 2))
        await until(lambda: replica.as_follower not in (None, follower))
        replica.assign(ReplicaAssignment("n1", 3, both, both, 2, 3))
        await until(lambda: replica.as_leader is not None)
        leader = replica.as_leader
        assert leader is not None
        assert (leader.logs.messages is logs.messages) is not has_failed
        assert leader.progress.ends.messages == 1
        assert leader.logs.messages.config.segment_bytes == TopicSettings().segment_bytes
        before_close = list(synced)
        monkeypatch.undo()
        await replica.close()
        synced[:] = before_close

    asyncio.run(run())
    if not has_failed:
        assert synced == ["messages", "events"] * syncs


class _LeadingHost(_Host):
    """A node whose work is done at once, in a cluster that may know how to renew leaderships."""

    def __init__(self, *, may_renew: bool) -> None:
        super().__init__()
        self.may_go_on.set()
        self._may_renew = may_renew
        self._leads: list[PartitionLogs] = []

    def may_renew_leaderships(self) -> bool:
        return self._may_renew

    async def open_partition(
        self, _key: PartitionKey, logs: PartitionLogs, _leadership: Leadership
    ) -> None:
        self._leads.append(logs)

    async def close_partition(self, _key: PartitionKey, _reason: GoqError) -> None:
        _close(self._leads.pop())


class _BuggyHost(_FollowingHost):
    """A node whose first work ends in a bug."""

    def __init__(self) -> None:
        super().__init__("always")
        self.tries = 0

    async def in_thread(self, work: Callable[[], object]) -> object:
        self.tries += 1
        if self.tries == 1:
            raise KeyError("a bug")
        return work()


def test_a_replica_that_a_bug_kept_from_opening_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goq.cluster.replication.replica._RETRY_S", 0.01)

    async def run() -> list[str]:
        host = _BuggyHost()
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, host)
        both = ("n1", "n2")
        replica.assign(ReplicaAssignment("n2", 1, both, both, 2, 1))
        await until(lambda: replica.as_follower is not None)
        assert replica.failure is None
        await replica.close()
        return host.calls

    assert "on_storage_error" in asyncio.run(run())


def test_a_leader_counts_a_replica_that_came_with_a_decision_on_the_in_sync_set(
    tmp_path: Path,
) -> None:
    logs = open_logs(tmp_path, RealDisk(), TopicSettings())
    append(logs.messages, [frame_of([b"v"])])
    _close(logs)

    async def run() -> None:
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, _LeadingHost(may_renew=True))
        replica.assign(ReplicaAssignment("n1", 1, ("n1", "n2"), ("n1", "n2"), 1, 1))
        await until(lambda: replica.as_leader is not None)
        leader = replica.as_leader
        assert leader is not None
        decided = ReplicaAssignment("n1", 1, ("n1", "n3"), ("n1", "n3"), 1, 2)
        replica.on_in_sync_decided(decided)
        leader.progress.on_fetch("n3", LogOffsets(1, 0), 1)
        assert leader.progress.holders(0, 0) == ["n1", "n3"]
        await replica.close()

    asyncio.run(run())


def test_a_replica_that_may_be_in_sync_already_counts_until_that_is_decided(tmp_path: Path) -> None:
    """The cluster's ``min_insync`` changes while the in-sync set grows: of the same version."""
    logs = open_logs(tmp_path, RealDisk(), TopicSettings())
    append(logs.messages, [frame_of([b"v"])])
    _close(logs)

    async def run() -> None:
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, _LeadingHost(may_renew=True))
        both, all_three = ("n1", "n2"), ("n1", "n2", "n3")
        before = ReplicaAssignment("n1", 1, both, all_three, 1, 1)
        replica.assign(before)
        await until(lambda: replica.as_leader is not None)
        leader = replica.as_leader
        assert leader is not None
        progress = leader.progress
        progress.begin_change(all_three)
        replica.assign(before._replace(min_insync=2))
        assert progress.min_insync == 2, "nothing more is acknowledged by what was before"
        progress.on_fetch("n2", LogOffsets(1, 0), 1)
        assert progress.high_watermark.messages == 0, "n3 may be elected, and lacks it"
        replica.on_in_sync_decided(before._replace(min_insync=2))
        assert progress.high_watermark.messages == 1
        progress.begin_change(all_three)
        replica.assign(before._replace(in_sync=all_three, version=2))
        await until(lambda: progress.in_sync == {*all_three})
        replica.assign(before._replace(version=3))
        await until(lambda: progress.in_sync == {*both})
        assert progress.electable == {"n2"}, "the change of version 1 cannot be accepted any more"
        await replica.close()

    asyncio.run(run())


@pytest.mark.parametrize("may_renew", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_leader_whose_disk_failed_waits_for_another_epoch_once_all_nodes_know_how(
    tmp_path: Path, *, may_renew: bool, fails: bool
) -> None:
    async def run() -> list[str]:
        host = _LeadingHost(may_renew=may_renew)
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, host)
        both = ("n1", "n2")
        replica.assign(ReplicaAssignment("n1", 1, both, both, 2, 1))
        await until(lambda: replica.as_leader is not None)
        first = replica.as_leader
        assert first is not None
        if fails:
            first.logs.events.failed = "its disk failed"
        replica.reopen()
        waits = may_renew and fails
        await until(
            lambda: (
                replica.as_leader not in (None, first)
                or (replica.as_leader is None and replica.idle_logs is not None)
            )
        )
        assert (replica.spent_epoch == 1) is waits
        assert (replica.as_leader is None) is waits
        replica.assign(ReplicaAssignment("n1", 1, ("n1",), both, 1, 2))
        replica.assign(ReplicaAssignment("n1", 2, both, both, 2, 3))
        await until(lambda: replica.as_leader is not None and replica.as_leader.leader_epoch == 2)
        assert replica.spent_epoch is None
        await replica.close()
        return host.calls

    assert asyncio.run(run()).count("renew_leadership") == (may_renew and fails)


class _OpeningHost(_LeadingHost):
    """A node that opens and closes partitions to its clients, and tells why."""

    def __init__(self) -> None:
        super().__init__(may_renew=False)
        self.leader_clocks = SimpleNamespace(ahead_of=lambda node, _key: (node, "ahead"))
        self.leaderships: list[Leadership] = []
        self.opened: list[LogOffsets] = []
        self.closed: list[str] = []

    async def stop_fetching(self, _key: PartitionKey) -> None:
        return

    async def open_partition(
        self, key: PartitionKey, logs: PartitionLogs, leadership: Leadership
    ) -> None:
        self.leaderships.append(leadership)
        self.opened.append(LogOffsets(*(log.end_offset for log in logs)))
        await super().open_partition(key, logs, leadership)

    async def close_partition(self, key: PartitionKey, reason: GoqError) -> None:
        self.closed.append(type(reason).__name__)
        await super().close_partition(key, reason)


def test_a_leader_that_has_everything_safe_is_opened_to_clients_and_closed_as_it_leads_no_more(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        host = _OpeningHost()
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, host)
        alone = ReplicaAssignment("n1", 1, ("n1",), ("n1", "n2"), 1, 1)
        replica.assign(alone)
        await until(lambda: host.opened == [LogOffsets(0, 0)])
        leader = replica.as_leader
        assert leader is not None
        replica.assign(alone._replace(in_sync=("n1", "n2"), version=2))
        await until(lambda: leader.progress.in_sync == {"n1", "n2"})
        assert (len(host.opened), host.closed) == (1, [])
        replica.assign(ReplicaAssignment("n2", 2, ("n1", "n2"), ("n1", "n2"), 1, 3))
        await until(lambda: replica.as_follower is not None)
        assert host.closed == ["NotLeader"]
        assert host.calls.count("start_serving") == host.calls.count("stop_serving") == 1
        await replica.close()
        assert host.closed == ["NotLeader"]

    asyncio.run(run())


def test_a_leader_is_opened_to_clients_by_its_newest_assignment_only(tmp_path: Path) -> None:
    async def run() -> None:
        host = _OpeningHost()
        host.may_go_on.clear()
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, host)
        before = ReplicaAssignment("n1", 1, ("n1",), ("n1", "n2"), 1, 1)
        now = before._replace(min_insync=2)
        needed: list[int] = []

        opening = host.open_partition

        async def open_partition(*opened: Any) -> None:
            assert replica.as_leader is not None
            needed.append(replica.as_leader.progress.min_insync)
            await opening(*opened)

        host.open_partition = open_partition
        replica.assign(before)
        await host.began.wait()
        replica.assign(now)
        host.may_go_on.set()
        await until(lambda: replica.assignment == now)
        replica.assign(now._replace(in_sync=("n1", "n2"), version=2))
        await until(lambda: needed)
        assert needed == [2]
        await replica.close()

    asyncio.run(run())


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_replica_without_a_leader_leads_with_its_open_logs_unless_one_of_them_failed(
    tmp_path: Path, *, has_failed: bool
) -> None:
    async def run() -> None:
        host = _OpeningHost()
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, host)
        both = ("n1", "n2")
        replica.assign(ReplicaAssignment(None, 1, both, both, 2, 1))
        await until(lambda: replica.idle_logs is not None)
        idle = replica.idle_logs
        assert idle is not None
        if has_failed:
            idle.events.failed = "its disk failed"
        replica.assign(ReplicaAssignment("n1", 2, both, both, 2, 2))
        await until(lambda: replica.as_leader is not None)
        assert replica.as_leader is not None
        assert (replica.as_leader.logs.events is idle.events) is not has_failed
        await replica.close()

    asyncio.run(run())


@pytest.mark.parametrize("wrote_last", [True, False])
def test_times_of_which_no_clock_is_known_are_by_that_of_the_leader_that_wrote_them_last(
    tmp_path: Path, *, wrote_last: bool
) -> None:
    async def run() -> None:
        host = _OpeningHost()
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, host)
        replica.assign(ReplicaAssignment("n2", 1, ("n1", "n2"), ("n1", "n2"), 1, 1))
        await until(lambda: replica.as_follower is not None)
        assert replica.as_follower is not None
        events = replica.as_follower.logs.events
        append_replicated(events, [FrameView.parse(frame_of([b"v"]))], 0)
        replica.as_follower.on_appended(1, 1 if wrote_last else 0, None)
        replica.assign(ReplicaAssignment("n1", 2, ("n1",), ("n1", "n2"), 1, 2))
        await until(lambda: len(host.leaderships) == 1)
        (leadership,) = host.leaderships
        assert leadership.epoch == 2
        assert leadership.ahead_of("") == ("n2" if wrote_last else "", "ahead")
        assert leadership.ahead_of("n3") == ("n3", "ahead")
        await replica.close()

    asyncio.run(run())


def test_a_leader_whose_last_write_failed_is_closed_as_offline_and_opened_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[bool] = []

    async def run() -> None:
        host = _OpeningHost()
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, host)
        pause = replica._pause

        async def note_pause() -> None:
            pauses.append(replica.as_leader is None)
            monkeypatch.setattr("goq.cluster.replication.replica._RETRY_S", 0)
            replica._changed.clear()
            await pause()

        monkeypatch.setattr(replica, "_pause", note_pause)
        replica.assign(ReplicaAssignment("n1", 1, ("n1",), ("n1", "n2"), 1, 1))
        await until(lambda: len(host.opened) == 1)
        replica.reopen(OSError("the disk is broken"))
        await until(lambda: len(host.opened) == 2)
        assert host.closed == ["PartitionOffline"]
        assert replica.failure is None
        replica.reopen()
        await until(lambda: len(host.opened) == 3)
        assert host.closed == ["PartitionOffline", "NotLeader"]
        await replica.close()

    asyncio.run(run())
    assert pauses == [True]


def test_a_follower_whose_leader_begins_later_drops_its_log_from_the_disk(tmp_path: Path) -> None:
    async def run() -> None:
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, _FollowingHost("always"))
        both = ("n1", "n2")
        replica.assign(ReplicaAssignment("n2", 1, both, both, 2, 1))
        await until(lambda: replica.as_follower is not None)
        follower = replica.as_follower
        assert follower is not None
        append_replicated(follower.logs.messages, [FrameView.parse(frame_of([b"v"]))], 0)
        begins = LogUpdate(7, 7, 0, must_reset=True)
        update = PartitionUpdate(follower.key, 1, LogOffsets(0, 0), begins, None)
        follower.apply(update, memoryview(b""))
        assert follower.position.ends == LogOffsets(7, 0)
        await replica.close()
        logs = open_logs(tmp_path, RealDisk(), TopicSettings())
        assert (logs.messages.start_offset, logs.messages.end_offset) == (7, 7)
        _close(logs)

    asyncio.run(run())


def test_a_follower_records_what_it_has_sealed_before_it_takes_another_role(tmp_path: Path) -> None:
    async def run() -> None:
        host = _FollowingHost("always")
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, host)
        both = ("n1", "n2")
        replica.assign(ReplicaAssignment("n2", 1, both, both, 2, 1))
        await until(lambda: replica.as_follower is not None)
        follower = replica.as_follower
        assert follower is not None
        messages = follower.logs.messages
        append_replicated(messages, [FrameView.parse(frame_of([b"v"]))], 0)
        assert host.recorded == [[], []]
        follower.on_appended(0, 1, messages.active)
        messages.roll()
        replica.assign(ReplicaAssignment("n1", 2, both, both, 2, 2))
        await until(lambda: replica.as_leader is not None)
        assert host.recorded[2:] == [[1], []]
        await replica.close()

    asyncio.run(run())


def test_a_segment_of_a_follower_is_repairable_if_another_replica_may_have_its_damage(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        host = _FollowingHost("always")
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, host)
        both = ("n1", "n2")
        replica.assign(ReplicaAssignment("n2", 1, both, both, 2, 1))
        await until(lambda: replica.as_follower is not None)
        assert replica.as_follower is not None
        log = replica.as_follower.logs.messages
        for _ in range(3):
            append(log, [frame_of([b"v", b"w"])])
            log.roll()
        middle = log.segments[1]
        path = tmp_path / "messages" / middle.path.name
        path.write_bytes(bytes(each ^ 1 for each in path.read_bytes()))

        def repairable() -> list[bool]:
            return [replica.is_segment_repairable(0, segment) for segment in log.segments]

        assert not any(repairable())
        scan_segment(log, middle)
        assert repairable() == [False, True, False, False]
        assert not replica.is_segment_repairable(1, middle)
        replica.lost_gaps.add(0, Gap(2, 4))
        assert not any(repairable())
        await replica.close()
        assert not any(repairable())

    asyncio.run(run())


def _close(logs: PartitionLogs) -> None:
    logs.messages.close()
    logs.events.close()


def test_a_replica_that_was_closed_or_never_opened_is_closed_again_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, _LeadingHost(may_renew=True))
        async with asyncio.timeout(_PATIENCE_S):
            await replica.close()
            replica.assign(ReplicaAssignment("n1", 1, ("n1", "n2"), ("n1", "n2"), 1, 1))
            await until(lambda: replica.as_leader is not None)
            for _ in range(2):
                await replica.close()
                assert replica.as_leader is None

    asyncio.run(run())


class _CountedEvent(asyncio.Event):
    """An event that is waited for so often, and then is an error: nothing else would run."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    async def wait(self) -> Literal[True]:
        self.waits += 1
        assert self.waits < 20, "it waits for what has happened"
        return await super().wait()


def test_a_leader_that_waits_until_all_is_safe_rests_meanwhile(tmp_path: Path) -> None:
    logs = open_logs(tmp_path, RealDisk(), TopicSettings())
    append(logs.messages, [frame_of([b"v"])])
    _close(logs)

    async def run() -> None:
        host = _OpeningHost()
        replica = Replica(PartitionKey("t", 1, 0), tmp_path, host)
        replica._changed = changed = _CountedEvent()
        both = ("n1", "n2")
        replica.assign(ReplicaAssignment("n1", 1, both, both, 2, 1))
        await until(lambda: replica.as_leader is not None)
        await until(lambda: changed.waits > 0)
        before = changed.waits
        changed.set()
        await until(lambda: changed.waits > before)
        await asyncio.sleep(0)
        assert changed.waits == before + 1
        await replica.close()
        assert host.opened == []

    asyncio.run(run())
