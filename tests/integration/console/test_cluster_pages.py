"""The console of a cluster that has lost a node, in a real browser."""

from __future__ import annotations

from typing import Any

from tests.support.api.calls import publish
from tests.support.api.console import Tab
from tests.support.cluster.running_cluster import running_cluster


def test_a_dead_node_is_told_in_words_and_the_others_go_on(browser: Any) -> None:
    with running_cluster() as cluster:
        cluster.create("orders", 3)
        node = cluster.by_name["n1"]
        tab = Tab(browser, node.url)
        tab.open("/", "Overview")
        tab.sees("Nothing is wrong.")
        tab.sees("3 of 3")
        cluster.stop("n3")
        tab.sees("Node n3 is fenced")
        tab.sees("2 of 3")
        tab.open("/cluster", "Cluster")
        tab.sees("Node n3 is fenced.")
        tab.sees("3 partitions with too few replicas")
        cluster.until(lambda: None not in cluster.leaders("orders"))
        publish(node, "orders", "after the death", partition=0)
        tab.open("/t/orders/messages", "orders")
        tab.sees("after the death")
        assert (tab.complaints, tab.foreign) == ([], [])
        tab.close()
