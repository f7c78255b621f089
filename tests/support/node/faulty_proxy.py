"""A proxy in front of a node that answers some requests as a node in trouble would."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECES = 20
PAUSE_S = 0.002
_PASSED_ON = ("Content-Type", "Accept", "Authorization")


class Fault(Enum):
    """What becomes of a request."""

    TOO_MANY = auto()
    """429 with a problem document that names a time to wait."""
    NOT_NOW = auto()
    """503 from something in between that speaks no goq."""
    REQUEST_LOST = auto()
    """The connection ends in the middle of the request's body; the node hears nothing."""
    ANSWER_LOST = auto()
    """The node does it, and the connection ends before it answers."""
    ANSWER_CUT = auto()
    """The node does it, and the connection ends in the middle of the answer's body."""
    SLOW = auto()
    """The answer comes in small pieces."""


Heard = Callable[[str, str], object]
"""Told by method and path what the node has done, before who asked hears of it."""
Choose = Callable[[str, str], Fault | None]
"""Says by method and path what becomes of a request; None if it is just passed on."""


def at_times(chance: random.Random, probability: float) -> Choose:
    """Return what lets any request fail in any way with some probability."""
    guard = threading.Lock()

    def choose(_method: str, _path: str) -> Fault | None:
        with guard:
            return chance.choice(list(Fault)) if chance.random() < probability else None

    return choose


class FaultyProxy:
    """Where the proxy is, and what it has done. Use :func:`faulty_proxy`."""

    def __init__(
        self, node: tuple[str, int], choose: Choose, heard: Heard, retry_after_ms: int
    ) -> None:
        self.node = node
        self.choose = choose
        self.heard = heard
        self.retry_after_ms = retry_after_ms
        self.done: Counter[Fault | None] = Counter()
        self.url = ""


@contextmanager
def faulty_proxy(
    node: tuple[str, int],
    choose: Choose = lambda *_: None,
    *,
    heard: Heard = lambda *_: None,
    retry_after_ms: int = 0,
) -> Iterator[FaultyProxy]:
    """Run a proxy in front of a node's host and port until the block ends."""
    made = FaultyProxy(node, choose, heard, retry_after_ms)

    class Handler(_Handler):
        proxy = made

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Serves a connection until it ends, in whatever way."""

    proxy: FaultyProxy
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        """Serve; who asks may be killed at any time, and so may the node."""
        with suppress(OSError, http.client.HTTPException):
            super().handle()

    def _handle(self) -> None:
        proxy = self.proxy
        fault = proxy.choose(self.command, self.path)
        proxy.done[fault] += 1
        length = int(self.headers.get("Content-Length", 0))
        if fault is Fault.REQUEST_LOST:
            self.rfile.read(length // 2)
            self._hang_up()
            return
        body = self.rfile.read(length)
        if fault is Fault.TOO_MANY:
            problem = {"code": "too_many_requests", "retry_after_ms": proxy.retry_after_ms}
            self._answer(429, "application/problem+json", json.dumps(problem).encode())
            return
        if fault is Fault.NOT_NOW:
            self._answer(503, "text/plain", b"no server is available")
            return
        self._pass_on(body, fault)

    def _pass_on(self, body: bytes, fault: Fault | None) -> None:
        connection = http.client.HTTPConnection(*self.proxy.node, timeout=30)
        try:
            headers = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            kind, data = answer.getheader("Content-Type", "text/plain"), answer.read()
        finally:
            connection.close()
        self.proxy.heard(self.command, self.path)
        if fault is Fault.ANSWER_LOST:
            self._hang_up()
            return
        self._answer(answer.status, kind, data, fault)

    def _answer(self, status: int, kind: str, data: bytes, fault: Fault | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if status in (429, 503):
            self.send_header("Retry-After", str(self.proxy.retry_after_ms // 1000))
        self.end_headers()
        if fault is Fault.ANSWER_CUT:
            self.wfile.write(data[: len(data) // 2])
            self._hang_up()
            return
        size = len(data) // PIECES + 1 if fault is Fault.SLOW else len(data)
        for start in range(0, len(data), size or 1):
            self.wfile.write(data[start : start + size])
            if fault is Fault.SLOW:
                threading.Event().wait(PAUSE_S)

    def _hang_up(self) -> None:
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
