"""Follow one publish, one receive and one ack through the files of a node.

python tools/follow.py           print the files in order of first entry, and both counts
python tools/follow.py --check   exit with 1 if a request enters or crosses more than it may

The node runs in a thread of this process. Each request is sent over HTTP by a plain socket, after
others of its kind have warmed everything up; of some rounds the shortest counts. A profiler hook on
the threads of the node records each call. A file counts once it is entered; a crossing is a call
from a function in one file of goq to a function in another. Calls that the event loop or a library
makes count as entries only. A coroutine that goes on after a wait is no call.

The event loop writes to the journal, as it does on a fast disk, however slow this one is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import uvloop

from goq.broker.log import commit_turn
from goq.config.sources import config_of
from goq.node import NodeServer

_ROOT = str(Path(__file__).resolve().parent.parent) + "/"
_GOQ = _ROOT + "goq/"
_WARM_UP = 20
_ROUNDS = 5  # the shortest counts: background work may come between
_BESIDE = {"goq/http/loop_watch.py"}  # runs by a timer, not for a request
_REST_S = 0.05  # for the writes that nobody waits for; shorter than any timer of a lease


class Bounds(NamedTuple):
    """The most that a request may enter and cross."""

    files: int
    crossings: int


BOUNDS = {"publish": Bounds(52, 132), "receive": Bounds(67, 230), "ack": Bounds(48, 109)}


class Path_(NamedTuple):
    """The files that a request entered, in order, and the crossings between them."""

    files: list[str]
    crossings: list[tuple[str, str]]
    """Caller and callee, each as ``file:function``."""


class Recorder:
    """A profiler hook that records calls while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self._files: dict[str, None] = {}
        self._crossings: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Take one event of the profiler."""
        if not self.is_on or event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(_GOQ) or _goes_on(frame):
            return
        name = code.co_filename.removeprefix(_ROOT)
        if name in _BESIDE:
            return
        self._files[name] = None
        caller = frame.f_back
        if caller is not None:
            calling = caller.f_code.co_filename
            is_beside = calling.removeprefix(_ROOT) in _BESIDE  # what a slow disk adds
            if calling.startswith(_GOQ) and calling != code.co_filename and not is_beside:
                of = f"{calling.removeprefix(_ROOT)}:{caller.f_code.co_qualname}"
                self._crossings.append((of, f"{name}:{code.co_qualname}"))

    def take(self) -> Path_:
        """Return what was recorded, and forget it."""
        taken = Path_(list(self._files), self._crossings)
        self._files, self._crossings = {}, []
        return taken


def _goes_on(frame: FrameType) -> bool:
    """Whether a generator or coroutine goes on from where it waited."""
    return frame.f_lasti > 4 and bool(frame.f_code.co_flags & 0x2A0) and _has_begun(frame)


def _has_begun(frame: FrameType) -> bool:
    return frame.f_lineno != frame.f_code.co_firstlineno


class _NodeThread:
    """A node on one topic of one partition, in a thread."""

    def __init__(self, data_dir: Path) -> None:
        self._node = NodeServer(
            config_of({"broker.data_dir": data_dir, "broker.listen": "127.0.0.1:0"})
        )
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.url = ""

    def __enter__(self) -> _NodeThread:
        self._thread.start()
        if not self._ready.wait(30):
            raise SystemExit("the node did not start")
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self._node.start()
        self.url = self._node.url
        self._ready.set()
        await self._stop.wait()
        await self._node.stop()


class _Connection:
    """A connection kept alive, without any of goq's code on this side."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send a request and return the answer."""
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + data)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._socket.recv(65536)
        head_, _, rest = received.partition(b"\r\n\r\n")
        status = int(head_.split(b" ", 2)[1])
        fields = dict(
            line.lower().split(b": ", 1) for line in head_.split(b"\r\n")[1:] if b": " in line
        )
        while len(rest) < int(fields[b"content-length"]):
            rest += self._socket.recv(65536)
        if status >= 400:
            raise SystemExit(f"{path} answered {status}: {rest.decode()}")
        return json.loads(rest) if rest else None


@contextmanager
def _recorded(recorder: Recorder) -> Iterator[None]:
    recorder.is_on = True
    try:
        yield
        time.sleep(_REST_S)
    finally:
        recorder.is_on = False


def follow() -> dict[str, Path_]:
    """Return what one publish, one receive and one ack went through."""
    recorder = Recorder()
    commit_turn._SLOW_WRITE_S = math.inf
    threading.setprofile(recorder)
    try:
        with tempfile.TemporaryDirectory() as folder, _NodeThread(Path(folder)) as node:
            return _requests(_Connection(node.url), recorder)
    finally:
        threading.setprofile(None)


def _requests(connection: _Connection, recorder: Recorder) -> dict[str, Path_]:
    connection.post("/v1/topics", {"name": "t", "partitions": 1})
    for _ in range(_WARM_UP):
        _publish(connection)
        _ack(connection, _receive(connection))
    time.sleep(_REST_S)
    rounds = [_round(connection, recorder) for _ in range(_ROUNDS)]
    return {name: min((found[name] for found in rounds), key=_length) for name in BOUNDS}


def _round(connection: _Connection, recorder: Recorder) -> dict[str, Path_]:
    found: dict[str, Path_] = {}
    with _recorded(recorder):
        _publish(connection)
    found["publish"] = recorder.take()
    with _recorded(recorder):
        received = _receive(connection)
    found["receive"] = recorder.take()
    with _recorded(recorder):
        _ack(connection, received)
    found["ack"] = recorder.take()
    return found


def _length(path: Path_) -> tuple[int, int]:
    return len(path.crossings), len(path.files)


def _publish(connection: _Connection) -> None:
    connection.post("/v1/topics/t/messages", {"messages": [{"value": "hello"}]})


def _receive(connection: _Connection) -> list[str]:
    path = "/v1/topics/t/groups/g/receive"
    messages = connection.post(path, {"consumer": "c"})["messages"]
    if len(messages) != 1:
        raise SystemExit(f"received {len(messages)} messages, not 1")
    return [message["receipt"] for message in messages]


def _ack(connection: _Connection, receipts: list[str]) -> None:
    connection.post("/v1/topics/t/groups/g/ack", {"receipts": receipts})


def main() -> int:
    """Print, or check, what the requests go through."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 over the bounds")
    parser.add_argument("--crossings", action="store_true", help="print each crossing too")
    asked = parser.parse_args()
    is_over = False
    for request, (files, crossings) in follow().items():
        bounds = BOUNDS[request]
        is_over |= len(files) > bounds.files or len(crossings) > bounds.crossings
        print(
            f"{request}: {len(files)} files (at most {bounds.files}),"
            f" {len(crossings)} crossings (at most {bounds.crossings})"
        )
        for name in files:
            print(f"    {name}")
        for caller, callee in crossings if asked.crossings else ():
            print(f"    {caller} -> {callee}")
    return int(asked.check and is_over)


if __name__ == "__main__":
    sys.exit(main())
