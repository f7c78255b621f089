"""The aws command on the SQS-compatible endpoint."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import md5
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.node.node_process import GOQ, NodeProcess, clean_environment
from tests.support.node.ports import HOST, reserved_port

pytest.importorskip("awscli", reason="pip install awscli")
ARN = "arn:aws:sqs:us-east-1:000000000000:"


class Told(NamedTuple):
    """What a command did."""

    code: int
    text: str
    errors: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.errors
        return json.loads(self.text) if self.text else None


Aws = Callable[..., Told]


def aws_of(home: Path, port: int, key_id: str = "goq", secret: str = "goq") -> Aws:
    """Return a function that runs ``aws sqs``."""
    environment = {
        name: value
        for name, value in clean_environment(home).items()
        if not name.startswith("AWS_")
    } | {
        "AWS_ACCESS_KEY_ID": key_id,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_PAGER": "",
    }

    def aws(*words: str) -> Told:
        command = [sys.executable, "-m", "awscli", "--endpoint-url", f"http://{HOST}:{port}"]
        done = subprocess.run(
            [*command, "--output", "json", "sqs", *words],
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return Told(done.returncode, done.stdout, done.stderr)

    return aws


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    folder = tmp_path_factory.mktemp("aws")
    with (
        reserved_port() as port,
        NodeProcess(folder / "data", settings=[f"sqs.listen={HOST}:{port}"]),
    ):
        yield aws_of(folder, port)


@pytest.mark.long
def test_a_message_with_attributes_is_sent_received_and_deleted(aws: Aws) -> None:
    queue = aws("create-queue", "--queue-name", "orders", "--attributes", "VisibilityTimeout=60")
    url = ("--queue-url", queue.json["QueueUrl"])
    attributes = {
        "n": {"DataType": "Number", "StringValue": "7"},
        "b": {"DataType": "Binary", "BinaryValue": "raw"},
    }
    sent = aws(
        "send-message", *url, "--message-body", "two teapots",
        "--message-attributes", json.dumps(attributes),
    ).json  # fmt: skip
    assert sent["MD5OfMessageBody"] == md5(b"two teapots").hexdigest()
    named = ("--attribute-names", "All", "--message-attribute-names", "All")
    (message,) = aws("receive-message", *url, *named).json["Messages"]
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "two teapots")
    encoded = base64.b64encode(b"raw").decode()  # the command reads bytes and prints base64
    attributes["b"]["BinaryValue"] = encoded
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    handle = ("--receipt-handle", message["ReceiptHandle"])
    assert aws("change-message-visibility", *url, *handle, "--visibility-timeout", "0").code == 0
    (again,) = aws("receive-message", *url).json["Messages"]
    assert aws("delete-message", *url, "--receipt-handle", again["ReceiptHandle"]).code == 0
    assert aws("receive-message", *url).text == ""
    shown = aws("get-queue-attributes", *url, "--attribute-names", "All").json["Attributes"]
    assert (shown["VisibilityTimeout"], shown["QueueArn"]) == ("60", ARN + "orders")


def test_a_batch_tells_what_was_refused(aws: Aws) -> None:
    url = ("--queue-url", aws("create-queue", "--queue-name", "batch").json["QueueUrl"])
    entries = [
        {"Id": "good", "MessageBody": "x"},
        {"Id": "late", "MessageBody": "y", "DelaySeconds": 901},
    ]
    told = aws("send-message-batch", *url, "--entries", json.dumps(entries)).json
    assert [each["Id"] for each in told["Successful"]] == ["good"]
    assert [(each["Id"], each["SenderFault"]) for each in told["Failed"]] == [("late", True)]


@pytest.mark.long
def test_a_fifo_queue_keeps_order_and_takes_a_message_once(aws: Aws) -> None:
    fifo = "FifoQueue=true,ContentBasedDeduplication=true"
    made = aws("create-queue", "--queue-name", "steps.fifo", "--attributes", fifo)
    url = ("--queue-url", made.json["QueueUrl"])
    for body in ("1", "2", "2", "3"):
        sent = aws("send-message", *url, "--message-body", body, "--message-group-id", "g").json
        assert len(sent["SequenceNumber"]) == 20
    found = aws("receive-message", *url, "--max-number-of-messages", "10").json["Messages"]
    assert [message["Body"] for message in found] == ["1", "2", "3"]


def test_an_error_has_the_code_of_aws_and_fails_the_command(aws: Aws) -> None:
    told = aws("get-queue-url", "--queue-name", "absent")
    assert told.code != 0
    assert "AWS.SimpleQueueService.NonExistentQueue" in told.errors
    assert aws("receive-message", "--queue-url", "http://h/0/absent").code == told.code


@pytest.mark.long
def test_dead_letters_are_moved_back(aws: Aws) -> None:
    dead = ("--queue-url", aws("create-queue", "--queue-name", "dead").json["QueueUrl"])
    policy = json.dumps({"deadLetterTargetArn": f"{ARN}dead", "maxReceiveCount": "1"})
    attributes = json.dumps({"RedrivePolicy": policy})
    made = aws("create-queue", "--queue-name", "live", "--attributes", attributes)
    url = ("--queue-url", made.json["QueueUrl"])
    aws("send-message", *url, "--message-body", "x")
    (message,) = aws("receive-message", *url).json["Messages"]
    handle = ("--receipt-handle", message["ReceiptHandle"])
    aws("change-message-visibility", *url, *handle, "--visibility-timeout", "0")
    sources = aws("list-dead-letter-source-queues", *dead).json["queueUrls"]
    assert [source.rpartition("/")[2] for source in sources] == ["live"]
    assert aws("start-message-move-task", "--source-arn", f"{ARN}dead").code == 0
    (back,) = aws("receive-message", *url, "--wait-time-seconds", "20").json["Messages"]
    assert back["Body"] == "x"


@pytest.mark.long
def test_the_key_pair_of_a_token_is_needed_where_tokens_are(tmp_path: Path) -> None:
    with (
        reserved_port() as port,
        NodeProcess(
            tmp_path / "data", settings=[f"sqs.listen={HOST}:{port}", "security.auth=tokens"]
        ) as node,
    ):
        admin = tmp_path / "data" / "admin.token"
        made = subprocess.run(
            [
                *GOQ,
                *("--server", node.url, "--token-file", str(admin), "--json"),
                *("token", "create", "shop", "--allow", "manage:q", "--allow", "publish:q"),
                "--aws",
            ],
            env=clean_environment(tmp_path),
            capture_output=True,
            check=True,
            timeout=60,
        )
        pair = json.loads(made.stdout)
        key_id, secret = pair["aws_access_key_id"], pair["aws_secret_access_key"]
        aws = aws_of(tmp_path, port, key_id, secret)
        url = ("--queue-url", aws("create-queue", "--queue-name", "q").json["QueueUrl"])
        assert aws("send-message", *url, "--message-body", "x").code == 0
        assert "AccessDenied" in aws("receive-message", *url).errors
        wrong = aws_of(tmp_path, port, key_id, secret[:-1] + "!")
        assert "SignatureDoesNotMatch" in wrong("send-message", *url, "--message-body", "x").errors
        stranger = aws_of(tmp_path, port, "stranger", secret)
        assert "InvalidClientTokenId" in stranger("list-queues").errors
