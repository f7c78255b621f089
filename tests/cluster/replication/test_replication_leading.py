"""What a leader takes, and what it leaves to whoever may lead by now."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.disk import SimulatedDisk

from goq.broker.opening import open_logs
from goq.cluster.replication.leading import Leading
from goq.cluster.replication.messages import PartitionKey
from goq.cluster.replication.progress import Ends, Progress
from goq.errors import NotEnoughReplicas, NotLeader
from goq.settings import TopicSettings


def leading(in_sync: tuple[str, ...]) -> Leading:
    logs = open_logs(Path("/t/0"), SimulatedDisk(), TopicSettings())
    progress = Progress("n1", Ends(0, 0), in_sync=in_sync, min_insync=2)
    progress.begin(("n1", "n2", "n3"), 0)
    return Leading(PartitionKey("t", 1, 0), 1, logs, progress)


def test_a_leader_that_others_may_have_replaced_takes_nothing_and_refuses_nothing_for_good() -> (
    None
):
    led = leading(("n1", "n2"))
    led.check()
    led.is_sure = lambda: False
    with pytest.raises(NotLeader):
        led.check()


def test_a_leader_with_too_few_in_sync_takes_nothing() -> None:
    with pytest.raises(NotEnoughReplicas):
        leading(("n1",)).check()
