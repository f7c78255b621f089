"""What the API says of itself, and what the docs say of it, is what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from goq.api.openapi import error_codes
from goq.api.route import Route
from goq.errors import BY_CODE
from tests.support.api.calls import publish, receive
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode
from tests.support.paths import DOCS

NOT_YET = [("GET", "/v1/transactions")]


@pytest.fixture
def document(node: RunningNode) -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", "/openapi.json")
    return found


def routes(node: RunningNode) -> list[Route]:
    assert node.node.app is not None
    return list(node.node.app.router.routes)


def every(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from every(inner)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_every_route_is_described_and_nothing_else(
    node: RunningNode, document: dict[str, Any]
) -> None:
    assert document["openapi"] == "3.1.0"
    described = sorted((method, path) for method, path, _ in operations(document))
    assert described == sorted((route.method, route.path) for route in routes(node))


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    references = [part["$ref"] for part in every(document) if "$ref" in part]
    assert references
    for reference in references:
        place: Any = document
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


def test_every_operation_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in names)


def test_every_operation_says_what_it_takes_and_gives(
    node: RunningNode, document: dict[str, Any]
) -> None:
    by_place = {(route.method, route.path): route for route in routes(node)}
    for method, path, operation in operations(document):
        route = by_place[method, path]
        assert operation["summary"]
        in_path = [p["name"] for p in operation["parameters"] if p["in"] == "path"]
        assert in_path == re.findall(r"\{(\w+)\}", path)
        assert ("requestBody" in operation) == (route.body is not None)
        if route.body is not None:
            content = operation["requestBody"]["content"]
            assert content["application/json"]["schema"]
            assert ("application/vnd.goq.frames" in content) == route.takes_frames
        done = operation["responses"][str(route.status)]
        assert ("content" in done) == (route.status != 204)
        assert ("application/vnd.goq.frames" in done.get("content", {})) == route.gives_frames
        for code in error_codes(route):
            answer = operation["responses"][str(BY_CODE[code].http_status)]
            assert code in answer["description"]
            assert "application/problem+json" in answer["content"]


def test_every_field_of_a_message_is_described(document: dict[str, Any]) -> None:
    message = document["components"]["schemas"]["NewMessage"]
    assert set(message["properties"]) == {
        "value",
        "value_base64",
        "key",
        "key_base64",
        "headers",
        "partition",
        "priority",
        "delay",
        "deliver_at",
        "ttl",
        "tenant",
        "dedup_id",
    }
    assert message["additionalProperties"] is False


def test_the_page_lists_every_route(node: RunningNode) -> None:
    answer = node.request("GET", "/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = answer.body.decode()
    assert all(f"<code>{route.path}</code>" in page for route in routes(node))
    assert "http://" not in page
    assert "https://" not in page


@pytest.mark.parametrize(("method", "path"), NOT_YET)
def test_a_route_that_is_not_there_yet_is_not_there(
    node: RunningNode, method: str, path: str
) -> None:
    answer = node.request(method, path)
    assert (answer.status, answer.json["code"]) == (404, "route_not_found")


ONLY_WITH_A_STORE = (
    "goq_archive_cached_bytes",
    "goq_archive_store_damaged_total",
    "goq_archive_store_failures_total",
    "goq_archive_waiting_bytes",
)


def test_every_metric_is_documented_and_every_documented_one_is_there(
    node: RunningNode, topic: str
) -> None:
    publish(node, topic, "x")
    receive(node, topic)
    text = node.request("GET", "/metrics").body.decode()
    exposed = {line.split()[2]: line.split()[3] for line in text.splitlines() if "# TYPE" in line}
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    documented = dict(rows)
    assert len(documented) == len(rows)
    for name in ONLY_WITH_A_STORE:
        del documented[name]
    assert documented == exposed


def test_the_metrics_count_what_happened(node: RunningNode, topic: str) -> None:
    publish(node, topic, "a", "b", partition=0)
    (first, _) = receive(node, topic)
    node.call("POST", f"/v1/topics/{topic}/groups/g/ack", {"receipts": [first["receipt"]]})
    text = node.request("GET", "/metrics").body.decode()
    for line in (
        f'goq_published_messages_total{{topic="{topic}"}} 2.0',
        f'goq_delivered_messages_total{{topic="{topic}"}} 2.0',
        f'goq_acked_messages_total{{topic="{topic}"}} 1.0',
        f'goq_partition_end_offset{{partition="0",topic="{topic}"}} 2.0',
        f'goq_partition_online{{partition="0",topic="{topic}"}} 1.0',
        f'goq_group_lag_messages{{group="g",topic="{topic}"}} 1.0',
        f'goq_group_leased_messages{{group="g",topic="{topic}"}} 1.0',
    ):
        assert line in text
    eventually(lambda: b"goq_http_connections 1.0" in node.request("GET", "/metrics").body)


def test_routes_are_counted_by_their_pattern_and_not_by_what_was_asked(node: RunningNode) -> None:
    for name in ("one", "two", "three"):
        node.request("GET", f"/v1/topics/no-such-{name}")
        node.request("GET", f"/nowhere/{name}")
    text = node.request("GET", "/metrics").body.decode()
    assert 'method="GET",route="/v1/topics/{topic}",status="404"' in text
    assert 'method="GET",route="(none)",status="404"' in text
    assert "no-such" not in text
    assert "nowhere" not in text


def test_every_error_is_documented_with_what_a_program_needs_to_know() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\d+) \| (\d+) \| (yes|no) \| (no|unknown) \| (.+) \|$",
        (DOCS / "errors.md").read_text(),
        re.MULTILINE,
    )
    documented = {row[0]: (int(row[1]), int(row[2]), row[3]) for row in rows}
    assert documented == {
        code: (error.http_status, error.exit_code, "yes" if error.retryable else "no")
        for code, error in BY_CODE.items()
    }
    assert len(rows) == len(documented)
    assert {row[0] for row in rows if row[4] == "unknown"} == {"timed_out", "internal"}
    assert all(len(advice) > 20 for *_, advice in rows)
