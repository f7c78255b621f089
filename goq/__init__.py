"""goq: a message queue on a durable log."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from goq.client import AsyncClient, Client
    from goq.errors import GoqError
    from goq.model import Message, MessageId

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "GoqError", "Message", "MessageId", "__version__"]

_HOMES = {
    "AsyncClient": "goq.client",
    "Client": "goq.client",
    "GoqError": "goq.errors",
    "Message": "goq.model",
    "MessageId": "goq.model",
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used: a node never pays for the client."""
    if name not in _HOMES:
        raise AttributeError(f"module 'goq' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
