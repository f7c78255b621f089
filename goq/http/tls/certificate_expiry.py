"""The end of a certificate's validity, from its PEM file.

The standard library shows the fields of a certificate only after a handshake with the other side.
So the two times are taken from its DER form (RFC 5280, 4.1): the certificate is a sequence whose
first element has an optional version, a number, an algorithm, an issuer, and then the validity.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_VALIDITY: Final = 3  # after the version


def expiry_s(path: Path) -> float | None:
    """Return the Unix time at which the first certificate of a file ends, None if it is not read.

    Raises ``OSError``.
    """
    text = path.read_text(errors="replace")
    begin, end = text.find(_BEGIN), text.find(_END)
    try:
        der = ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)])
        (whole,) = _elements(der)
        fields = [
            field for field in _elements(next(_elements(whole[1]))[1]) if field[0] != _VERSION
        ]
        _, until = _elements(fields[_VALIDITY][1])
        return _time_s(*until)
    except (ValueError, IndexError, StopIteration):
        return None


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tags and contents of the elements in ``data``."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[at : at + count], "big")
            at += count
        yield tag, data[at : at + size]
        at += size


def _time_s(tag: int, content: bytes) -> float:
    text = content.decode("ascii")
    if tag == _UTC_TIME:  # years of two digits, from 1950 on
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
