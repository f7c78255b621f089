"""A proxy that holds answers back until they end, as many do with their default settings."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_END_OF_HEAD = b"\r\n\r\n"


@contextmanager
def holding_proxy(node: tuple[str, int], *, passes_head: bool) -> Iterator[str]:
    """Run a proxy before a node; yield its URL.

    Each connection has one request. The body of its answer is passed on when the answer is whole,
    with ``passes_head`` the head before that.
    """
    stopping = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            request = _one_request(client)
            if request is None:
                return
            with socket.create_connection(node) as upstream:
                upstream.sendall(request)
                ready = select.poll()  # select() refuses descriptors from 1024 on
                for each in (client, upstream):
                    ready.register(each, select.POLLIN)
                answer = bytearray()
                has_head = False
                while not stopping.is_set():
                    readable = {number for number, _ in ready.poll(100)}
                    if client.fileno() in readable:
                        return  # it has left
                    if upstream.fileno() in readable:
                        piece = upstream.recv(65536)
                        if not piece:
                            client.sendall(answer)
                            return
                        answer += piece
                    if passes_head and not has_head and _END_OF_HEAD in answer:
                        has_head = True
                        end = answer.index(_END_OF_HEAD) + len(_END_OF_HEAD)
                        client.sendall(answer[:end])
                        del answer[:end]

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            stopping.set()
            server.shutdown()
            thread.join()


def _one_request(client: socket.socket) -> bytes | None:
    """Return a whole request that asks for the end of the connection; None for an early end."""
    data = b""
    while _END_OF_HEAD not in data:
        if not (piece := client.recv(65536)):
            return None
        data += piece
    head, _, body = data.partition(_END_OF_HEAD)
    lines = head.split(b"\r\n")
    sizes = [line.split(b":")[1] for line in lines if line.lower().startswith(b"content-length:")]
    while len(body) < (int(sizes[0]) if sizes else 0):
        if not (piece := client.recv(65536)):
            return None
        body += piece
    kept = [line for line in lines if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*kept, b"Connection: close"]) + _END_OF_HEAD + body
