"""A TCP proxy that looks for a marker in what passes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.node.ports import HOST

_PIECE_BYTES = 65_536


class WireTap:
    """Passes connections on to a port, and counts bytes and markers."""

    def __init__(self, target: int, marker: bytes) -> None:
        self.bytes_passed = 0
        self.markers = 0
        self._marker = marker
        self._target = target
        self._listening = socket.create_server((HOST, 0))
        self.port = int(self._listening.getsockname()[1])
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                try:
                    server = socket.create_connection((HOST, self._target))
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        kept = b""
        with suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                self.bytes_passed += len(data)
                seen = kept + data
                self.markers += seen.count(self._marker)
                kept = seen[-len(self._marker) + 1 :]
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections."""
        for end in (self._listening, *self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def wire_tap(target: int, marker: bytes) -> Iterator[WireTap]:
    """Pass connections to a port on until the block ends."""
    tap = WireTap(target, marker)
    try:
        yield tap
    finally:
        tap.close()
