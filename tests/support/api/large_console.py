"""The console over answers of the documented shape about more than one node can hold."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from goq.api.schemas.live import LiveGroupOut, LiveNodeOut, LiveTopicOut
from goq.api.views.live.board import LiveBoard, LiveSample
from goq.api.views.live.selection import LiveSelection, shortened
from goq.clock import ManualClock
from goq.console.assets import Assets

COUNT = 100_000
TOPIC = "orders"
_HEARTBEAT_S = 0.5


def topic_name(number: int) -> str:
    return f"topic-{number:06}"


def group_name(number: int) -> str:
    return f"group-{number:06}"


def _topic(name: str, lag: int, groups: list[LiveGroupOut]) -> LiveTopicOut:
    zeros = dict.fromkeys(
        (
            *("offline", "messages", "bytes", "published_messages", "published_bytes"),
            *("delivered_messages", "acked_messages", "nacked_messages", "expired_messages"),
        ),
        0,
    )
    return LiveTopicOut(
        name=name, partitions=1, last_append=0, group_count=1, groups=groups, lag=lag, **zeros
    )


class _Answers:
    """The documents of a node with ``COUNT`` topics, and of a topic with ``COUNT`` groups."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self._topics = {
            topic_name(n): _topic(topic_name(n), n, [_group("billing", n)]) for n in range(COUNT)
        }
        self._groups = [_group(group_name(n), COUNT - n) for n in range(COUNT)]
        names = self._topics
        self.documents: dict[str, Any] = {
            "/healthz": {"status": "ok"},
            "/v1/cluster": _cluster(names),
            f"/v1/topics/{TOPIC}": {
                "name": TOPIC,
                "settings": {},
                "partitions": [
                    {
                        "partition": 0,
                        "leader": "n",
                        "start_offset": 0,
                        "end_offset": 9,
                        "high_watermark": 9,
                        "bytes": 9,
                        "online": True,
                    }
                ],
            },
            f"/v1/topics/{TOPIC}/history": {"days": [], "scheduled": {"count": 0}},
        }

    def line(self, query: Mapping[str, str]) -> bytes:
        """Return the first line of ``GET /v1/live``, made as a node makes it."""
        topics = self._topics
        if "topics" in query:
            part = query.get("groups", "").casefold()
            groups = [each for each in self._groups if part in each.group]
            orders = _topic(TOPIC, sum(each.lag for each in groups), groups)
            orders.group_count = COUNT
            topics = {TOPIC: shortened(orders)}
        selection = LiveSelection(
            query.get("search", ""), query.get("order", "name"), int(query.get("top", "10000"))
        )

        async def sample() -> LiveSample:
            return LiveSample([LiveNodeOut("n")], topics)

        async def first() -> bytes:
            board = LiveBoard(sample, "n", ManualClock(), selection)
            await board.refresh()
            _, parts = await board.line(0, 1.0)
            return b"".join(parts)

        return asyncio.run(first())


def _group(name: str, lag: int) -> LiveGroupOut:
    return LiveGroupOut(name, 0, 0, 0, 0, 0, lag, lag, 0, 0, 0, 0, 0, 0)


def _cluster(names: Mapping[str, LiveTopicOut]) -> dict[str, Any]:
    partition = {"partition": 0, "leader": "n", "leader_epoch": 1, "replicas": ["n"]}
    return {
        "cluster": False,
        "node": "n",
        "controller": None,
        "moves": [],
        "absent": [],
        "offline": [],
        "under_replicated": [],
        "nodes": [{"id": "n", "status": "up", "url": "http://n"}],
        "topics": [
            {"name": name, "partitions": [{**partition, "in_sync": ["n"]}]} for name in names
        ],
    }


@contextmanager
def large_console() -> Iterator[str]:
    """Serve the console and the answers until the block ends; yield the address."""
    answers, assets = _Answers(), Assets()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            return

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == "/v1/live":
                self.stream({name: values[-1] for name, values in parse_qs(url.query).items()})
            elif url.path in answers.documents:
                document = json.dumps(answers.documents[url.path]).encode()
                self.answer(200, document, "application/json")
            elif asset := assets.get(url.path.removeprefix("/ui/") or "index.html"):
                self.answer(200, asset.content, asset.content_type)
            else:
                self.answer(404, b"{}", "application/problem+json")

        def answer(self, status: int, content: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def stream(self, query: Mapping[str, str]) -> None:
            self.close_connection = True
            line = answers.line(query)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                self.wfile.write(line)
                while not answers.is_over.wait(_HEARTBEAT_S):
                    self.wfile.write(b"\n")
            except OSError:
                return  # the page was left

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        answers.is_over.set()
        server.shutdown()
        serving.join()
        server.server_close()
