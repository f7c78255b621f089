"""The hash of a key or dedup id: which partition it belongs to, and what indexes find it by.

One function for both: the first 64 bits of MurmurHash3 x64-128 with seed 0. A key's partition is
that number modulo the count of partitions, so the same key goes to the same partition from every
client. (Kafka's default partitioner is MurmurHash2: same idea, other numbers.)

A dedup id is known by its whole 128 bits. A message without a key goes by the first 64 of them,
so that sending it again meets the first one.

A producer that has a name and no identity of its own is known by the upper 63 bits of its hash.
"""

from __future__ import annotations

import mmh3


def key_hash(key: bytes) -> int:
    """Return the unsigned 64-bit hash of ``key``."""
    return mmh3.hash64(key, signed=False)[0]


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition, 0 to ``partitions - 1``, that ``key`` belongs to."""
    return key_hash(key) % partitions


def name_hash(name: str) -> int:
    """Return the producer id of a producer that is only named: 63 bits, never 0."""
    return key_hash(name.encode()) >> 1 or 1


def dedup_hash(text: str) -> bytes:
    """Return the 16 bytes that a dedup id is known by; all zero stands for none."""
    hashed = mmh3.hash_bytes(text.encode())
    return hashed if any(hashed) else b"\x01" + hashed[1:]


def dedup_partition_of(dedup_id: bytes, partitions: int) -> int:
    """Return the partition that a message without a key, but with a dedup id, belongs to."""
    return int.from_bytes(dedup_id[:8], "little") % partitions
