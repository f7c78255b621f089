"""The hash of a key: which partition it belongs to, and what indexes find it by.

One function for both: the first 64 bits of MurmurHash3 x64-128 with seed 0. A key's partition is
that number modulo the count of partitions, so the same key goes to the same partition from every
client. (Kafka's default partitioner is MurmurHash2: same idea, other numbers.)
"""

from __future__ import annotations

import mmh3


def key_hash(key: bytes) -> int:
    """Return the unsigned 64-bit hash of ``key``."""
    return mmh3.hash64(key, signed=False)[0]


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition, 0 to ``partitions - 1``, that ``key`` belongs to."""
    return key_hash(key) % partitions
