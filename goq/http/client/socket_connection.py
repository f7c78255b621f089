"""A blocking socket to one node, with TLS or without, and the parser of its responses."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from goq.errors import TooLarge
from goq.http.client.errors import (
    ConnectTimeout,
    ReadError,
    ReadTimeout,
    WriteError,
    WriteTimeout,
    connect_error,
)
from goq.http.client.http1 import IDLE_S_MAX, AnswerPace, Origin
from goq.http.client.response_reader import ResponseReader

if TYPE_CHECKING:
    import ssl

RECEIVE_BYTES: Final = 64 * 1024  # over 128 KiB each call would map and unmap its memory


class SocketConnection:
    """One socket and the parser of its responses."""

    def __init__(self, origin: Origin, tls: ssl.SSLContext | None, timeout_s: float | None) -> None:
        self.origin = origin
        self.reader = ResponseReader()
        self.pace = AnswerPace(None)
        self.idle_since_s = 0.0
        self._is_encrypted = tls is not None
        self._timeout_s = timeout_s
        try:
            plain = socket.create_connection(origin, timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if tls is None else _encrypted(plain, tls, origin)
        except TimeoutError as error:
            raise ConnectTimeout("the connection took too long") from error
        except OSError as error:
            raise connect_error(error) from error
        self._is_readable = _readability(self._socket)

    def send(self, pieces: tuple[bytes, ...], timeout_s: float | None) -> None:
        """Send the pieces of a request."""
        self._set_timeout(timeout_s)
        try:
            for piece in pieces:
                self._socket.sendall(piece)
        except TimeoutError as error:
            raise WriteTimeout("the request took too long to send") from error
        except OSError as error:
            raise WriteError(str(error)) from error

    def receive(self, timeout_s: float | None) -> None:
        """Feed the parser with the next bytes."""
        self._set_timeout(timeout_s)
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError as error:
            raise ReadTimeout("the answer took too long") from error
        except OSError as error:
            raise ReadError(str(error)) from error
        if data:
            self.reader.feed(data)
        else:
            self.reader.eof()

    def receive_all(self, bytes_max: int) -> bytes:
        """Return the whole body; raise ``TooLarge`` for a longer one."""
        reader = self.reader
        while not reader.complete and reader.buffered_bytes <= bytes_max:
            self.receive(self.pace.left_s(reader.received_bytes))
        if reader.buffered_bytes > bytes_max:
            raise TooLarge(f"an answer of over {bytes_max} bytes; ask for less at a time")
        return b"".join(reader.take())

    def receive_rest(self) -> bytes:
        """Return the whole body. What the parser does not have yet is received in place."""
        begun = self.reader.take()
        position = sum(map(len, begun))
        body = bytearray(position + self.reader.rest_bytes)
        body[:position] = b"".join(begun)
        with memoryview(body) as view:
            while position < len(body):
                self._set_timeout(self.pace.left_s(position or 1))
                try:
                    count = self._socket.recv_into(view[position:])
                except TimeoutError as error:
                    raise ReadTimeout("the answer took too long") from error
                except OSError as error:
                    raise ReadError(str(error)) from error
                if not count:
                    self.reader.eof()
                position += count
        self.reader.skip_rest()
        return cast(bytes, body)  # a copy would only make it immutable

    def is_usable(self) -> bool:
        """Whether an idle connection can carry a request; a readable one has ended."""
        return time.monotonic() - self.idle_since_s < IDLE_S_MAX and not self._is_readable()

    def shut_down(self, how: int) -> None:
        """End one direction or both; this wakes a thread that waits on the socket.

        TLS cannot end one direction alone.
        """
        if self._is_encrypted and how != socket.SHUT_RDWR:
            return
        try:
            socket.socket.shutdown(self._socket, how)  # that of TLS would also end the encryption
        except OSError:
            pass  # it has ended already

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _set_timeout(self, timeout_s: float | None) -> None:
        if timeout_s != self._timeout_s:  # each change is a system call
            self._socket.settimeout(timeout_s)
            self._timeout_s = timeout_s


def _encrypted(plain: socket.socket, tls: ssl.SSLContext, origin: Origin) -> ssl.SSLSocket:
    try:
        return tls.wrap_socket(plain, server_hostname=origin[0])
    except BaseException:
        plain.close()
        raise


def _readability(sock: socket.socket) -> Callable[[], bool]:
    """Return a function that tells whether a socket has bytes, or has ended."""
    if not hasattr(select, "poll"):
        return lambda: bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return lambda: bool(poll.poll(0))
