"""Each route with each kind of token: the status, and that a refused request changed nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from goq.access.rule import Verb
from goq.api.needs import SeesTopic, TopicVerbs
from goq.api.route import Route
from goq.http.message import Response
from tests.support.api.route_walk import (
    GROUP,
    OPEN,
    SCHEDULE,
    TOPIC,
    VALUES,
    Spy,
    allowed_verbs,
    body_of,
    path_of,
    refusal_of,
    spied_routes,
)
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer
from tests.support.node.running_node import RunningNode, running_node


class Place(NamedTuple):
    node: RunningNode
    tokens: dict[str, str]

    def send(self, route: Route, token: str | None) -> Answer:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.node.request(route.method, path_of(route), body_of(route), headers)

    def admin(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {self.tokens['admin']}"}
        answer = self.node.request(method, path, body, headers)
        assert answer.status < 300, answer
        return answer.json if answer.body else None


def routes_of(node: RunningNode) -> list[Route]:
    assert node.node.app is not None
    return list(node.node.app.router.routes)


def create(place: Place, name: str, *rules: str, **fields: Any) -> str:
    text: str = place.admin("POST", "/v1/tokens", {"name": name, "allow": rules, **fields})["token"]
    return text


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running_node(security={"auth": "tokens"}) as node:
        admin = (node.data_dir / "admin.token").read_text().strip()
        place = Place(node, {"admin": admin})
        for topic in (TOPIC, "orders.dlq", "other"):
            place.admin("POST", "/v1/topics", {"name": topic, "partitions": 1})
            place.admin("POST", f"/v1/topics/{topic}/messages", {"messages": [{"value": "v"}]})
        place.admin("POST", f"/v1/topics/{TOPIC}/groups/{GROUP}/receive", {})
        place.admin("PUT", "/v1/schedules/yearly", SCHEDULE)
        for verb in Verb:
            rule = f"{verb}:{'*' if verb in (Verb.OPERATE, Verb.ADMIN) else 'orders*'}"
            place.tokens[verb] = create(place, str(verb), rule)
        place.tokens["expired"] = create(place, "expired", "admin:*", expires="1h")
        node.clock.ahead_ms += 3_600_000
        revoked = create(place, "revoked", "admin:*")
        place.admin("DELETE", f"/v1/tokens/{revoked.split('_')[1]}")
        place.tokens["revoked"] = revoked
        place.tokens["wrong"] = revoked[:-4] + "AAAA"
        yield place


@pytest.fixture
def spy(place: Place) -> Iterator[Spy]:
    with spied_routes(routes_of(place.node)) as spy:
        yield spy


def test_each_route_asks_for_a_valid_token(place: Place, spy: Spy) -> None:
    for route in routes_of(place.node):
        for kind in (None, "wrong", "expired", "revoked"):
            token = None if kind is None else place.tokens[kind]
            answer = place.send(route, token)
            if route.path in OPEN:
                assert answer.status == 200, (route, kind)
            else:
                assert answer.status == 401, (route, kind, answer)
                assert answer.json["code"] == "unauthenticated"
                assert answer.headers["www-authenticate"] == "Bearer"
                assert token is None or token not in str(answer)
    assert set(spy.calls) == OPEN


def test_each_route_lets_through_the_verbs_that_it_declares_and_no_others(
    place: Place, spy: Spy
) -> None:
    for route in routes_of(place.node):
        for verb in Verb:
            spy.calls.clear()
            answer = place.send(route, place.tokens[verb])
            if verb in allowed_verbs(route):
                assert answer.status == 200, (route.method, route.path, verb, answer)
                assert spy.calls == [route.path]
            else:
                assert answer.status == refusal_of(route, verb), (route.path, verb, answer)
                assert spy.calls == []


def test_a_topic_of_others_answers_like_one_that_does_not_exist(place: Place, spy: Spy) -> None:
    renamed = VALUES | {"topic": "other", "id": "other:0:0"}
    missing = VALUES | {"topic": "absent", "id": "absent:0:0"}
    for route in routes_of(place.node):
        if (
            not isinstance(route.needs, TopicVerbs | SeesTopic)
            or route.path in ("/v1/topics", "/v1/audit")
            or route.path.startswith("/v1/schedules")  # tested with their own names
        ):
            continue
        for verb in (Verb.PUBLISH, Verb.CONSUME, Verb.READ, Verb.MANAGE):
            answers = []
            for values in (renamed, missing):
                headers = {"Authorization": f"Bearer {place.tokens[verb]}"}
                path, body = path_of(route, values), body_of(route)
                answers.append(place.node.request(route.method, path, body, headers))
            shown = [str(a.json).replace("other", "X").replace("absent", "X") for a in answers]
            assert [answer.status for answer in answers] == [404, 404], (route.path, verb)
            assert shown[0] == shown[1]
            assert answers[0].json["code"] == "topic_not_found"
    assert spy.calls == []


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_lists_show_what_the_sender_may_see(place: Place, method: str) -> None:
    token = create(place, "narrow", "read:oth*", "consume:orders/mine")
    headers = {"Authorization": f"Bearer {token}"}

    def get(path: str) -> Answer:
        return place.node.request(method, path, headers=headers)

    if method == "HEAD":
        assert get("/v1/topics").status == 200
        return
    assert {topic["name"] for topic in get("/v1/topics").json["topics"]} == {"orders", "other"}
    cluster = get("/v1/cluster").json
    assert {topic["name"] for topic in cluster["topics"]} == {"orders", "other"}
    assert get("/v1/cluster?topic=orders.dlq").json["topics"] == []
    assert get(f"/v1/topics/{TOPIC}/groups").json["groups"] == []
    metrics = get("/metrics").body.decode()
    assert 'topic="orders"' in metrics
    assert "orders.dlq" not in metrics
    assert GROUP not in metrics
    assert "process_cpu_seconds_total" in metrics


def dead_letter(place: Place, topic: str = "crossing") -> str:
    """Publish to a topic, reject the message, and return its id."""
    body = {"messages": [{"value": "v", "key": "k"}]}
    place.admin("POST", f"/v1/topics/{topic}/messages", body)
    group = f"/v1/topics/{topic}/groups/g"
    found = place.admin("POST", f"{group}/receive", {"wait": "20s"})["messages"][0]
    place.admin("POST", f"{group}/reject", {"receipts": [found["receipt"]], "reason": "bad"})
    return str(found["id"])


def test_what_crosses_topics_is_checked_at_both_ends(place: Place) -> None:
    place.admin("POST", "/v1/topics", {"name": "crossing", "partitions": 1})
    message = dead_letter(place)
    origin = create(place, "origin", "read:crossing", "manage:crossing")
    both = create(place, "both", "read:crossing*", "manage:crossing*")

    def ask(token: str, method: str, path: str, body: object = None) -> Answer:
        return place.node.request(method, path, body, {"Authorization": f"Bearer {token}"})

    def events(token: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(token, "GET", f"/v1/messages/{message}/trace").json[
            "events"
        ]
        return found

    eventually(lambda: any("to" in step for step in events(both)))
    assert "crossing.dlq" in json.dumps(events(both))
    assert "crossing.dlq" not in json.dumps(events(origin))
    found = ask(origin, "GET", "/v1/topics/crossing/trace?key=k").body.decode()
    assert "crossing.dlq" not in found
    for method, path in (("GET", "dead"), ("DELETE", "dead"), ("POST", "redrive")):
        body = {} if method == "POST" else None
        for name in ("crossing", "crossing.dlq"):
            answer = ask(origin, method, f"/v1/topics/{name}/{path}", body)
            assert answer.status == 404, answer
    peek = "/v1/topics/crossing/groups/g/peek"
    one_group = create(place, "one-group", "read:crossing/g")
    for token in (origin, one_group):
        assert ask(token, "GET", peek).status == 200
        for state in ("dead", "%64ead"):
            answer = ask(token, "GET", f"{peek}?state={state}")
            assert (answer.status, answer.json["code"]) == (404, "topic_not_found")
    with_dead = create(place, "with-dead", "read:crossing/g", "read:crossing.dlq")
    for token in (both, with_dead):
        assert ask(token, "GET", f"{peek}?state=dead").json["messages"][0]["key"] == "k"
    other_group = create(place, "other-group", "read:crossing/h", "read:crossing.dlq")
    assert ask(other_group, "GET", f"{peek}?state=dead").status == 403
    answer = ask(both, "POST", "/v1/topics/crossing/redrive", {"to": "other"})
    assert answer.status == 404
    assert ask(both, "GET", "/v1/topics/crossing/dead").status == 200
    assert ask(both, "POST", "/v1/topics/crossing/redrive", {}).json["redriven"] == 1


def test_a_trace_does_not_depend_on_what_its_reader_may_not_read(place: Place) -> None:
    for topic in ("own", "hidden"):
        place.admin("POST", "/v1/topics", {"name": topic, "partitions": 1})
    message = dead_letter(place, "own")  # one step of its trace leads to own.dlq
    reader = create(place, "reader", "read:own", "publish:own")
    headers = {"Authorization": f"Bearer {reader}"}

    def ask(path: str) -> Answer:
        return place.node.request("GET", path, headers=headers)

    def is_copied() -> bool:
        path = f"/v1/messages/{message}/trace"
        return "own.dlq" in str(place.admin("GET", path))

    eventually(is_copied)
    shown = ask(f"/v1/messages/{message}/trace").json
    assert shown["attempts"] == 1
    seen = len(shown["events"])
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(ask, f"/v1/messages/{message}/trace?seen={seen}&wait=30s")
        while not following.done():  # what is hidden does not count: it waits for the next step
            place.admin("POST", "/v1/topics/own/groups/next/receive", {})
        assert len(following.result().json["events"]) == seen + 1
    # Headers that name messages of another topic: the answer is the same if they exist or not.
    place.admin("POST", "/v1/topics/hidden/messages", {"messages": [{"value": "v"}] * 40})
    answers = []
    for first in (0, 1000):
        earlier = [
            {"id": f"hidden:0:{first + n}", "group": "g", "attempts": 1, "cause": "nacked",
             "time": "2025-01-15T10:30:00Z"}
            for n in range(10)
        ]  # fmt: skip
        forged = {
            "goq-dead-id": f"hidden:0:{first + 20}",
            "goq-dead-history": json.dumps({"earlier": earlier}),
        }
        body = {"messages": [{"value": "v", "headers": forged}]}
        (made,) = place.node.request("POST", "/v1/topics/own/messages", body, headers).json[
            "results"
        ]
        found = ask(f"/v1/messages/{made['id']}/trace").json
        answers.append((found["attempts"], found["incomplete"], len(found["events"])))
        assert "hidden" not in json.dumps(found["events"])
    assert answers[0] == answers[1]


def test_messages_of_schedules_are_shown_to_readers_and_managers_of_the_topic(
    place: Place,
) -> None:
    for verb in (Verb.PUBLISH, Verb.CONSUME, Verb.READ, Verb.MANAGE):
        headers = {"Authorization": f"Bearer {place.tokens[verb]}"}
        may_know = verb in (Verb.READ, Verb.MANAGE)
        listed = place.node.request("GET", "/v1/schedules", headers=headers).json["schedules"]
        assert [each["name"] for each in listed] == (["yearly"] if may_know else [])
        shown = place.node.request("GET", "/v1/schedules/yearly", headers=headers)
        assert shown.status == (200 if may_know else 404)


def test_the_name_of_a_hidden_schedule_is_refused_without_a_word_about_it(place: Place) -> None:
    token = create(place, "another-team", "manage:other", "publish:other", "read:other")
    headers = {"Authorization": f"Bearer {token}"}
    path, body = "/v1/schedules/yearly", {**SCHEDULE, "topic": "other"}
    answer = place.node.request("PUT", path, body, headers)
    assert (answer.status, answer.json["code"]) == (403, "not_allowed")
    for hidden in ("yearly", TOPIC, "another schedule"):
        assert hidden not in answer.json["detail"]
    seeing = create(place, "both-teams", "manage:other", "publish:other", "read:orders")
    headers = {"Authorization": f"Bearer {seeing}"}
    assert place.node.request("PUT", path, body, headers).status == 409
    assert place.admin("GET", path)["topic"] == TOPIC


def test_dead_letters_in_a_topic_of_choice_need_a_rule_for_it(place: Place) -> None:
    for topic in ("shared", "mine"):
        place.admin("POST", "/v1/topics", {"name": topic, "partitions": 1})
    settings = {"settings": {"dead_letters.topic": "shared"}}
    place.admin("PATCH", "/v1/topics/mine", settings)
    message = dead_letter(place, "mine")
    without = create(place, "without", "read:mine*", "manage:mine*")
    seeing = create(place, "seeing", "read:mine*", "manage:mine*", "publish:shared")
    both = create(place, "with", "read:mine*", "manage:mine*", "read:shared", "manage:shared")

    def ask(token: str, method: str, path: str) -> Answer:
        headers = {"Authorization": f"Bearer {token}"}
        body = {} if method == "POST" else None
        return place.node.request(method, f"/v1/topics/mine/{path}", body, headers)

    eventually(lambda: bool(ask(both, "GET", "dead").json["messages"]))
    peek = "groups/g/peek?state=dead"
    for method, path in (("GET", "dead"), ("DELETE", "dead"), ("POST", "redrive"), ("GET", peek)):
        answer = ask(without, method, path)
        assert (answer.status, "shared" in answer.body.decode()) == (404, True)
        assert ask(seeing, method, path).status == 403
    (peeked,) = ask(both, "GET", peek).json["messages"]
    assert peeked["key"] == "k"
    (letter,) = ask(both, "GET", "dead").json["messages"]
    assert letter["origin"] == message
    assert ask(both, "POST", "redrive").json["redriven"] == 1


def test_a_request_that_claims_to_be_relayed_is_refused(place: Place, spy: Spy) -> None:
    for value in ("admin@node-1", place.tokens["read"].split("_")[1], ""):
        headers = {"goq-internal-principal": value, "Authorization": f"Bearer {value}"}
        answer = place.node.request("GET", "/v1/tokens", headers=headers)
        assert answer.status == 403
    assert spy.calls == []


def test_a_route_without_a_declaration_is_refused() -> None:
    with pytest.raises(ValueError, match="does not declare"):
        Route("GET", "/v1/new", lambda _request: Response(200), "New")


def test_dead_letters_go_only_where_the_sender_may_publish(place: Place) -> None:
    allowed = create(place, "both", "manage:orders*", "publish:other")
    body = {"settings": {"dead_letters.topic": "other"}}
    answers = [
        place.node.request(
            method, path, {"name": "orders.more", **body} if method == "POST" else body, headers
        )
        for headers in (
            {"Authorization": f"Bearer {token}"} for token in (place.tokens["manage"], allowed)
        )
        for method, path in (("PATCH", f"/v1/topics/{TOPIC}"), ("POST", "/v1/topics"))
    ]
    assert [answer.status for answer in answers] == [403, 403, 200, 201]
    settings = place.admin("GET", f"/v1/topics/{TOPIC}")["settings"]
    assert settings["dead_letters.topic"] == "other"
    place.admin("PATCH", f"/v1/topics/{TOPIC}", {"unset": ["dead_letters.topic"]})
    settings = place.admin("GET", f"/v1/topics/{TOPIC}")["settings"]
    assert "dead_letters.topic" not in settings


def test_dead_letters_of_a_restored_topic_go_only_where_the_sender_may_publish(
    tmp_path: Path,
) -> None:
    backups = {"to": str(tmp_path / "place")}
    with running_node(tmp_path / "data", security={"auth": "tokens"}, backup=backups) as node:
        token = (node.data_dir / "admin.token").read_text().strip()
        place = Place(node, {"admin": token})
        for topic in ("plain", "orders", "other"):
            place.admin("PUT", f"/v1/topics/{topic}")
        body = {"settings": {"dead_letters.topic": "other"}}
        place.admin("PATCH", "/v1/topics/orders", body)
        place.admin("POST", "/v1/backups", {})
        eventually(lambda: "last" in place.admin("GET", "/v1/backups"))
        rules = ("operate:*", "read:orders", "read:plain", "manage:old")
        mine = {"Authorization": f"Bearer {create(place, 'mine', *rules)}"}

        def restore(topic: str, **fields: Any) -> Answer:
            order = {"topic": topic, "as": "old", **fields}
            return node.request("POST", "/v1/restores", order, mine)

        assert restore("plain", **body).status == 403
        nested = {"settings": {"dead_letters": {"topic": "other"}}}
        assert restore("plain", **nested).status == 403
        assert restore("plain", settings={"dead_letters.topic": "old"}).status == 400
        assert restore("orders").status == 202, "what the backup has is not known yet"
        eventually(lambda: "last" in place.admin("GET", "/v1/restores"))
        assert "needs publish:other" in place.admin("GET", "/v1/restores")["last"]["failure"]
        assert "old" not in {each["name"] for each in place.admin("GET", "/v1/topics")["topics"]}
        elsewhere = {"settings": {"dead_letters.topic": "none"}}
        number = restore("orders", **elsewhere).json["number"]
        eventually(lambda: place.admin("GET", "/v1/restores")["last"]["number"] == number)
        assert "dead_letters.topic" not in place.admin("GET", "/v1/topics/old")["settings"]
