"""Quotas of tokens at a node, and bodies that are refused unread."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from goq import Client, Message, limits
from goq.access.refusal_pace import RefusalPace
from goq.errors import GoqError, QuotaExceeded, TooManyRequests
from tests.support.cli.command import Run
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer
from tests.support.node.running_node import RunningNode, running_node

PATH = "/v1/topics/orders/messages"
ONE = {"messages": [{"value": "v" * 1000}]}


class Place:
    def __init__(self, node: RunningNode) -> None:
        self.node = node
        self._numbers = count()
        self.admin = (node.data_dir / "admin.token").read_text().strip()

    def ask(self, method: str, path: str, body: object = None, token: str | None = None) -> Answer:
        headers = {"Authorization": f"Bearer {token or self.admin}"}
        return self.node.request(method, path, body, headers)

    def next_number(self) -> int:
        return next(self._numbers)

    def create(self, *rules: str, **quotas: str | int) -> str:
        body = {"name": "team", "allow": rules or ["publish:orders"], "quotas": quotas}
        return str(self.ask("POST", "/v1/tokens", body).json["token"])


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running_node(security={"auth": "tokens"}) as node:
        place = Place(node)
        assert place.ask("POST", "/v1/topics", {"name": "orders", "partitions": 1}).status == 201
        yield place


@pytest.mark.parametrize(
    "quotas",
    [{"requests_per_s": 1}, {"publish_bytes_per_s": "1kB"}, {"publish_messages_per_s": 1}],
    ids=lambda quotas: next(iter(quotas)),
)
def test_a_sender_beyond_its_rate_is_told_when_to_come_again(
    place: Place, quotas: dict[str, str | int]
) -> None:
    token = place.create(**quotas)
    body = {"messages": [{"value": "v" * 1000}] * 60}
    assert place.ask("POST", PATH, body, token).status == 200
    refused = [place.ask("POST", PATH, ONE, token)]
    while refused[-1].status == 200:  # requests may take a second on a busy machine
        assert len(refused) < 1000
        refused.append(place.ask("POST", PATH, ONE, token))
    answer = refused[-1]
    assert answer.status == 429, answer
    assert answer.json["code"] == "too_many_requests"
    assert next(iter(quotas)) in answer.json["detail"]
    wait_ms = answer.json["retry_after_ms"]
    assert wait_ms > 0
    assert int(answer.headers["retry-after"]) == -(-wait_ms // 1000)
    assert place.ask("POST", PATH, ONE).status == 200  # others go on
    metrics = place.ask("GET", "/metrics").body.decode()
    token_id = token.split("_")[1]
    assert f'goq_quota_refusals_total{{name="team",principal="{token_id}"' in metrics
    labels = f'{{name="team",principal="{token_id}"}}'
    assert (
        f"goq_principal_requests_total{labels} {len(refused)}.0" in metrics
    )  # not the refused one
    (line,) = [x for x in metrics.splitlines() if f"publish_bytes_total{labels}" in x]
    assert line.startswith("goq_principal_publish_bytes_total")
    assert float(line.split()[-1]) > 60_000
    own = place.ask("GET", "/metrics", token=place.create("read:orders")).body.decode()
    assert token_id not in own


def test_the_client_waits_and_all_is_stored(place: Place) -> None:
    token = place.create("publish:orders", "read:orders", requests_per_s=20)
    with Client(place.node.url, token=token, retries="30s") as client:
        for _ in range(30):
            client.publish("orders", b"v")


def test_topics_that_hold_too_much_take_no_more(place: Place) -> None:
    token = place.create("publish:stored*", stored_bytes="20kB")
    body = {"messages": [{"value": "v" * 1000}] * 10}

    def is_full() -> bool:
        return place.ask("POST", "/v1/topics/stored.a/messages", body, token).status == 507

    eventually(is_full)
    with (
        Client(place.node.url, token=token) as client,
        pytest.raises(QuotaExceeded, match="stored_bytes"),
    ):
        client.publish("stored.b", b"v")
    assert place.ask("POST", "/v1/topics/stored.a/messages", body).status == 200


def test_the_command_line_sets_and_shows_quotas(place: Place, goq: Run) -> None:
    flags = ("--server", place.node.url, "--token", place.admin)
    create = ("token", "create", "bounded", "--allow", "read:*", "--quota")
    goq(*flags, *create, "publish_bytes_per_s=10MB")
    with Client(place.node.url, token=place.admin) as client:
        (shown,) = [token for token in client.list_tokens() if token.name == "bounded"]
    assert shown.quotas == {"publish_bytes_per_s": "10MB"}
    assert shown.allow == ("read:*",)
    assert b"quota" in goq(*flags, *create, "speed=1", code=7).stderr


def test_a_change_of_another_token_does_not_end_a_quota(place: Place) -> None:
    token = place.create(publish_bytes_per_s=1)
    statuses = []
    for _ in range(3):
        statuses.append(place.ask("POST", PATH, ONE, token).status)
        place.create("read:*")
    assert statuses == [200, 429, 429]


def begin(place: Place, token: str, size: str) -> bytes:
    """Send the head of a large publish, and nothing of its body; return the answer."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Expect: 100-continue\r\n{size}\r\n\r\n"
    )
    with socket.create_connection(place.node.address, timeout=30) as connection:
        connection.sendall(head.encode())
        return connection.recv(4096)


