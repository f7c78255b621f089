"""A proxy before an object store, that can be silent, gone or slow."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from urllib.parse import urlsplit

from tests.support.node.ports import HOST

_PIECE_BYTES = 16 * 1024


class Way(Enum):
    """What the proxy does: pass bytes on, pass a few at a time, reset all connections."""

    OPEN = "open"
    SLOW = "slow"
    GONE = "gone"


class StoreProxy:
    """Connections to a store. ``way`` may be changed at any time."""

    def __init__(self, endpoint: str) -> None:
        target = urlsplit(endpoint)
        self._target = (target.hostname, target.port)
        self.way = Way.OPEN
        self.requests = 0
        self.closed_after_bytes: int | None = None
        """Reset all connections once so many bytes came from the store."""
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server((HOST, 0))
        self.endpoint = f"http://{HOST}:{self._listener.getsockname()[1]}"
        self._pause = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def go(self) -> None:
        """Be gone: reset all connections, and all later ones."""
        self.way = Way.GONE
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything."""
        self.go()
        self._pause.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.way is Way.GONE:
                    client.close()
                    continue
                store = socket.create_connection(self._target)
                self._sockets |= {client, store}
                for source, target in ((client, store), (store, client)):
                    pumped = (source, target, source is store)
                    threading.Thread(target=self._pump, args=pumped, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                if not is_answer:
                    self.requests += data.count(b" HTTP/1.1\r\n")
                elif self.closed_after_bytes is not None:
                    self.closed_after_bytes -= len(data)
                    if self.closed_after_bytes < 0:
                        self.closed_after_bytes = None
                        self.go()
                        break
                if self.way is Way.SLOW:
                    self._pause.wait(0.005)
                target.sendall(data)
        for each in (source, target):
            self._sockets.discard(each)
            each.close()


@contextmanager
def store_proxy(endpoint: str) -> Iterator[StoreProxy]:
    """Run a proxy until the block ends."""
    proxy = StoreProxy(endpoint)
    try:
        yield proxy
    finally:
        proxy.close()
