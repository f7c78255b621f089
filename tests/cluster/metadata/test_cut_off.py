"""Metadata at a node that hears no other: it lists what it knows, and decides nothing by it."""

from __future__ import annotations

from tests.support.cluster.running_cluster import running_cluster
from tests.support.eventually import eventually

SCHEDULE = {"topic": "orders", "every": "1h", "messages": [{"value": "v"}]}
PATH = "/v1/schedules/hourly"


def test_a_node_without_the_others_lists_what_it_knows_and_changes_nothing() -> None:
    with running_cluster() as cluster:
        cluster.create("orders")
        node = cluster.by_name["n1"]
        assert node.ask("PUT", PATH, SCHEDULE).status == 201
        listed = node.ask("GET", "/v1/schedules").json
        cluster.stop("n2", "n3")

        def is_cut_off() -> bool:
            return bool(node.on_loop(lambda: cluster.cluster_node("n1").freshness.is_cut_off))

        def lists() -> bool:
            return node.request("GET", "/v1/schedules").status == 200 and is_cut_off()

        eventually(lists, "it lists what it knows")
        assert node.request("GET", "/v1/schedules").json == listed
        for method, path, body in (
            ("GET", PATH, None),
            ("PUT", PATH, SCHEDULE),
            ("DELETE", PATH, None),
            ("POST", "/v1/topics", {"name": "new"}),
            ("GET", "/v1/topics/orders/dead", None),
            ("DELETE", "/v1/topics/orders/dead", None),
            ("POST", "/v1/topics/orders/redrive", {}),
        ):
            answer = node.request(method, path, body)
            assert (answer.status, answer.json["code"]) == (503, "unavailable"), (method, path)
