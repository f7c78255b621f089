"""MD5 digests of messages, which SDKs compute too and compare.

The digest of attributes is that of their encoding: by name, each name, type and value with its
length before it, and a byte for the kind of the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import md5
from typing import Final, NamedTuple

_TEXT: Final = b"\x01"
_BINARY: Final = b"\x02"


class AttributeContent(NamedTuple):
    """The type of a message attribute, and its value: text, or bytes of a binary one."""

    data_type: str
    value: str | bytes


def body_digest(body: str) -> str:
    """Return the digest of a body."""
    return md5(body.encode(), usedforsecurity=False).hexdigest()


def attributes_digest(attributes: Mapping[str, AttributeContent]) -> str:
    """Return the digest of attributes."""
    digest = md5(usedforsecurity=False)
    for name, (data_type, value) in sorted(attributes.items()):
        for text in (name, data_type):
            digest.update(_with_length(text.encode()))
        if isinstance(value, str):
            digest.update(_TEXT + _with_length(value.encode()))
        else:
            digest.update(_BINARY + _with_length(value))
    return digest.hexdigest()


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
