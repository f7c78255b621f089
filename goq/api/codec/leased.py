"""Leases of a receive answer, read back from its bytes.

The gateway merges answers of several nodes, and releases leases that reach no consumer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from goq.api.route import FRAMES, JSON
from goq.http.message import BytesLike, Response
from goq.model import Receipt

_HEAD_BYTES = 4
_encode = msgspec.json.Encoder().encode


class LeaseReturner(Protocol):
    """Returns leases of a group of a topic to the leaders, while there are any, or for a while."""

    async def return_leases(self, topic: str, group: str, receipts: Iterable[Receipt]) -> None:
        """Release leases whose messages did not reach their consumer."""

    def return_held(self, topic: str, group: str, holder_id: str, reason: str = "") -> None:
        """Release all leases of a receive, or end those of a stream for a ``reason``."""


class _Received(msgspec.Struct):
    messages: list[msgspec.Raw]


class _Receipted(msgspec.Struct):
    receipt: str


_decode_received = msgspec.json.Decoder(_Received).decode
_decode_receipted = msgspec.json.Decoder(_Receipted).decode


def receipt_of(message: bytes) -> Receipt:
    """Return the receipt of a message in JSON."""
    return Receipt.parse(_decode_receipted(message).receipt)


class LeasedMessages(NamedTuple):
    """The leased messages of one answer: each as JSON, or a preface and frames."""

    messages: list[msgspec.Raw]
    preface: dict[str, Any] | None
    frames: BytesLike
    size_bytes: int

    @property
    def message_count(self) -> int:
        """The number of leased messages."""
        if self.preface is None:
            return len(self.messages)
        return sum(e - s for d in self.preface["deliveries"] for s, e, _ in d["ranges"])

    def receipts(self) -> list[Receipt]:
        """Return the receipts of all messages."""
        if self.preface is None:
            return [receipt_of(bytes(raw)) for raw in self.messages]
        return [
            Receipt(delivery["partition"], int(delivery["token"]), start, end)
            for delivery in self.preface["deliveries"]
            for start, end, _ in delivery["ranges"]
        ]


def read_leased(response: Response) -> LeasedMessages:
    """Return the leases of a receive answer."""
    body = response_bytes(response)
    if response.content_type == FRAMES:
        return read_frames(body)
    return LeasedMessages(_decode_received(body).messages, None, b"", len(body))


def read_frames(body: bytes) -> LeasedMessages:
    """Return the leases of an answer, or of a part of a stream, in frames."""
    start = _HEAD_BYTES + int.from_bytes(body[:_HEAD_BYTES], "little")
    preface = msgspec.json.decode(body[_HEAD_BYTES:start])
    return LeasedMessages([], preface, memoryview(body)[start:], len(body))


def merge_leased(answers: Sequence[LeasedMessages], *, as_frames: bool) -> Response:
    """Return one answer for several of one form; for frames there is at least one."""
    if not as_frames:
        messages = [raw for answer in answers for raw in answer.messages]
        return Response(200, _encode(_Received(messages)), JSON)
    prefaces = [answer.preface for answer in answers if answer.preface is not None]
    deliveries = [delivery for preface in prefaces for delivery in preface["deliveries"]]
    head = _encode({**prefaces[0], "deliveries": deliveries})
    parts: list[BytesLike] = [len(head).to_bytes(_HEAD_BYTES, "little") + head]
    return Response(200, [*parts, *(answer.frames for answer in answers)], FRAMES)


def response_bytes(response: Response) -> bytes:
    """Return the body of a response that is not a stream."""
    body = response.body
    if isinstance(body, bytes):
        return body
    assert isinstance(body, list | tuple)
    return b"".join(body)
