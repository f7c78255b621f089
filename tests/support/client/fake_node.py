"""A node for the client's tests: in memory, on loopback, with faults on demand."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import urllib.parse
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from goq import __version__
from goq.frame.header import HEADER_BYTES, stamp
from goq.frame.slice import slice_frame
from goq.frame.validation import check_frame
from goq.frame.view import FrameView
from goq.model import Receipt
from goq.units import format_time_us, parse_duration_ms, parse_time_us

FRAMES = "application/vnd.goq.frames"


@dataclass
class FakePartition:
    frames: list[FrameView] = field(default_factory=list)
    end: int = 0
    producers: dict[int, tuple[int, dict[int, tuple[int, int]]]] = field(default_factory=dict)
    damaged: list[tuple[int, int]] = field(default_factory=list)

    def values(self) -> list[bytes | None]:
        return [v for f in self.frames for v in f.values(0, f.header.message_count)]


class Refused(Exception):
    def __init__(self, status: int, code: str, **more: object) -> None:
        super().__init__(code)
        self.status = status
        self.problem = {"code": code, "status": status, "detail": f"said {code}", **more}


class FakeNode:
    """Start with ``with``. Faults are lists that are used up, one for each publish or request."""

    def __init__(self) -> None:
        self.topics: dict[str, list[FakePartition]] = {}
        self.groups: dict[tuple[str, str], FakeGroup] = {}
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.refusals: deque[Refused] = deque()
        self.creates_topics = False
        self.drops_after_storing = 0
        self.drops_before_storing = 0
        self.now_us = 1_700_000_000_000_000
        self.may_publish = threading.Event()
        self.may_publish.set()
        self.changed = threading.Condition()
        self.stopping = False
        self.forgets_to_give_back = False
        self.knows_releases = True
        self.lease_ms: int | None = 30_000
        self.connections: set[socket.socket] = set()
        self.streams: dict[str, FakeStream] = {}
        self.cluster: dict[str, Any] = {}
        """The leaders, as it tells them."""

    def __enter__(self) -> FakeNode:
        node = self

        class Handler(_Handler):
            fake = node

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # then closing the server joins them
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *exc: object) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
        self.may_publish.set()
        self.break_connections()
        self._server.shutdown()
        self._thread.join()
        self.break_connections()
        self._server.server_close()

    def break_connections(self) -> None:
        """Shut down every connection that is open."""
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def create(self, topic: str, partitions: int = 1) -> list[FakePartition]:
        self.topics[topic] = [FakePartition() for _ in range(partitions)]
        return self.topics[topic]

    def group(self, topic: str, group: str) -> FakeGroup:
        return self.groups.setdefault((topic, group), FakeGroup(self, topic))

    def paths(self, method: str, part: str) -> list[str]:
        return [path for m, path in self.requests if m == method and part in path]

    def eventually(self, condition: Any) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout=60), "it did not happen in 60 s"

    def publish(self, topic: str, body: bytes) -> dict[str, Any]:
        partitions = self.topics[topic]
        placed = list(placed_frames(body))
        for partition, view in placed:
            check_frame(view)
            if partition >= len(partitions):
                raise Refused(404, "partition_not_found")
        results, refused = list[dict[str, Any]](), list[Refused]()
        for number, view in placed:
            try:
                results.append(self._append(partitions[number], number, view))
            except Refused as refusal:
                refused.append(refusal)
        if refused:
            raise Refused(504, "timed_out") if results else refused[0]
        return {"results": results, "durability": "memory"}

    def _append(self, partition: FakePartition, number: int, view: FrameView) -> dict[str, Any]:
        header = view.header
        following, seen = partition.producers.get(header.producer_id, (None, {}))
        if header.first_sequence in seen:
            offset, time_us = seen[header.first_sequence]
            return _result(number, offset, header.message_count, time_us, True)
        if following is not None and header.first_sequence != following:
            raise Refused(409, "out_of_order_sequence")
        self.now_us += 1000
        offset = partition.end
        stamped = stamp(header, base_offset=offset, append_time_us=self.now_us, leader_epoch=0)
        partition.frames.append(FrameView.parse(stamped.pack() + bytes(view.buffer[HEADER_BYTES:])))
        partition.end += header.message_count
        seen[header.first_sequence] = (offset, self.now_us)
        partition.producers[header.producer_id] = (
            header.first_sequence + header.message_count,
            seen,
        )
        return _result(number, offset, header.message_count, self.now_us, False)

    def read(self, topic: str, query: dict[str, str]) -> bytes:
        number = int(query["partition"])
        partition = self.topics[topic][number]
        start = int(query.get("offset", 0))
        from_us = parse_time_us(query.get("from_time", "1970-01-01"), now_us=0)
        to_us = parse_time_us(query.get("to_time", "2100-01-01"), now_us=0)
        limit = int(query.get("limit", "131072"))
        if wait := query.get("wait"):
            with self.changed:
                self.changed.wait_for(
                    lambda: partition.end > start or self.stopping, parse_duration_ms(wait) / 1000
                )
        pieces: list[bytes] = []
        following = start
        for view in partition.frames:
            header = view.header
            if limit <= 0:
                break
            if header.end_offset <= start:
                continue
            if not from_us <= header.append_time_us < to_us:
                following = header.end_offset
                continue
            cut = slice_frame(view, start, max(start, header.base_offset) + limit)
            part = FrameView.parse(bytes(cut))
            following = part.header.end_offset
            limit -= part.header.message_count
            if not any(s <= header.base_offset < e for s, e in partition.damaged):
                pieces.append(number.to_bytes(4, "little") + bytes(cut))
        preface = {
            "next": following,
            "start": 0,
            "end": partition.end,
            "damaged": [
                {"partition": number, "start_offset": s, "end_offset": e}
                for s, e in partition.damaged
                if start <= s < following
            ],
        }
        return _with_preface(preface, pieces)


class FakeGroup:
    """Hands messages out in order; nacked ones come first again."""

    def __init__(self, node: FakeNode, topic: str) -> None:
        self._node = node
        self._topic = topic
        self._cursors = [0] * len(node.topics[topic])
        self._again: dict[tuple[int, int], int] = {}
        self._token = 3298534883328
        self.leased: dict[tuple[int, int], tuple[int, int]] = {}
        self.done: set[tuple[int, int]] = set()
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def receive(self, asked: dict[str, Any]) -> bytes:
        node = self._node
        with node.changed:
            node.changed.wait_for(
                lambda: self.is_ready() or node.stopping,
                parse_duration_ms(asked.get("wait", "0s")) / 1000,
            )
            node.changed.notify_all()
            return self.hand_out(asked.get("max_messages", 100), asked)[0]

    def hand_out(self, left: int, asked: dict[str, Any]) -> tuple[bytes, list[int]]:
        """The answer that leases up to so many messages, and its tokens."""
        node = self._node
        lease_ms = node.lease_ms
        if lease_ms is not None and "visibility" in asked:
            lease_ms = parse_duration_ms(asked["visibility"])
        deliveries: list[dict[str, Any]] = []
        pieces: list[bytes] = []
        for number, partition in enumerate(node.topics[self._topic]):
            ranges, left = self._take(number, partition.end, left)
            if not ranges:
                continue
            self._token += 1
            for start, end, attempt in ranges:
                for offset in range(start, end):
                    self.leased[number, offset] = (self._token, attempt)
            frames = [
                f
                for f in partition.frames
                if any(
                    f.header.base_offset < end and start < f.header.end_offset
                    for start, end, _ in ranges
                )
            ]
            pieces += [number.to_bytes(4, "little") + bytes(f.buffer) for f in frames]
            deliveries.append(
                {
                    "partition": number,
                    "token": str(self._token),
                    "lease_until": format_time_us(node.now_us + 30_000_000),
                    "ranges": ranges,
                    "frames": len(frames),
                    "lease_ms": lease_ms,
                }
            )
        tokens = [int(delivery["token"]) for delivery in deliveries]
        return _with_preface({"deliveries": deliveries}, pieces), tokens

    def in_flight(self, tokens: list[int]) -> list[tuple[int, int]]:
        """The places of the messages under these leases."""
        return [place for place, (token, _) in self.leased.items() if token in tokens]

    def give_back(self, tokens: list[int]) -> None:
        """End leases; their messages come again on their next attempt."""
        for place in self.in_flight(tokens):
            self._again[place] = self.leased.pop(place)[1] + 1

    def settle(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        if verb == "release" and not self._node.knows_releases:
            raise Refused(404, "route_not_found")
        done, failed = 0, []
        with self._node.changed:
            self.calls.append((verb, body))
            for text in body["receipts"]:
                receipt = Receipt.parse(text)
                for offset in range(receipt.start, receipt.end):
                    place = (receipt.partition, offset)
                    token, attempt = self.leased.get(place, (None, 0))
                    if token != receipt.token:
                        lost = Receipt(receipt.partition, receipt.token, offset, offset + 1)
                        failed.append({"receipt": str(lost), "code": "lease_lost"})
                        continue
                    done += 1
                    if verb == "extend":
                        continue
                    del self.leased[place]
                    if verb == "ack":
                        self.done.add(place)
                    else:
                        self._again[place] = attempt + (verb != "release")
            self._node.changed.notify_all()
        return {"settled": done, "failed": failed}

    def is_ready(self) -> bool:
        partitions = self._node.topics[self._topic]
        return bool(self._again) or any(
            cursor < partition.end
            for cursor, partition in zip(self._cursors, partitions, strict=True)
        )

    def _take(self, number: int, end: int, left: int) -> tuple[list[list[int]], int]:
        ranges = []
        for place in sorted(p for p in self._again if p[0] == number)[:left]:
            ranges.append([place[1], place[1] + 1, self._again.pop(place)])
            left -= 1
        start = self._cursors[number]
        stop = min(end, start + left)
        if start < stop:
            ranges.append([start, stop, 1])
            self._cursors[number] = stop
        return ranges, left - (stop - start)


class FakeStream:
    """One stream, served by the thread of its connection."""

    def __init__(self, node: FakeNode, group: FakeGroup, asked: dict[str, Any]) -> None:
        self._node = node
        self._group = group
        self._asked = asked
        self._credit = asked["max_in_flight"]
        self._left = asked.get("limit", 1_000_000)
        self._tokens: list[int] = []
        self._ended = False
        self.id = f"s{len(node.bodies)}"

    def grant(self, asked: dict[str, Any]) -> dict[str, Any]:
        with self._node.changed:
            in_flight = len(self._group.in_flight(self._tokens))
            if "max_in_flight" in asked and self._node.knows_releases:
                self._credit = asked["max_in_flight"]
            elif "more" in asked:
                self._credit = in_flight + asked["more"]
            else:
                raise Refused(400, "invalid_input")
            self._node.changed.notify_all()
            return {"stream": self.id, "max_in_flight": self._credit, "in_flight": in_flight}

    def end(self) -> bytes:
        with self._node.changed:
            self._ended = True
            self._node.changed.notify_all()
        return b""

    def serve(self, handler: _Handler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("Goq-Stream", self.id)
        handler.end_headers()
        with self._node.changed:
            heartbeat, _ = self._group.hand_out(0, {})
        _write(handler, heartbeat)
        self._node.streams[self.id] = self
        readable = select.poll()  # select() refuses descriptors from 1024 on
        readable.register(handler.connection, select.POLLIN)
        try:
            while not self._ended:
                with self._node.changed:
                    self._node.changed.wait_for(self._has_work, 0.01)
                    if readable.poll(0):
                        raise ConnectionError("the consumer is gone")
                    answer = self._next() if self._has_work() and not self._ended else b""
                if answer:
                    _write(handler, answer)
            handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            handler.close_connection = True
        finally:
            with self._node.changed:
                del self._node.streams[self.id]
                if not (self._ended or self._node.forgets_to_give_back):
                    self._group.give_back(self._tokens)
                self._node.changed.notify_all()

    def _room(self) -> int:
        return min(self._left, self._credit - len(self._group.in_flight(self._tokens)))

    def _has_work(self) -> bool:
        return self._ended or (self._room() > 0 and self._group.is_ready())

    def _next(self) -> bytes:
        answer, tokens = self._group.hand_out(self._room(), self._asked)
        self._tokens += tokens
        self._left -= len(self._group.in_flight(tokens))
        return answer


def _write(handler: _Handler, answer: bytes) -> None:
    framed = len(answer).to_bytes(4, "little") + answer
    handler.wfile.write(b"%x\r\n%b\r\n" % (len(framed), framed))
    handler.wfile.flush()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeNode
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        self.fake.connections.add(self.connection)

    def finish(self) -> None:
        self.fake.connections.discard(self.connection)
        with contextlib.suppress(OSError):  # the connection is broken
            super().finish()

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ValueError):
            self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.fake.changed:
            self.fake.requests.append((self.command, self.path))
            self.fake.bodies.append(body)
            self.fake.headers.append({k.lower(): v for k, v in self.headers.items()})
            self.fake.changed.notify_all()
        try:
            if self.fake.refusals and "/messages" in self.path:
                raise self.fake.refusals.popleft()
            answer = self._route(body)
        except Refused as refused:
            return self._send(refused.status, json.dumps(refused.problem).encode())
        if isinstance(answer, FakeStream):
            answer.serve(self)
            return None
        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return None
        raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return self._send(200, raw)

    def _topic(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "partitions": [
                {
                    "partition": number,
                    "leader": "fake",
                    "start_offset": 0,
                    "end_offset": partition.end,
                    "high_watermark": partition.end,
                    "bytes": 0,
                }
                for number, partition in enumerate(self.fake.topics[name])
            ],
            "settings": {"priority.lanes": "high,normal,low", "delay.max": "365d"},
            "time": format_time_us(self.fake.now_us),
        }

    def _route(self, body: bytes) -> Any:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        parts = url.path.strip("/").split("/")
        if parts == ["v1", "topics"]:
            return {"topics": [self._topic(name) for name in self.fake.topics]}
        if parts[-1] == "version":
            return {"version": __version__, "python": "3", "node": "fake"}
        if parts[-1] == "healthz":
            return {"status": "ok"}
        if parts == ["v1", "cluster"]:
            return self.fake.cluster
        if parts[:2] != ["v1", "topics"]:
            _, partition, offset = parts[-1].rsplit(":", 2)
            return {"id": parts[-1], "partition": int(partition), "offset": int(offset)}
        topic = parts[2]
        if topic not in self.fake.topics and self.fake.creates_topics and self.command == "PUT":
            self.fake.create(topic, 5)
        if topic not in self.fake.topics:
            raise Refused(404, "topic_not_found")
        if len(parts) == 3:
            return self._topic(topic)
        if parts[3] == "messages":
            if self.command == "GET":
                return self.fake.read(topic, query)
            return self._publish(topic, body)
        group = self.fake.group(topic, parts[4])
        if parts[5] == "receive":
            asked = json.loads(body)
            if asked.get("stream"):
                return FakeStream(self.fake, group, asked)
            return group.receive(asked)
        if parts[5] == "streams":
            stream = self.fake.streams.get(parts[6])
            if stream is None:
                raise Refused(404, "stream_not_found")
            return stream.end() if self.command == "DELETE" else stream.grant(json.loads(body))
        return group.settle(parts[5], json.loads(body))

    def _publish(self, topic: str, body: bytes) -> Any:
        fake = self.fake
        assert self.headers["Content-Type"] == FRAMES
        assert fake.may_publish.wait(60)
        with fake.changed:
            if fake.drops_before_storing:
                fake.drops_before_storing -= 1
                return None
            answer = fake.publish(topic, body)
            fake.changed.notify_all()
            if fake.drops_after_storing:
                fake.drops_after_storing -= 1
                return None
        return answer

    def _send(self, status: int, body: bytes) -> None:
        status = status if body else 204
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def placed_frames(body: bytes) -> Iterator[tuple[int, FrameView]]:
    position = 0
    while position < len(body):
        view = FrameView.parse(body, position + 4)
        yield int.from_bytes(body[position : position + 4], "little"), view
        position += 4 + view.header.frame_bytes


def _with_preface(preface: dict[str, Any], pieces: list[bytes]) -> bytes:
    text = json.dumps(preface).encode()
    return len(text).to_bytes(4, "little") + text + b"".join(pieces)


def _result(
    partition: int, offset: int, count: int, time_us: int, duplicate: bool
) -> dict[str, Any]:
    return {
        "partition": partition,
        "offset": offset,
        "count": count,
        "timestamp": format_time_us(time_us),
        "duplicate": duplicate,
    }
