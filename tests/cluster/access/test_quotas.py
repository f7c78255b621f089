"""Quotas in a cluster: what is in flight and what is stored is bounded for all nodes together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from goq.units import format_size_bytes
from tests.support.cluster.running_cluster import NAMES, RunningCluster, running_cluster
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer

PARTITIONS = 6


class Place:
    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster

    def ask(
        self, node: str, method: str, path: str, body: object = None, token: str | None = None
    ) -> Answer:
        admin = (self.cluster.folder / node / "admin.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token or admin}"}
        return self.cluster.by_name[node].request(method, path, body, headers)

    def create(self, rule: str, **quotas: str | int) -> str:
        body = {"name": "team", "allow": [rule], "quotas": quotas}
        return str(self.ask("n1", "POST", "/v1/tokens", body).json["token"])

    def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        body = {"name": name, "partitions": partitions}
        eventually(lambda: self.ask("n1", "POST", "/v1/topics", body).status in (201, 409))

        def is_led() -> bool:
            answers = [self.ask(node, "GET", f"/v1/topics/{name}") for node in NAMES]
            return all(
                answer.status == 200 and all(p["leader"] for p in answer.json["partitions"])
                for answer in answers
            )

        eventually(is_led, seconds=60)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running_cluster(security={"auth": "tokens"}) as cluster:
        yield Place(cluster)


def test_the_messages_in_flight_of_all_nodes_are_bounded(place: Place) -> None:
    place.create_topic("jobs")
    messages = [{"value": "v", "partition": n % PARTITIONS} for n in range(120)]
    path = "/v1/topics/jobs"

    def is_published() -> bool:
        return place.ask("n1", "POST", f"{path}/messages", {"messages": messages}).status == 200

    eventually(is_published)
    token = place.create("consume:jobs/g", in_flight=12)
    receive, receipts = f"{path}/groups/g/receive", []

    def lease(node: str) -> list[str]:
        body = {"max_messages": 5, "visibility": "10m"}
        answer = place.ask(node, "POST", receive, body, token)
        return [m["receipt"] for m in answer.json["messages"]] if answer.status == 200 else []

    def lease_of_all() -> int:
        """Ask all nodes at once; return how many messages are in flight then."""
        with ThreadPoolExecutor(2 * len(NAMES)) as threads:
            for leased in threads.map(lease, NAMES * 2):
                receipts.extend(leased)
        return len(receipts)

    eventually(lambda: lease_of_all() >= 12)
    for _ in range(3):
        assert lease_of_all() == 12
    answer = place.ask("n2", "POST", receive, {"max_messages": 5}, token)
    assert (answer.status, answer.json["code"]) == (429, "too_many_requests"), answer
    assert "in_flight" in answer.json["detail"]
    settled = place.ask("n3", "POST", f"{path}/groups/g/ack", {"receipts": receipts[:6]}, token)
    assert settled.json["settled"] == 6, settled
    del receipts[:6]
    eventually(lambda: lease_of_all() >= 12)
    assert lease_of_all() == 12


@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_what_topics_hold_on_all_nodes_is_bounded_whichever_is_asked(
    place: Place, partitions: int
) -> None:
    topic = f"stored{partitions}"
    place.create_topic(topic, partitions)
    token = place.create(f"publish:{topic}", stored_bytes="60kB")
    body = {"messages": [{"value": "v" * 1000, "partition": n} for n in range(partitions)]}

    def publish(node: str) -> Answer:
        return place.ask(node, "POST", f"/v1/topics/{topic}/messages", body, token)

    def held_bytes() -> int:
        shown = place.ask("n1", "GET", f"/v1/topics/{topic}").json["partitions"]
        return sum(partition["bytes"] for partition in shown)

    assert all(publish(node).status == 200 for node in NAMES)
    for node in NAMES:
        eventually(lambda node=node: publish(node).status == 507, seconds=60, pause_s=0.02)
    assert held_bytes() >= 60_000
    whole = f"may hold {format_size_bytes(60_000)} (its quota stored_bytes)"
    assert whole in publish("n2").json["detail"]


def test_a_rate_that_is_used_up_at_one_node_is_used_up_at_all(place: Place) -> None:
    place.create_topic("rates")
    token = place.create("publish:rates", publish_messages_per_s=100)
    path = "/v1/topics/rates/messages"

    def publish(node: str, count: int) -> Answer:
        messages = [{"value": "v", "partition": n % PARTITIONS} for n in range(count)]
        return place.ask(node, "POST", path, {"messages": messages}, token)

    # A publish that fails halfway has spent the rate too.
    eventually(lambda: publish("n1", 10_000).status == 429)
    for node in NAMES:  # 10 messages a second would not use up the rate of a node by themselves

        def is_used_up(node: str = node) -> bool:
            answer = publish(node, 1)
            return answer.status == 429 and answer.json["retry_after_ms"] > 20_000

        eventually(is_used_up, f"{node} heard of it", seconds=30, pause_s=0.1)
    other = place.create("publish:rates", publish_messages_per_s=100)
    body = {"messages": [{"value": "v"}]}
    assert all(place.ask(node, "POST", path, body, other).status == 200 for node in NAMES)
