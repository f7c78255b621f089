"""No JSON, no path and no query makes the node fail: it answers, and never with a 5xx."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goq.api.route import Route
from tests.support.node.running_node import RunningNode

SETTINGS = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
WORDS = st.sampled_from(
    ["", "earliest", "latest", "now", "-15m", "1s", "0", "none", "x", "0:1:0", "0:1:0+3", "é", "\0"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | WORDS
)
FIELDS = [
    "name",
    "partitions",
    "settings",
    "messages",
    "value",
    "value_base64",
    "key",
    "key_base64",
    "headers",
    "partition",
    "max_messages",
    "max_in_flight",
    "wait",
    "visibility",
    "consumer",
    "receipts",
    "delay",
    "reason",
    "to",
    "dry_run",
    "retention",
    "age",
    "fsync",
]
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=8,
)


def bodies(route: Route) -> st.SearchStrategy[Any]:
    """Objects with the route's own fields, of any value, some of them without wait."""
    assert route.body is not None
    names = [name for name in route.body.__struct_fields__ if name != "wait"]
    likely = st.fixed_dictionaries({}, optional=dict.fromkeys(names, VALUES))
    return likely | VALUES


def routes(node: RunningNode) -> list[Route]:
    assert node.node.app is not None
    return [route for route in node.node.app.router.routes if route.body is not None]


def test_any_json_is_answered_on_every_route_that_takes_some(node: RunningNode, topic: str) -> None:
    for route in routes(node):
        path = route.path.replace("{topic}", topic).replace("{group}", "g")
        _answers_any_json(node, route, path)


def _answers_any_json(node: RunningNode, route: Route, path: str) -> None:
    @SETTINGS
    @given(body=bodies(route))
    def answers(body: Any) -> None:
        if isinstance(body, dict):
            body.pop("wait", None)
            if body.get("stream") is True:  # an answer without an end
                del body["stream"]
            if body.get("partitions"):
                body["partitions"] = _small(body["partitions"])
        answer = node.request(route.method, path, json.dumps(body).encode())
        assert answer.status < 500, (answer, body)
        if answer.status >= 400:
            assert answer.json["code"]

    answers()


def _small(count: Any) -> Any:
    """As hostile as before, without a thousand folders."""
    return count % 3 if isinstance(count, int) else count


@SETTINGS
@given(
    steps=st.lists(
        st.text(max_size=10) | st.sampled_from(["v1", "topics", "messages"]), max_size=5
    ),
    query=st.dictionaries(
        st.sampled_from(["partition", "offset", "from_time", "to_time", "limit", "state", "after"]),
        st.text(max_size=10) | st.integers().map(str) | WORDS,
        max_size=4,
    ),
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_any_path_and_query_is_answered(
    node: RunningNode, method: str, steps: list[str], query: dict[str, str]
) -> None:
    path = "/" + "/".join(quote(step, safe="") for step in steps)
    pairs = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    assert node.request(method, f"{path}?{pairs}").status < 500


@SETTINGS
@given(
    query=st.dictionaries(
        st.sampled_from(["partition", "offset", "from_time", "to_time", "limit"]),
        st.integers(-2, 5).map(str) | st.text(max_size=10) | st.integers().map(str) | WORDS,
        max_size=5,
    )
)
def test_any_query_reads_or_is_refused(
    node: RunningNode, topic: str, query: dict[str, str]
) -> None:
    pairs = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    answer = node.request("GET", f"/v1/topics/{topic}/messages?partition=0&{pairs}")
    assert answer.status in (200, 400, 404)


@SETTINGS
@given(body=st.binary(max_size=200))
def test_any_bytes_as_frames_are_refused(node: RunningNode, topic: str, body: bytes) -> None:
    headers = {"Content-Type": "application/vnd.goq.frames"}
    assert node.request("POST", f"/v1/topics/{topic}/messages", body, headers).status == 400
