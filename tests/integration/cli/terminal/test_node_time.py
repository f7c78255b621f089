"""Times of a command that count from now, where the node's clock decides."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from goq.client import Client
from goq_cli.commands import republish
from goq_cli.session import SESSION
from tests.support.node.running_node import RunningNode

HOUR_US = 3_600_000_000


@pytest.fixture
def ahead(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningNode]:
    """Let the clock of the node be two hours ahead of this machine's."""
    monkeypatch.setattr(SESSION, "servers", [node.url])
    node.clock.ahead_ms += 2 * HOUR_US // 1000
    yield node
    node.clock.ahead_ms -= 2 * HOUR_US // 1000


def test_a_republished_span_counts_from_the_nodes_now(ahead: RunningNode, topic: str) -> None:
    with Client(ahead.url) as client:
        client.create_topic(topic, partitions=1)
    now_us = time.time_ns() // 1000
    since_us, until_us = republish._span("-1h", "now", [topic])
    assert since_us is not None
    assert until_us is not None
    assert since_us >= now_us + HOUR_US, "what the node stamped in the last hour"
    assert until_us - since_us == HOUR_US
    assert republish._span("2025-01-01", None, ["no-such-topic"]) == (1735689600000000, None)
