"""A client of the HTTP API over a bare socket, which shares no code with goq.

Each answer has the times around it. Microseconds of the wall clock, which the nodes on the same
machine share, so that a checker never judges by how fast a machine is.
"""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any

HOST = "127.0.0.1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Unanswered(Exception):
    """No answer came: the request may have been carried out, or not."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and the times before the request and after the answer."""

    status: int
    body: Any
    asked_us: int
    answered_us: int

    @property
    def is_done(self) -> bool:
        """Whether the node did what was asked."""
        return 200 <= self.status < 300

    @property
    def is_unknown(self) -> bool:
        """Whether the node itself says that the request may be carried out."""
        return self.body["code"] in ("timed_out", "internal")


class Wire:
    """A connection to one of some nodes, after each failure to the next one."""

    def __init__(self, ports: Sequence[int], patience_s: float = 20.0, session: str = "") -> None:
        self._session = f"Goq-Session: {session}\r\n" if session else ""
        self._ports = deque(ports)
        self._patience_s = patience_s
        self._socket: socket.socket | None = None

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, method: str, path: str, body: object = None) -> Reply:
        """Send one request once; raise ``Unanswered``."""
        asked_us = now_us()
        try:
            status, content = self._exchange(method, path, body)
        except (OSError, ValueError) as error:
            self.close()
            self._ports.rotate()
            raise Unanswered(f"{method} {path}: {error!r}") from error
        if status in (421, 503, 504):
            self.close()
            self._ports.rotate()
        return Reply(status, json.loads(content) if content else None, asked_us, now_us())

    def must(self, method: str, path: str, body: object = None, *, seconds: float = 30.0) -> Any:
        """Ask until the node does it; return what it answers. For what may be done twice."""
        until_s = time.monotonic() + seconds
        while True:
            try:
                reply = self.ask(method, path, body)
                if reply.is_done:
                    return reply.body
                said: object = reply
            except Unanswered as error:
                said = error
            assert time.monotonic() < until_s, said
            assert not isinstance(said, Reply) or said.status != 400, said
            time.sleep(0.02)

    def _exchange(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        if self._socket is None:
            self._socket = socket.create_connection((HOST, self._ports[0]), self._patience_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{self._ports[0]}\r\n"
        head += self._session
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        self._socket.sendall(head.encode() + b"\r\n" + content)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._more()
        start, _, content = received.partition(b"\r\n\r\n")
        status_line, *lines = start.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        pieces = [content]
        length = int(headers.get("content-length", "0"))
        left = length - len(content)
        while left > 0:
            pieces.append(self._more())
            left -= len(pieces[-1])
        if headers.get("connection") == "close":
            self.close()
        return int(status_line.split(" ")[1]), b"".join(pieces)

    def _more(self) -> bytes:
        assert self._socket is not None
        piece = self._socket.recv(1 << 18)
        if not piece:
            raise ConnectionResetError("the node closed the connection")
        return piece


def now_us() -> int:
    """Return the time of the wall clock."""
    return time.time_ns() // 1000


def as_us(text: str) -> int:
    """Return a time that the node has written."""
    since = datetime.fromisoformat(text.replace("Z", "+00:00")) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def as_rfc(time_us: int) -> str:
    """Write a time as the node does."""
    return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
