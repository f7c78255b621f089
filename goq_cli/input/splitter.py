"""Cutting input into messages: a chunk at a time, so that memory stays flat whatever comes in."""

from __future__ import annotations

import os
from collections.abc import Iterator

from goq import limits
from goq.errors import TooLarge

_CHUNK_BYTES = 1024 * 1024


class Splitter:
    """Cuts one input at a delimiter.

    Lists of messages come out as soon as they are whole: a slow pipe is not held back. What
    stands after the last delimiter is the last message, and ``unterminated`` says that there was
    such a one.
    """

    def __init__(self, delimiter: bytes, name: str) -> None:
        self._delimiter = delimiter
        self._name = name
        self.count = 0
        self.unterminated = False

    def split(self, fd: int) -> Iterator[list[bytes]]:
        """Yield the messages of what can be read from ``fd``, to its end.

        Raises ``TooLarge`` for a message over the limit of a value, with its number.
        """
        rest: list[bytes] = []
        rest_bytes = 0
        while chunk := os.read(fd, _CHUNK_BYTES):
            if rest and len(self._delimiter) > 1:  # a delimiter may be cut in two
                chunk = rest.pop() + chunk
                rest_bytes = sum(map(len, rest))
            *whole, tail = chunk.split(self._delimiter)
            if whole:
                if rest:
                    whole[0] = b"".join((*rest, whole[0]))
                rest, rest_bytes = [], 0
                self._check(max(map(len, whole)))
                self.count += len(whole)
                yield whole
            if tail:
                rest.append(tail)
                rest_bytes += len(tail)
                self._check(rest_bytes)
        if rest:
            self.unterminated = True
            self.count += 1
            yield [b"".join(rest)]

    def _check(self, size_bytes: int) -> None:
        if size_bytes > limits.VALUE_BYTES_MAX:
            raise TooLarge(
                f"{self._name}: a message behind number {self.count} has over"
                f" {limits.VALUE_BYTES_MAX} bytes, the limit of a value; what came before it is"
                " stored"
            )
