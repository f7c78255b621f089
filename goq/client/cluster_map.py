"""The cluster map of a client: the nodes, and the leaders of partitions.

A client begins with the servers that it was given. A node of a cluster sends the version of the
cluster metadata with every answer; only then does the client learn the leaders of the topics that
it uses. The map may be out of date at any moment. That is safe: a node forwards what it cannot
answer itself. A leader that does not answer is skipped for 2 s, and another node is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

VERSION_HEADER: Final = "goq-cluster"
LEADER_HEADER: Final = "goq-leader"
_VERSION: Final = re.compile("[0-9]{1,18}")
_SKIP_S: Final = 2.0
_REFRESH_S: Final = 1.0


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class _Node(msgspec.Struct):
    id: str
    url: str
    status: str = "up"


class _Partition(msgspec.Struct):
    partition: int
    leader: str | None = None


class _Topic(msgspec.Struct):
    name: str
    partitions: list[_Partition]


class _ClusterAnswer(msgspec.Struct):
    """The part of the answer to ``GET /v1/cluster`` that the client uses."""

    version: int
    nodes: list[_Node]
    topics: list[_Topic]


decode_map = msgspec.json.Decoder(_ClusterAnswer).decode


class _Known(NamedTuple):
    """The leaders of a topic's partitions as of a version; None where a leader is not known."""

    version: int
    leaders: dict[int, str | None]


class ClusterMap:
    """The nodes and leaders that one client knows, shared by all its connections.

    ``now_s`` returns monotonic seconds. A node is named by its URL. A learned URL is used only
    if it has the scheme of the given ones: a client that began with TLS never goes on without it.
    """

    def __init__(self, servers: Sequence[str], now_s: Callable[[], float]) -> None:
        self._given = list(servers)
        self._learned: list[str] = []
        self._current = self._given[0]
        self._now_s = now_s
        self._turn = 0
        self._newest: int | None = None
        self._known: dict[str, _Known] = {}
        self._asked_s: dict[str, float] = {}
        self._skipped_until_s: dict[str, float] = {}

    @property
    def current(self) -> str:
        """The node to ask if any will do."""
        return self._current

    @property
    def is_cluster(self) -> bool:
        """Whether a node has said that it is one of a cluster."""
        return self._newest is not None

    def hear(self, version: str | None) -> None:
        """Note the metadata version of an answer, None where it has none."""
        if version is not None and _VERSION.fullmatch(version):
            self._newest = max(self._newest or 0, int(version))

    def wants(self, topic: str) -> bool:
        """Return whether to ask for the leaders of a topic; if so, that counts as asked."""
        if self._newest is None:
            return False
        known = self._known.get(topic)
        if known is not None and known.version >= self._newest:
            return False
        now_s = self._now_s()
        if now_s - self._asked_s.get(topic, now_s - _REFRESH_S) < _REFRESH_S:
            return False
        self._asked_s[topic] = now_s
        return True

    def take(self, topic: str, found: _ClusterAnswer) -> None:
        """Note the leaders of a topic from an answer."""
        urls = {node.id: url for node in found.nodes if (url := self._usable(node.url))}
        self._learned = [urls[node.id] for node in found.nodes if node.id in urls and _is_up(node)]
        for each in found.topics:
            if each.name == topic:
                leaders = {p.partition: urls.get(p.leader or "") for p in each.partitions}
                self._known[topic] = _Known(found.version, leaders)
                return
        self._known.pop(topic, None)

    def version(self, topic: str) -> int | None:
        """Return the version as of which a topic's leaders are known, None where they are not."""
        known = self._known.get(topic)
        return known.version if known is not None and known.version >= 0 else None

    def knows(self, topic: str) -> bool:
        """Return whether the last answer about a topic had it, however long ago that was."""
        return topic in self._known

    def leader(self, partition: TopicPartition) -> str | None:
        """Return the leader of a partition, None where it is not known or does not answer."""
        known = self._known.get(partition.topic)
        url = None if known is None else known.leaders.get(partition.partition)
        return None if url is None or self._is_skipped(url) else url

    def leaders(self, topic: str) -> list[str]:
        """Return the known leaders of a topic's partitions, each once."""
        known = self._known.get(topic)
        found = known.leaders.values() if known is not None else ()
        return sorted({url for url in found if url is not None})

    def leaders_in_turn(self, topic: str) -> list[str]:
        """Return the leaders of a topic that answer, each time beginning with the next one."""
        found = [url for url in self.leaders(topic) if not self._is_skipped(url)]
        if found:
            self._turn = turn = (self._turn + 1) % len(found)
            found = found[turn:] + found[:turn]
        return found

    def url_for(self, partition: TopicPartition | None) -> str:
        """Return the node to ask: the leader if it is known."""
        return (self.leader(partition) if partition is not None else None) or self._current

    def moved(self, partition: TopicPartition | None, leader: str | None) -> None:
        """Note that a node does not lead a partition, and the leader that it named, if any."""
        if partition is None or (known := self._known.get(partition.topic)) is None:
            return
        leaders = {**known.leaders, partition.partition: self._usable(leader or "")}
        self._known[partition.topic] = _Known(-1, leaders)

    def failed(self, url: str, *, answered: bool) -> None:
        """Note that a node could not serve a request; without an answer it is skipped for 2 s."""
        if not answered:
            self._skipped_until_s[url] = self._now_s() + _SKIP_S
            self._known = {topic: _Known(-1, k.leaders) for topic, k in self._known.items()}
            self._asked_s = {}
        if url == self._current:
            self._current = self._next_after(url)

    def _next_after(self, url: str) -> str:
        all_urls = list(dict.fromkeys([*self._given, *self._learned]))
        at = all_urls.index(url) + 1 if url in all_urls else 0
        in_turn = all_urls[at:] + all_urls[:at]
        return next((each for each in in_turn if not self._is_skipped(each)), in_turn[0])

    def _is_skipped(self, url: str) -> bool:
        until_s = self._skipped_until_s.get(url)
        return until_s is not None and self._now_s() < until_s

    def _usable(self, url: str) -> str | None:
        scheme = url.partition("://")[0]
        return url.rstrip("/") if scheme == self._given[0].partition("://")[0] else None


def _is_up(node: _Node) -> bool:
    return node.status in ("up", "leaving")
