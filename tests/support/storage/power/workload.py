"""A workload that leaves no part of the data folder alone, on a node that is recorded.

Five clients work at once: batches into small segments, leases and settlements, delayed messages,
topics and groups that come and go. Retention, the archive and compaction have work to do. The node
is killed in between, stopped, and started again. No wait matters for a check: leases and delays
last for hours.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess
from tests.support.storage.power.history import ABSENT, History, NodeLost, RecordedClient
from tests.support.storage.power.record import Recorder

WORK, LAZY, TRIMMED, ARCHIVED, LATEST, LATER = (
    "work",
    "lazy",
    "trimmed",
    "archived",
    "latest",
    "later",
)
GROUP = "workers"
KEYS = 20
RETENTION_BYTES = 256 * 1024
SEGMENT_BYTES_MAX = (64 + 80) * 1024
"""Of a segment: one batch may follow the byte that makes it full."""
TOPICS: dict[str, tuple[int, dict[str, Any]]] = {
    WORK: (2, {"segment.bytes": "64KiB", "delivery.ordering": "none"}),
    LAZY: (1, {"segment.bytes": "64KiB", "fsync": "interval"}),
    TRIMMED: (1, {"segment.bytes": "64KiB", "retention.bytes": "256KiB"}),
    ARCHIVED: (1, {"segment.bytes": "64KiB", "retention.bytes": "256KiB", "archive": "true"}),
    LATEST: (1, {"segment.bytes": "64KiB", "cleanup": "compact"}),
    LATER: (1, {"segment.bytes": "64KiB"}),
}
_WAIT_S = 30.0


class RecordedNode(NodeProcess):
    """A ``goq serve`` under a recorder."""

    def __init__(self, folder: Path, recorder: Recorder, settings: Sequence[str] = ()) -> None:
        super().__init__(folder, environment=recorder.environment, settings=settings)
        self.log = recorder.record.with_name("stderr")
        self.recorder = recorder

    def _module(self) -> tuple[str, str]:
        return "-m", "tests.support.storage.power.small_goq"

    def wait_ready(self) -> None:
        """Return when the node takes traffic."""
        super().wait_ready()
        ready = "the node takes traffic"
        eventually(lambda: self.request("GET", "/readyz").status == 200, ready, seconds=_WAIT_S)

    def kill(self) -> None:
        """End the process between two calls that are recorded."""
        with self.recorder.halted():
            super().kill()

    def kill_after(self, size_bytes: int) -> None:
        """End the process once the record is longer by so much, or the process has started."""
        long_enough = self.recorder.size_bytes + size_bytes

        def is_time() -> bool:
            return self.recorder.size_bytes >= long_enough or self._answers()

        eventually(is_time, "the node works", seconds=_WAIT_S, pause_s=0.001)
        self.kill()

    def _answers(self) -> bool:
        try:
            return self.request("GET", "/livez").status == 200
        except OSError:
            return False


class Workload:
    """What the clients do; ``history`` has all their calls."""

    def __init__(self, node: RecordedNode, seed: int) -> None:
        self.history = History()
        self.node = node
        self._seed = seed
        self._sockets = ExitStack()
        self._numbers = iter(range(1_000_000))
        self._guard = threading.Lock()

    @contextmanager
    def connections(self) -> Iterator[None]:
        """Keep all connections until the end: no port is used for two."""
        with self._sockets:
            yield

    def create_topics(self) -> None:
        """Create the topics that last."""
        client = self._client()
        for name, (partitions, settings) in TOPICS.items():
            self._create(client, name, partitions, settings, 1)

    def run(self, rounds: int, name: str, *, kill_after: int | None = None) -> None:
        """Let all clients work for so many rounds; kill the node in the middle if wanted."""
        chance = random.Random(f"{self._seed} {name}")
        work: list[Callable[[RecordedClient, random.Random, int], None]] = [
            self._publish_small,
            self._publish_large,
            self._consume,
            self._delay,
            self._administer,
        ]
        errors: list[BaseException] = []
        reached = threading.Event()

        def repeat(
            step: Callable[[RecordedClient, random.Random, int], None], own: random.Random
        ) -> None:
            try:
                client = self._client()
                for number in range(rounds):
                    if number == kill_after:
                        reached.set()
                    step(client, own, number)
            except NodeLost:
                if kill_after is None:
                    errors.append(AssertionError("the node is gone"))
            except BaseException as error:
                errors.append(error)

        threads = [
            threading.Thread(target=repeat, args=(step, random.Random(chance.random())))
            for step in work
        ]
        for thread in threads:
            thread.start()
        if kill_after is not None:
            assert reached.wait(_WAIT_S)
            self.node.kill()
        for thread in threads:
            thread.join()
        for error in errors:
            raise error

    def settle_down(self) -> None:
        """Publish until retention, the archive and compaction have done something."""
        client, chance = self._client(), random.Random(f"{self._seed} settle")
        rounds = itertools.count()

        def is_done() -> bool:
            trimmed = self.node.call("GET", f"/v1/topics/{TRIMMED}")["partitions"][0]
            archived = self.node.call("GET", f"/v1/topics/{ARCHIVED}")
            where = f"/v1/topics/{LATEST}/messages?partition=0&offset=0&limit=1000"
            log = self.node.call("GET", where)["messages"]
            is_compacted = log and log[-1]["offset"] >= len(log)
            if trimmed["start_offset"] and "archived" in archived and is_compacted:
                return True
            self._publish_large(client, chance, next(rounds))
            return False

        eventually(is_done, "retention, archive and compaction worked", seconds=_WAIT_S)

    # The clients

    def _client(self) -> RecordedClient:
        client = RecordedClient(self.node.recorder, self.history, self.node.address)
        self._sockets.callback(client.close)
        return client

    def _value(self, topic: str, size_chars: int) -> str:
        with self._guard:
            number = next(self._numbers)
        return f"{topic} {number} ".ljust(size_chars, "0123456789abcdef"[number % 16])

    def _publish(
        self,
        client: RecordedClient,
        topic: str,
        messages: list[dict[str, Any]],
        incarnation: int = 1,
        **more: Any,
    ) -> Any:
        path, body = f"/v1/topics/{topic}/messages", {"messages": messages}
        return client.call("POST", path, body, published=(topic, incarnation), **more)

    def _publish_small(self, client: RecordedClient, chance: random.Random, _round: int) -> None:
        for topic in (WORK, LAZY):
            messages = [
                {"value": self._value(topic, chance.randint(10, 600)), "partition": partition}
                for partition in range(TOPICS[topic][0])
                for _ in range(chance.randint(1, 5))
            ]
            if chance.random() < 0.3:
                messages[0]["dedup_id"] = messages[0]["value"][:30].rstrip()
            self._publish(client, topic, messages)

    def _publish_large(self, client: RecordedClient, chance: random.Random, round_: int) -> None:
        topic = (TRIMMED, ARCHIVED, LATEST, WORK)[round_ % 4]
        messages: list[dict[str, Any]] = [
            {"value": self._value(topic, chance.randint(3000, 9000)), "partition": 0}
            for _ in range(chance.randint(4, 8))
        ]
        if topic == LATEST:
            for message in messages:
                message["key"] = f"key-{chance.randrange(KEYS)}"
        self._publish(client, topic, messages)

    def _consume(self, client: RecordedClient, chance: random.Random, round_: int) -> None:
        path = f"/v1/topics/{WORK}/groups/{GROUP}"

        def leased(answer: Any) -> dict[tuple[str, ...], Any]:
            states = {_state(m["id"]): "leased" for m in answer["messages"]}
            return states | {("receipt", m["id"]): m["receipt"] for m in answer["messages"]}

        ask = {"max_messages": 12, "visibility": "2h", "wait": "20ms", "consumer": f"c{round_ % 3}"}
        found = client.call("POST", f"{path}/receive", ask, receives=(WORK, GROUP), finds=leased)[
            "messages"
        ]
        todo = {"ack": found[:5], "nack": found[5:7], "reject": found[7:8], "extend": found[8:9]}
        details = {"nack": {"delay": "3h"}, "extend": {"visibility": "4h"}}
        becomes = {"ack": "done", "nack": "retry", "reject": "dead", "extend": "leased"}
        for verb, messages in todo.items():
            if not messages:
                continue
            body = {"receipts": [m["receipt"] for m in messages], **details.get(verb, {})}
            writes = {_state(m["id"]): becomes[verb] for m in messages}
            answer = client.call("POST", f"{path}/{verb}", body, writes=writes)
            assert answer["settled"] == len(messages), answer

    def _delay(self, client: RecordedClient, chance: random.Random, round_: int) -> None:
        messages = [
            {"value": self._value(LATER, 50), "delay": f"{chance.randint(2, 9)}h"} for _ in range(3)
        ]

        def due(answer: Any) -> dict[tuple[str, ...], Any]:
            return {("due", r["id"]): r["deliver_at"] for r in answer["results"]}

        found = self._publish(client, LATER, messages, finds=due)["results"]
        if round_ % 2:
            first = found[0]["id"]
            client.call("DELETE", f"/v1/messages/{first}", writes={("due", first): "cancelled"})
        else:
            second = found[1]["id"]
            at = (datetime.now(UTC) + timedelta(days=9)).strftime("%Y-%m-%dT%H:%M:00.000000Z")
            path, body = f"/v1/messages/{second}", {"deliver_at": at}
            client.call("PATCH", path, body, writes={("due", second): at})

    def _administer(self, client: RecordedClient, chance: random.Random, round_: int) -> None:
        """Create a topic, change it, give it a group, and delete it, or create it anew."""
        with self._guard:
            name = f"life-{next(self._numbers)}"
        self._create(client, name, 1, {"retention.age": "3d"}, 1)
        self._publish(client, name, [{"value": self._value(name, 40)} for _ in range(3)])
        changed = {"retention.age": "3d", "segment.bytes": "80KiB"}
        value = {"incarnation": 1, "partitions": 2, "settings": changed}
        body: dict[str, Any] = {"settings": {"segment.bytes": "80KiB"}, "partitions": 2}
        path = f"/v1/topics/{name}"
        client.call("PATCH", path, body, writes={("topic", name): value})
        for attempts in ("7", "9"):
            settings = {"max_attempts": attempts}
            writes = {("group", name, "g"): settings}
            client.call("PUT", f"{path}/groups/g", {"settings": settings}, writes=writes)
        if round_ % 3:
            gone = {("topic", name): ABSENT, ("group", name, "g"): ABSENT}
            client.call("DELETE", path, writes=gone)
        if round_ % 3 == 2:
            self._create(client, name, 1, {"retention.age": "5d"}, 2)
            self._publish(client, name, [{"value": self._value(name, 40)}], 2)

    def _create(
        self,
        client: RecordedClient,
        name: str,
        partitions: int,
        settings: dict[str, Any],
        incarnation: int,
    ) -> None:
        value = {"incarnation": incarnation, "partitions": partitions, "settings": settings}
        body = {"name": name, "partitions": partitions, "settings": settings}
        client.call("POST", "/v1/topics", body, writes={("topic", name): value})


def _state(message_id: str) -> tuple[str, ...]:
    return "state", WORK, GROUP, message_id
