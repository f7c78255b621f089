"""Tokens in a cluster: any node knows them, and nodes relay principals and no tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import pytest

from goq.cluster.forwarding import http_proxy
from goq.cluster.rpc.client import NodeConnections, RpcClient
from goq.http.message import LOCAL, PRINCIPAL
from tests.support.cli.command import Run
from tests.support.cluster.running_cluster import NAMES, RunningCluster, running_cluster
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer

TOPIC = "orders"
PUBLISHED = {"messages": [{"value": "v", "partition": n} for n in range(6)]}
CLIENTS = 64


def ask(
    cluster: RunningCluster, name: str, token: str, method: str, path: str, body: object = None
) -> Answer:
    headers = {"Authorization": f"Bearer {token}"}
    return cluster.by_name[name].ask(method, path, body, headers)


def admin_of(cluster: RunningCluster, name: str) -> str:
    return (cluster.folder / name / "admin.token").read_text().strip()


def create(cluster: RunningCluster, *rules: str, via: str = "n1") -> str:
    """Create a token at a node, and return it."""
    body = {"name": "team", "allow": rules}
    answer = ask(cluster, via, admin_of(cluster, via), "POST", "/v1/tokens", body)
    assert answer.status == 201, answer
    text: str = answer.json["token"]
    return text


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    """Run three nodes that ask for tokens, with a topic that all of them lead a part of."""
    with running_cluster(security={"auth": "tokens"}) as cluster:

        def has_topic() -> bool:
            body = {"name": TOPIC, "partitions": 6}
            made = ask(cluster, "n1", admin_of(cluster, "n1"), "POST", "/v1/topics", body)
            return made.status in (201, 409)

        eventually(has_topic)
        yield cluster


def test_the_command_by_which_a_node_joins_asks_for_tokens_too(
    cluster: RunningCluster, goq: Run
) -> None:
    given = ("--server", cluster.by_name["n1"].url, "--token", admin_of(cluster, "n1"))
    told = goq("cluster", "join", *given).stdout.decode()
    assert "    --set security.auth=tokens \\\n    --join http" in told


def test_a_token_counts_at_every_node_from_its_creation_on(cluster: RunningCluster) -> None:
    for via in NAMES:
        token = create(cluster, "publish:orders", "read:orders", via=via)
        for name in NAMES:
            answer = ask(cluster, name, token, "GET", "/v1/whoami")
            assert answer.json["allow"] == ["publish:orders", "read:orders"]
            answer = ask(cluster, name, token, "POST", f"/v1/topics/{TOPIC}/messages", PUBLISHED)
            assert answer.status == 200, answer
            answer = ask(cluster, name, token, "GET", f"/v1/topics/{TOPIC}")
            assert len(answer.json["partitions"]) == 6
            for number in range(6):
                path = f"/v1/topics/{TOPIC}/messages?partition={number}"
                assert ask(cluster, name, token, "GET", path).json["messages"]


def test_a_node_that_may_lack_a_new_token_does_not_say_that_there_is_no_such_token(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = "goq_abcdefgh_unknown"
    published = ("POST", f"/v1/topics/{TOPIC}/messages", PUBLISHED)
    assert ask(cluster, "n2", unknown, *published).status == 401
    freshness = cluster.cluster_node("n2").freshness
    monkeypatch.setattr(type(freshness), "must_catch_up", property(lambda each: each is freshness))
    for request in (published, ("GET", f"/v1/topics/{TOPIC}", None)):
        headers = {"Authorization": f"Bearer {unknown}"}
        answer = cluster.by_name["n2"].request(*request, headers)
        assert (answer.status, answer.json["code"]) == (503, "unavailable")
        assert ask(cluster, "n3", unknown, *request).status == 401
    assert ask(cluster, "n2", unknown, "GET", "/livez").status == 200
    assert cluster.by_name["n2"].request("GET", "/v1/whoami").status == 401


def test_what_a_token_may_not_do_no_node_does_for_it(cluster: RunningCluster) -> None:
    token = create(cluster, "publish:orders")
    admin = admin_of(cluster, "n2")
    create_secret = ask(cluster, "n2", admin, "POST", "/v1/topics", {"name": "secret"})
    assert create_secret.status in (201, 409)

    def partitions() -> Any:
        shown = ask(cluster, "n1", admin_of(cluster, "n1"), "GET", "/v1/topics/secret")
        return shown.json["partitions"]

    before = partitions()
    for name in NAMES:
        for method, path, body in (
            ("GET", "/v1/topics/secret", None),
            ("DELETE", "/v1/topics/secret", None),
            ("POST", "/v1/topics/secret/messages", PUBLISHED),
            ("GET", "/v1/topics/secret/messages?partition=0", None),
        ):
            assert ask(cluster, name, token, method, path, body).status == 404
        assert ask(cluster, name, token, "DELETE", f"/v1/topics/{TOPIC}").status == 403
        for number in range(6):
            path = f"/v1/topics/{TOPIC}/messages?partition={number}"
            assert ask(cluster, name, token, "GET", path).status == 403
        shown = ask(cluster, name, token, "GET", "/v1/topics").json["topics"]
        assert [topic["name"] for topic in shown] == [TOPIC]
    assert partitions() == before


def test_nodes_relay_principals_and_no_tokens(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = create(cluster, "read:orders")
    sent: list[dict[str, str]] = []
    real = http_proxy.encode_head

    def note(*parts: Any) -> bytes:
        head = real(*parts)
        lines = head.decode().splitlines()[1:]
        sent.append(dict(line.split(": ", 1) for line in lines))
        return head

    monkeypatch.setattr(http_proxy, "encode_head", note)
    for name in NAMES:
        assert ask(cluster, name, token, "GET", f"/v1/topics/{TOPIC}").status == 200
    monkeypatch.undo()
    assert sent
    assert {headers[PRINCIPAL] for headers in sent if PRINCIPAL in headers} == {token.split("_")[1]}
    assert not any("authorization" in headers for headers in sent)
    assert token.split("_", 2)[2] not in str(sent)


def test_a_proof_of_one_principal_is_none_of_another(cluster: RunningCluster) -> None:
    reader, admin = create(cluster, "read:orders"), create(cluster, "admin:*")
    path = "/v1/tokens"
    secret = (cluster.folder / "secret").read_bytes().strip()
    client = RpcClient("n1", secret, NodeConnections(1), cluster.cluster_node("n1").disk_id)
    url = cluster.by_name["n2"].url
    client._boots[url] = cluster.cluster_node("n2").rpc_server.boot

    def relayed(principal: str, signed: str, method: str = "GET") -> int:
        text = f"forward {signed} {method}  {path}"
        headers = {LOCAL: "true", PRINCIPAL: principal, **client.signed_headers(url, text, b"")}
        return cluster.by_name["n2"].request("GET", path, headers=headers).status

    ids = [token.split("_")[1] for token in (reader, admin)]
    assert relayed(ids[1], ids[1]) == 200
    assert relayed(ids[0], ids[0]) == 403
    assert relayed(ids[1], ids[0]) == 403
    assert relayed(ids[1], ids[1], "POST") == 403
    ask(cluster, "n3", admin_of(cluster, "n3"), "DELETE", f"/v1/tokens/{ids[1]}")
    assert relayed(ids[1], ids[1]) == 401
    headers = {LOCAL: "true", PRINCIPAL: ids[0]}
    assert cluster.by_name["n2"].request("GET", path, headers=headers).status == 400


def test_a_revoked_token_is_refused_by_all_nodes_once_the_revocation_is_answered(
    cluster: RunningCluster,
) -> None:
    token = create(cluster, "read:orders")
    is_revoked, is_over = threading.Event(), threading.Event()

    def statuses(number: int) -> Sequence[tuple[bool, int]]:
        """Ask a node until the end; return whether each request began after the revocation."""
        found: list[tuple[bool, int]] = []
        connection = HTTPConnection(*cluster.by_name[NAMES[number % 3]].address, timeout=60)
        while not is_over.is_set() or not found or not found[-1][0]:
            began_after = is_revoked.is_set()
            headers = {"Authorization": f"Bearer {token}"}
            connection.request("GET", f"/v1/topics/{TOPIC}", headers=headers)
            answer = connection.getresponse()
            answer.read()
            found.append((began_after, answer.status))
        connection.close()
        return found

    with ThreadPoolExecutor(CLIENTS) as threads:
        asking = [threads.submit(statuses, number) for number in range(CLIENTS)]
        path = f"/v1/tokens/{token.split('_')[1]}"
        try:
            revoked = ask(cluster, "n1", admin_of(cluster, "n1"), "DELETE", path)
            is_revoked.set()
        finally:
            is_over.set()
        found = [pair for each in asking for pair in each.result(60)]
    assert revoked.status == 204
    assert {status for began_after, status in found if began_after} == {401}
    assert {status for _, status in found} <= {200, 401, 421}  # 421: a node that stood still


def test_a_stream_opens_though_its_node_has_not_heard_of_the_start_of_others(
    cluster: RunningCluster,
) -> None:
    token = create(cluster, "consume:orders/early", "publish:orders")
    assert (
        ask(cluster, "n1", token, "POST", f"/v1/topics/{TOPIC}/messages", PUBLISHED).status == 200
    )
    connection = HTTPConnection(*cluster.by_name["n2"].address, timeout=30)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = b'{"stream": true, "max_in_flight": 1000}'
    cluster.on_loop("n2", lambda node: node.routes._probes._boots.clear())
    connection.request("POST", f"/v1/topics/{TOPIC}/groups/early/receive", body, headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    lines = (line for line in answer if line.strip())
    found = set()
    while len(found) < 6:
        found.add(json.loads(next(lines))["partition"])
    answer.close()
    connection.close()


def test_a_stream_ends_with_its_token(cluster: RunningCluster) -> None:
    token = create(cluster, "consume:orders/streaming", "publish:orders")
    connection = HTTPConnection(*cluster.by_name["n2"].address, timeout=30)
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": "application/x-ndjson",
        "Content-Type": "application/json",
    }
    path = f"/v1/topics/{TOPIC}/groups/streaming"
    connection.request("POST", f"{path}/receive", b"{}", headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    stream = answer.getheader("Goq-Stream")
    node = cluster.by_name["n2"]
    assert stream is not None
    path = f"{path}/streams/{stream}"
    assert ask(cluster, "n2", token, "PATCH", path, {"more": 1}).status == 200
    revoked = f"/v1/tokens/{token.split('_')[1]}"
    assert ask(cluster, "n1", admin_of(cluster, "n1"), "DELETE", revoked).status == 204
    eventually(lambda: not answer.read1())  # it beats until its end
    connection.close()
    assert node.request("GET", "/livez").status == 200
    assert ask(cluster, "n2", token, "PATCH", path, {"more": 1}).status == 401
