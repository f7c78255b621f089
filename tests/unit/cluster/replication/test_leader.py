"""What a leader takes, and what it leaves to whoever may lead by now."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.broker.partition.loader import open_logs
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import PartitionKey
from goq.config.topic import TopicSettings
from goq.errors import NotEnoughReplicas, NotLeader
from tests.support.storage.disk import SimulatedDisk


def leading(in_sync: tuple[str, ...]) -> LeaderReplica:
    logs = open_logs(Path("/t/0"), SimulatedDisk(), TopicSettings())
    progress = ReplicaProgress("n1", LogOffsets(0, 0), in_sync=in_sync, min_insync=2)
    progress.set_replicas(("n1", "n2", "n3"), 0)
    return LeaderReplica(PartitionKey("t", 1, 0), 1, logs, progress)


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
    led.on_follower_request("n2", 9)
    assert told == ["sure"]
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
    led.set_in_sync(("n1", "n2"), 2)
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
