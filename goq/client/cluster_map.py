"""Where a client asks: which nodes there are, and which of them leads what.

The servers that a client was given are where it begins. A node that is one of several says so with
every answer, and as of which version of what all nodes agree on; only then is a client to learn who
leads the partitions of the topics that it uses. What it knows may be out of date at any moment. It
need not be more: a node has another one answer what it cannot answer itself. So a leader that does
not answer is passed over for a while, and any other node is asked in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

VERSION_HEADER: Final = "goq-cluster"
LEADER_HEADER: Final = "goq-leader"
_PASSED_OVER_S: Final = 2.0
_LEARN_AGAIN_S: Final = 1.0


class TopicPartition(NamedTuple):
    """A partition, whose leader is the one to ask."""

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
    """What ``GET /v1/cluster`` answers, as far as it matters here."""

    version: int
    nodes: list[_Node]
    topics: list[_Topic]


decode_map = msgspec.json.Decoder(_ClusterAnswer).decode


class _Known(NamedTuple):
    """Who leads each partition of a topic, as of a version; None where nobody is known to."""

    version: int
    leaders: dict[int, str | None]


class ClusterMap:
    """What one client knows, shared by all its connections. ``now_s`` is monotonic.

    A node is known by its URL. Learned ones are used only where they have the scheme of those given
    at first: what was begun with TLS is not gone on with without.
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
        self._passed_over_until_s: dict[str, float] = {}

    @property
    def current(self) -> str:
        """The node to ask where it does not matter which."""
        return self._current

    @property
    def is_cluster(self) -> bool:
        """Whether a node has said that it is one of several."""
        return self._newest is not None

    def hear(self, version: str | None) -> None:
        """Take note of what an answer says of the cluster, None where it says nothing."""
        if version is not None and version.isascii() and version.isdigit():
            self._newest = max(self._newest or 0, int(version))

    def wants(self, topic: str) -> bool:
        """Return whether to ask anew who leads what of a topic; if so, it counts as asked."""
        if self._newest is None:
            return False
        known = self._known.get(topic)
        if known is not None and known.version >= self._newest:
            return False
        now_s = self._now_s()
        if now_s - self._asked_s.get(topic, now_s - _LEARN_AGAIN_S) < _LEARN_AGAIN_S:
            return False
        self._asked_s[topic] = now_s
        return True

    def take(self, topic: str, found: _ClusterAnswer) -> None:
        """Learn who leads what of a topic."""
        urls = {node.id: url for node in found.nodes if (url := self._usable(node.url))}
        self._learned = [urls[node.id] for node in found.nodes if node.id in urls and _is_up(node)]
        for each in found.topics:
            if each.name == topic:
                leaders = {p.partition: urls.get(p.leader or "") for p in each.partitions}
                self._known[topic] = _Known(found.version, leaders)
                return
        self._known.pop(topic, None)

    def version(self, topic: str) -> int | None:
        """Return as of which version it is known who leads a topic."""
        known = self._known.get(topic)
        return known.version if known is not None and known.version >= 0 else None

    def leader(self, partition: TopicPartition) -> str | None:
        """Return who is known to lead a partition, None where nobody is, or does not answer."""
        known = self._known.get(partition.topic)
        url = None if known is None else known.leaders.get(partition.partition)
        return None if url is None or self._is_passed_over(url) else url

    def leaders(self, topic: str) -> list[str]:
        """Return who is known to lead a partition of a topic, each once."""
        known = self._known.get(topic)
        found = known.leaders.values() if known is not None else ()
        return sorted({url for url in found if url is not None})

    def leaders_in_turn(self, topic: str) -> list[str]:
        """Return those who lead partitions of a topic and answer, each time from the next on."""
        found = [url for url in self.leaders(topic) if not self._is_passed_over(url)]
        if found:
            self._turn = turn = (self._turn + 1) % len(found)
            found = found[turn:] + found[:turn]
        return found

    def url_for(self, partition: TopicPartition | None) -> str:
        """Return which node to ask."""
        return (self.leader(partition) if partition is not None else None) or self._current

    def moved(self, partition: TopicPartition | None, leader: str | None) -> None:
        """Hear that a node does not lead a partition, and who does where that was said."""
        if partition is None or (known := self._known.get(partition.topic)) is None:
            return
        leaders = {**known.leaders, partition.partition: self._usable(leader or "")}
        self._known[partition.topic] = _Known(-1, leaders)

    def failed(self, url: str, *, answered: bool) -> None:
        """Hear that a node could not do what it was asked; without an answer it is passed over."""
        if not answered:
            self._passed_over_until_s[url] = self._now_s() + _PASSED_OVER_S
            self._known = {topic: _Known(-1, k.leaders) for topic, k in self._known.items()}
            self._asked_s = {}
        if url == self._current:
            self._current = self._next_after(url)

    def _next_after(self, url: str) -> str:
        all_urls = list(dict.fromkeys([*self._given, *self._learned]))
        at = all_urls.index(url) + 1 if url in all_urls else 0
        in_turn = all_urls[at:] + all_urls[:at]
        return next((each for each in in_turn if not self._is_passed_over(each)), in_turn[0])

    def _is_passed_over(self, url: str) -> bool:
        until_s = self._passed_over_until_s.get(url)
        return until_s is not None and self._now_s() < until_s

    def _usable(self, url: str) -> str | None:
        scheme = url.partition("://")[0]
        return url.rstrip("/") if scheme == self._given[0].partition("://")[0] else None


def _is_up(node: _Node) -> bool:
    return node.status in ("up", "leaving")
