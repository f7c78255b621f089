"""What commands call themselves: an option, the environment, else the host and process."""

from __future__ import annotations

import json

import pytest

from goq import limits
from tests.support.cli.command import Run
from tests.support.node.running_node import RunningNode


def producers(node: RunningNode, topic: str) -> list[str | None]:
    def find() -> list[str | None]:
        partition = node.node.broker.topic(topic).partitions[0]
        frames = partition.read(0, messages_max=100).frames
        return [partition.producers.name(view.header) for view in frames]

    return node.on_loop(find)


def test_a_producer_goes_by_its_option_then_by_the_environment(
    goq: Run, topic: str, node: RunningNode
) -> None:
    publish = ("produce", topic, "--partition", "0")
    goq(*publish, "--client-id", "shop", stdin=b"a\n", GOQ_CLIENT_ID="till")
    goq(*publish, stdin=b"b\n", GOQ_CLIENT_ID="till")
    goq(*publish, stdin=b"c\n", GOQ_CLIENT_ID="")
    first, second, third = producers(node, topic)
    assert (first, second) == ("shop", "till")
    assert third is not None
    assert third.rpartition("-")[2].isdigit()


def test_a_consumer_goes_by_its_name_too(goq: Run, topic: str) -> None:
    goq("produce", topic, "--partition", "0", stdin=b"a\nb\n")
    take = ("consume", topic, "--group", "g", "--no-ack", "--max", "1")
    goq(*take, "--client-id", "worker-1")
    goq(*take, GOQ_CLIENT_ID="worker-2")
    shown = json.loads(goq("group", "show", "g", "--topic", topic, "--json").stdout)
    assert [member["consumer"] for member in shown["members"]] == ["worker-1", "worker-2"]


@pytest.mark.parametrize("name", ["", "a\tb", "x" * (limits.CLIENT_ID_CHARS_MAX + 1)])
def test_a_name_that_cannot_be_shown_is_refused(goq: Run, topic: str, name: str) -> None:
    done = goq("produce", topic, f"--client-id={name}", stdin=b"a\n", code=7)
    assert done.stderr.startswith(b"goq: a client id has 1 to 200 printable characters")
