"""Splitter of input into messages, chunk by chunk: memory stays flat for any input."""

from __future__ import annotations

import os
from collections.abc import Iterator

from goq import limits
from goq.errors import TooLarge
from goq_cli.input.rejects import Rejects

_CHUNK_BYTES = 1024 * 1024


class Splitter:
    """Splits one input at a delimiter.

    Messages are yielded as soon as they are complete: a slow pipe is not delayed. Bytes after the
    last delimiter are the last message; ``unterminated`` is then true. Messages over the limit of a
    value go to ``rejects``, piece by piece.
    """

    def __init__(self, delimiter: bytes, name: str, rejects: Rejects) -> None:
        self._rejects = rejects
        self._is_skipping = False
        self.delimiter = delimiter
        self._name = name
        self.count = 0
        self.unterminated = False

    def split(self, fd: int) -> Iterator[list[bytes]]:
        """Yield the messages of ``fd``, up to its end.

        Raises ``TooLarge``, with the message's number, for a value over the limit, unless these are
        left out.
        """
        rest: list[bytes] = []
        rest_bytes = 0
        while chunk := os.read(fd, _CHUNK_BYTES):
            if rest and len(self.delimiter) > 1:  # a chunk may end within a delimiter
                chunk = rest.pop() + chunk
                rest_bytes = sum(map(len, rest))
            *whole, tail = chunk.split(self.delimiter)
            if whole:
                if rest:
                    whole[0] = b"".join((*rest, whole[0]))
                rest, rest_bytes = [], 0
                first = self.count + 1
                self.count += len(whole)
                if self._is_skipping or self._is_over(len(whole[0]), first):
                    self._rejects.keep(whole.pop(0) + self.delimiter)
                    self._is_skipping = False
                if whole:
                    yield whole
            if tail:
                rest.append(tail)
                rest_bytes += len(tail)
                if self._is_skipping or self._is_over(rest_bytes, self.count + 1):
                    rest = self._keep_part(b"".join(rest))
                    rest_bytes = sum(map(len, rest))
        if self._is_skipping:
            self._rejects.keep(b"".join(rest))
        elif rest:
            self.unterminated = True
            self.count += 1
            yield [b"".join(rest)]

    def _keep_part(self, data: bytes) -> list[bytes]:
        """Keep a part of a message that is too long; return what may begin its delimiter."""
        self._is_skipping = True
        end = len(data) - len(self.delimiter) + 1
        self._rejects.keep(data[:end])
        return [data[end:]] if data[end:] else []

    def _is_over(self, size_bytes: int, number: int) -> bool:
        """Return whether a message is too long; tell it, or raise ``TooLarge``."""
        if size_bytes <= limits.VALUE_BYTES_MAX:
            return False
        self._rejects.refuse(
            TooLarge(
                f"{self._name}: message {number} has over {limits.VALUE_BYTES_MAX} bytes, the limit"
                " of a value; what came before it is stored"
            )
        )
        return True
