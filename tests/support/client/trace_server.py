"""Traces as a node tells them, and a server that tells them: for what is built on top."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]

DAY = "2025-01-15T"


def step(time: str, event: str, message_id: str = "orders:2:45678", **more: Any) -> Json:
    """Return an event at a time of the day ``DAY``, as ``10:30:00.000000``."""
    if "origin" in more:
        more["from"] = more.pop("origin")
    return {"time": f"{DAY}{time}Z", "event": event, "id": message_id, **more}


def message(message_id: str = "orders:2:45678", **more: Any) -> Json:
    """Return what a trace says of the message itself."""
    topic, partition, offset = message_id.rsplit(":", 2)
    return {
        "id": message_id,
        "topic": topic,
        "partition": int(partition),
        "offset": int(offset),
        "timestamp": f"{DAY}10:30:00.000000Z",
        "lane": "normal",
        "size_bytes": 1234,
        "state": "live",
        **more,
    }


def trace(events: list[Json], told: Json | None = None, **more: Any) -> Json:
    """Return a whole trace."""
    attempts = sum(event["event"] == "DELIVERED" for event in events)
    return {
        "message": told or message(key="order-123", retained_until="2025-01-22T10:30:00.000000Z"),
        "events": events,
        "attempts": attempts,
        "publish_to_ack_ms": None,
        "incomplete": [],
        **more,
    }


IN_A_CLUSTER = trace(
    [step("10:30:00.000000", "PUBLISHED", producer="order-service", durability="always")],
    message(nodes=["n1", "n3"], retained_until="2025-01-22T10:30:00.000000Z"),
)
EXPIRED_ONCE = trace(
    [
        step("10:30:00.000000", "PUBLISHED", producer="order-service", durability="always"),
        step(
            "10:30:00.123870",
            "DELIVERED",
            group="processors",
            consumer="processor-1",
            attempt=1,
            until=f"{DAY}10:30:30.123000Z",
        ),
        step("10:30:30.456021", "EXPIRED", group="processors", reason="visibility_timeout"),
        step(
            "10:30:35.789410",
            "DELIVERED",
            group="processors",
            consumer="processor-2",
            attempt=2,
            until=f"{DAY}10:31:05.789000Z",
        ),
        step("10:30:36.012003", "ACKNOWLEDGED", group="processors", consumer="processor-2"),
    ],
    publish_to_ack_ms=36012.003,
)
DEAD = "orders.dlq:0:7"
BACK = "orders:2:45700"
THERE_AND_BACK = trace(
    [
        step("10:30:00.000000", "PUBLISHED", producer="order-service"),
        step("10:30:00.000000", "SCHEDULED", due="2025-01-16T08:00:00.250000Z"),
        step("10:31:00.000000", "RESCHEDULED", due=f"{DAY}10:31:10.500000Z"),
        step("10:31:10.501000", "MATURED"),
        step(
            "10:31:10.502000",
            "DELIVERED",
            group="billing",
            consumer="b-1",
            attempt=1,
            until="2025-01-16T10:31:10.502000Z",
        ),
        step(
            "10:31:10.503000",
            "DELIVERED",
            group="audit-log",
            consumer="a-1",
            attempt=1,
            until=f"{DAY}10:31:40.503000Z",
        ),
        step("10:31:11.000000", "NACKED", group="billing", consumer="b-1", reason='no "stock"'),
        step("10:31:11.100000", "ACKNOWLEDGED", group="audit-log", consumer="a-1"),
        step("10:31:12.000000", "DEAD_LETTERED", group="billing", to=DEAD, reason="nacked"),
        step("10:31:12.000500", "PUBLISHED", DEAD, origin="orders:2:45678"),
        step("10:40:00.000000", "REDRIVEN", DEAD, to=BACK),
        step("10:40:00.000700", "PUBLISHED", BACK, origin=DEAD),
        step(
            "10:40:01.000000",
            "DELIVERED",
            BACK,
            group="billing",
            consumer="b-2",
            attempt=1,
            until=f"{DAY}10:40:31.000000Z",
        ),
        step("10:40:02.000000", "ACKNOWLEDGED", BACK, group="billing", consumer="b-2"),
    ],
    message(
        key="order-123",
        tenant="acme",
        traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ),
    publish_to_ack_ms=71_100.0,
)
GONE = trace(
    [step("10:30:00.000000", "DELETED", reason="retention.age")],
    {
        "id": "orders:2:45678",
        "topic": "orders",
        "partition": 2,
        "offset": 45678,
        "state": "deleted",
    },
    incomplete=[
        {"to": f"{DAY}10:29:00.000000Z", "reason": "older events were deleted"},
        {"reason": "events are damaged"},
    ],
)
HOSTILE = trace(
    [
        step(
            "10:30:00.000000",
            "NACKED",
            group="g",
            reason="\x1b[31mred\x1b[0m\nline " + "long " * 60,
        )
    ],
    message(key="\x1b]0;title\x07\u202e", size_bytes=3_500_000),
)


class TraceServer:
    """Tells the traces in ``traces`` by id, and to a search all of them."""

    def __init__(self, *traces: Json) -> None:
        self.traces = {trace["message"]["id"]: json.loads(json.dumps(trace)) for trace in traces}
        self.pages: list[Json] = []
        """What searches are answered, one after the other, instead of with everything."""
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.changed = threading.Condition()
        self.url = ""

    def add(self, message_id: str, *events: Json) -> None:
        """Let more steps happen."""
        with self.changed:
            self.traces[message_id]["events"] += events
            self.changed.notify_all()

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, Json]:
        with self.changed:
            self.requests.append((path, query))
            self.changed.notify_all()
            if path.startswith("/v1/messages/"):
                return self._one(path.removeprefix("/v1/messages/").removesuffix("/trace"), query)
            if self.pages:
                return 200, self.pages.pop(0)
            return 200, {"traces": list(self.traces.values()), "next": None}

    def _one(self, message_id: str, query: dict[str, str]) -> tuple[int, Json]:
        found = self.traces.get(message_id)
        if found is None:
            detail = f"there is no message {message_id}; partition 2 has 40000 to 45677"
            return 404, {"code": "message_not_found", "status": 404, "detail": detail}
        if "wait" in query:
            seen = int(query["seen"])
            self.changed.wait_for(lambda: len(found["events"]) > seen, timeout=30)
        return 200, found


@contextmanager
def trace_server(*traces: Json) -> Iterator[TraceServer]:
    """Run a server that tells traces."""
    server = TraceServer(*traces)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            status, answer = server.answer(
                urllib.parse.unquote(path), dict(urllib.parse.parse_qsl(query))
            )
            body = json.dumps(answer).encode()
            try:
                self.send_response(status)
                kind = "application/json" if status == 200 else "application/problem+json"
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # who asked has gone

        def log_message(self, *_arguments: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True  # one may hold an answer back
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
