"""The readiness of a node: what it waits for before clients and the cluster can count on it.

An operator who restarts one node after another waits for each to become ready. So a node is ready
when the others count on it as before: the cluster knows that it is up, and it is in sync in every
partition that has a leader to follow. A partition without a leader is not waited for: that would
keep clients from the node's other partitions.

A node that has started stays ready when it falls behind: it still forwards requests to the others.
One that hears no controller does not know where to, and is ready again when it hears one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from goq import limits
from goq.cluster.liveness.heartbeat import HAS_LEFT
from goq.cluster.metadata.state import MetadataState, PartitionMetadata
from goq.cluster.raft.driver import RaftStatus

_log = logging.getLogger("goq.cluster")
_NAMED_MAX = 10
_NOT_UP = "the cluster to know that this node is up"
_WRONG_DISK = (
    "the cluster knows {0} with another disk; what that had, and what it has promised, is not here."
    " Bring the old data folder back; or stop this node, take it out on another one"
    " (goq cluster leave {0}), and start it again with an empty folder and --join"
)
_NO_CONTROLLER = (
    "a controller, and hears of none: the cluster has no majority, or this node has left it;"
    " goq cluster status on another node says which. A node that has left needs an empty folder"
    " and --join"
)
_CUT_OFF = (
    "a controller, and has heard of none for {:.0f} s: the cluster has no majority, or this node is"
    " cut off; goq cluster status on another node says which"
)
_OTHER_SECRET = (
    "its secret differs from that of {}. Copy the file of cluster.secret_file from a node that is a"
    " member, and start this node again"
)


class Readiness:
    """Whether the node ``name``, started as ``incarnation``, is ready.

    ``has_left`` returns whether the controller says that the node has left the cluster.
    ``silent_s`` returns for how many seconds it has heard of no controller.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        state: Callable[[], MetadataState],
        has_left: Callable[[], bool],
        silent_s: Callable[[], float],
    ) -> None:
        self.has_started = False
        """Whether the node has been ready."""
        self._name = name
        self._incarnation = incarnation
        self._state = state
        self._has_left = has_left
        self._silent_s = silent_s
        self._rejected_by: tuple[str, ...] = ()
        self._other_secret: tuple[str, ...] = ()
        self._has_controller = False
        self._has_diverged = False
        self._failure: str | None = None

    def on_raft_status(self, status: RaftStatus) -> None:
        """Note whether this node and other members talk with each other."""
        if status.rejected_by and not self._rejected_by and status.leader is None:
            _log.critical("this node takes no part: %s", _WRONG_DISK.format(self._name))
        if status.other_secret and not self._other_secret and status.leader is None:
            others = ", ".join(status.other_secret)
            _log.critical("this node takes no part: %s", _OTHER_SECRET.format(others))
        self._other_secret = status.other_secret
        self._rejected_by, self._has_controller = status.rejected_by, status.leader is not None
        self._has_diverged = status.has_diverged
        self._failure = status.failure

    def pending(self) -> list[str]:
        """Return what the node waits for; nothing if it is ready."""
        if self._failure is not None:
            return [f"a restart: its member of the cluster has stopped: {self._failure}"]
        if self._rejected_by and not self._has_controller:
            return [f"its disk: {_WRONG_DISK.format(self._name)}"]
        if self._other_secret and not self._has_controller:
            return [f"the cluster: {_OTHER_SECRET.format(', '.join(self._other_secret))}"]
        if self._has_diverged:
            return ["the cluster's metadata, which differs from this node's"]
        if self._has_left():
            return [f"a place in the cluster: {HAS_LEFT}"]
        if not self.has_started:
            found = pending_conditions(self._state(), self._name, self._incarnation)
            if found == [_NOT_UP] and not self._has_controller:
                return [_NO_CONTROLLER]
            if found:
                return found
            self.has_started = True
        silent_s = self._silent_s()
        return [_CUT_OFF.format(silent_s)] if silent_s > limits.READY_SILENT_S_MAX else []


def pending_conditions(state: MetadataState, name: str, incarnation: int) -> list[str]:
    """Return what the node ``name`` waits for, in words for users; nothing when it is ready."""
    node = state.nodes.get(name)
    if node is None or node.incarnation != incarnation or not node.is_up:
        return [_NOT_UP]
    behind = [
        f"{topic.name}:{number}"
        for topic in state.topics.values()
        if not topic.deleting
        for number, partition in enumerate(topic.partitions)
        if _is_behind(state, partition, name)
    ]
    found = [f"being in sync in {partition}" for partition in behind[:_NAMED_MAX]]
    if len(behind) > _NAMED_MAX:
        found.append(f"being in sync in {len(behind) - _NAMED_MAX} more")
    return found


def _is_behind(state: MetadataState, partition: PartitionMetadata, name: str) -> bool:
    leader = state.nodes.get(partition.leader) if partition.leader is not None else None
    is_led = leader is not None and leader.is_up
    return is_led and name in partition.replicas and name not in partition.in_sync
