"""Receipt handles: a lease's receipt, the id of its topic, and when the message was received.

A handle of another queue is refused, also of a deleted one of the same name. The receipt in it is
fenced: that of an earlier lease settles nothing.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from goq.errors import InvalidInput
from goq.model import Receipt, format_topic_id
from goq.sqs.protocol.errors import SqsError

_TIME_DIGITS_MAX: Final = 15  # a changed handle may have more than a float can hold


class ReceiptHandle(NamedTuple):
    """The content of a handle."""

    receipt: str
    received_ms: int


def format_handle(topic_id: int, receipt: str, received_ms: int) -> str:
    """Return the handle of a received message."""
    text = f"{format_topic_id(topic_id)}/{received_ms}/{receipt}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def parse_handle(text: str, topic_id: int) -> ReceiptHandle:
    """Return the content of a handle of a topic. Raises ``SqsError``."""
    try:
        topic, received, receipt = base64.urlsafe_b64decode(text).decode().split("/")
        Receipt.parse(receipt)
        if len(received) > _TIME_DIGITS_MAX:
            raise ValueError(received)
        received_ms = int(received)
    except (binascii.Error, ValueError, InvalidInput):
        topic, receipt, received_ms = "", "", 0
    if topic != format_topic_id(topic_id):
        raise SqsError("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
    return ReceiptHandle(receipt, received_ms)
