"""goq: a message queue on a durable log.

The first group is for programs that use goq, the second is the node from its edge to its disk, the
third is shared by all.

client    the client library, asynchronous and synchronous
embedded  a node in this process, for programs and tests
embedded_client  a client on such a node
worker           functions as workers of a group
pytest_plugin    fixtures for tests of programs that use goq
pipeline  export, reports and Spark

process   the process of a node: event loop, log, signals
node      the composition root of a running node
listeners  the HTTP servers of a node, and its certificate
http      the HTTP/1.1 server and client
api       the HTTP API: routes, bodies, views, gateway, metrics
console   the web console: static files
sqs       the endpoint for AWS SDKs, over the HTTP API
cluster   replication, cluster metadata, and everything else that several nodes need
backup    backups of a node, and the way back
broker    topics and partitions: publish, receive, retention, search, trace
delivery  which group gets which message when, without I/O
storage   logs, indexes, compaction and archive on the disk

frame     the binary format of messages, on the wire and on the disk
access    tokens and rules: who may do what
schedules  periodic messages
config    the configuration of a node and the settings of topics
model     the values that every layer shares
units     durations, sizes and times in the form that people write
errors    the tree of all errors
limits    all bounds
index_cache   key and event indexes in memory
clock     time, as a parameter
log_throttle  one log record of a kind in a period
histogram     histograms of durations
event_loop    the event loops of threads
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from goq.client import AsyncClient, Client
    from goq.embedded import Node
    from goq.embedded_client import open_folder as open
    from goq.errors import GoqError
    from goq.model import Message, MessageId
    from goq.worker import WorkerApp

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Client",
    "GoqError",
    "Message",
    "MessageId",
    "Node",
    "WorkerApp",
    "__version__",
    "open",
]

_HOMES = {
    "AsyncClient": ("goq.client", "AsyncClient"),
    "Client": ("goq.client", "Client"),
    "GoqError": ("goq.errors", "GoqError"),
    "Message": ("goq.model", "Message"),
    "MessageId": ("goq.model", "MessageId"),
    "Node": ("goq.embedded", "Node"),
    "WorkerApp": ("goq.worker", "WorkerApp"),
    "open": ("goq.embedded_client", "open_folder"),
}


# What a client imports for some calls only. Programs have it all from the beginning: a fork while
# another thread imports would lock the import in the child.
_PARTS = (
    "consume.consumer",
    "consume.receive",
    "log.replay_reader",
    "log.topic_copy",
    "log.topic_reader",
)
_PARTS_OF = {"AsyncClient": "goq.client._async", "Client": "goq.client._sync"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a node never imports the client."""
    if name not in _HOMES:
        raise AttributeError(f"module 'goq' has no attribute {name!r}")
    if name in _PARTS_OF:
        for part in _PARTS:
            importlib.import_module(f"{_PARTS_OF[name]}.{part}")
        importlib.import_module("goq.config.topic")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)
