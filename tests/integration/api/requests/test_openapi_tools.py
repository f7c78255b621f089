"""Tools of others read the description, and find the node's answers as it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.support.api.calls import publish, receive
from tests.support.api.generated_requests import check_generated_requests
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode


@pytest.fixture
def document(node: RunningNode) -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", "/openapi.json")
    return found


@pytest.fixture
def paths(node: RunningNode, topic: str) -> dict[str, str]:
    """Make something of everything; return each described path of a GET with what it shows."""
    later = {"messages": [{"value": "later", "delay": "1h", "key": "k", "tenant": "t"}]}
    node.call("POST", f"/v1/topics/{topic}/messages", later)
    headers = [{"name": "n", "value_base64": "/w=="}]
    publish(node, topic, "a", "b", "c", key="k", headers=headers)
    ordered = f"/v1/topics/{topic}/groups/ordered"
    node.call("PUT", ordered, {"settings": {"ordering": "partition"}})
    node.call("POST", f"{ordered}/members", {"consumer": "one"})
    group = f"/v1/topics/{topic}/groups/g"
    (bad, *_) = receive(node, topic)
    node.call("POST", f"{group}/reject", {"receipts": [bad["receipt"]], "reason": "bad"})
    dead = f"/v1/topics/{topic}/dead"
    eventually(lambda: node.call("GET", dead)["messages"])
    messages = [{"value": "v", "headers": {"a": "b"}}]
    yearly = {"topic": topic, "every": "366d", "messages": messages}
    node.call("PUT", f"/v1/schedules/{topic}", yearly)
    return {
        "/v1/topics": "/v1/topics",
        "/v1/topics/{topic}": f"/v1/topics/{topic}",
        "/v1/topics/{topic}/messages": f"/v1/topics/{topic}/messages?partition=0",
        "/v1/topics/{topic}/events": f"/v1/topics/{topic}/events?partition=0",
        "/v1/topics/{topic}/history": f"/v1/topics/{topic}/history",
        "/v1/topics/{topic}/scheduled": f"/v1/topics/{topic}/scheduled",
        "/v1/topics/{topic}/trace": f"/v1/topics/{topic}/trace?key=k",
        "/v1/topics/{topic}/search": f"/v1/topics/{topic}/search?text=v",
        "/v1/topics/{topic}/dead": dead,
        "/v1/topics/{topic}/groups": f"/v1/topics/{topic}/groups",
        "/v1/topics/{topic}/groups/{group}": group,
        "/v1/topics/{topic}/groups/{group}/members": f"{ordered}/members",
        "/v1/topics/{topic}/groups/{group}/peek": f"{group}/peek?state=leased",
        "/v1/schedules": "/v1/schedules",
        "/v1/schedules/{schedule}": f"/v1/schedules/{topic}",
        "/v1/messages/{id}": f"/v1/messages/{bad['id']}",
        "/v1/messages/{id}/trace": f"/v1/messages/{bad['id']}/trace",
        "/v1/cluster": "/v1/cluster",
    }


def test_the_description_is_valid_openapi_3_1(document: dict[str, Any]) -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_a_description_with_a_wrong_schema_is_not_valid(document: dict[str, Any]) -> None:
    document["components"]["schemas"]["TopicOut"]["properties"]["name"]["type"] = "text"
    assert list(OpenAPIV31SpecValidator(document).iter_errors())


def test_answers_with_data_are_as_described(
    node: RunningNode, document: dict[str, Any], paths: dict[str, str]
) -> None:
    checked = 0
    for path, asked in paths.items():
        described = document["paths"][path]["get"]["responses"]["200"]["content"]
        schema = {**described["application/json"]["schema"], "components": document["components"]}
        answer = node.call("GET", asked)
        validator = jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        assert [f"{path}: {error.message}" for error in validator.iter_errors(answer)] == []
        checked += any(answer.values())
    assert checked == len(paths)
    shown = {path for path, of in document["paths"].items() if "get" in of and "{" in path}
    assert shown - paths.keys() == {"/v1/topics/{topic}/producers/{producer_id}"}


def test_generated_requests_are_answered_as_described(
    node: RunningNode, paths: dict[str, str], tmp_path: Path
) -> None:
    assert paths
    check_generated_requests(node, tmp_path, "--phases", "fuzzing", "--max-examples", "4")


@pytest.mark.long
def test_many_generated_requests_are_answered_as_described(
    node: RunningNode, paths: dict[str, str], tmp_path: Path
) -> None:
    assert paths
    check_generated_requests(
        node, tmp_path, "--phases", "coverage,fuzzing", "--max-examples", "100"
    )
