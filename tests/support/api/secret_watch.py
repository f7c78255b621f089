"""Looks for the secrets of tokens where none may be: all that nodes answer, log and store.

The whole suite is watched, whatever a test is about. Every byte that a node in a process of the
tests sends to a client passes the watch, and so does every record of its log; both may have no
token but in the answer that creates one. Nodes in processes of their own are watched through
the answers to :mod:`tests.support.node.node_api`, through what commands print, and by their logs
and folders. Secrets come to be known as the suite sends them, and are then found without their
prefix, too.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from goq.http import connection
from goq.http.context import ServerContext
from goq.http.message import BytesLike
from goq.http.response_writer import ResponseWriter

_BEARER = "Bearer "
_SECRET = re.compile(r"goq_[A-Za-z0-9]+_([A-Za-z0-9_-]{43})")
_SHOWN_ONCE = rb'(?<!"token":")'
_ANSWERED = re.compile(_SHOWN_ONCE + _SECRET.pattern.encode())
_SECRET_FILES = ("admin.token",)
_SHOWING = ("create", "rotate")


class SecretWatch(logging.Handler):
    """Knows the secrets that were sent; as a handler of logs it notes records that have one."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets: set[str] = set()
        self._found: list[str] = []
        self.bytes_watched = 0

    def note(self, text: str) -> str | None:
        """Remember the secret of a token's text, and return it; None for other texts."""
        found = _SECRET.fullmatch(text)
        if found is None:
            return None
        self._secrets.add(found[1])
        return found[1]

    def note_request(self, headers: Mapping[str, str]) -> str | None:
        """Remember the secret of a request, and return it; None if it has none."""
        return self.note(headers.get("Authorization", "").removeprefix(_BEARER))

    def check_answer(self, secret: str | None, headers: Mapping[str, str], body: bytes) -> None:
        """Fail if an answer has the secret of its request."""
        if secret is not None:
            assert secret.encode() not in body, f"a secret in the answer {body[:1000]!r}"
            assert secret not in str(headers), f"a secret in the headers {headers}"

    def note_sent(self, data: BytesLike) -> None:
        """Note bytes that a node sends to a client, if they have a token that was not just made."""
        self.bytes_watched += len(data)
        if _ANSWERED.search(data):
            self._found.append(f"sent: {bytes(data)[:1000]!r}")

    def check_command(self, arguments: Sequence[str], printed: bytes) -> None:
        """Fail if a command printed a token that it did not make."""
        if not set(_SHOWING) & set(arguments):
            found = _SECRET.search(printed.decode(errors="replace"))
            assert found is None, f"{arguments} printed a secret: {printed[:1000]!r}"

    def check(self) -> None:
        """Fail if a record or an answer had a secret since the last check."""
        found, self._found = self._found, []
        assert found == [], f"secrets in answers or records of the log: {found}"

    def check_node(self, data_dir: Path, log: Path | None = None) -> None:
        """Fail if the data folder of a node that has stopped, or its log, has a secret."""
        for name in _SECRET_FILES:
            if (data_dir / name).is_file():
                self.note((data_dir / name).read_text().strip())
        self.check()
        if not self._secrets:
            return
        known = re.compile("|".join(map(re.escape, self._secrets)).encode())
        paths = [path for path in data_dir.rglob("*") if path.is_file() and not path.is_symlink()]
        if log is not None and log.exists():
            paths.append(log)
        for path in paths:
            is_kept = path.name in _SECRET_FILES and path.parent == data_dir
            assert is_kept or not known.search(path.read_bytes()), f"a secret in {path}"

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record that has a secret."""
        text = self.format(record)
        if _SECRET.search(text) or any(secret in text for secret in self._secrets):
            self._found.append(f"logged: {text}")


WATCH = SecretWatch()
"""The watch of all tests of a process."""


class _WatchedTransport:
    """A transport whose bytes the watch sees."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._inner = transport

    def write(self, data: BytesLike) -> None:
        WATCH.note_sent(data)
        self._inner.write(data)

    def writelines(self, parts: Sequence[BytesLike]) -> None:
        for part in parts:
            WATCH.note_sent(part)
        self._inner.writelines(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _WatchedWriter(ResponseWriter):
    """The writer of the server's connections while tests run."""

    __slots__ = ()

    def __init__(self, shared: ServerContext, transport: asyncio.Transport) -> None:
        super().__init__(shared, _WatchedTransport(transport))


def watch_this_process() -> None:
    """Watch what nodes in this process send and log, until it ends."""
    connection.ResponseWriter = _WatchedWriter
    logging.getLogger("goq").addHandler(WATCH)
