"""Each route of each node of a cluster with each kind of token: what is refused reaches no node.

What a single node allows is in ``tests/integration/access/test_routes.py``.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from goq.access.rule import Verb
from goq.api.route import Route
from goq.cluster.rpc.server import CALL_PREFIX
from tests.support.api.route_walk import (
    OPEN,
    SCHEDULE,
    TOPIC,
    allowed_verbs,
    body_of,
    path_of,
    refusal_of,
    spied_routes,
)
from tests.support.cluster.running_cluster import NAMES, RunningCluster, running_cluster
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer

DAY_MS = 86_400_000


class Site:
    """Three nodes that ask for tokens, and tokens of all kinds."""

    def __init__(self, cluster: RunningCluster) -> None:
        self.cluster = cluster
        self.admin = (cluster.folder / "n1" / "admin.token").read_text().strip()
        self.tokens: dict[str, str] = {}

    def create(self, name: str, *rules: str, **fields: str) -> str:
        headers = {"Authorization": f"Bearer {self.admin}"}
        body = {"name": name, "allow": rules, **fields}
        answer = self.cluster.by_name["n1"].request("POST", "/v1/tokens", body, headers)
        assert answer.status == 201, answer
        text: str = answer.json["token"]
        return text

    def revoke(self, token: str) -> None:
        headers = {"Authorization": f"Bearer {self.admin}"}
        path = f"/v1/tokens/{token.split('_')[1]}"
        assert self.cluster.by_name["n1"].request("DELETE", path, None, headers).status == 204

    def routes(self, name: str) -> list[Route]:
        """Return the routes of a node, but the one that nodes call each other by."""
        app = self.cluster.by_name[name].node.app
        assert app is not None
        return [each for each in app.router.routes if each.path != CALL_PREFIX + "{call}"]

    def walk(self, name: str, token: str | None, besides: str = "") -> Iterator[tuple[Route, int]]:
        """Send a request for each route of a node, but those that the verb ``besides`` may use;
        yield the status of each answer.
        """
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        address = self.cluster.by_name[name].address
        with closing(http.client.HTTPConnection(*address, timeout=30)) as connection:
            for route in self.routes(name):
                if besides in allowed_verbs(route):
                    continue
                body = body_of(route)
                sent = None if body is None else json.dumps(body)
                connection.request(route.method, path_of(route), sent, headers)
                answer = connection.getresponse()
                answer.read()
                yield route, answer.status


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_cluster(security={"auth": "tokens"}) as cluster:
        site = Site(cluster)
        headers = {"Authorization": f"Bearer {site.admin}"}
        body = {"name": TOPIC, "partitions": 6}
        node = cluster.by_name["n1"]
        eventually(lambda: node.request("POST", "/v1/topics", body, headers).status in (201, 409))
        path = "/v1/schedules/yearly"
        assert node.request("PUT", path, SCHEDULE, headers).status == 201
        for verb in Verb:
            pattern = "*" if verb in (Verb.OPERATE, Verb.ADMIN) else "orders*"
            site.tokens[verb] = site.create(str(verb), f"{verb}:{pattern}")
        site.tokens["expired"] = site.create("expired", "admin:*", expires="1d")
        site.tokens["revoked"] = site.create("revoked", "admin:*")
        site.revoke(site.tokens["revoked"])
        for each in cluster.nodes:
            each.clock.set_ahead_ms(DAY_MS)
        site.tokens["wrong"] = site.tokens["admin"][:-4] + "AAAA"
        yield site


@pytest.mark.parametrize("name", NAMES)
def test_no_request_that_a_node_refuses_reaches_any_node(site: Site, name: str) -> None:
    everything = [route for each in NAMES for route in site.routes(each)]
    refused = 0
    with spied_routes(everything) as spy:
        for kind in (None, "wrong", "expired", "revoked"):
            token = None if kind is None else site.tokens[kind]
            for route, status in site.walk(name, token):
                if route.path in OPEN:
                    continue
                assert status == 401, (route.method, route.path, kind)
                refused += 1
        assert set(spy.calls) == OPEN
        spy.calls.clear()
        for verb in Verb:
            for route, status in site.walk(name, site.tokens[verb], besides=verb):
                assert status == refusal_of(route, verb), (route.method, route.path, verb)
                refused += 1
        assert spy.calls == []
    assert refused > 400


@pytest.mark.parametrize("chosen", ["", "hidden"])
def test_every_node_hides_dead_letters_from_those_who_may_not_read_their_topic(
    site: Site, chosen: str
) -> None:
    topic = f"from-{chosen or 'own'}"
    dead = chosen or f"{topic}.dlq"
    group = f"/v1/topics/{topic}/groups/g"
    settings = {"dead_letters.topic": chosen} if chosen else {}

    def ask(name: str, token: str, method: str, path: str, body: object = None) -> Answer:
        headers = {"Authorization": f"Bearer {token}"}
        return site.cluster.by_name[name].request(method, path, body, headers)

    def peeked(name: str, token: str) -> Answer:
        return ask(name, token, "GET", f"{group}/peek?state=dead")

    if chosen:
        body = {"name": chosen, "partitions": 2}
        assert ask("n1", site.admin, "POST", "/v1/topics", body).status == 201
    body = {"name": topic, "partitions": 3, "settings": settings}
    assert ask("n1", site.admin, "POST", "/v1/topics", body).status == 201
    published = {"messages": [{"value": "v", "key": f"secret-{n}"} for n in range(9)]}
    assert ask("n1", site.admin, "POST", f"/v1/topics/{topic}/messages", published).status == 200
    rejected = 0
    while rejected < 9:
        got = ask("n1", site.admin, "POST", f"{group}/receive", {"wait": "20s"}).json["messages"]
        receipts = {"receipts": [each["receipt"] for each in got]}
        assert ask("n1", site.admin, "POST", f"{group}/reject", receipts).status == 200
        rejected += len(got)
    eventually(lambda: len(peeked("n1", site.admin).json["messages"]) == 9)
    own = [f"read:{topic}.dlq"] if chosen else []
    without = site.create("without", f"read:{topic}", *own)
    both = site.create("both", f"read:{topic}/g", f"read:{topic}.dlq", f"read:{dead}")
    for name in NAMES:
        assert len(peeked(name, both).json["messages"]) == 9
        answer = peeked(name, without)
        assert (answer.status, answer.json["code"]) == (404, "topic_not_found")
        assert "secret" not in answer.body.decode()
