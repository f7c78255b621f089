"""A server that says exactly what a test tells it to, whatever it is asked."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence

Step = bytes | None
"""Bytes to send, or None to close the connection."""

HELD = b"(held)"
"""A step that waits until the test sets :attr:`ScriptedServer.hold`."""


class ScriptedServer:
    """Plays one script a connection; each part of a script answers one request."""

    def __init__(self, *scripts: Sequence[Sequence[Step]]) -> None:
        self._scripts = list(scripts)
        self.requests: list[bytes] = []
        self.connections = 0
        self.hold = threading.Event()

    def __enter__(self) -> ScriptedServer:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.hold.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        for script in self._scripts:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._play, args=(connection, script))
            self._threads.append(thread)
            thread.start()

    def _play(self, connection: socket.socket, script: Sequence[Sequence[Step]]) -> None:
        with connection, contextlib.suppress(OSError):
            for steps in script:
                request = self._read(connection)
                if not request:
                    return
                self.requests.append(request)
                for step in steps:
                    if step is None:
                        return
                    if step is HELD:
                        self.hold.wait()
                    else:
                        connection.sendall(step)
            self._read(connection)

    @staticmethod
    def _read(connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return b""
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        wanted = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                wanted = int(value)
        while len(body) < wanted:
            body += connection.recv(65536)
        return head + b"\r\n\r\n" + body


def ok(body: bytes = b"{}", *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *headers, b"", b""]
    return b"\r\n".join(lines) + body
