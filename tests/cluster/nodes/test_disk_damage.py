"""Three nodes with real files: one loses bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.errors import GoqError
from tests.support.cluster.three_nodes import MESSAGES, ThreeNodes, run_story


def test_a_leader_that_has_lost_bits_hands_over_and_gets_them_back(tmp_path: Path) -> None:
    async def story(cluster: ThreeNodes) -> None:
        leader = await cluster.filled()
        log = next(cluster.folder(leader).glob("*.log"))
        data = bytearray(log.read_bytes())
        sound = bytes(data)
        data[len(data) // 2] ^= 0xFF
        log.write_bytes(data)
        with pytest.raises(GoqError, match="damaged on this node"):
            cluster.values(leader)
        await cluster.until(lambda: cluster.cluster_node(leader).repairs.repaired_frames)
        await cluster.until(lambda: (p := cluster.partition()) and p.leader and not p.damaged)
        files = sorted(cluster.folder(leader).glob("*.log"))
        assert b"".join(each.read_bytes() for each in files) == sound
        now = cluster.leader()
        assert now is not None
        await cluster.publish(now, b"after")
        assert cluster.values(now) == [*(b"%d" % n for n in range(MESSAGES)), b"after"]

    run_story(tmp_path, story)
