"""Nodes with certificates: what they agree on is encrypted, and who has none takes no part."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.errors import UsageError
from tests.support.cluster.authority import Authority, needs_openssl
from tests.support.cluster.three_nodes import NAMES, ThreeNodes, run_story


def certificates(authority: Authority, name: str) -> dict[str, Path]:
    cert_file, key_file = authority.sign(name)
    return {"cert_file": cert_file, "key_file": key_file, "ca_file": authority.certificate}


@needs_openssl
def test_nodes_with_certificates_are_a_cluster_and_the_secret_alone_is_not_enough(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "ca")

    async def story(cluster: ThreeNodes) -> None:
        cluster.tls = {name: certificates(authority, name) for name in NAMES}
        leader = await cluster.filled()
        other = next(name for name in NAMES if name != leader)
        await cluster.nodes.pop(other).stop()
        with_tls = cluster.tls.pop(other)
        await cluster.start(other)
        await cluster.publish_somewhere(b"after")
        assert not cluster.cluster_node(leader).state.nodes[other].is_up
        assert cluster.cluster_node(other).raft.status.leader is None
        await cluster.nodes.pop(other).stop()
        cluster.tls[other] = with_tls
        await cluster.start(other)
        await cluster.until(lambda: cluster.cluster_node(other).readiness.pending() == [])

    run_story(tmp_path, story)


def test_certificates_that_cannot_be_read_are_named_at_the_start(tmp_path: Path) -> None:
    async def story(cluster: ThreeNodes) -> None:
        missing = tmp_path / "none.pem"
        cluster.tls["n1"] = {"cert_file": missing, "key_file": missing, "ca_file": missing}
        with pytest.raises(UsageError, match=r"none\.pem"):
            await cluster.start("n1")
        cluster.nodes.clear()

    run_story(tmp_path, story)
