"""A cluster's leaders are killed under SDKs: nothing sent is lost, nothing deleted comes back."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests.support.client.sqs_client import sqs_client
from tests.support.cluster.process_cluster import NAMES, ProcessCluster, process_nodes
from tests.support.eventually import eventually
from tests.support.node.ports import HOST, reserved_port

SENDERS, CONSUMERS, BATCH = 2, 3, 5
VISIBILITY_S = 20
SURE_S = 10  # a delete answered this soon after the receive was of a lease that still held
PAUSE_S = 0.2
Urls = list[str]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[ProcessCluster, Urls]]:
    """Three nodes, each with the endpoint, and its URLs."""
    with ExitStack() as stack:
        nodes = stack.enter_context(process_nodes(tmp_path))
        ports = [stack.enter_context(reserved_port()) for _ in NAMES]
        for node, port in zip(nodes.values(), ports, strict=True):
            node.environment["GOQ_SQS__LISTEN"] = f"{HOST}:{port}"
        cluster = ProcessCluster(nodes)
        cluster.start_the_dead()
        yield cluster, [f"http://{HOST}:{port}" for port in ports]


class Ledger:
    """What clients were told: sent, received, deleted, and received again after that."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.received: set[str] = set()
        self.deleted: set[str] = set()
        self.returned: set[str] = set()
        self.is_sending = True
        self.done = threading.Event()

    def run(self, urls: Urls, first: int, work: Any) -> None:
        """Work with one node after another, the next one whenever one fails."""
        for number in itertools.count(first):
            with sqs_client(urls[number % len(urls)]) as sqs:
                try:
                    while not self.done.is_set():
                        if not work(sqs):
                            return
                except (BotoCoreError, ClientError):
                    self.done.wait(PAUSE_S)
            if self.done.is_set():
                return

    def sender(self, urls: Urls, first: int) -> threading.Thread:
        numbers = itertools.count()
        waiting: list[str] = []

        def send(sqs: Any) -> bool:
            if not waiting:
                if not self.is_sending:
                    return False
                waiting.extend(f"{first}-{next(numbers)}" for _ in range(BATCH))
            entries = [{"Id": body, "MessageBody": body} for body in waiting]
            answer = sqs.send_message_batch(QueueUrl="q", Entries=entries)
            for each in answer.get("Successful", []):
                self.sent.add(each["Id"])
                waiting.remove(each["Id"])
            return not self.done.wait(0.1)

        return threading.Thread(target=self.run, args=(urls, first, send))

    def consumer(self, urls: Urls, first: int) -> threading.Thread:
        def consume(sqs: Any) -> bool:
            answer = sqs.receive_message(
                QueueUrl="q",
                MaxNumberOfMessages=10,
                WaitTimeSeconds=1,
                VisibilityTimeout=VISIBILITY_S,
            )
            until_s = time.monotonic() + SURE_S
            for message in answer.get("Messages", []):
                if message["MessageId"] in self.deleted:
                    self.returned.add(message["Body"])
                self.received.add(message["Body"])
                self._delete(sqs, message, until_s)
            return True

        return threading.Thread(target=self.run, args=(urls, first, consume))

    def _delete(self, sqs: Any, message: Any, until_s: float) -> None:
        sqs.delete_message(QueueUrl="q", ReceiptHandle=message["ReceiptHandle"])
        if time.monotonic() < until_s:
            self.deleted.add(message["MessageId"])


@pytest.mark.long
@pytest.mark.parametrize("killed", [["n1"], ["n1", "n2"]])
def test_killed_leaders_lose_nothing_that_was_sent_and_give_back_nothing_that_was_deleted(
    served: tuple[ProcessCluster, Urls], killed: list[str]
) -> None:
    cluster, urls = served
    with sqs_client(urls[0], attempts=10) as sqs:
        sqs.create_queue(QueueName="q")
    eventually(lambda: set(cluster.leaders("q").values()) == set(NAMES), seconds=60)
    ledger = Ledger()
    senders = [ledger.sender(urls, first) for first in range(SENDERS)]
    consumers = [ledger.consumer(urls, first) for first in range(CONSUMERS)]
    try:
        for thread in (*senders, *consumers):
            thread.start()
        for name in killed:
            _wait_for_more(ledger)
            cluster.kill(name, "q")
            _wait_for_more(ledger)
            cluster.nodes[name].start()
            eventually(lambda: set(cluster.leaders("q").values()) == set(NAMES), seconds=120)
        ledger.is_sending = False
        for thread in senders:
            thread.join(60)
        eventually(lambda: ledger.sent <= ledger.received, "all was received", seconds=180)
    finally:
        ledger.done.set()
        for thread in (*senders, *consumers):
            thread.join(60)
    assert len(ledger.sent) > 4 * BATCH
    assert len(ledger.deleted) > len(ledger.sent) // 2, "the ledger of deletes proves something"
    assert not ledger.returned


def _wait_for_more(ledger: Ledger) -> None:
    """Wait until more was sent and deleted than now."""
    sent, deleted = len(ledger.sent), len(ledger.deleted)
    eventually(
        lambda: len(ledger.sent) > sent + BATCH and len(ledger.deleted) > deleted + BATCH,
        "messages go on",
        seconds=120,
    )
