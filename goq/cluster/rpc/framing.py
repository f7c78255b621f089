"""Calls and answers with frames in them: a head behind its length (u32), then the frames."""

from __future__ import annotations

from collections.abc import Sequence

_HEAD_BYTES = 4


def join_head(head: bytes, frames: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the pieces of a head and frames."""
    return [len(head).to_bytes(_HEAD_BYTES, "little"), head, *frames]


def split_head(body: bytes) -> tuple[memoryview, memoryview]:
    """Return the head and what comes behind it."""
    whole = memoryview(body)
    end = _HEAD_BYTES + int.from_bytes(whole[:_HEAD_BYTES], "little")
    return whole[_HEAD_BYTES:end], whole[end:]
