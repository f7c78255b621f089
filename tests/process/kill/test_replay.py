"""``goq replay --into`` while it, or the node, is killed: run again it is as one whole run."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from goq.client import Client
from goq.client.replay_plan import REPLAYED_FROM
from goq.model import Message
from tests.support.eventually import eventually
from tests.support.node.node_process import GOQ, NodeProcess, clean_environment, running_goq

COUNT = 20_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data") as serving:
        yield serving


@pytest.fixture
def client(node: NodeProcess) -> Iterator[Client]:
    with Client(node.url, retries="20s") as client:
        client.create_topic("source", 3)
        client.publish_many(
            "source",
            [
                Message(b"message %d" % n, b"k%d" % (n % 50) if n % 7 else None)
                for n in range(COUNT)
            ],
        )
        yield client


def stored(client: Client, topic: str) -> int:
    return sum(p.high_watermark for p in client.describe_topic(topic).partitions)


def copies(client: Client, topic: str) -> list[list[tuple[str, bytes | None]]]:
    found: list[list[tuple[str, bytes | None]]] = [[], [], []]
    for message in client.read_log(topic):
        origin = dict(message.headers)[REPLAYED_FROM].decode()
        found[message.partition].append((origin, message.value))
    return found


def arguments(client: Client, into: str) -> tuple[str, ...]:
    """A replay with fixed bounds, as the command to go on has it."""
    from goq_cli.replay_modes import resume_command

    words = resume_command(client.replay("source", from_offset=0), into).split()
    return tuple(words[1:])


def test_killed_again_and_again_and_run_again_it_equals_a_run_that_was_not(
    node: NodeProcess, client: Client
) -> None:
    client.create_topic("whole", 3)
    client.create_topic("pieces", 3)
    run(node, *arguments(client, "whole"))
    words, rng, killed = arguments(client, "pieces"), random.Random(3), 0
    before = -1
    while stored(client, "pieces") < COUNT:
        assert stored(client, "pieces") > before
        before = stored(client, "pieces")
        with running_goq(node, *words, stderr=subprocess.DEVNULL) as replay:
            wanted = min(COUNT, before + rng.randint(1, 5000))
            eventually(
                lambda wanted=wanted, replay=replay: (
                    stored(client, "pieces") >= wanted or replay.poll() is not None
                ),
                "some copies are stored",
                seconds=60,
            )
            replay.kill()
            killed += 1
    assert killed > 2
    done = run(node, *words)
    assert done.stderr.decode().splitlines()[-1] == (
        f"0 messages stored in pieces, {COUNT:,} were there already"
    )
    assert copies(client, "pieces") == copies(client, "whole")


def test_it_goes_on_when_the_node_is_killed_and_comes_back(
    node: NodeProcess, client: Client
) -> None:
    client.create_topic("whole", 3)
    client.create_topic("pieces", 3)
    run(node, *arguments(client, "whole"))
    words = (*arguments(client, "pieces"), "--rate", "10000")
    with running_goq(node, *words, stderr=subprocess.PIPE) as replay:
        for share in (0.2, 0.6):
            eventually(
                lambda share=share: stored(client, "pieces") >= share * COUNT,
                "a part is stored",
                seconds=60,
            )
            node.restart()
        _, errors = replay.communicate(timeout=90)
        assert replay.returncode == 0, errors
    assert copies(client, "pieces") == copies(client, "whole")


def run(node: NodeProcess, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*GOQ, *words, "--server", node.url],
        env=clean_environment(node.folder.parent),
        capture_output=True,
        timeout=90,
        check=True,
    )
