"""Digest of a state: equal states give equal digests, whatever the order of their mappings.

The digest is the sum of one hash per row, modulo 2**128. So a command costs what it changed, not
what exists. It recognizes nodes that differ by a fault; it does not resist forged rows.

A field with its default value is not hashed. So a version of goq with a new field has the digest of
an earlier one, until a command uses the field.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from goq.cluster.metadata.rows import changed_rows, row_fields
from goq.cluster.metadata.state import MetadataState

DIGEST_BYTES = 16
_MODULUS = 1 << (8 * DIGEST_BYTES)


def state_digest(state: MetadataState) -> int:
    """Return the digest of a state; its version is not part of it."""
    return next_digest(0, MetadataState(), state)


def next_digest(digest: int, before: MetadataState, after: MetadataState) -> int:
    """Return the digest of ``after``, given that of ``before``."""
    for table, key, old, new in changed_rows(before, after):
        digest += _hash_row(table, key, new) - _hash_row(table, key, old)
    return digest % _MODULUS


def _hash_row(table: str, key: dict[str, Any], row: msgspec.Struct | None) -> int:
    if row is None:
        return 0
    fields = {
        encoded: value
        for name, encoded, default in row_fields(type(row))
        if (value := getattr(row, name)) != default
    }
    data = msgspec.msgpack.encode((table, key, fields), order="deterministic")
    return int.from_bytes(blake2b(data, digest_size=DIGEST_BYTES).digest(), "big")
