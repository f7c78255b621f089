"""What a node does for its replicas when the metadata change, counted."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from goq import limits
from goq.broker.partition_context import PartitionId
from goq.cluster.metadata.commands import CreateTopic, DeleteTopicAtOnce, ElectLeader
from goq.cluster.metadata.state import MetadataState
from goq.cluster.reconciler import Assignments
from goq.cluster.replication import replica_manager
from goq.cluster.replication.progress import LatestRequest, LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import ReplicaAssignment
from goq.cluster.replication.replica_manager import BrokerTopics, ReplicaManager
from goq.cluster.replication.segment_manifest import LOGS
from goq.errors import NotLeader, TopicNotFound
from tests.support.cluster.metadata.states import after, at, nodes

TOPICS, PARTITIONS = 20, 5


class _Replica:
    """A replica that counts its assignments."""

    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]]

    def __init__(self, key: PartitionKey, _directory: Path, host: ReplicaManager) -> None:
        self.key = key
        self.assignment: ReplicaAssignment | None = None
        self.as_leader: Any = None
        self._host = host

    def assign(self, assignment: ReplicaAssignment | None) -> None:
        self.assigned.append((self.key, assignment))

    async def close(self) -> None:
        self.assign(None)


def _manager(
    propose_in_sync: Any = None,
    *,
    removed: list[tuple[object, ...]] | None = None,
    failed: list[tuple[object, ...]] | None = None,
) -> ReplicaManager:
    async def remove(*manifest: object) -> None:
        if removed is not None:
            removed.append(manifest)

    host: Any = SimpleNamespace(
        directory=lambda key: Path(str(key.number)), tiered_reader=None, remove=remove
    )
    unused: Any = None
    clock: Any = SimpleNamespace()
    return ReplicaManager(
        "n1",
        host,
        host,
        unused,
        unused,
        clock,
        unused,
        propose_in_sync,
        unused,
        on_failure=lambda *failure: None if failed is None else failed.append(failure),
    )


@pytest.fixture
def assigned(
    monkeypatch: pytest.MonkeyPatch,
) -> list[tuple[PartitionKey, ReplicaAssignment | None]]:
    monkeypatch.setattr(replica_manager, "Replica", _Replica)
    _Replica.assigned = []
    return _Replica.assigned


def _state() -> MetadataState:
    names = (f"t{number}" for number in range(TOPICS))
    return after(nodes(3), *(CreateTopic(name, PARTITIONS, {}, 3) for name in names))


def test_a_change_costs_what_its_topic_has_and_not_what_the_node_has(
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    async def run() -> None:
        kept, manager, state = Assignments("n1"), _manager(), _state()
        manager.apply(kept.of(state))
        assert len(assigned) == TOPICS * PARTITIONS
        for number in range(TOPICS):
            assigned.clear()
            leader = state.topics[f"t{number}"].partitions[0].leader
            other = "n2" if leader == "n3" else "n3"
            state = after(state, ElectLeader(*at(state, f"t{number}"), other))
            manager.apply(kept.of(state))
            assert {key.topic for key, _ in assigned} == {f"t{number}"}
            assert len(assigned) == PARTITIONS
        assigned.clear()
        manager.apply(kept.of(state))
        assert not assigned

    asyncio.run(run())


def test_a_replica_without_an_assignment_is_closed_and_one_that_was_removed_comes_back(
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    async def run() -> None:
        kept, manager, state = Assignments("n1"), _manager(), _state()
        manager.apply(kept.of(state))
        gone = state.topics["t1"].topic_id
        without = after(state, DeleteTopicAtOnce("t1", gone))
        for is_closed_before in (False, True):
            if is_closed_before:
                await manager.close_replicas()
            assigned.clear()
            manager.apply(kept.of(without))
            closed = {key.number for key, wanted in assigned if wanted is None}
            assert closed == set(range(PARTITIONS))
            assert manager.unassigned == {PartitionKey("t1", gone, n) for n in closed}
            manager.apply(kept.of(state))
            assert not manager.unassigned
        key = PartitionKey("t2", state.topics["t2"].topic_id, 3)
        await manager.remove(key)
        assert manager.get(key) is None
        assigned.clear()
        manager.apply(kept.of(state))
        assert manager.get(key) is not None
        assert {key.topic for key, _ in assigned} == {"t2"}
        await manager.close_replicas()
        assert {key for key, wanted in assigned if wanted is None} == {each.key for each in manager}
        assigned.clear()
        manager.apply(kept.of(state))
        assert len(assigned) == TOPICS * PARTITIONS

    asyncio.run(run())


def test_a_replica_that_leaves_a_topic_is_closed_and_those_that_stay_are_not(
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    async def run() -> None:
        manager, state = _manager(), _state()
        whole = Assignments("n1").of(state)
        manager.apply(whole)
        topic_id = state.topics["t1"].topic_id
        stay = {key: each for key, each in whole[topic_id].items() if key.number != 2}
        assigned.clear()
        manager.apply({**whole, topic_id: stay})
        (left,) = whole[topic_id].keys() - stay.keys()
        assert [key for key, wanted in assigned if wanted is None] == [left]
        assert manager.unassigned == {left}

    asyncio.run(run())


def test_a_replica_that_is_removed_is_closed_and_has_no_segments_in_the_manifest(
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    async def run() -> None:
        removed = list[tuple[object, ...]]()
        manager, state = _manager(removed=removed), _state()
        manager.apply(Assignments("n1").of(state))
        key = assigned[0][0]
        assigned.clear()
        await manager.remove(key)
        assert assigned == [(key, None)]
        assert removed == [(key, log) for log in LOGS]
        assert all(replica.key != key for replica in manager)

    asyncio.run(run())


def test_a_disk_that_cannot_hold_a_replica_is_told() -> None:
    async def run() -> None:
        failed, key, error = (
            list[tuple[object, ...]](),
            PartitionKey("t", 1, 0),
            OSError(28, "full"),
        )
        _manager(failed=failed).on_storage_error(key, error)
        assert failed == [(key, error)]

    asyncio.run(run())


def _let_lead(replica: Any, assignment: ReplicaAssignment) -> None:
    """Let a replica lead, and another in-sync set be due."""
    replica.assignment = assignment
    progress = SimpleNamespace(
        is_steady=lambda _now_ms: False,
        desired_in_sync=lambda _now_ms, _lag_ms: frozenset({"n1"}),
        begin_change=lambda _wanted: None,
        unconfirmed=frozenset(),
        steady_until_ms=0,
        rests=lambda: None,
    )
    replica.as_leader = SimpleNamespace(progress=progress)


@pytest.mark.parametrize("is_removed", [False, True])
def test_an_in_sync_set_that_is_decided_is_told_to_the_replica_if_it_is_still_there(
    is_removed: bool, assigned: list[tuple[PartitionKey, ReplicaAssignment | None]]
) -> None:
    async def run() -> None:
        decision, told = asyncio.Event(), list[ReplicaAssignment]()

        async def propose(*_: object) -> ReplicaAssignment:
            await decision.wait()
            return decided

        state, manager = _state(), _manager(propose)
        manager.apply(Assignments("n1").of(state))
        key, assignment = next((key, wanted) for key, wanted in assigned if wanted is not None)
        decided = assignment._replace(in_sync=("n1",))
        replica: Any = manager.get(key)
        replica.on_in_sync_decided = told.append
        _let_lead(replica, assignment)
        manager.check_in_sync()
        manager.check_in_sync()  # one at a time
        (proposing,) = asyncio.all_tasks() - {asyncio.current_task()}
        if is_removed:
            await manager.remove(key)
        decision.set()
        await proposing
        assert told == ([] if is_removed else [decided])
        manager.check_in_sync()
        again = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(again) == (0 if is_removed else 1)
        if again:
            await asyncio.wait(again)

    asyncio.run(run())


def test_the_in_sync_sets_of_partitions_at_rest_are_not_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    """Thousand partitions were, every two seconds."""

    async def run() -> None:
        manager, now_ms, looks = _manager(), [10_000], list[int]()
        monkeypatch.setattr(manager, "now_ms", lambda: now_ms[0])
        monkeypatch.setattr(manager, "_propose_due", looks.append)
        manager.apply(Assignments("n1").of(_state()))
        latest = LatestRequest(10_000)
        for replica in manager:
            progress = ReplicaProgress("n1", LogOffsets(0, 0), in_sync=["n1", "n2"], min_insync=1)
            progress.set_replicas(["n1", "n2"], now_ms[0])
            progress.on_fetch("n2", LogOffsets(0, 0), now_ms[0])
            follower = progress.follower("n2")
            assert follower is not None
            follower.begin_rest(latest)
            leader: Any = SimpleNamespace(progress=progress)
            replica.as_leader = leader
        for _ in range(20):
            manager.check_in_sync()
            now_ms[0] += 1_500
            latest.at_ms = now_ms[0] - 500
        assert looks == [10_000]
        now_ms[0] = latest.at_ms + limits.REPLICA_LAG_MS_MAX + 1
        manager.check_in_sync()
        assert looks == [10_000, now_ms[0]]
        latest.at_ms = now_ms[0]
        manager.check_in_sync()
        assert len(looks) == 2
        progress.on_local_append(LogOffsets(1, 0))
        now_ms[0] += limits.REPLICA_LAG_MS_MAX + 1
        latest.at_ms = now_ms[0]
        manager.check_in_sync()
        assert len(looks) == 3

    asyncio.run(run())


def test_a_topic_that_is_deleted_while_an_in_sync_set_is_proposed_is_no_error(
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    proposed, unhandled = list[PartitionKey](), list[dict[str, Any]]()

    async def propose(key: PartitionKey, *_: object) -> ReplicaAssignment:
        proposed.append(key)
        raise NotLeader("the topic is gone")

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, it: unhandled.append(it))
        state, manager = _state(), _manager(propose)
        manager.apply(Assignments("n1").of(state))
        key, assignment = next((key, wanted) for key, wanted in assigned if wanted is not None)
        _let_lead(manager.get(key), assignment)
        manager.check_in_sync()
        while not proposed:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # the task is done, and nobody holds it
        assert proposed == [key]

    asyncio.run(run())
    gc.collect()
    assert unhandled == []


class _Topic:
    """A topic of the broker, which keeps what is asked of it."""

    def __init__(self) -> None:
        self.id = 2
        self.asked: list[tuple[str, int]] = []

    async def lead(self, number: int, *_: object) -> None:
        self.asked.append(("lead", number))

    async def resign(self, number: int, _reason: object) -> None:
        self.asked.append(("resign", number))


def test_a_partition_is_opened_and_closed_in_its_topic_and_not_in_one_that_took_its_name() -> None:
    async def run() -> None:
        topic, woken, unused = _Topic(), list[_Topic](), cast(Any, None)
        broker: Any = SimpleNamespace(
            topics={"t": topic},
            topic={"t": topic}.__getitem__,
            retention_manager=SimpleNamespace(wake_topic=woken.append),
        )
        topics, key = BrokerTopics(broker), PartitionKey("t", 2, 3)
        await topics.open_partition(key, unused, unused)
        await topics.close_partition(key, NotLeader(""))
        earlier = PartitionKey("t", 1, 4)
        with pytest.raises(TopicNotFound):
            await topics.open_partition(earlier, unused, unused)
        await topics.close_partition(earlier, NotLeader(""))
        broker.topics.clear()
        await topics.close_partition(key, NotLeader(""))
        assert topic.asked == [("lead", 3), ("resign", 3)]
        assert woken == [topic]

    asyncio.run(run())


class _Manifest:
    """A manifest that cannot be written while it is ``broken``."""

    tiered_reader = None

    def __init__(self) -> None:
        self.added: list[tuple[str, list[str]]] = []
        self.broken: Exception | None = None

    async def add(self, key: PartitionKey, log: str, segments: list[str]) -> None:
        assert key == PartitionKey("t", 1, 0)
        if self.broken is not None:
            raise self.broken
        self.added.append((log, segments))


def test_sealed_segments_are_recorded_once_nothing_else_changes_the_manifest_of_the_replica(
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    async def run() -> None:
        manager, manifest, key = _manager(), _Manifest(), PartitionKey("t", 1, 0)
        parts: Any = manager
        parts._manifest = manifest
        logs: Any = [SimpleNamespace(segments=["sealed", "active"]) for _ in range(2)]
        expected = [("messages", ["sealed"]), ("events", ["sealed"])]
        await manager.record_segments(key, logs)
        assert manifest.added == expected
        lock = asyncio.Lock()
        replica: Any = _Replica(key, Path(), manager)
        replica.as_follower = SimpleNamespace(manifest_lock=lock)
        parts._replicas[key] = replica
        async with lock:
            recording = asyncio.ensure_future(manager.record_segments(key, logs))
            await asyncio.sleep(0)
            assert manifest.added == expected
        await recording
        assert manifest.added == expected * 2
        for manifest.broken in (OSError("full"), NotLeader("")):
            await manager.record_segments(key, logs)
        assert manifest.added == expected * 2

    asyncio.run(run())


def test_a_partition_that_is_led_here_is_served_and_its_bounds_are_looked_at_again(
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    async def run() -> None:
        manager, key = _manager(), PartitionKey("t", 1, 0)
        served, looked = dict[PartitionKey, Any](), list[PartitionKey]()
        server: Any = SimpleNamespace(
            on_new_data=object(),
            on_offer=object(),
            is_pushed=object(),
            on_bounds_change=looked.append,
            add_leader=lambda leader: served.setdefault(leader.key, leader),
            remove_leader=served.pop,
        )
        manager.fetch_server = server
        leader: Any = SimpleNamespace(key=key)
        manager.start_serving(leader)
        assert served == {key: leader}
        assert (leader.on_new_data, leader.on_offer) == (server.on_new_data, server.on_offer)
        assert leader.is_pushed is server.is_pushed
        leader.on_bounds_change(key)
        assert looked == [key]
        manager.stop_serving(key)
        assert served == {}

    asyncio.run(run())


def test_a_leadership_is_renewed_by_one_task_until_the_replica_has_other_work(
    monkeypatch: pytest.MonkeyPatch,
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    monkeypatch.setattr(replica_manager, "_RENEWAL_PAUSE_S", 0)

    async def run() -> None:
        manager, proposed = _manager(), list[tuple[PartitionKey, int]]()
        replica: Any = _Replica(PartitionKey("t", 1, 0), Path(), manager)
        replica.spent_epoch = 7

        async def propose(key: PartitionKey, epoch: int) -> None:
            proposed.append((key, epoch))
            if len(proposed) == 3:
                replica.spent_epoch = None

        parts: Any = manager
        parts._propose_renewal = propose
        for _ in range(2):
            manager.renew_leadership(replica)
        (renewing,) = asyncio.all_tasks() - {asyncio.current_task()}
        await renewing
        assert proposed == [(replica.key, 7)] * 3
        manager.renew_leadership(replica)
        (again,) = asyncio.all_tasks() - {asyncio.current_task()}
        await again
        assert len(proposed) == 3

    asyncio.run(run())


def test_what_is_proposed_or_renewed_is_given_up_when_the_manager_is_closed(
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    async def run() -> None:
        async def hang(*_: object) -> Any:
            await asyncio.Event().wait()

        manager = _manager(hang)
        parts: Any = manager
        parts._propose_renewal = hang
        manager.apply(Assignments("n1").of(_state()))
        key, assignment = next((key, wanted) for key, wanted in assigned if wanted is not None)
        _let_lead(manager.get(key), assignment)
        manager.check_in_sync()
        spent: Any = _Replica(PartitionKey("t", 99, 0), Path(), manager)
        spent.spent_epoch = 7
        manager.renew_leadership(spent)
        begun = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(begun) == 2
        await asyncio.sleep(0)
        await manager.close()
        await asyncio.wait(begun, timeout=30)
        assert all(task.cancelled() for task in begun)

    asyncio.run(run())


def test_what_replicas_in_sync_still_need_is_known_of_partitions_that_are_led_here(
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    async def run() -> None:
        manager, key = _manager(), PartitionKey("t", 1, 0)
        parts: Any = manager
        identity = PartitionId("t", 0, topic_id=1)
        assert manager.needed_from(identity) is None
        replica: Any = _Replica(key, Path(), manager)
        parts._replicas[key] = replica
        assert manager.needed_from(identity) is None
        progress = SimpleNamespace(in_sync_to=LogOffsets(7, 3))
        replica.as_leader = SimpleNamespace(progress=progress)
        assert manager.needed_from(identity) == 7

    asyncio.run(run())
