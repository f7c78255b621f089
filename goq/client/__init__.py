"""The client library: publish, consume, read and administer over HTTP.

``_async`` is written by hand; ``_sync`` is generated from it by ``tools/unasync.py``, except for
the modules where the two truly differ (``runtime`` and ``transport``). What needs no I/O at all
is shared: batches, wire forms, retries, the HTTP/1.1 parser. Names are imported on first use, so
that a synchronous program never pays for asyncio.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from goq.client._async.client import AsyncClient
    from goq.client._async.producer import AsyncProducer
    from goq.client._async.receive import AsyncDeliveryBatch
    from goq.client._async.settlement import AsyncReceivedMessage
    from goq.client._sync.client import Client
    from goq.client._sync.producer import Producer
    from goq.client._sync.receive import DeliveryBatch
    from goq.client._sync.settlement import ReceivedMessage
    from goq.client.messages import (
        DamagedRange,
        LogMessage,
        Published,
        PublishedBatch,
        ReadBatch,
        Settled,
    )

__all__ = [
    "AsyncClient",
    "AsyncDeliveryBatch",
    "AsyncProducer",
    "AsyncReceivedMessage",
    "Client",
    "DamagedRange",
    "DeliveryBatch",
    "LogMessage",
    "Producer",
    "Published",
    "PublishedBatch",
    "ReadBatch",
    "ReceivedMessage",
    "Settled",
]

_HOMES = {
    "AsyncClient": "_async.client",
    "AsyncDeliveryBatch": "_async.receive",
    "AsyncProducer": "_async.producer",
    "AsyncReceivedMessage": "_async.settlement",
    "Client": "_sync.client",
    "DamagedRange": "messages",
    "DeliveryBatch": "_sync.receive",
    "LogMessage": "messages",
    "Producer": "_sync.producer",
    "Published": "messages",
    "PublishedBatch": "messages",
    "ReadBatch": "messages",
    "ReceivedMessage": "_sync.settlement",
    "Settled": "messages",
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'goq.client' has no attribute {name!r}")
    return getattr(importlib.import_module(f"goq.client.{_HOMES[name]}"), name)
