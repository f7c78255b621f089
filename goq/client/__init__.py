"""The client library: publish, consume, read and administer over HTTP.

_async            the client for asyncio, written by hand
_sync             the client with threads, generated from it by tools/unasync.py
arguments         what callers may pass, as the wire takes it
messages          the messages and results of publish, read and settle
results           the values that the administrative calls return
delivery_options  priority, delay, TTL, tenant and dedup id of a message that is published
message_batch     messages gathered for one request, divided among partitions
replay_plan       which messages a replay has, and where their copies go
protocol          requests, paths, JSON and frames of the HTTP API, without I/O
leases            the leases of a consume loop, as its process sees them
cluster_map       the nodes that a client knows, and the leaders of partitions
retry             when a failed request is tried again
errors            failed requests and problem answers as errors of goq
tracing           trace context in headers, and traces as OpenTelemetry spans

In ``_sync`` only ``runtime`` is written by hand. Public names are imported on first use: a program
that does not use asyncio does not load it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from goq.client._async.client import AsyncClient
    from goq.client._async.consume.receive import AsyncDeliveryBatch
    from goq.client._async.consume.received_message import AsyncReceivedMessage
    from goq.client._async.publish.producer import AsyncProducer
    from goq.client._sync.client import Client
    from goq.client._sync.consume.receive import DeliveryBatch
    from goq.client._sync.consume.received_message import ReceivedMessage
    from goq.client._sync.publish.producer import Producer
    from goq.client.messages import (
        CopyResult,
        DamagedRange,
        FailedReceipt,
        LogMessage,
        Published,
        PublishedBatch,
        ReadBatch,
        Settled,
    )
    from goq.client.replay_plan import Replay
    from goq.client.results.audit import AuditEntry
    from goq.client.results.cluster import (
        ClusterConfiguration,
        ClusterDescription,
        ClusterPartition,
        ClusterTopic,
        FollowerLag,
        LeaderElection,
        NodeDescription,
        PartitionReassignment,
        ReplicaEnd,
    )
    from goq.client.results.dead_letter import (
        DeadLetterDescription,
        DeadLetterPage,
        EarlierDeath,
        FailedDelivery,
        PurgeResult,
        RedriveResult,
    )
    from goq.client.results.group import (
        GroupDescription,
        GroupMembership,
        GroupPartition,
        GroupRebalance,
        GroupResetResult,
        IncompleteProgress,
        LeaseHolder,
        MemberDescription,
        PartitionHandover,
        PartitionReset,
    )
    from goq.client.results.live import (
        LatencyCounts,
        LiveGroup,
        LiveNode,
        LiveState,
        LiveTopic,
        WaitingMessages,
    )
    from goq.client.results.message import (
        FoundMessagePage,
        MessageDescription,
        MessageGroupState,
        MessagePage,
    )
    from goq.client.results.node import (
        FinishedBackup,
        FinishedRestore,
        NodeHealth,
        NodeProblem,
        NodeVersion,
    )
    from goq.client.results.result import Result
    from goq.client.results.schedule import ScheduleDescription
    from goq.client.results.token import CreatedToken, Identity, TokenDescription
    from goq.client.results.topic import (
        ArchiveSummary,
        DailyVolume,
        DamagedOffsets,
        PartitionDescription,
        ScheduledSummary,
        TopicDescription,
        TopicHistory,
        TopicRates,
    )
    from goq.client.results.trace import (
        MessageTrace,
        MissingSteps,
        TracedMessage,
        TraceEvent,
        TracePage,
    )

__all__ = [
    "ArchiveSummary",
    "AsyncClient",
    "AsyncDeliveryBatch",
    "AsyncProducer",
    "AsyncReceivedMessage",
    "AuditEntry",
    "Client",
    "ClusterConfiguration",
    "ClusterDescription",
    "ClusterPartition",
    "ClusterTopic",
    "CopyResult",
    "CreatedToken",
    "DailyVolume",
    "DamagedOffsets",
    "DamagedRange",
    "DeadLetterDescription",
    "DeadLetterPage",
    "DeliveryBatch",
    "EarlierDeath",
    "FailedDelivery",
    "FailedReceipt",
    "FinishedBackup",
    "FinishedRestore",
    "FollowerLag",
    "FoundMessagePage",
    "GroupDescription",
    "GroupMembership",
    "GroupPartition",
    "GroupRebalance",
    "GroupResetResult",
    "Identity",
    "IncompleteProgress",
    "LatencyCounts",
    "LeaderElection",
    "LeaseHolder",
    "LiveGroup",
    "LiveNode",
    "LiveState",
    "LiveTopic",
    "LogMessage",
    "MemberDescription",
    "MessageDescription",
    "MessageGroupState",
    "MessagePage",
    "MessageTrace",
    "MissingSteps",
    "NodeDescription",
    "NodeHealth",
    "NodeProblem",
    "NodeVersion",
    "PartitionDescription",
    "PartitionHandover",
    "PartitionReassignment",
    "PartitionReset",
    "Producer",
    "Published",
    "PublishedBatch",
    "PurgeResult",
    "ReadBatch",
    "ReceivedMessage",
    "RedriveResult",
    "Replay",
    "ReplicaEnd",
    "Result",
    "ScheduleDescription",
    "ScheduledSummary",
    "Settled",
    "TokenDescription",
    "TopicDescription",
    "TopicHistory",
    "TopicRates",
    "TraceEvent",
    "TracePage",
    "TracedMessage",
    "WaitingMessages",
]

_MODULES = {
    "ArchiveSummary": "results.topic",
    "AsyncClient": "_async.client",
    "AsyncDeliveryBatch": "_async.consume.receive",
    "AsyncProducer": "_async.publish.producer",
    "AsyncReceivedMessage": "_async.consume.received_message",
    "AuditEntry": "results.audit",
    "Client": "_sync.client",
    "ClusterConfiguration": "results.cluster",
    "ClusterDescription": "results.cluster",
    "ClusterPartition": "results.cluster",
    "ClusterTopic": "results.cluster",
    "CopyResult": "messages",
    "CreatedToken": "results.token",
    "DailyVolume": "results.topic",
    "DamagedOffsets": "results.topic",
    "DamagedRange": "messages",
    "DeadLetterDescription": "results.dead_letter",
    "DeadLetterPage": "results.dead_letter",
    "DeliveryBatch": "_sync.consume.receive",
    "EarlierDeath": "results.dead_letter",
    "FailedDelivery": "results.dead_letter",
    "FailedReceipt": "messages",
    "FollowerLag": "results.cluster",
    "FoundMessagePage": "results.message",
    "GroupDescription": "results.group",
    "GroupMembership": "results.group",
    "GroupPartition": "results.group",
    "GroupRebalance": "results.group",
    "GroupResetResult": "results.group",
    "Identity": "results.token",
    "IncompleteProgress": "results.group",
    "LeaderElection": "results.cluster",
    "LeaseHolder": "results.group",
    "LogMessage": "messages",
    "MemberDescription": "results.group",
    "MessageDescription": "results.message",
    "MessageGroupState": "results.message",
    "MessagePage": "results.message",
    "MessageTrace": "results.trace",
    "MissingSteps": "results.trace",
    "NodeDescription": "results.cluster",
    "FinishedBackup": "results.node",
    "FinishedRestore": "results.node",
    "LatencyCounts": "results.live",
    "LiveGroup": "results.live",
    "LiveNode": "results.live",
    "LiveState": "results.live",
    "LiveTopic": "results.live",
    "WaitingMessages": "results.live",
    "NodeHealth": "results.node",
    "NodeProblem": "results.node",
    "NodeVersion": "results.node",
    "PartitionDescription": "results.topic",
    "PartitionHandover": "results.group",
    "PartitionReassignment": "results.cluster",
    "PartitionReset": "results.group",
    "Producer": "_sync.publish.producer",
    "Published": "messages",
    "PublishedBatch": "messages",
    "PurgeResult": "results.dead_letter",
    "ReadBatch": "messages",
    "ReceivedMessage": "_sync.consume.received_message",
    "RedriveResult": "results.dead_letter",
    "Replay": "replay_plan",
    "ReplicaEnd": "results.cluster",
    "Result": "results.result",
    "ScheduleDescription": "results.schedule",
    "ScheduledSummary": "results.topic",
    "Settled": "messages",
    "TokenDescription": "results.token",
    "TopicDescription": "results.topic",
    "TopicHistory": "results.topic",
    "TopicRates": "results.topic",
    "TraceEvent": "results.trace",
    "TracePage": "results.trace",
    "TracedMessage": "results.trace",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'goq.client' has no attribute {name!r}")
    return getattr(importlib.import_module(f"goq.client.{_MODULES[name]}"), name)
