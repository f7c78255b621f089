"""SIGKILL of a node under SDKs: nothing sent is lost, nothing deleted comes back."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.support.client.sqs_client import sqs_client
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess
from tests.support.node.ports import HOST, reserved_port

SENDERS, CONSUMERS, EACH, KILLS = 2, 2, 80, 2
PAUSE_S = 0.1  # after a failure: a node that starts needs the processor


def test_attributes_messages_and_receipts_outlive_a_kill(tmp_path: Path) -> None:
    with (
        reserved_port() as port,
        NodeProcess(tmp_path / "data", settings=[f"sqs.listen={HOST}:{port}"]) as node,
        sqs_client(f"http://{HOST}:{port}", attempts=3) as sqs,
    ):
        attributes = {"VisibilityTimeout": "600", "DelaySeconds": "1"}
        made = sqs.create_queue(QueueName="q", Attributes=attributes, tags={"team": "a"})
        queue = made["QueueUrl"]
        sent = sqs.send_message(QueueUrl=queue, MessageBody="x", DelaySeconds=0)["MessageId"]
        (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
        node.restart()
        shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        assert {key: shown[key] for key in attributes} == attributes
        assert shown["ApproximateNumberOfMessagesNotVisible"] == "1"
        assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"team": "a"}
        handle = {"QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"]}
        assert message["MessageId"] == sent
        sqs.change_message_visibility(**handle, VisibilityTimeout=60)
        sqs.delete_message(**handle)
        node.restart()
        shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        assert shown["ApproximateNumberOfMessagesNotVisible"] == "0"
        assert shown["ApproximateNumberOfMessages"] == "0"


def test_a_move_task_is_failed_after_a_kill_and_loses_nothing(tmp_path: Path) -> None:
    source, target = (f"arn:aws:sqs:us-east-1:000000000000:{name}" for name in ("dead", "q"))
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    with (
        reserved_port() as port,
        NodeProcess(tmp_path / "data", settings=[f"sqs.listen={HOST}:{port}"]) as node,
        sqs_client(f"http://{HOST}:{port}", attempts=3) as sqs,
    ):

        def count(queue: str) -> int:
            shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
            return sum(map(int, shown.values()))

        def task() -> dict[str, Any]:
            return dict(sqs.list_message_move_tasks(SourceArn=source)["Results"][0])

        sqs.create_queue(QueueName="dead")
        policy = json.dumps({"deadLetterTargetArn": source, "maxReceiveCount": 1})
        sqs.create_queue(QueueName="q", Attributes={"RedrivePolicy": policy})
        for first in range(0, 60, 10):
            entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(first, first + 10)]
            sqs.send_message_batch(QueueUrl="dead", Entries=entries)
        sqs.start_message_move_task(
            SourceArn=source, DestinationArn=target, MaxNumberOfMessagesPerSecond=1
        )
        eventually(lambda: count("q") >= 1, seconds=30)
        node.restart()
        found = task()
        assert (found["Status"], found["FailureReason"]) == ("FAILED", "NodeStopped")
        assert count("q") + count("dead") in (60, 61)  # a copy is stored before its ack
        sqs.start_message_move_task(SourceArn=source, DestinationArn=target)
        eventually(lambda: task()["Status"] != "RUNNING", seconds=30)
        assert task()["Status"] == "COMPLETED"
        assert count("q") + count("dead") in (60, 61)
        assert count("q") >= 59  # one may be leased still


def test_competing_consumers_lose_nothing_and_get_nothing_back(tmp_path: Path) -> None:
    confirmed: set[str] = set()
    received: set[str] = set()
    deleted: set[str] = set()
    returned: set[str] = set()
    done = threading.Event()

    def send(url: str, queue: str, first: int) -> None:
        with sqs_client(url) as sqs:
            for number in range(first, first + EACH):
                while not done.is_set():
                    try:
                        sqs.send_message(QueueUrl=queue, MessageBody=str(number))
                        confirmed.add(str(number))
                        break
                    except (BotoCoreError, ClientError):
                        done.wait(PAUSE_S)

    def consume(url: str, queue: str) -> None:
        with sqs_client(url) as sqs:
            while not done.is_set():
                try:
                    receive(sqs, queue)
                except (BotoCoreError, ClientError):
                    done.wait(PAUSE_S)

    def receive(sqs: Any, queue: str) -> None:
        answer = sqs.receive_message(
            QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1, VisibilityTimeout=5
        )
        for message in answer.get("Messages", []):
            if message["MessageId"] in deleted:
                returned.add(message["MessageId"])
            received.add(message["Body"])
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            deleted.add(message["MessageId"])

    with (
        reserved_port() as port,
        NodeProcess(tmp_path / "data", settings=[f"sqs.listen={HOST}:{port}"]) as node,
    ):
        url = f"http://{HOST}:{port}"
        with sqs_client(url, attempts=3) as sqs:
            queue = sqs.create_queue(QueueName="q")["QueueUrl"]
        threads = [
            *(threading.Thread(target=send, args=(url, queue, n * EACH)) for n in range(SENDERS)),
            *(threading.Thread(target=consume, args=(url, queue)) for _ in range(CONSUMERS)),
        ]
        for thread in threads:
            thread.start()
        try:
            for blow in range(1, KILLS + 1):
                until = blow * SENDERS * EACH // (KILLS + 1)
                eventually(lambda until=until: len(confirmed) >= until, seconds=30)
                node.restart()
            everything = SENDERS * EACH
            eventually(lambda: len(confirmed) == len(received) == everything, seconds=60)
        finally:
            done.set()
            for thread in threads:
                thread.join(30)
    assert not returned
