"""The bound of partitions and groups that a node holds, by the memory that they take.

A partition counts ``limits.PARTITION_BYTES``, a group ``limits.GROUP_BYTES`` in each partition of
its topic that is on this node. Together they may take ``limits.STATE_BYTES_MAX``, and at most half
of the memory that the process may use. Descriptors are no bound: idle files are closed.

Only creation is refused. A start opens everything in the folder, also beyond the bound. In a
cluster the metadata bound topics and partitions, and only groups are bounded here.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from goq import limits
from goq.broker.topic.admin.start_queue import StartQueue
from goq.broker.topic.topic import Topic
from goq.errors import NodeFull
from goq.log_throttle import LogThrottle

_log = logging.getLogger("goq.broker")
_OWN_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_LOG_PERIOD_S = 60.0
_COUNTED_FOR_S = 10.0


class Capacity:
    """The room of a node for partitions and groups; ``default_partitions`` are a new topic's."""

    def __init__(
        self,
        topics: Mapping[str, Topic],
        *,
        default_partitions: int,
        is_member: bool,
        start_queue: StartQueue,
        bytes_max: int | None = None,
    ) -> None:
        self.bytes_max = state_bytes_max() if bytes_max is None else bytes_max
        self._topics = topics
        self._start_queue = start_queue
        self._default_partitions = default_partitions
        self._is_member = is_member
        self._pending_bytes = 0
        self._counted_bytes = 0  # and what has been created since
        self._counted_s = float("-inf")
        self._throttle = LogThrottle(_LOG_PERIOD_S)

    @property
    def _topic_count(self) -> int:
        return len(self._topics) + len(self._start_queue)

    @property
    def used_bytes(self) -> int:
        """The memory that counts for the partitions and groups of this node."""
        queued_bytes = self._start_queue.partition_count * limits.PARTITION_BYTES
        return queued_bytes + sum(_topic_bytes(topic) for topic in self._topics.values())

    def _used_at_most(self, wanted_bytes: int) -> int:
        """Return the memory that counts, or somewhat more where that leaves room for so much more.

        It takes milliseconds to count many topics, so that is not done for each creation.
        """
        now_s = time.monotonic()
        is_full = self._counted_bytes + wanted_bytes > self.bytes_max
        if is_full or now_s - self._counted_s >= _COUNTED_FOR_S:
            self._counted_bytes, self._counted_s = self.used_bytes, now_s
        return self._counted_bytes

    def shortage(self) -> str | None:
        """Return why no further topic fits, in words for users; None while one fits."""
        if self._topic_count >= limits.TOPICS_MAX:
            return f"{self._topic_count:,} topics: a node holds at most {limits.TOPICS_MAX:,}"
        wanted_bytes = 0 if self._is_member else self._default_partitions * limits.PARTITION_BYTES
        used_bytes = self._used_at_most(wanted_bytes)
        return None if used_bytes + wanted_bytes <= self.bytes_max else self._text(used_bytes)

    def tell(self) -> None:
        """Log a shortage, at most once a minute."""
        shortage = self.shortage()
        if shortage is not None:
            self._log(f"no further topic fits: {shortage}")

    @contextmanager
    def topic(self, partitions: int) -> Iterator[None]:
        """Keep room for a new topic while it is created; raise ``NodeFull`` without room."""
        if self._topic_count >= limits.TOPICS_MAX:
            raise self._refusal(f"there are {limits.TOPICS_MAX:,} topics, the most of a node")
        with self.partitions(partitions):
            yield

    @contextmanager
    def partitions(self, count: int, topic: Topic | None = None) -> Iterator[None]:
        """Keep room for more partitions of a topic, by default a new one; raise ``NodeFull``."""
        groups = 0 if topic is None else len(topic.groups)
        each_bytes = limits.PARTITION_BYTES + groups * limits.GROUP_BYTES
        with self._kept(0 if self._is_member else count * each_bytes):
            yield

    @contextmanager
    def group(self, topic: Topic, name: str) -> Iterator[None]:
        """Keep room for a group of a topic while it is stored; raise ``NodeFull``."""
        if name in topic.groups:
            yield
            return
        if len(topic.groups) >= limits.GROUPS_PER_TOPIC_MAX:
            raise NodeFull(
                f"topic {topic.name} has {limits.GROUPS_PER_TOPIC_MAX:,} groups, the most of a"
                " topic; delete one with: goq group delete TOPIC GROUP"
            )
        with self._kept(_partition_count(topic) * limits.GROUP_BYTES):
            yield

    @contextmanager
    def _kept(self, size_bytes: int) -> Iterator[None]:
        used_bytes = self._used_at_most(self._pending_bytes + size_bytes) + self._pending_bytes
        if size_bytes and used_bytes + size_bytes > self.bytes_max:
            raise self._refusal(self._text(used_bytes))
        self._pending_bytes += size_bytes
        try:
            yield
        finally:
            self._pending_bytes -= size_bytes
            self._counted_bytes += size_bytes
            self.tell()

    def _text(self, used_bytes: int) -> str:
        topics = self._topics.values()
        partitions = self._start_queue.partition_count + sum(map(_partition_count, topics))
        groups = sum(len(topic.groups) for topic in topics)
        return (
            f"{partitions:,} partitions and {groups:,} groups count"
            f" {used_bytes // limits.MIB:,} MiB of {self.bytes_max // limits.MIB:,} MiB"
        )

    def _refusal(self, reason: str) -> NodeFull:
        self._log(f"refused to create a topic, partitions or a group: {reason}")
        return NodeFull(
            f"this does not fit the node: {reason}; delete topics or groups, create them with"
            " fewer partitions, or give the node more memory"
        )

    def _log(self, text: str) -> None:
        left_out = self._throttle.admit("full", time.monotonic())
        if left_out is not None:
            _log.warning("%s%s", text, f" ({left_out} more before)" if left_out else "")


def _partition_count(topic: Topic) -> int:
    opened, offline = topic.partitions.numbers(), topic.partitions.offline
    return len(opened | offline.keys()) if offline else len(opened)


def _topic_bytes(topic: Topic) -> int:
    each_bytes = limits.PARTITION_BYTES + len(topic.groups) * limits.GROUP_BYTES
    return _partition_count(topic) * each_bytes


def state_bytes_max() -> int:
    """Return the memory that partitions and groups may take in this process."""
    return min(limits.STATE_BYTES_MAX, process_memory_bytes() // 2)


def process_memory_bytes(own: Path = _OWN_CGROUP, cgroups: Path = _CGROUPS) -> int:
    """Return the memory that this process may use: the machine's, or its control group's.

    ``own`` names the group below ``cgroups``, as cgroup v2 does; v1 is not looked at.
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        number, _, name = line.split(":", 2)
        group = cgroups / name.lstrip("/")
        for folder in [group, *group.parents] if number == "0" else []:
            found += _memory_limit(folder / "memory.max")
    return min(found)


def _memory_limit(path: Path) -> list[int]:
    try:
        text = path.read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdecimal() else []
