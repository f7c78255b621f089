"""The inside of a partition, for tests that compare it with its twin or break it on purpose.

Nothing in goq outside goq.broker.partition may read these: see tests/unit/broker/test_ownership.py.
"""

from __future__ import annotations

from msgspec.structs import replace

from goq.broker.events.writer import EventWriter
from goq.broker.log.frame_cache import PartitionFrames
from goq.broker.partition.partition import Partition
from goq.broker.partition.ready_state.ready_state import ReadyState
from goq.delivery.partition_state import PartitionState
from goq.storage.log.log import Log


def state_of(partition: Partition) -> PartitionState:
    return partition._state


def message_log(partition: Partition) -> Log:
    return partition._messages


def event_log(partition: Partition) -> Log:
    return partition._events


def has_work_waiting(partition: Partition) -> bool:
    """Return whether work waits for the batch of messages that is being written."""
    return partition.appender.commit._queue.head is not None


def ready_state(partition: Partition) -> ReadyState:
    return partition.ready_manager.current


def cached_frames(partition: Partition) -> PartitionFrames:
    return partition.leases._frames


def event_writer(partition: Partition) -> EventWriter:
    return partition._writer


def have_damage_repaired(partition: Partition) -> None:
    """Have another replica hold what is damaged here, as in a cluster."""
    damage = partition._damage
    damage._callbacks = replace(damage._callbacks, may_be_repaired=lambda _damage: True)
