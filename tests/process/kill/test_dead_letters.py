"""A node that is killed while messages die and are put back has each of them once afterwards."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from goq.client import Client
from goq.errors import GoqError
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess

MESSAGES = 400
ROUNDS = 4
LONG_ROUNDS = 25


def die(node: NodeProcess, client: Client, stop: threading.Event, chance: random.Random) -> None:
    """Give messages up, and put dead letters back, until told to stop."""
    while not stop.is_set():
        try:
            found = client.receive("t", "g", max_messages=chance.randint(1, 20), wait="50ms")
            if found:
                client.reject("t", "g", [m.receipt for m in found], reason="bad")
            if chance.random() < 0.3:
                client.redrive_dead_letters("t", max_messages=chance.randint(1, 30), force=True)
        except GoqError:
            stop.wait(0.01)


def dead(client: Client) -> Counter[bytes]:
    count: Counter[bytes] = Counter()
    after = None
    while True:
        answer = client.list_dead_letters("t", limit=1000, after=after)
        count.update(letter.value or b"" for letter in answer.messages)
        after = answer.next
        if after is None:
            return count


def settle_all(client: Client) -> Counter[bytes]:
    """Take what is left of the topic, when nothing is on its way any more."""
    count: Counter[bytes] = Counter()
    while found := client.receive("t", "g", max_messages=1000, wait="300ms"):
        count.update(m.value or b"" for m in found)
        client.ack_many(found)
    return count


def _strike(tmp_path: Path, seed: int, rounds: int) -> None:
    chance = random.Random(seed)
    published = {b"%d" % n for n in range(MESSAGES)}
    with (
        NodeProcess(tmp_path / "data") as node,
        Client(node.url, retries="0s", timeout="5s") as client,
    ):
        settings = {"delivery.visibility_timeout": "1s", "delivery.max_attempts": "none",
                    "delivery.backoff.initial": "0s"}  # fmt: skip
        client.create_topic("t", 2, settings)
        client.publish_many("t", sorted(published))
        for _ in range(rounds):
            stop = threading.Event()
            workers = [
                threading.Thread(
                    target=die, args=(node, client, stop, random.Random(chance.random()))
                )
                for _ in range(3)
            ]
            for worker in workers:
                worker.start()
            stop.wait(chance.uniform(0.05, 0.6))
            node.kill()
            stop.set()
            for worker in workers:
                worker.join()
            node.start()
        count: Counter[bytes] = Counter()

        def all_are_there() -> bool:
            count.update(settle_all(client))
            return sum((count + dead(client)).values()) >= MESSAGES

        eventually(all_are_there, "every message is dead or was received", seconds=30)
        count.update(settle_all(client))
        count += dead(client)
        assert set(count) == published
        assert {value: n for value, n in count.items() if n != 1} == {}, f"seed {seed}"


def test_killed_while_messages_die_and_are_put_back(tmp_path: Path) -> None:
    _strike(tmp_path, random.SystemRandom().getrandbits(32), ROUNDS)


@pytest.mark.long
def test_killed_very_often_while_messages_die_and_are_put_back(tmp_path: Path) -> None:
    _strike(tmp_path, random.SystemRandom().getrandbits(32), LONG_ROUNDS)
