"""TLS of the HTTP server: TLS 1.2 and later, with a certificate that is replaced while it runs.

A certificate that does not match its key leaves a live context broken: every later handshake fails.
So a pair is loaded into a scratch context first. A bad pair changes nothing. Open connections keep
the certificate of their handshake.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Final

from goq.errors import UsageError

HANDSHAKE_TIMEOUT_S: Final = 5.0
_log = logging.getLogger("goq.http")
_Stamp = tuple[tuple[int, int, int], ...]


class ServerCertificate:
    """The certificate and the key of a server; ``context`` always has a pair that matches."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load the pair; raise ``UsageError`` if it cannot be used."""
        self._paths = certificate, key
        self._stamp = self._read_stamp()
        self.context = self._load(_new_context())

    def reload(self) -> None:
        """Load the pair again; raise ``UsageError`` and keep the one before if it is bad."""
        stamp = self._read_stamp()
        self._load(_new_context())
        self._load(self.context)
        self._stamp = stamp
        _log.info("loaded the certificate %s", self._paths[0])

    def reload_if_changed(self) -> None:
        """Load the pair again if a file has changed; log once for a change if it is bad."""
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return
        try:
            self.reload()
        except UsageError as error:
            self._stamp = stamp
            _log.error("the certificate before is kept: %s", error.detail)

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        certificate, key = self._paths
        try:
            context.load_cert_chain(certificate, key, password=_refuse_password)
        except (OSError, ssl.SSLError, UsageError) as error:
            raise UsageError(
                f"the certificate cannot be used: {error}; check {certificate} and {key}",
                field="security.tls",
            ) from None
        return context

    def _read_stamp(self) -> _Stamp:
        """Return what changes with the files, as far as they are there."""
        found = []
        for path in self._paths:
            try:
                stat = path.stat()
            except OSError:
                continue
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _refuse_password() -> str:
    """Keep OpenSSL from asking for a password on the terminal."""
    raise UsageError("the key has a password")
