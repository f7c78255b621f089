"""Nodes with certificates: what they agree on is encrypted, and who has none takes no part."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.errors import UsageError
from tests.support.api.scrape import metric
from tests.support.cluster.authority import Authority, needs_openssl
from tests.support.cluster.replicated_partition import ReplicatedPartition
from tests.support.cluster.running_cluster import NAMES, RunningCluster

DAY_S = 86_400


def certificates(authority: Authority, name: str) -> dict[str, Path]:
    cert_file, key_file = authority.sign(name)
    return {"cert_file": cert_file, "key_file": key_file, "ca_file": authority.certificate}


@needs_openssl
def test_nodes_with_certificates_are_a_cluster_and_the_secret_alone_is_not_enough(
    cluster: RunningCluster,
    partition: ReplicatedPartition,
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "ca")

    cluster.tls = {name: certificates(authority, name) for name in NAMES}
    leader = partition.fill()
    other = next(name for name in NAMES if name != leader)
    cluster.stop(other)
    with_tls = cluster.tls.pop(other)
    cluster.start_peer(other)
    partition.publish_somewhere(b"after")
    assert not cluster.state(leader).nodes[other].is_up
    assert cluster.cluster_node(other).raft.status.leader is None
    left_s = metric(cluster.by_name[leader], "goq_cluster_certificate_expiry_seconds")
    assert left_s is not None
    assert DAY_S < left_s <= 2 * DAY_S
    assert metric(cluster.by_name[other], "goq_cluster_certificate_expiry_seconds") is None
    cluster.stop(other)
    cluster.tls[other] = with_tls
    cluster.start_peer(other)
    cluster.until(lambda: cluster.cluster_node(other).readiness.pending() == [])


def test_certificates_that_cannot_be_read_are_named_at_the_start(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    missing = tmp_path / "none.pem"
    cluster.tls["n1"] = {"cert_file": missing, "key_file": missing, "ca_file": missing}
    with pytest.raises(UsageError, match=r"none\.pem"):
        cluster.start_peer("n1")
