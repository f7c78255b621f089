"""All caches of a node together keep their bound, whatever is asked of the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq import limits
from goq.client import Client
from tests.support.node.archive import publish_segments, retire, roll
from tests.support.node.running_node import RunningNode, running_node

MESSAGES = 12
FRAMES_BYTES = 81_000  # of two messages
CHUNKS_BYTES = 81_000
INDEXES_BYTES = 2_000
FOOTERS = 1
SPARSE_INDEXES_BYTES = 12_600  # of three segments


class Watched:
    """The caches of a node: what they hold now is within the bound, and the most of each so far."""

    def __init__(self, node: RunningNode, bytes_max: int) -> None:
        assert node.node.broker is not None
        self._broker = node.node.broker
        self._bytes_max = bytes_max
        self.most: dict[str, int] = {}

    def check(self) -> None:
        held = self._broker.cached_bytes()
        assert sum(held.values()) <= self._bytes_max, held
        self.most = {name: max(size, self.most.get(name, 0)) for name, size in held.items()}


def test_the_bound_of_all_caches_is_384_mib() -> None:
    assert limits.CACHES_BYTES_MAX == 384 * limits.MIB


def test_all_caches_together_never_exceed_their_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FRAME_CACHE_BYTES", FRAMES_BYTES)
    monkeypatch.setattr(limits, "ARCHIVE_CACHE_BYTES", CHUNKS_BYTES)
    monkeypatch.setattr(limits, "INDEX_CACHE_BYTES", INDEXES_BYTES)
    monkeypatch.setattr(limits, "ARCHIVE_CACHE_FOOTERS", FOOTERS)
    monkeypatch.setattr(limits, "ARCHIVE_INDEXES_BYTES", SPARSE_INDEXES_BYTES)
    footers_bytes = FOOTERS * limits.KIB + SPARSE_INDEXES_BYTES
    with running_node(tmp_path) as node, Client(node.url) as client:
        caches = Watched(node, FRAMES_BYTES + CHUNKS_BYTES + INDEXES_BYTES + footers_bytes)
        client.create_topic("t", 1)
        publish_segments(node, "t", range(MESSAGES))
        for _ in range(MESSAGES):
            for message in client.receive("t", "g", max_messages=1):
                message.ack()
            roll(node, "t")
            caches.check()
        retire(node, "t", archive=True)
        for number in range(MESSAGES):
            found = client.read("t", partition=0, offset=number, limit=1, include_deleted=True)
            assert found.next == number + 1
            caches.check()
            [trace] = client.search_traces("t", key=f"k{number}").traces
            client.get_trace(trace.message.id)
            caches.check()
        assert node.node.broker is not None
        assert 0 < len(node.node.broker.archive.segments.indexes) <= 3
        assert {name: size > 0 for name, size in caches.most.items()} == {
            "frames": True,
            "archive": True,
            "indexes": True,
        }
        metrics = node.request("GET", "/metrics").body.decode()
        for name in caches.most:
            assert f'goq_cache_bytes{{cache="{name}"}}' in metrics
