"""Signatures: key pairs of tokens, their rules, and requests that were changed or are old."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from goq.access.aws_key import aws_secret_of
from goq.access.token_record import digest_of
from tests.support.client.sqs_client import RawAnswer, raw_request, sqs_client
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node

FORM = "application/x-www-form-urlencoded"
JSON = "application/x-amz-json-1.0"


class Place(NamedTuple):
    """A node that asks for tokens, and serves the endpoint."""

    node: RunningNode

    @property
    def url(self) -> str:
        return self.node.node.sqs_url or ""

    def admin(self, method: str, path: str, body: object = None) -> Any:
        token = (self.node.data_dir / "admin.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        answer = self.node.request(method, path, body, headers)
        assert answer.status < 300, answer
        return answer.json if answer.body else None

    def create(self, *rules: str, **fields: Any) -> tuple[str, str]:
        """Return the key pair of a new token."""
        body = {"name": "shop", "allow": rules, "aws": True, **fields}
        made = self.admin("POST", "/v1/tokens", body)
        return made["aws_access_key_id"], made["aws_secret_access_key"]

    @contextmanager
    def client(self, pair: tuple[str, str]) -> Iterator[Any]:
        with sqs_client(self.url, key_id=pair[0], secret=pair[1]) as client:
            yield client

    def signed(
        self,
        pair: tuple[str, str],
        body: bytes = b"{}",
        content_type: str = JSON,
        host: str | None = None,
    ) -> dict[str, str]:
        """Return the headers of a signed request."""
        url = self.url if host is None else f"http://{host}"
        headers = {"Content-Type": content_type}
        if content_type == JSON:
            headers["X-Amz-Target"] = "AmazonSQS.ListQueues"
        request = AWSRequest("POST", f"{url}/", headers, body)
        SigV4Auth(Credentials(*pair), "sqs", "us-east-1").add_auth(request)
        return {**dict(request.headers), "Host": urlsplit(url).netloc}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    settings = {"listen": "127.0.0.1:0", "hosts": ["queues.example.com"]}
    with running_node(security={"auth": "tokens"}, sqs=settings) as node:
        yield Place(node)


@pytest.fixture(scope="module")
def pair(place: Place) -> tuple[str, str]:
    """The key pair of a token that may do everything."""
    return place.create("publish:*", "consume:*", "manage:*", "read:*")


def code(answer: RawAnswer) -> tuple[int, str]:
    return answer.status, answer.code


def code_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[int, str]:
    response = error.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def test_an_sdk_with_the_key_pair_of_a_token_does_what_its_rules_allow(
    place: Place, pair: tuple[str, str]
) -> None:
    with place.client(pair) as sqs:
        queue = sqs.create_queue(QueueName="all")["QueueUrl"]
        sqs.send_message(QueueUrl=queue, MessageBody="x")
        (message,) = sqs.receive_message(QueueUrl=queue, AttributeNames=["All"])["Messages"]
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
        sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])


def test_a_move_task_does_what_the_rules_of_its_sender_allow(
    place: Place, pair: tuple[str, str]
) -> None:
    source, target = (f"arn:aws:sqs:us-east-1:000000000000:{name}" for name in ("dead", "origin"))
    asked = {"SourceArn": source, "DestinationArn": target}

    def ended() -> dict[str, Any]:
        with place.client(pair) as sqs:

            def task() -> dict[str, Any]:
                return dict(sqs.list_message_move_tasks(SourceArn=source)["Results"][0])

            eventually(lambda: task()["Status"] != "RUNNING", seconds=30)
            return task()

    with place.client(pair) as sqs:
        sqs.create_queue(QueueName="dead")
        policy = json.dumps({"deadLetterTargetArn": source, "maxReceiveCount": 1})
        sqs.create_queue(QueueName="origin", Attributes={"RedrivePolicy": policy})
        sqs.send_message(QueueUrl="dead", MessageBody="x")
    consuming = ("consume:dead/sqs", "read:origin")
    with place.client(place.create(*consuming, "manage:origin", name="not-the-source")) as sqs:
        with pytest.raises(ClientError) as refused:
            sqs.start_message_move_task(**asked)
        assert code_of(refused) == (403, "AccessDenied")
    rules = (*consuming, "manage:dead*", "publish:origin")
    with place.client(place.create(*rules, name="not-the-target")) as sqs:
        sqs.start_message_move_task(**asked)
        task = ended()
        assert (task["Status"], task["FailureReason"][:12]) == ("FAILED", "AccessDenied")
        assert task["ApproximateNumberOfMessagesMoved"] == 0
    rules = ("consume:dead/sqs", "manage:dead*", "manage:origin")
    with place.client(place.create(*rules, name="mover")) as sqs:
        sqs.start_message_move_task(**asked)
        task = ended()
        assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 1)


def test_a_rule_bounds_what_an_sdk_may_do(place: Place, pair: tuple[str, str]) -> None:
    with place.client(pair) as sqs:
        for name in ("mine", "other"):
            sqs.create_queue(QueueName=name)
    with place.client(place.create("publish:mine")) as sqs:
        sqs.send_message(QueueUrl="mine", MessageBody="x")
        assert [url.rpartition("/")[2] for url in sqs.list_queues()["QueueUrls"]] == ["mine"]
        for call in (
            lambda: sqs.receive_message(QueueUrl="mine"),
            lambda: sqs.purge_queue(QueueUrl="mine"),
            lambda: sqs.delete_queue(QueueUrl="mine"),
            lambda: sqs.set_queue_attributes(QueueUrl="mine", Attributes={"DelaySeconds": "1"}),
            lambda: sqs.create_queue(QueueName="new"),
        ):
            with pytest.raises(ClientError) as refused:
                call()
            assert code_of(refused) == (403, "AccessDenied")
        for name in ("other", "none"):
            with pytest.raises(sqs.exceptions.QueueDoesNotExist):
                sqs.send_message(QueueUrl=name, MessageBody="x")


@pytest.mark.parametrize("rule", ["consume:{}/sqs", "read:{}", "manage:{}"])
def test_who_may_see_the_counts_of_a_queue_sees_them_before_the_first_receive(
    place: Place, rule: str
) -> None:
    name = f"unread-{rule[:4]}"
    place.admin("POST", "/v1/topics", {"name": name})
    place.admin("POST", f"/v1/topics/{name}/messages", {"messages": [{"value": "x"}]})
    with place.client(place.create(rule.format(name))) as sqs:
        asked = ["ApproximateNumberOfMessages"]
        shown = sqs.get_queue_attributes(QueueUrl=name, AttributeNames=asked)["Attributes"]
    assert shown == {asked[0]: "1"}
    with place.client(place.create(f"publish:{name}")) as sqs:
        with pytest.raises(ClientError) as refused:
            sqs.get_queue_attributes(QueueUrl=name, AttributeNames=asked)
        assert code_of(refused) == (403, "AccessDenied")


def test_a_key_pair_that_is_wrong_is_refused(place: Place, pair: tuple[str, str]) -> None:
    plain = place.admin("POST", "/v1/tokens", {"name": "plain", "allow": ["publish:*"]})
    secret = plain["token"].split("_", 2)[2]
    derived = aws_secret_of(digest_of(secret))
    for wrong, expected in {
        (pair[0], "wrong"): "SignatureDoesNotMatch",
        ("nobody11", pair[1]): "InvalidClientTokenId",
        (plain["id"], derived): "InvalidClientTokenId",
    }.items():
        with place.client(wrong) as sqs, pytest.raises(ClientError) as refused:
            sqs.list_queues()
        assert code_of(refused) == (403, expected)


def test_the_text_of_a_token_and_no_signature_at_all_are_refused(place: Place) -> None:
    target = {"X-Amz-Target": "AmazonSQS.ListQueues"}
    assert code(raw_request(place.url, b"{}", target)) == (403, "MissingAuthenticationToken")
    token = (place.node.data_dir / "admin.token").read_text().strip()
    bearer = {**target, "Authorization": f"Bearer {token}"}
    assert code(raw_request(place.url, b"{}", bearer)) == (400, "IncompleteSignature")


def test_a_refused_signature_is_in_the_audit_trail(place: Place, pair: tuple[str, str]) -> None:
    app = place.node.node.app
    assert app is not None
    assert app.audit is not None
    trail = app.audit

    def record() -> Any:
        return place.admin("GET", "/v1/audit?limit=1000")["records"][-1]

    for body in (b"{}", b" " * 100_000):  # with its head, and refused before it is read
        place.node.on_loop(lambda: trail._record_counts(float("inf")))
        before = record()["request"]
        answer = raw_request(place.url, body, place.signed(("nobody11", pair[1]), body))
        assert code(answer) == (403, "InvalidClientTokenId")
        eventually(lambda before=before: record()["request"] != before)
        found = record()
        assert (found["result"], found["code"], found["count"]) == ("refused", "unauthenticated", 1)
        assert found["peer"].startswith("127.0.0.1:")
        assert "key pair" in found["detail"]
    assert found["route"] == ""


def test_a_message_received_again_by_one_who_may_not_read_is_no_refusal(
    place: Place, pair: tuple[str, str]
) -> None:
    with place.client(pair) as sqs:
        queue = sqs.create_queue(QueueName="again")["QueueUrl"]
        sqs.send_message(QueueUrl=queue, MessageBody="x")
    with place.client(place.create("consume:again/sqs")) as sqs:
        asked = {"QueueUrl": queue, "AttributeNames": ["All"], "WaitTimeSeconds": 5}
        for count in ("1", "2"):
            (message,) = sqs.receive_message(**asked, VisibilityTimeout=1)["Messages"]
            assert message["Attributes"]["ApproximateReceiveCount"] == count
    records = place.admin("GET", "/v1/audit?limit=1000")["records"]
    assert [each for each in records if f"/{message['MessageId']}/" in each.get("path", "")] == []


@pytest.mark.parametrize(
    "changed",
    [
        {"body": b'{ "QueueNamePrefix": "x"}'},
        {"X-Amz-Target": "AmazonSQS.DeleteQueue"},
        {"Host": "localhost"},
        {"Content-Type": "text/plain"},
        {"path": "/000000000000/all"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_request_that_was_changed_after_it_was_signed_is_refused(
    place: Place, pair: tuple[str, str], changed: dict[str, Any]
) -> None:
    headers = place.signed(pair)
    assert raw_request(place.url, b"{}", headers).status == 200
    parts = {"body": b"{}", **{key: value for key, value in changed.items() if key.islower()}}
    headers |= {key: value for key, value in changed.items() if not key.islower()}
    answer = raw_request(place.url, parts.pop("body"), headers, **parts)
    assert code(answer) == (403, "SignatureDoesNotMatch")


def test_what_must_be_signed_cannot_be_left_out(place: Place, pair: tuple[str, str]) -> None:
    headers = place.signed(pair)
    for name in ("host", "x-amz-date", "x-amz-target"):
        fewer = headers["Authorization"].replace(f"{name};", "").replace(f";{name}", "")
        assert fewer != headers["Authorization"]
        answer = raw_request(place.url, b"{}", {**headers, "Authorization": fewer})
        assert code(answer) == (400, "IncompleteSignature")


@pytest.mark.parametrize(("ahead_s", "status"), [(840, 200), (-840, 200), (960, 403), (-960, 403)])
def test_a_signature_is_valid_for_a_quarter_of_an_hour(ahead_s: int, status: int) -> None:
    settings = {"listen": "127.0.0.1:0"}
    with running_node(security={"auth": "tokens"}, sqs=settings) as node:
        place = Place(node)
        headers = place.signed(place.create("publish:*"))
        node.clock.ahead_ms = ahead_s * 1000
        assert raw_request(place.url, b"{}", headers).status == status


def test_the_query_protocol_is_signed_too(place: Place, pair: tuple[str, str]) -> None:
    body = b"Action=ListQueues"
    headers = place.signed(pair, body, FORM)
    assert raw_request(place.url, body, headers).status == 200
    refused = raw_request(place.url, body + b"&x=1", headers)
    assert (refused.status, b"SignatureDoesNotMatch" in refused.body) == (403, True)


def test_a_name_of_a_proxy_is_signed_and_allowed(place: Place, pair: tuple[str, str]) -> None:
    named = place.signed(pair, host="queues.example.com")
    assert raw_request(place.url, b"{}", named).status == 200
    other = place.signed(pair, host="evil.example.com")
    assert raw_request(place.url, b"{}", other).status == 421


def test_a_revoked_and_a_rotated_token_sign_nothing_more(place: Place) -> None:
    pair = place.create("publish:*")
    rotated = place.admin("POST", f"/v1/tokens/{pair[0]}/rotate", {"grace": "1h"})
    new = rotated["aws_access_key_id"], rotated["aws_secret_access_key"]
    assert new[1] != pair[1]
    for each in (pair, new):
        assert raw_request(place.url, b"{}", place.signed(each)).status == 200
    place.admin("POST", f"/v1/tokens/{pair[0]}/rotate", {})
    for each in (pair, new):
        answer = raw_request(place.url, b"{}", place.signed(each))
        assert code(answer) == (403, "SignatureDoesNotMatch")
    pair = place.create("publish:*")
    place.admin("DELETE", f"/v1/tokens/{pair[0]}")
    answer = raw_request(place.url, b"{}", place.signed(pair))
    assert code(answer) == (403, "InvalidClientTokenId")


def test_what_a_key_pair_began_ends_when_it_is_rotated(place: Place, pair: tuple[str, str]) -> None:
    with place.client(pair) as sqs:
        sqs.create_queue(QueueName="rotated")
    old = place.create("consume:rotated/sqs")
    asked = {"QueueUrl": "rotated", "WaitTimeSeconds": 20}
    with ThreadPoolExecutor() as pool, place.client(old) as sqs:
        waiting = pool.submit(sqs.receive_message, **asked)
        eventually(lambda: bool(place.node.on_loop(place.node.node.requests_under_way)))
        rotated = place.admin("POST", f"/v1/tokens/{old[0]}/rotate", {})
        with place.client(pair) as sender:
            sender.send_message(QueueUrl="rotated", MessageBody="x")
        with pytest.raises(ClientError) as refused:
            waiting.result(30)
        assert code_of(refused) == (403, "InvalidClientTokenId")
    new = rotated["aws_access_key_id"], rotated["aws_secret_access_key"]
    with place.client(new) as sqs:
        (message,) = sqs.receive_message(**asked, AttributeNames=["All"])["Messages"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_quota_holds_for_an_sdk(place: Place) -> None:
    pair = place.create("publish:*", quotas={"requests_per_s": 1})
    codes = [code_or_ok(place, pair) for _ in range(20)]
    assert "RequestThrottled" in codes
    assert codes[0] == "ok"


def code_or_ok(place: Place, pair: tuple[str, str]) -> str:
    answer = raw_request(place.url, b"{}", place.signed(pair))
    return "ok" if answer.status == 200 else answer.code


@pytest.mark.parametrize("content_type", [JSON, FORM])
def test_a_large_body_of_an_unknown_sender_is_not_read_and_is_refused_in_its_protocol(
    place: Place, content_type: str
) -> None:
    headers = place.signed(("nobody11", "x"), content_type=content_type)
    answer = raw_request(place.url, b"{", headers | {"Content-Length": str(1_000_000)})
    assert answer.status == 403
    if content_type == JSON:
        assert answer.code == "InvalidClientTokenId"
    else:
        assert b"<Type>Sender</Type><Code>InvalidClientTokenId</Code>" in answer.body


def test_a_large_body_beyond_a_quota_is_throttled_as_a_small_one_is(place: Place) -> None:
    pair = place.create("publish:*", quotas={"publish_bytes_per_s": 1})
    place.admin("PUT", "/v1/topics/throttled")
    with place.client(pair) as sqs:
        sqs.send_message(QueueUrl="throttled", MessageBody="x" * 1_000)
        for size in (1, 200_000):
            with pytest.raises(ClientError) as refused:
                sqs.send_message(QueueUrl="throttled", MessageBody="x" * size)
            assert code_of(refused) == (400, "RequestThrottled")


def test_tokens_with_a_key_pair_are_told_and_their_secrets_are_not(place: Place) -> None:
    key_id, secret = place.create("publish:*")
    listed = place.admin("GET", "/v1/tokens")
    (shown,) = (token for token in listed["tokens"] if token["id"] == key_id)
    assert (shown["aws"], shown["allow"]) == (True, ["publish:*"])
    assert secret not in json.dumps(listed)
    body = {"name": "c", "allow": ["publish:*"], "aws": True, "cert": "c.example.com"}
    token = (place.node.data_dir / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    assert place.node.request("POST", "/v1/tokens", body, headers).status == 400