@pytest.mark.parametrize(
    "size", [f"Content-Length: {limits.HEAD_CHECK_BYTES + 1}", "Transfer-Encoding: chunked"]
)
def test_a_large_body_of_a_bad_token_or_a_used_up_quota_is_not_read(
    place: Place, size: str
) -> None:
    assert begin(place, place.admin, size).startswith(b"HTTP/1.1 100 ")
    answer = begin(place, place.admin[:-4] + "AAAA", size)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"WWW-Authenticate: Bearer" in answer
    token = place.create(publish_bytes_per_s=1)
    assert place.ask("POST", PATH, ONE, token).status == 200
    answer = begin(place, token, size)
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"Retry-After" in answer

    def is_recorded() -> bool:
        records = place.ask("GET", "/v1/audit?limit=1000").json["records"]
        return any(record["code"] == "unauthenticated" for record in records)

    eventually(is_recorded)


@pytest.mark.parametrize(
    "target",
    ["POST /nowhere", "POST /livez", "POST /internal/heartbeat", "PUT /v1/topics", "GET /docs"],
)
@pytest.mark.parametrize("more", ["", "goq-internal-principal: admin@node-1\r\n"])
def test_no_body_of_a_stranger_is_read_however_small(place: Place, target: str, more: str) -> None:
    head = f"{target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}Content-Length: 10\r\n\r\n"
    with socket.create_connection(place.node.address, timeout=30) as connection:
        connection.sendall(head.encode() + b"12345")
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 403 " if more else b"HTTP/1.1 401 "), answer


def test_a_client_that_sends_a_large_body_with_a_bad_token_gets_the_reason(place: Place) -> None:
    with Client(place.node.url, token="goq_aaaaaaaa_wrong", retries=0) as client:
        with pytest.raises(GoqError) as refused:
            client.publish("orders", b"v" * 200_000)
        assert refused.value.code == "unauthenticated"


@pytest.fixture
def endless_pace(place: Place) -> Iterator[None]:
    """Hold every refusal for as long as a test may take."""
    app = place.node.node.app
    assert app is not None
    assert app.access is not None
    before, app.access.pace = app.access.pace, RefusalPace(1 / 3600, 3600)
    yield
    app.access.pace = before


