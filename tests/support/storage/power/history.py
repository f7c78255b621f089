"""What clients asked of a recorded node and were told, and what of that holds at a moment.

Each call goes to one place of the record: it was asked at the earliest when the record was
``asked_byte`` long, and it was answered with the byte ``answered_byte`` of its connection. So
which calls had an answer when the power went is read from the record, not from a clock.

A *register* is something that calls give a value: a topic, a message's state in a group. At any
moment it may have the value of the last answered call or of one that was under way.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.storage.power.record import Recorder
from tests.support.storage.power.volume import NEVER, Volume

TIMEOUT_S = 30.0
PAUSE_S = 0.05
NOT_LEADER = 421
ABSENT = "absent"

Register = tuple[Hashable, ...]
"""``("topic", name)``, ``("group", topic, name)``, ``("state", topic, group, id)``, …"""


@dataclass(slots=True)
class Call:
    """A request, what it changes, and its answer."""

    method: str
    path: str
    body: Any
    port: int
    asked_byte: int
    writes: dict[Register, Any] = field(default_factory=dict)
    """The registers that it sets, known when it is asked."""
    published: tuple[str, int] | None = None
    """The topic, and its incarnation, that the body's messages go to."""
    receives: tuple[str, str] | None = None
    """The topic and group whose messages it leases."""
    answer: Any = None
    found: dict[Register, Any] = field(default_factory=dict)
    """The registers that it sets, known when it is answered."""
    answered_byte: int = NEVER


class History:
    """All calls, in the order in which they were asked; several threads may add."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    def add(self, call: Call) -> None:
        """Add a call before it is sent."""
        with self._lock:
            self.calls.append(call)

    def at(self, volume: Volume, point: int) -> Promises:
        """Return what holds when the power goes before entry ``point``."""
        sizes: dict[int, int] = defaultdict(int)
        for sent in volume.sent:
            if sent.index < point:
                sizes[sent.port] += sent.size_bytes
        promises = Promises()
        for call in self.calls:
            if volume.index_of_byte(call.asked_byte) >= point:
                continue
            promises.take(call, is_answered=call.answered_byte <= sizes[call.port])
        return promises


class Promises:
    """What must be there, and what may be."""

    def __init__(self) -> None:
        self.registers: dict[Register, list[Any]] = {}
        self._acknowledged: dict[str, dict[tuple[int, str], dict[str, Any]]] = defaultdict(dict)
        self.sent: dict[str, dict[str, tuple[int, dict[str, Any]]]] = defaultdict(dict)
        """All messages that were sent, with the incarnation of the topic, by topic and value."""
        self.receiving: set[tuple[str, str]] = set()
        """Groups with a receive under way."""

    def take(self, call: Call, *, is_answered: bool) -> None:
        """Count a call that was asked."""
        for register, value in (call.writes | call.found).items():
            before = self.registers.get(register, [ABSENT])
            self.registers[register] = [value] if is_answered else [*before, value]
        if call.receives is not None and not is_answered:
            self.receiving.add(call.receives)
        if call.published is None:
            return
        topic, incarnation = call.published
        messages = call.body["messages"]
        for message in messages:
            self.sent[topic][message["value"]] = incarnation, message
        results = call.answer["results"] if is_answered else [None] * len(messages)
        for message, result in zip(messages, results, strict=True):
            if result is not None:
                self._acknowledged[topic][incarnation, result["id"]] = message

    def possible(self, register: Register) -> list[Any]:
        """Return the values that a register may have."""
        return self.registers.get(register, [ABSENT])

    def acknowledged(
        self, topic: str, incarnation: int | None
    ) -> Iterator[tuple[tuple[int, str], dict[str, Any]]]:
        """Yield the messages of a topic with an answer, by incarnation and id, as they were sent.

        None stands for all incarnations.
        """
        for key, message in self._acknowledged[topic].items():
            if incarnation in (None, key[0]):
                yield key, message

    def of_kind(self, kind: str) -> Iterator[tuple[Register, list[Any]]]:
        """Yield all registers of a kind, with their possible values."""
        for register, values in self.registers.items():
            if register[0] == kind:
                yield register, values


class NodeLost(Exception):
    """The connection broke: the node was killed."""


class RecordedClient:
    """One connection to a recorded node, whose calls go into a history."""

    def __init__(self, recorder: Recorder, history: History, address: tuple[str, int]) -> None:
        self._recorder = recorder
        self._history = history
        self._socket = socket.create_connection(address, timeout=TIMEOUT_S)
        self._port = self._socket.getsockname()[1]
        self._read_bytes = 0

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        writes: Mapping[Register, Any] | None = None,
        published: tuple[str, int] | None = None,
        receives: tuple[str, str] | None = None,
        finds: Callable[[Any], Mapping[Register, Any]] = lambda _: {},
    ) -> Any:
        """Send a request; return its answer. Raises ``NodeLost`` when there is none.

        It is sent again, as a call of its own, while the node of a cluster does not lead.
        ``finds`` returns the registers that the answer tells of.
        """
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            asked = self._recorder.size_bytes
            values = dict(writes or {})
            call = Call(method, path, body, self._port, asked, values, published, receives)
            self._history.add(call)
            status, answer = self._send(method, path, body)
            if status != NOT_LEADER or time.monotonic() > until_s:
                break
            time.sleep(PAUSE_S)
        assert 200 <= status < 300, (method, path, status, answer)
        call.answer = json.loads(answer) if answer else None
        call.found = dict(finds(call.answer))
        call.answered_byte = self._read_bytes
        return call.answer

    def _send(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        try:
            self._socket.sendall(head.encode() + content)
            return self._read_answer()
        except (OSError, http.client.HTTPException) as error:
            raise NodeLost from error

    def _read_answer(self) -> tuple[int, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._some()
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines)
        length = int(fields.get("content-length", "0"))
        assert "transfer-encoding" not in fields, fields
        while len(body) < length:
            body += self._some()
        return int(first.split()[1]), body

    def _some(self) -> bytes:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the node has closed the connection")
        self._read_bytes += len(data)
        return data
