"""The SQS-compatible endpoint of a cluster: any node serves any queue."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.client.sqs_client import sqs_client
from tests.support.cluster.running_cluster import RunningCluster, running_cluster
from tests.support.eventually import eventually


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    """Three nodes, each with the endpoint."""
    with running_cluster(sqs={"listen": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture(scope="module")
def clients(cluster: RunningCluster) -> Iterator[list[Any]]:
    """A client of each node, which tries again as SDKs do by default."""
    with ExitStack() as stack:
        urls = [node.node.sqs_url or "" for node in cluster.nodes]
        yield [stack.enter_context(sqs_client(url, attempts=5)) for url in urls]


def test_what_one_node_takes_another_gives_and_a_third_deletes(clients: list[Any]) -> None:
    first = clients[0].create_queue(QueueName="spread", tags={"team": "a"})["QueueUrl"]
    for number in range(30):
        clients[number % 3].send_message(QueueUrl=first, MessageBody=str(number))
    for client in clients:
        assert client.list_queue_tags(QueueUrl=first)["Tags"] == {"team": "a"}
    found: list[str] = []

    def all_found() -> bool:
        answer = clients[len(found) % 3].receive_message(QueueUrl=first, MaxNumberOfMessages=7)
        for message in answer.get("Messages", []):
            handle = message["ReceiptHandle"]
            clients[(len(found) + 1) % 3].delete_message(QueueUrl=first, ReceiptHandle=handle)
            found.append(message["Body"])
        return len(found) == 30

    eventually(all_found, seconds=30)
    assert sorted(map(int, found)) == list(range(30))
    counts = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    shown = clients[1].get_queue_attributes(QueueUrl=first, AttributeNames=counts)["Attributes"]
    assert set(shown.values()) == {"0"}


def test_each_node_counts_the_messages_of_a_topic_that_nobody_has_received_from(
    cluster: RunningCluster, clients: list[Any]
) -> None:
    asked = ["ApproximateNumberOfMessages"]
    for number, client in enumerate(clients):
        name = f"counted-{number}"
        cluster.nodes[0].call("POST", "/v1/topics", {"name": name})
        messages = [{"value": "x", "partition": partition} for partition in range(6)]
        cluster.nodes[0].call("POST", f"/v1/topics/{name}/messages", {"messages": messages})
        shown = client.get_queue_attributes(QueueUrl=name, AttributeNames=asked)["Attributes"]
        assert shown == {asked[0]: "6"}


def test_a_long_poll_at_one_node_gets_what_another_takes(clients: list[Any]) -> None:
    queue = clients[0].create_queue(QueueName="poll")["QueueUrl"]
    bodies: list[str] = []

    def poll() -> None:
        answer = clients[1].receive_message(QueueUrl=queue, WaitTimeSeconds=20)
        bodies.extend(message["Body"] for message in answer.get("Messages", []))

    waiting = threading.Thread(target=poll)
    waiting.start()
    clients[2].send_message(QueueUrl=queue, MessageBody="x")
    waiting.join(30)
    assert bodies == ["x"]


def test_a_fifo_queue_keeps_its_order_over_all_nodes(clients: list[Any]) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    made = clients[0].create_queue(QueueName="order.fifo", Attributes=attributes)
    queue = made["QueueUrl"]
    for number in range(12):
        for client in clients[:2]:
            client.send_message(QueueUrl=queue, MessageBody=str(number), MessageGroupId="g")
    found: list[str] = []

    def all_found() -> bool:
        answer = clients[len(found) % 3].receive_message(QueueUrl=queue, MaxNumberOfMessages=5)
        for message in answer.get("Messages", []):
            found.append(message["Body"])
            clients[0].delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
        return len(found) >= 12

    eventually(all_found, seconds=30)
    assert found == [str(number) for number in range(12)]


def test_a_move_task_of_one_node_is_shown_and_cancelled_by_others(clients: list[Any]) -> None:
    asked = _to_move(clients[0], "dead", "alive", messages=60)
    source = asked["SourceArn"]
    started = clients[0].start_message_move_task(**asked, MaxNumberOfMessagesPerSecond=1)
    for client in clients:
        _await_status(client, source, "RUNNING")
    clients[2].cancel_message_move_task(TaskHandle=started["TaskHandle"])
    for client in clients:
        _await_status(client, source, "CANCELLED")
    clients[1].start_message_move_task(**asked)
    for client in clients:
        _await_status(client, source, "COMPLETED")

    def is_whole() -> bool:
        name = "ApproximateNumberOfMessages"
        shown = clients[2].get_queue_attributes(QueueUrl="alive", AttributeNames=[name])
        return bool(shown["Attributes"][name] == "60")

    eventually(is_whole, seconds=30, pause_s=0.05)  # copies arrive a little later


def test_tags_that_several_nodes_put_on_a_queue_at_once_are_all_kept(clients: list[Any]) -> None:
    queue = clients[0].create_queue(QueueName="tagged")["QueueUrl"]

    def tag(number: int) -> None:
        for each in range(10):
            clients[number].tag_queue(QueueUrl=queue, Tags={f"{number}-{each}": "x"})

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(tag, range(3)))
    for client in clients:
        assert len(client.list_queue_tags(QueueUrl=queue)["Tags"]) == 30


def test_of_several_nodes_that_start_a_move_task_at_once_one_does(clients: list[Any]) -> None:
    asked = _to_move(clients[0], "twice", "once", messages=60)
    source = asked["SourceArn"]
    together = threading.Barrier(3)

    def start(client: Any) -> str:
        together.wait(60)
        try:
            started = client.start_message_move_task(**asked, MaxNumberOfMessagesPerSecond=1)
            return str(started["TaskHandle"])
        except client.exceptions.UnsupportedOperation:
            return ""

    for _ in range(4):
        with ThreadPoolExecutor(3) as pool:
            handles = list(filter(None, pool.map(start, clients)))
        assert len(handles) == 1
        clients[0].cancel_message_move_task(TaskHandle=handles[0])
        for client in clients:
            _await_status(client, source, "CANCELLED")


def _to_move(client: Any, dead: str, alive: str, messages: int) -> dict[str, str]:
    """Make a dead-letter queue with messages, and return the arguments of their move task."""
    source, target = (f"arn:aws:sqs:us-east-1:000000000000:{name}" for name in (dead, alive))
    client.create_queue(QueueName=dead)
    policy = json.dumps({"deadLetterTargetArn": source, "maxReceiveCount": 1})
    client.create_queue(QueueName=alive, Attributes={"RedrivePolicy": policy})
    for number in range(messages):
        client.send_message(QueueUrl=dead, MessageBody=str(number))
    return {"SourceArn": source, "DestinationArn": target}


def _await_status(client: Any, source: str, wanted: str) -> None:
    """Wait until a node shows the newest move task of a queue so."""
    seen: list[Any] = []

    def is_so() -> bool:
        seen[:] = client.list_message_move_tasks(SourceArn=source)["Results"]
        return bool(seen) and seen[0]["Status"] == wanted

    try:
        eventually(is_so, seconds=30, pause_s=0.05)
    except AssertionError:
        pytest.fail(f"not {wanted}: {seen}")


def test_a_task_of_which_its_node_says_nothing_for_two_minutes_is_failed(
    cluster: RunningCluster, clients: list[Any]
) -> None:
    asked = _to_move(clients[0], "mute", "loud", messages=100)
    source = asked["SourceArn"]
    started = clients[0].start_message_move_task(**asked, MaxNumberOfMessagesPerSecond=1)

    def seen() -> tuple[str, str]:
        tasks = clients[2].list_message_move_tasks(SourceArn=source)["Results"]
        return (tasks[0]["Status"], tasks[0].get("FailureReason", "")) if tasks else ("", "")

    clock = cluster.by_name["n3"].clock
    try:
        eventually(lambda: seen() == ("RUNNING", ""), seconds=30, pause_s=0.05)
        clock.set_ahead_ms(60_000)
        assert seen() == ("RUNNING", "")
        clock.set_ahead_ms(130_000)  # as if the first node had died then
        eventually(lambda: seen() == ("FAILED", "NodeStopped"), seconds=30, pause_s=0.05)
    finally:
        clock.set_ahead_ms(0)
    clients[0].cancel_message_move_task(TaskHandle=started["TaskHandle"])
