"""The only partition of topic ``t``, with a replica on each of three nodes.

Tests use it past the gateway, at a node that they choose.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from goq.broker.partition.partition import Partition
from goq.cluster.admin.cluster_view import ClusterView
from goq.cluster.metadata.state import PartitionMetadata
from goq.errors import GoqError
from goq.frame.encoder import Columns, encode_frame
from goq.frame.view import FrameView
from tests.support.cluster.running_cluster import NAMES, RunningCluster
from tests.support.paths import topic_dir

TOPIC = "t"
MESSAGES = 40
SENT = [b"%d" % number for number in range(MESSAGES)]


class ReplicatedPartition:
    """The partition, its replicas and the values that they have."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster

    def fill(self) -> str:
        """Start three nodes and publish ``SENT``; return the leader."""
        self.cluster.start_three()
        self.cluster.by_name["n1"].call("POST", "/v1/topics", {"name": TOPIC, "partitions": 1})
        self.cluster.until(lambda: len(self.in_sync()) == len(NAMES))
        leader = self.leader()
        assert leader is not None
        for value in SENT:
            self.publish(leader, value)
        return leader

    def metadata(self, seen_by: str = "n1") -> PartitionMetadata | None:
        """Return the partition's metadata as a node has them."""
        topic = self.cluster.state(seen_by).topics.get(TOPIC)
        return None if topic is None else topic.partitions[0]

    def leader(self, seen_by: str = "n1") -> str | None:
        partition = self.metadata(seen_by)
        return None if partition is None else partition.leader

    def in_sync(self, seen_by: str = "n1") -> set[str]:
        partition = self.metadata(seen_by)
        return set() if partition is None else set(partition.in_sync)

    def folder(self, name: str) -> Path:
        """Return a node's folder of the message log."""
        return topic_dir(self.cluster.folder / name, TOPIC) / "0" / "messages"

    def publish(self, name: str, value: bytes) -> None:
        """Publish at a node, which leads the partition or comes to lead it."""
        self.cluster.until(lambda: self._is_published(name, value))

    def publish_somewhere(self, value: bytes) -> None:
        """Publish at whichever running node leads the partition."""

        def is_published() -> bool:
            leading = [n for n in sorted(self.cluster.running) if self.leader(n) == n]
            return bool(leading) and self._is_published(leading[0], value)

        self.cluster.until(is_published)

    def _is_published(self, name: str, value: bytes) -> bool:
        async def publish() -> None:
            partition = self._partition(name)
            partition.appender.check_publish(1000)
            view = FrameView.parse(encode_frame(Columns([value])))
            await partition.appender.publish(view)

        return self._succeeds(name, publish)

    def move_to(self, *replicas: str) -> None:
        """Reassign the partition to these nodes; the first runs and does it."""
        first = replicas[0]
        self._change(first, lambda view: view.operations.reassign_partition(TOPIC, 0, replicas))
        self.cluster.until(lambda: (p := self.metadata(first)) and p.replicas == replicas)
        self.cluster.until(lambda: self.in_sync(first) == set(replicas))

    def led_by(self, name: str) -> list[bytes | None]:
        """Have a node lead the partition; return the values that it has."""
        self._change(name, lambda view: view.operations.elect_leader(TOPIC, 0, name))
        self.cluster.until(lambda: self._succeeds(name, lambda: self._values(name)))
        return self.values(name)

    def _change(self, name: str, change: Callable[[ClusterView], Awaitable[object]]) -> None:
        view = self.cluster.cluster_node(name).view
        self.cluster.until(lambda: self._succeeds(name, lambda: change(view)))

    def _succeeds(self, name: str, work: Callable[[], object]) -> bool:
        """Run work in a node's event loop; False if other changes of the cluster disturbed it."""
        try:
            self.cluster.by_name[name].on_loop(work)
        except GoqError:
            return False
        return True

    def values(self, name: str) -> list[bytes | None]:
        """Return the values that the leader ``name`` has; raises what a read raises."""
        return self.cluster.by_name[name].on_loop(lambda: self._values(name))

    def _values(self, name: str) -> list[bytes | None]:
        reading = self._partition(name).read(0, messages_max=1000)
        return [v for f in reading.frames for v in f.values(0, f.header.message_count)]

    def _partition(self, name: str) -> Partition:
        broker = self.cluster.by_name[name].node.broker
        assert broker is not None
        return broker.topic(TOPIC).partitions[0]
