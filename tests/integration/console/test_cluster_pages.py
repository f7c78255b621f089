"""The console of a cluster that has lost a node, in a real browser."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api.calls import publish
from tests.support.api.console import Tab
from tests.support.api.shop import PAGES, SHOP, fill_shop
from tests.support.cluster.running_cluster import running_cluster


@pytest.mark.long
def test_a_dead_node_is_told_in_words_and_the_others_go_on(browser: Any) -> None:
    with running_cluster() as cluster:
        cluster.create("orders", 3)
        cluster.create(SHOP, 1)
        fill_shop(cluster.by_name["n2"])
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
        tab.sees("partitions with too few replicas")
        cluster.until(lambda: None not in cluster.leaders("orders") + cluster.leaders(SHOP))
        publish(node, "orders", "after the death", partition=0)
        tab.open("/t/orders/messages", "orders")
        tab.sees("after the death")
        tab.open("/topics", "Topics")
        tab.sees(SHOP)
        for hash_, heading, text in PAGES:
            tab.open(hash_, heading)
            tab.sees(text)
        tab.open("/metrics", "Metrics")
        tab.page.locator(".graph canvas").nth(5).wait_for()
        assert (tab.complaints, tab.foreign) == ([], [])
        tab.close()
