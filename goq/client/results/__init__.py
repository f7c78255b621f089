"""Values that the administrative calls of the client return.

result        the base of all of them, and the decoder of a node's answer
topic         topics: partitions, settings, messages by day, rates
group         groups: progress, members, rebalances, resets
message       single messages: content, state, state for each group
dead_letter   dead letters, and the results of redriving and purging them
trace         the life of a message, step by step
cluster       nodes, replicas, reassignments, elections, configuration
token         tokens, and the sender of a request
schedule      schedules
audit         records of the audit trail
live          what nodes, topics and groups do now
node          version and health of one node

Every value is a frozen dataclass. Fields have the names of the HTTP API (docs/http.md); those that
an answer may leave out have defaults. Times are ``datetime`` in UTC.

The modules are imported on first use: building all classes takes 25 ms of CPU.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from goq.client.results import (
        audit,
        cluster,
        dead_letter,
        group,
        live,
        message,
        node,
        schedule,
        token,
        topic,
        trace,
    )

__all__ = [
    "audit",
    "cluster",
    "dead_letter",
    "group",
    "live",
    "message",
    "node",
    "schedule",
    "token",
    "topic",
    "trace",
]


def __getattr__(name: str) -> ModuleType:
    """Import a module of this package when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
