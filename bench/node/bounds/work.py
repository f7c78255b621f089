"""A client, the topics that it asks about, and the tables of requests."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from goq.frame.encoder import Columns, encode_frame

FRAMES = "application/vnd.goq.frames"
JSON = "application/json"
WIDE = 60_000


class Answer(NamedTuple):
    status: int
    body: bytes
    seconds: float

    def json(self) -> Any:
        return json.loads(self.body)


class Caller:
    """A client of one connection that knows nothing of goq."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def call(
        self, method: str, path: str, body: Any = None, accept: str = JSON, kind: str = JSON
    ) -> Answer:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Accept": accept} | ({} if data is None else {"Content-Type": kind})
        began_s = time.perf_counter()
        self._connection.request(method, path, data, headers)
        answer = self._connection.getresponse()
        body = answer.read()
        return Answer(answer.status, body, time.perf_counter() - began_s)

    def do(self, method: str, path: str, body: Any = None, kind: str = JSON) -> Any:
        answer = self.call(method, path, body, kind=kind)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body[:300]!r}")
        return answer.json() if answer.body else None


def frame_body(columns: Columns, *, compress: bool = False) -> bytes:
    return bytes(4) + encode_frame(columns, compress=compress)


def wide_columns(count: int = WIDE, *, headers: bool = False) -> Columns:
    """Return messages whose lanes and tenants alternate, each with a dedup id and a key."""
    return Columns(
        values=[b"value-%d" % n for n in range(count)],
        keys=[b"key-%d" % n for n in range(count)],
        headers=[(("name", b"%d" % n),) for n in range(count)] if headers else None,
        dedup_ids=[(n + 1).to_bytes(16, "little") for n in range(count)],
        tenants=[f"tenant-{n}" for n in range(count)],
        lanes=[n % 3 for n in range(count)],
    )


class Work:
    """The topics to ask about, and the requests; each scenario is a method."""

    def __init__(self, caller: Caller, sqs_port: int) -> None:
        self.caller = caller
        self.sqs = Caller(sqs_port)
        self.sqs_url = f"http://127.0.0.1:{sqs_port}"
        self.member_count = 0
        self._made: dict[str, str] = {}

    def topic(
        self, name: str, partitions: int = 1, settings: Mapping[str, Any] | None = None
    ) -> str:
        if name not in self._made:
            body = {"name": name, "partitions": partitions, "settings": settings or {}}
            self.caller.do("POST", "/v1/topics", body)
            self._made[name] = name
        return name

    def publish(self, topic: str, columns: Columns, *, compress: bool = False) -> None:
        body = frame_body(columns, compress=compress)
        self.caller.do("POST", f"/v1/topics/{topic}/messages", body, FRAMES)

    def wide(self) -> str:
        """A topic of two frames whose lanes and tenants alternate."""
        if "wide" in self._made:
            return "wide"
        topic = self.topic("wide", settings={"dedup.window": "1h"})
        self.caller.call("POST", f"/v1/topics/{topic}/groups/g/receive", {})
        for first in (0, 1):
            columns = wide_columns(headers=True)
            ids = [(first * WIDE + n + 1).to_bytes(16, "little") for n in range(WIDE)]
            self.publish(topic, Columns(**{**fields(columns), "dedup_ids": ids}))
        return topic

    def plain(self) -> str:
        if "plain" in self._made:
            return "plain"
        topic = self.topic("plain")
        self.publish(topic, Columns([b"x" * 100] * 65_536))
        return topic

    def keyed(self) -> str:
        """A topic of 100 keys: 1,000 messages are leased, 100,000 others are held behind them."""
        if "keyed" in self._made:
            return "keyed"
        topic = self.topic("keyed")
        for _ in range(3):
            self.publish(
                topic, Columns([b"v"] * WIDE, keys=[b"%d" % (n % 100) for n in range(WIDE)])
            )
        self.receive(topic, "g", 1_000)
        for _ in range(15):
            self.receive(topic, "g", 10_000)
        return topic

    def leased(self) -> str:
        """A topic with 60,000 messages leased to ``g``, each in a run of its own."""
        if "leased" in self._made:
            return "leased"
        topic = self.topic("leased")
        self.publish(topic, wide_columns())
        for _ in range(6):
            self.receive(topic, "g")
        return topic

    def retried(self) -> str:
        """A topic with 60,000 messages that wait for a retry, each in a run of its own."""
        if "retried" in self._made:
            return "retried"
        topic = self.topic("retried")
        self.publish(topic, wide_columns())
        for _ in range(6):
            body = {"receipts": self.receive(topic, "g"), "delay": "1h"}
            self.caller.do("POST", f"/v1/topics/{topic}/groups/g/nack", body)
        return topic

    def grouped(self) -> str:
        """A topic of 10,000 groups, each with the one message leased."""
        if "groups" in self._made:
            return "groups"
        topic = self.topic("groups")
        self.publish(topic, Columns([b"v"]))
        for number in range(10_000):
            self.caller.do("POST", f"/v1/topics/{topic}/groups/g{number}/receive", {})
        return topic

    def receive(self, topic: str, group: str, count: int = 10_000) -> list[str]:
        body = {"max_messages": count, "visibility": "1h", "consumer": "c"}
        found = self.caller.do("POST", f"/v1/topics/{topic}/groups/{group}/receive", body)
        return [message["receipt"] for message in found["messages"]]


def fields(columns: Columns) -> dict[str, Any]:
    return {name: getattr(columns, name) for name in Columns.__struct_fields__}


Request = Callable[[], Answer]
Scenario = Callable[[Work], Request]


class Rows(dict[str, Scenario]):
    """Requests by their names, in the order in which they are sent."""

    def add(self, prepare: Scenario) -> Scenario:
        """Add a request by the name of the function that prepares it."""
        self[prepare.__name__.strip("_").replace("_", "-")] = prepare
        return prepare
