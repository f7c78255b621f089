"""Permissions: statements of the policy of a queue."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.client.sqs_client import raw_request

ACCOUNT = "123456789012"


def statements(sqs: Any, queue: str) -> list[dict[str, Any]]:
    shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"])
    text = shown.get("Attributes", {}).get("Policy")
    return [] if text is None else list(json.loads(text)["Statement"])


def add(sqs: Any, queue: str, label: str, **changed: list[str]) -> None:
    asked = {"AWSAccountIds": [ACCOUNT], "Actions": ["SendMessage"], **changed}
    sqs.add_permission(QueueUrl=queue, Label=label, **asked)


def refused(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def test_a_permission_is_a_statement_of_the_policy_until_it_is_removed(
    sqs: Any, queue: str, name: str
) -> None:
    add(sqs, queue, "a", Actions=["SendMessage", "ReceiveMessage"])
    add(sqs, queue, "b", Actions=["*"])
    sqs.tag_queue(QueueUrl=queue, Tags={"k": "v"})
    first, second = statements(sqs, queue)
    assert first == {
        "Sid": "a",
        "Effect": "Allow",
        "Principal": {"AWS": [f"arn:aws:iam::{ACCOUNT}:root"]},
        "Action": ["SQS:SendMessage", "SQS:ReceiveMessage"],
        "Resource": f"arn:aws:sqs:us-east-1:000000000000:{name}",
    }
    assert (second["Sid"], second["Action"]) == ("b", ["SQS:*"])
    sqs.remove_permission(QueueUrl=queue, Label="a")
    assert [each["Sid"] for each in statements(sqs, queue)] == ["b"]
    sqs.remove_permission(QueueUrl=queue, Label="b")
    assert statements(sqs, queue) == []
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"k": "v"}


def test_a_permission_joins_a_policy_that_was_set(sqs: Any, queue: str) -> None:
    own = {"Sid": "own", "Effect": "Deny"}
    policy = {"Id": "mine", "Statement": own}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": json.dumps(policy)})
    add(sqs, queue, "a")
    assert [each["Sid"] for each in statements(sqs, queue)] == ["own", "a"]
    shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"])
    assert json.loads(shown["Attributes"]["Policy"])["Id"] == "mine"
    sqs.remove_permission(QueueUrl=queue, Label="a")
    assert statements(sqs, queue) == [own]


def test_a_label_is_used_once_and_only_one_that_exists_is_removed(sqs: Any, queue: str) -> None:
    add(sqs, queue, "a")
    with pytest.raises(ClientError, match="Already exists") as error:
        add(sqs, queue, "a")
    assert refused(error) == "InvalidParameterValue"
    with pytest.raises(ClientError, match="can't find label") as error:
        sqs.remove_permission(QueueUrl=queue, Label="b")
    assert refused(error) == "InvalidParameterValue"
    assert len(statements(sqs, queue)) == 1


@pytest.mark.parametrize(
    ("label", "changed", "code"),
    [
        ("x" * 80, {}, None),
        ("x" * 81, {}, "InvalidParameterValue"),
        ("a b", {}, "InvalidParameterValue"),
        ("a", {"AWSAccountIds": ["12345678901"]}, "InvalidParameterValue"),
        ("a", {"AWSAccountIds": []}, "MissingParameter"),
        ("a", {"Actions": []}, "MissingParameter"),
        ("a", {"Actions": ["CreateQueue"]}, "InvalidParameterValue"),
        ("a", {"Actions": ["SendMessage"] * 7}, None),
        ("a", {"Actions": ["SendMessage"] * 8}, "OverLimit"),
    ],
)
def test_a_permission_has_bounds(
    sqs: Any, queue: str, label: str, changed: dict[str, list[str]], code: str | None
) -> None:
    if code is None:
        add(sqs, queue, label, **changed)
        assert [each["Sid"] for each in statements(sqs, queue)] == [label]
        return
    with pytest.raises(ClientError) as error:
        add(sqs, queue, label, **changed)
    assert refused(error) == code
    assert statements(sqs, queue) == []


def test_a_policy_has_at_most_20_statements_and_16_kib(sqs: Any, queue: str) -> None:
    for number in range(20):
        add(sqs, queue, str(number))
    with pytest.raises(ClientError) as error:
        add(sqs, queue, "20")
    assert refused(error) == "OverLimit"
    policy = json.dumps({"Statement": [{"Sid": "x" * 16_000}]})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy})
    with pytest.raises(ClientError) as error:
        add(sqs, queue, "a", AWSAccountIds=[ACCOUNT] * 20)
    assert refused(error) == "OverLimit"
    assert len(statements(sqs, queue)) == 1


def test_permissions_work_in_the_query_protocol(sqs: Any, url: str, queue: str) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = f"Action=AddPermission&QueueUrl={queue}&Label=a&AWSAccountId.1={ACCOUNT}&ActionName.1=*"
    answer = raw_request(url, body.encode(), form)
    assert answer.status == 200, answer
    assert statements(sqs, queue)[0]["Action"] == ["SQS:*"]
    body = f"Action=RemovePermission&QueueUrl={queue}&Label=a"
    answer = raw_request(url, body.encode(), form)
    assert answer.status == 200, answer
    assert statements(sqs, queue) == []
