"""The audit trail of a node: what it records, when, and that clients only read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from goq import Client
from goq.errors import InvalidInput, StorageFull, Unavailable
from goq.model import AUDIT_TOPIC
from tests.support.cli.command import Run
from tests.support.node.node_api import Answer
from tests.support.node.running_node import RunningNode, running_node


class Place:
    """A node that asks for tokens, and its administrator."""

    def __init__(self, node: RunningNode) -> None:
        self.node = node
        self.admin = (node.data_dir / "admin.token").read_text().strip()

    def ask(self, method: str, path: str, body: object = None, token: str | None = None) -> Answer:
        headers = {"Authorization": f"Bearer {token or self.admin}"}
        return self.node.request(method, path, body, headers)

    def create(self, name: str, *rules: str) -> str:
        answer = self.ask("POST", "/v1/tokens", {"name": name, "allow": rules})
        return str(answer.json["token"])

    def records(self, query: str = "") -> list[dict[str, Any]]:
        answer = self.ask("GET", f"/v1/audit?limit=1000{query}")
        assert answer.status == 200, answer
        return list(answer.json["records"])

    def end(self) -> int:
        """Return the offset of the next record."""
        found = self.records()
        return found[-1]["offset"] + 1 if found else 0

    def since(self, offset: int) -> list[dict[str, Any]]:
        return self.records(f"&offset={offset}")


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running_node(security={"auth": "tokens"}) as node:
        found = Place(node)
        assert found.ask("POST", "/v1/topics", {"name": "orders", "partitions": 1}).status == 201
        yield found


def test_an_action_has_one_record_and_no_values(place: Place) -> None:
    at = place.end()
    assert place.ask("POST", "/v1/topics", {"name": "made", "partitions": 1}).status == 201
    message = {"messages": [{"value": "card 4111"}]}
    assert place.ask("POST", "/v1/topics/orders/messages", message).status == 200
    assert place.ask("POST", "/v1/topics/orders/groups/g/receive", {}).status == 200
    assert place.ask("GET", "/v1/tokens").status == 200
    (record,) = place.since(at)
    assert record["result"] == "allowed"
    assert (record["principal"], record["name"]) == ("admin@node-1", "admin.token")
    assert (record["method"], record["route"]) == ("POST", "/v1/topics")
    assert record["topics"] == ["made"]
    assert record["body"] == {"name": "made", "partitions": 1}
    assert record["peer"].startswith("127.0.0.1:")
    assert "4111" not in json.dumps(place.records())


def test_an_action_that_fails_has_two_records_of_one_request(place: Place) -> None:
    at = place.end()
    assert place.ask("DELETE", "/v1/topics/absent").status == 404
    begun, failed = place.since(at)
    assert begun["result"] == "allowed"
    assert failed["result"] == "failed"
    assert failed["request"] == begun["request"]
    assert (failed["status"], failed["code"]) == (404, "topic_not_found")


def test_an_action_that_breaks_off_has_a_second_record_too(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.node.node.broker is not None

    async def fail(*_: Any, **__: Any) -> None:
        raise OverflowError("a bug")

    monkeypatch.setattr(place.node.node.broker.topic_admin, "create", fail)
    at = place.end()
    assert place.ask("POST", "/v1/topics", {"name": "broken"}).status == 500
    began, failed = place.since(at)
    assert (began["result"], failed["result"]) == ("allowed", "failed")
    assert (failed["request"], failed["status"]) == (began["request"], 500)
    assert (failed["code"], failed["detail"]) == ("internal", "OverflowError")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        (
            "PUT",
            "/v1/schedules/s",
            {"topic": "t", "messages": [{"value": "x"}], "every": 1e308},
            400,
        ),
        ("POST", "/v1/tokens", {"name": "z", "allow": ["read:a"], "expires": 1e308}, 400),
        ("POST", "/v1/restores", {"topic": "orders", "as": "t2", "at": -1e308}, 400),
        ("GET", "/v1/topics/orders/trace?key=k&from_time=999999999999999", None, 404),
        ("GET", "/v1/topics/orders/trace?key=k&to_time=-900000d", None, 404),
    ],
)
def test_no_number_or_time_is_too_large_for_an_answer(
    place: Place, method: str, path: str, body: object, status: int
) -> None:
    answer = place.ask(method, path, body)
    assert answer.status == status, answer


def test_settings_that_are_nested_too_deep_are_refused_and_recorded_without_them(
    place: Place,
) -> None:
    at, deep = place.end(), '{"a":' * 2_000 + "1" + "}" * 2_000
    headers = {"Authorization": f"Bearer {place.admin}"}
    body = f'{{"settings": {deep}}}'.encode()
    answer = place.node.request("PATCH", "/v1/topics/orders", body, headers)
    assert (answer.status, answer.json["code"]) == (400, "invalid_input")
    allowed, failed = place.since(at)
    assert allowed["body"] == {}
    assert (failed["status"], failed["code"]) == (400, "invalid_input")


def test_the_first_refusal_of_a_sender_is_recorded_at_once_and_the_others_counted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = place.create("reader", "read:orders")
    app = place.node.node.app
    assert app is not None
    assert app.audit is not None
    trail = app.audit
    place.node.on_loop(lambda: trail._record_counts(float("inf")))  # of what others were refused
    at = place.end()
    for _ in range(5):
        assert place.ask("DELETE", "/v1/topics/orders", token=reader).status == 403
        assert place.ask("GET", "/v1/tokens", token="goq_abcdefgh_wrong").status == 401
    first, unknown = place.since(at)
    assert (first["result"], first["name"]) == ("refused", "reader")
    assert (first["status"], first["code"], first["count"]) == (403, "not_allowed", 1)
    assert (unknown["principal"], unknown["code"]) == ("-", "unauthenticated")
    place.node.on_loop(lambda: trail._record_counts(float("inf")))
    counted, anonymous = place.since(unknown["offset"] + 1)
    assert (counted["principal"], counted["count"]) == (first["principal"], 4)
    assert (anonymous["peer"], anonymous["count"]) == ("127.0.0.1", 4)


def test_no_record_has_the_secret_of_a_token(place: Place) -> None:
    at = place.end()
    token = place.create("planted", "read:orders")
    secret = token.split("_", 2)[2]
    assert place.ask("DELETE", f"/v1/tokens/{token}").status == 404
    assert place.ask("POST", f"/v1/tokens/{token}/rotate", {}).status == 404
    assert place.ask("DELETE", f"/v1/topics/{token}", token=token).status == 404
    found = place.since(at)
    assert len(found) == 6
    assert secret not in json.dumps(found)
    assert token.split("_")[1] in json.dumps(found)
    assert found[0]["body"] == {"name": "planted", "allow": ["read:orders"]}


def test_clients_do_not_publish_to_the_trail_nor_change_it(place: Place) -> None:
    place.end()
    topic = f"/v1/topics/{AUDIT_TOPIC}"
    message = {"messages": [{"value": "forged"}]}
    for method, path, body in (
        ("POST", f"{topic}/messages", message),
        ("PATCH", topic, {"settings": {"retention.age": "1s"}}),
        ("DELETE", topic, None),
        ("DELETE", f"/v1/messages/{AUDIT_TOPIC}:0:0", None),
        ("PATCH", f"/v1/messages/{AUDIT_TOPIC}:0:0", {"priority": "low"}),
        ("POST", "/v1/topics", {"name": AUDIT_TOPIC}),
        ("POST", "/v1/topics/orders/redrive", {"to": AUDIT_TOPIC}),
    ):
        answer = place.ask(method, path, body)
        assert answer.status == 403, (method, path, answer)
    settings = place.ask("GET", topic).json["settings"]
    assert settings["retention.age"] == "90d"
    assert "forged" not in json.dumps(place.ask("GET", f"{topic}/messages?partition=0").json)


def test_the_trail_is_read_by_administrators_and_by_its_own_rule_only(place: Place) -> None:
    all_topics = place.create("all", "read:*", "operate:*", "manage:*")
    own = place.create("own", f"read:{AUDIT_TOPIC}")
    assert place.ask("GET", "/v1/audit", token=all_topics).status == 403
    path = f"/v1/topics/{AUDIT_TOPIC}/messages?partition=0"
    assert place.ask("GET", path, token=all_topics).status == 403
    assert place.ask("GET", "/v1/audit", token=own).status == 200
    assert place.ask("GET", path, token=own).json["messages"]


def test_the_trail_is_filtered_by_principal_and_time_and_read_in_pages(place: Place) -> None:
    token = place.create("searched", "manage:orders")
    for _ in range(3):
        place.ask("PATCH", "/v1/topics/orders", {"settings": {}}, token)
    token_id = token.split("_")[1]
    for principal in (token_id, "searched"):
        found = place.records(f"&principal={principal}")
        assert [record["principal"] for record in found] == [token_id] * 3
    assert place.records("&principal=searched&since=2099-01-01") == []
    assert place.records("&principal=searched&until=-1h") == []
    with Client(place.node.url, token=place.admin) as client:
        assert len(list(client.read_audit(principal="searched", since="-1h"))) == 3
        with pytest.raises(InvalidInput, match="which UTF-8 cannot hold"):
            list(client.read_audit(since="\udcff"))
    first = place.ask("GET", "/v1/audit?principal=searched&limit=2").json
    rest = place.ask("GET", f"/v1/audit?principal=searched&offset={first['next']}").json
    assert (len(first["records"]), len(rest["records"]), rest["next"]) == (2, 1, None)


def test_the_command_shows_an_action_and_its_failure_on_one_line(place: Place, goq: Run) -> None:
    token = place.create("shown", "manage:lost")
    place.ask("DELETE", "/v1/topics/lost", token=token)
    flags = ("--server", place.node.url, "--token", place.admin)
    done = goq(*flags, "audit", "--since", "-1d", "--principal", "shown")
    assert done.stderr == b""
    shown = done.stdout.decode()
    (_, line) = shown.splitlines()
    assert "DELETE /v1/topics/lost" in line
    assert line.endswith("failed topic_not_found")
    lines = goq(*flags, "--json", "audit", "--principal", "shown").stdout.splitlines()
    assert [json.loads(line)["result"] for line in lines] == ["allowed", "failed"]


@pytest.mark.parametrize("error", [Unavailable("no quorum"), StorageFull("full")])
def test_without_a_record_nothing_is_done_but_on_a_full_disk(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: Unavailable
) -> None:
    assert place.node.node.broker is not None
    name = f"made.{error.code}"

    async def fail(_key: str, _value: bytes) -> None:
        raise error

    monkeypatch.setattr(place.node.node.broker.audit_log, "append", fail)
    answer = place.ask("POST", "/v1/topics", {"name": name})
    is_full = isinstance(error, StorageFull)
    assert answer.status == (201 if is_full else 503), answer
    assert place.ask("GET", f"/v1/topics/{name}").status == (200 if is_full else 404)
    assert place.ask("DELETE", "/v1/topics/orders", token="none").status == 401


def test_a_record_is_stored_before_its_action_begins(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = place.node.node.broker
    assert broker is not None
    seen: list[int] = []
    create = broker.topic_admin.create

    async def note(*arguments: Any, **named: Any) -> Any:
        seen.append(broker.topics[AUDIT_TOPIC].partitions[0].end_offset)
        return await create(*arguments, **named)

    at = place.end()
    monkeypatch.setattr(broker.topic_admin, "create", note)
    assert place.ask("POST", "/v1/topics", {"name": "ordered"}).status == 201
    assert seen == [at + 1]


def test_the_trail_outlives_a_restart_and_counts_are_written_at_a_stop(place: Place) -> None:
    with running_node(security={"auth": "tokens"}) as node:
        first = Place(node)
        for _ in range(3):
            first.ask("GET", "/v1/tokens", token="goq_abcdefgh_wrong")
        first.ask("POST", "/v1/topics", {"name": "kept"})
        data_dir = node.data_dir
        node.stop()
        again = RunningNode(data_dir, {"security": {"auth": "tokens"}})
        again.start()
        try:
            found = Place(again).records()
        finally:
            again.stop()
        assert [(r["result"], r["count"]) for r in found] == [
            ("refused", 1),
            ("allowed", 1),
            ("refused", 2),
        ]


def test_a_node_that_asks_for_no_tokens_records_nothing() -> None:
    with running_node() as node:
        node.request("POST", "/v1/topics", {"name": "orders"})
        assert node.request("GET", "/v1/audit").json == {"records": [], "next": None}
        assert node.request("POST", "/v1/topics", {"name": AUDIT_TOPIC}).status == 403
