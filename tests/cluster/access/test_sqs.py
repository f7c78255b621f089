"""Signed requests of SDKs in a cluster: the key pair of one node counts at all."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from botocore.exceptions import ClientError

from tests.support.client.sqs_client import sqs_client
from tests.support.cluster.running_cluster import NAMES, running_cluster
from tests.support.eventually import eventually


def test_a_key_pair_counts_at_each_node_for_queues_of_all_leaders() -> None:
    sqs = {"listen": "127.0.0.1:0"}
    with running_cluster(security={"auth": "tokens"}, sqs=sqs) as cluster, ExitStack() as stack:
        token = (cluster.folder / "n1" / "admin.token").read_text().strip()
        rules = ["manage:q", "publish:q", "consume:q"]
        made = cluster.by_name["n1"].request(
            "POST",
            "/v1/tokens",
            {"name": "shop", "allow": rules, "aws": True},
            {"Authorization": f"Bearer {token}"},
        )
        assert made.status == 201, made
        pair = made.json["aws_access_key_id"], made.json["aws_secret_access_key"]
        clients: list[Any] = [
            stack.enter_context(
                sqs_client(
                    cluster.by_name[name].node.sqs_url or "",
                    attempts=5,
                    key_id=pair[0],
                    secret=pair[1],
                )
            )
            for name in NAMES
        ]

        def is_made() -> bool:
            try:
                return bool(clients[1].create_queue(QueueName="q"))
            except ClientError as error:
                return _is_too_early(error)

        eventually(is_made, seconds=30)
        for client in clients:
            eventually(lambda client=client: _knows(client), seconds=30)
        for number in range(12):
            clients[number % 3].send_message(QueueUrl="q", MessageBody=str(number))
        found: set[str] = set()

        def all_found() -> bool:
            answer = clients[len(found) % 3].receive_message(QueueUrl="q", MaxNumberOfMessages=5)
            for message in answer.get("Messages", []):
                clients[0].delete_message(QueueUrl="q", ReceiptHandle=message["ReceiptHandle"])
                found.add(message["Body"])
            return len(found) == 12

        eventually(all_found, seconds=30)


def _knows(client: Any) -> bool:
    try:
        return bool(client.get_queue_url(QueueName="q"))
    except ClientError as error:
        return _is_too_early(error)


def _is_too_early(error: ClientError) -> bool:
    """Return False if a node does not know the token or the queue yet; raise other errors."""
    if error.response["Error"]["Code"] in (
        "InvalidClientTokenId",
        "AWS.SimpleQueueService.NonExistentQueue",
    ):
        return False
    raise error