@pytest.mark.usefixtures("endless_pace")
@pytest.mark.parametrize("size", [1_000, 2 * limits.HEAD_CHECK_BYTES], ids=["small", "large"])
@pytest.mark.parametrize("kind", ["quota", "tenant", "stranger"])
def test_a_flood_of_refused_requests_waits_and_others_go_on(
    place: Place, kind: str, size: int
) -> None:
    rate = "tenant_publish_bytes_per_s" if kind == "tenant" else "publish_bytes_per_s"
    token = place.create(**{rate: 1})
    message = {"value": "v" * size, "tenant": "loud"}
    body = json.dumps({"messages": [message]}).encode()
    if kind == "stranger":
        token = token[:-4] + "AAAA"
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()

    def connections() -> int:
        server = place.node.node._listeners._server
        assert server is not None
        return server.connection_count

    before = connections()
    with socket.create_connection(place.node.address, timeout=30) as connection:
        connection.sendall(head + body)
        if kind != "stranger":
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
            is_unread = kind == "quota" and size > limits.HEAD_CHECK_BYTES
            connection.sendall(head + (b"" if is_unread else body))
        for _ in range(20):
            assert place.ask("POST", PATH, ONE).status == 200
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
    # A body that was refused, and a publish that was begun, end with their answer.
    if size < limits.HEAD_CHECK_BYTES and kind != "tenant":
        eventually(lambda: connections() <= before)


@pytest.mark.parametrize("frames", [False, True], ids=["json", "frames"])
def test_a_tenant_beyond_its_rate_is_refused_and_others_go_on(place: Place, frames: bool) -> None:
    token = place.create(tenant_publish_messages_per_s=1)

    def publish(tenant: str, count: int) -> None:
        if frames:
            with Client(place.node.url, token=token, retries=0) as client:
                client.publish_many("orders", [Message(b"v", tenant=tenant)] * count)
            return
        body = {"messages": [{"value": "v", "tenant": tenant}] * count}
        answer = place.ask("POST", PATH, body, token)
        if answer.status != 200:
            assert int(answer.headers["retry-after"]) > 60
            raise TooManyRequests(answer.json["detail"])

    publish("loud", 100)
    with pytest.raises(TooManyRequests, match=r"tenant 'loud'.*tenant_publish_messages_per_s of 1"):
        publish("loud", 1)
    publish("quiet", 1)


def leased_ids(answer: Answer) -> list[str]:
    assert answer.status == 200, answer
    return [message["id"] for message in answer.json["messages"]]


@pytest.fixture
def jobs(place: Place) -> str:
    """A topic with 40 messages, and a group that knows them."""
    with Client(place.node.url, token=place.admin) as client:
        name = f"jobs-{place.next_number()}"
        client.create_topic(name, partitions=2)
        list(client.publish_many(name, [b"v"] * 40))
    return name


def test_no_more_is_in_flight_than_the_quota_allows(place: Place, jobs: str) -> None:
    token = place.create(f"consume:{jobs}/g", in_flight=10)
    path, other = f"/v1/topics/{jobs}/groups/g", f"/v1/topics/{jobs}/groups/other"
    many = {"max_messages": 7}
    with ThreadPoolExecutor(8) as threads:
        asked = [
            threads.submit(place.ask, "POST", f"{path}/receive", many, token) for _ in range(8)
        ]
        answers = [each.result() for each in asked]
    receipts = [m["receipt"] for a in answers if a.status == 200 for m in a.json["messages"]]
    assert len(receipts) == 10
    answer = place.ask("POST", f"{path}/receive", many, token)
    assert (answer.status, answer.json["code"]) == (429, "too_many_requests"), answer
    assert "in_flight" in answer.json["detail"]
    assert answer.json["retry_after_ms"] > 0
    assert len(leased_ids(place.ask("POST", f"{other}/receive", many))) == 7  # others go on
    assert place.ask("POST", f"{path}/ack", {"receipts": receipts[:4]}, token).status == 200

    def has_room() -> bool:
        return place.ask("POST", f"{path}/receive", many, token).status == 200

    eventually(has_room)


def test_a_stream_goes_on_when_messages_are_settled(place: Place, jobs: str) -> None:
    token = place.create(f"consume:{jobs}/g", in_flight=5)
    with Client(place.node.url, token=token) as client:
        taken, in_flight = [], []
        for message in client.consume(jobs, group="g", prefetch=20, until_empty=True):
            taken.append(message.id)
            in_flight.append(message)
            if len(in_flight) == 4:
                while in_flight:
                    in_flight.pop().ack()
    assert len(set(taken)) == 40
