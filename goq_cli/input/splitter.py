"""Splitter of input into messages, chunk by chunk: memory stays flat for any input."""

from __future__ import annotations

import os
from collections.abc import Iterator

from goq import limits
from goq.errors import TooLarge

_CHUNK_BYTES = 1024 * 1024


class Splitter:
    """Splits one input at a delimiter.

    Messages are yielded as soon as they are complete: a slow pipe is not delayed. Bytes after the
    last delimiter are the last message; ``unterminated`` is then true.
    """

    def __init__(self, delimiter: bytes, name: str) -> None:
        self._delimiter = delimiter
        self._name = name
        self.count = 0
        self.unterminated = False

    def split(self, fd: int) -> Iterator[list[bytes]]:
        """Yield the messages of ``fd``, up to its end.

        Raises ``TooLarge``, with the message's number, for a value over the limit.
        """
        rest: list[bytes] = []
        rest_bytes = 0
        while chunk := os.read(fd, _CHUNK_BYTES):
            if rest and len(self._delimiter) > 1:  # a chunk may end within a delimiter
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
