"""A node process with a wrong clock, as the chaos tests start it."""

from __future__ import annotations

import time
from pathlib import Path

from goq.client import Client
from tests.support.node.node_process import NodeProcess

AHEAD_MS = 20_000


def test_a_node_has_the_clock_that_a_test_gives_it(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data")
    node.clock_ahead_ms = AHEAD_MS
    with node, Client(node.url) as client:
        client.create_topic("t")
        begin_us = time.time_ns() // 1000
        ahead_us = client.publish("t", b"x").timestamp - begin_us
    assert AHEAD_MS * 1000 <= ahead_us < 2 * AHEAD_MS * 1000
