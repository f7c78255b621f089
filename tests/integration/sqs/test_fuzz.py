"""Garbage of both protocols: always an error of the protocol, never an internal one."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goq.sqs.protocol import shapes
from tests.support.client.sqs_client import json_request, raw_request
from tests.support.node.running_node import RunningNode

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
OPERATIONS = [
    "CreateQueue",
    "GetQueueUrl",
    "ListQueues",
    "GetQueueAttributes",
    "SetQueueAttributes",
    "SendMessage",
    "SendMessageBatch",
    "ReceiveMessage",
    "DeleteMessage",
    "DeleteMessageBatch",
    "ChangeMessageVisibility",
    "ChangeMessageVisibilityBatch",
    "TagQueue",
    "UntagQueue",
    "ListQueueTags",
    "ListDeadLetterSourceQueues",
    "PurgeQueue",
    "DeleteQueue",
    "StartMessageMoveTask",
    "ListMessageMoveTasks",
    "CancelMessageMoveTask",
    "AddPermission",
    "RemovePermission",
]
MEMBERS = sorted(
    {
        field.encode_name
        for shape in vars(shapes).values()
        if isinstance(shape, type) and issubclass(shape, shapes.Shape)
        for field in msgspec.structs.fields(shape)
    }
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from(["fuzz", "All", "String", "0", "1" * 5000, "/w=="]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
INPUTS = st.dictionaries(st.sampled_from(MEMBERS), VALUES, max_size=6)
NAMES = st.lists(
    st.sampled_from(
        [*MEMBERS, "Attribute", "Tag", "MessageAttribute", "SendMessageBatchRequestEntry"]
    )
    | st.sampled_from(["1", "2", "0", "Name", "Key", "Value", "99999", "²", ""]),
    min_size=1,
    max_size=5,
).map(".".join)
FORMS = st.dictionaries(NAMES, st.text(max_size=20) | st.sampled_from(["fuzz", "5"]), max_size=8)
GARBAGE = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def fuzzed(node: RunningNode, url: str) -> str:
    json_request(url, "CreateQueue", {"QueueName": "fuzz"})
    return url


@GARBAGE
@given(operation=st.sampled_from(OPERATIONS), content=INPUTS)
def test_any_json_gets_an_answer_of_the_protocol(
    fuzzed: str, operation: str, content: dict[str, Any]
) -> None:
    given = {"QueueUrl": "fuzz", **content, "WaitTimeSeconds": 0}
    answer = json_request(fuzzed, operation, json.dumps(given).encode())
    assert answer.status in (200, 400), answer.body
    assert answer.status == 200 or answer.json["__type"]


@GARBAGE
@given(operation=st.sampled_from(OPERATIONS), content=st.binary(max_size=60))
def test_any_bytes_get_an_answer_of_the_protocol(
    fuzzed: str, operation: str, content: bytes
) -> None:
    assert json_request(fuzzed, operation, content).status in (200, 400)
    assert raw_request(fuzzed, content, FORM).status == 400


@GARBAGE
@given(operation=st.sampled_from(OPERATIONS), content=FORMS)
def test_any_form_gets_an_answer_of_the_protocol(
    fuzzed: str, operation: str, content: dict[str, str]
) -> None:
    given = {"QueueUrl": "fuzz", **content, "WaitTimeSeconds": "0", "Action": operation}
    answer = raw_request(fuzzed, urlencode(given).encode(), FORM)
    assert answer.status in (200, 400), answer.body
    assert answer.body.startswith(b"<?xml")
