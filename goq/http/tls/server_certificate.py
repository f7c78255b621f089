"""TLS of the HTTP server: TLS 1.2 and later, with a certificate that is replaced while it runs.

A certificate that does not match its key leaves a live context broken, and a context never forgets
an authority or its session tickets. So the files are loaded into a new context, which takes the
place of the one before. Bad files change nothing. Open connections keep what their handshake had.
"""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path
from typing import Final

from goq.errors import UsageError
from goq.http.tls.certificate_expiry import expiry_s

_EXPIRY_TOLD_S: Final = 14 * 86_400
_DAY_S: Final = 86_400
_log = logging.getLogger("goq.http")
_Stamp = tuple[tuple[int, int, int], ...]


class ServerCertificate:
    """The certificate and the key of a server; ``context`` always has a pair that matches, and is
    another one after a change of the files.

    With ``client_ca`` clients may show certificates that those authorities have signed.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Load the pair; raise ``UsageError`` if it cannot be used."""
        self._paths = certificate, key
        self._client_ca = client_ca
        self._stamp = self._read_stamp()
        self._told_s = 0.0
        self._expiry_s: float | None = None
        self.context = self._load()
        self._note_expiry()

    @property
    def left_s(self) -> float | None:
        """The seconds until the certificate ends, None if that cannot be read."""
        return None if self._expiry_s is None else self._expiry_s - time.time()

    @property
    def ending_s(self) -> float | None:
        """The Unix time at which the certificate ends, None if that is over 14 days away."""
        left_s = self.left_s
        return self._expiry_s if left_s is not None and left_s < _EXPIRY_TOLD_S else None

    def reload(self) -> None:
        """Load the files again; raise ``UsageError`` and keep what was before if they are bad."""
        stamp = self._read_stamp()
        self.context = self._load()
        self._stamp = stamp
        self._note_expiry()
        _log.info("loaded the certificate %s", self._paths[0])

    def reload_if_changed(self) -> None:
        """Load the files again if one has changed; log once for a change if they are bad."""
        self._tell_expiry()
        stamp = self._read_stamp()
        if stamp == self._stamp:
            return
        try:
            self.reload()
        except UsageError as error:
            self._stamp = stamp
            _log.error("the certificate before is kept: %s", error.detail)

    def _note_expiry(self) -> None:
        self._expiry_s = expiry_s(self._paths[0])
        self._told_s = 0.0
        self._tell_expiry()

    def _tell_expiry(self) -> None:
        """Log once a day that the certificate ends soon."""
        ending_s, now_s = self.ending_s, time.time()
        if ending_s is not None and now_s - self._told_s >= _DAY_S:
            self._told_s = now_s
            days = (ending_s - now_s) / _DAY_S
            _log.warning("the certificate %s ends in %.1f days", self._paths[0], days)

    def _load(self) -> ssl.SSLContext:
        certificate, key = self._paths
        context = _new_context()
        try:
            context.load_cert_chain(certificate, key, password=_refuse_password)
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_OPTIONAL
        except (OSError, ssl.SSLError, UsageError) as error:
            raise UsageError(
                f"the certificate cannot be used: {error}; check {certificate}, {key}"
                f"{'' if self._client_ca is None else f' and {self._client_ca}'}",
                field="security.tls",
            ) from None
        return context

    def _read_stamp(self) -> _Stamp:
        """Return what changes with the files, as far as they are there."""
        found = []
        for path in (*self._paths, self._client_ca):
            if path is None:
                continue
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
