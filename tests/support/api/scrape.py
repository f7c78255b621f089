"""The metrics of a node, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.support.node.node_api import NodeApi


def families(node: NodeApi, prefix: str = "goq_") -> set[str]:
    """Return the names of the metrics of goq that a node has, without the suffixes of samples."""
    found = text_string_to_metric_families(node.request("GET", "/metrics").body.decode())
    return {family.name for family in found if family.name.startswith(prefix)}


def metric(node: NodeApi, name: str, /, **labels: str) -> float | None:
    """Return the value of the sample with just these labels, None without one."""
    text = node.request("GET", "/metrics").body.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if (sample.name, sample.labels) == (name, labels):
                return float(sample.value)
    return None
