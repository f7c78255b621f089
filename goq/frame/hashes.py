"""Hashes of keys, dedup ids and producer names, and the partition of a key.

All use MurmurHash3 x64-128 with seed 0. The hash of a key is its first 64 bits. The key's partition
is that number modulo the number of partitions, so every client sends a key to the same partition.
(Kafka's default partitioner is MurmurHash2: the same idea, other numbers.)

A dedup id is identified by all 128 bits. A message without a key is partitioned by the first 64 of
them, so that a duplicate meets its original.

A producer with a name and without an identity is identified by the upper 63 bits of its hash.
"""

from __future__ import annotations

import mmh3


def key_hash(key: bytes) -> int:
    """Return the unsigned 64-bit hash of ``key``."""
    return mmh3.hash64(key, signed=False)[0]


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of ``key``, 0 to ``partitions - 1``."""
    return key_hash(key) % partitions


def name_hash(name: str) -> int:
    """Return the producer id of a producer that has only a name: 63 bits, never 0."""
    return key_hash(name.encode()) >> 1 or 1


def dedup_hash(text: str) -> bytes:
    """Return the 16 bytes that identify a dedup id; never all zero, which stands for none."""
    hashed = mmh3.hash_bytes(text.encode())
    return hashed if any(hashed) else b"\x01" + hashed[1:]


def dedup_partition_of(dedup_id: bytes, partitions: int) -> int:
    """Return the partition of a message with a dedup id and without a key."""
    return int.from_bytes(dedup_id[:8], "little") % partitions
