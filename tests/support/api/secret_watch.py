"""Looks for the secrets of tokens where none may be: in answers, logs and data folders of nodes.

Secrets come to be known as the suite sends them. So all its nodes that ask for tokens are watched,
whatever the test is about.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

_BEARER = "Bearer "
_SECRET = re.compile(r"goq_[A-Za-z0-9]+_([A-Za-z0-9_-]{43})")
_SECRET_FILES = ("admin.token",)


class SecretWatch(logging.Handler):
    """Knows the secrets that were sent; as a handler of logs it notes records that have one."""

    def __init__(self) -> None:
        super().__init__()
        self._secrets: set[str] = set()
        self._found: list[str] = []

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

    def check_node(self, data_dir: Path, log: Path | None = None) -> None:
        """Fail if the data folder of a node that has stopped, or its log, has a secret."""
        for name in _SECRET_FILES:
            if (data_dir / name).is_file():
                self.note((data_dir / name).read_text().strip())
        found, self._found = self._found, []
        assert found == [], f"secrets in records of the log: {found}"
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
            self._found.append(text)


WATCH = SecretWatch()
"""The watch of all tests of a process."""
