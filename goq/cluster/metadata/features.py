"""Feature levels: what the nodes of a cluster may use while they run different versions of goq.

The metadata has a *finalized* level, which never falls. A command or behaviour that is newer than
this level is not proposed: some node would not know it and end up with another state. The
controller raises the level once every node reports that it knows the next one. From then on, a node
with an earlier version cannot register, nor keep a session.

level 1   digests of the state are compared; nodes register their own level; pre-votes; event logs
          have the event ``ClockChanged``; published frames may have relative times
level 2   topics have a replication factor and a ``min_insync`` that can be altered
level 3   new topics have a drawn id; the name of a deleted topic is free at once
level 4   one command changes many partitions
level 5   access tokens
level 6   the topic of the audit trail
level 7   topics may have the settings that only some have (``config.topic.OPTIONAL``)
level 8   a leader whose disk failed leads on in another epoch
level 9   schedules
level 10  topics may have a total retention (``config.topic.TOTAL_RETENTION``)
level 11  leaders push what they append over streams between nodes
level 12  the head of a call between nodes proves who sends its body
level 13  a topic may be created with messages that a node has already
level 14  small calls between nodes go over their streams, and fetch sessions are renewed there
level 15  calls that a node holds until there is news go over streams, too
level 16  a schedule takes an earlier run than its last after a clock that was ahead was set back
"""

from __future__ import annotations

from typing import Final

from goq.cluster.metadata.commands import (
    AdoptTopic,
    AlterTopicReplication,
    AnyCommand,
    ChangePartitions,
    CreateTopicWithId,
    CreateTopicWithMinInsync,
    DeleteSchedule,
    DeleteTopicAtOnce,
    PutSchedule,
    PutToken,
    RecordScheduleRuns,
    RegisterNodeWithLevel,
    RenewLeadership,
    ResetReplicas,
)
from goq.cluster.metadata.state import MetadataState

OWN_LEVEL: Final = 16
"""The highest level that this version of goq knows."""

DIGESTS_LEVEL: Final = 1
CLOCK_EVENTS_LEVEL: Final = 1
RELATIVE_TIMES_LEVEL: Final = 1
TOPIC_IDS_LEVEL: Final = 3
BATCHES_LEVEL: Final = 4
TOKENS_LEVEL: Final = 5
AUDIT_LEVEL: Final = 6
OPTIONAL_SETTINGS_LEVEL: Final = 7
RENEWALS_LEVEL: Final = 8
SCHEDULES_LEVEL: Final = 9
TOTAL_RETENTION_LEVEL: Final = 10
PUSH_STREAMS_LEVEL: Final = 11
HEAD_PROOFS_LEVEL: Final = 12
ADOPTION_LEVEL: Final = 13
STREAM_CALLS_LEVEL: Final = 14
HELD_CALLS_LEVEL: Final = 15
EARLIER_RUNS_LEVEL: Final = 16

_COMMAND_LEVELS: dict[type, int] = {
    RegisterNodeWithLevel: 1,
    ResetReplicas: 1,
    CreateTopicWithMinInsync: 2,
    AlterTopicReplication: 2,
    CreateTopicWithId: TOPIC_IDS_LEVEL,
    AdoptTopic: ADOPTION_LEVEL,
    DeleteTopicAtOnce: TOPIC_IDS_LEVEL,
    ChangePartitions: BATCHES_LEVEL,
    PutToken: TOKENS_LEVEL,
    RenewLeadership: RENEWALS_LEVEL,
    PutSchedule: SCHEDULES_LEVEL,
    DeleteSchedule: SCHEDULES_LEVEL,
    RecordScheduleRuns: SCHEDULES_LEVEL,
}


def level_of(command: AnyCommand) -> int:
    """Return the level from which on a command may be proposed."""
    return _COMMAND_LEVELS.get(type(command), 0)


def has_digests(state: MetadataState) -> bool:
    """Whether all nodes compute digests of the state, and compute them in the same way."""
    return state.features.level >= DIGESTS_LEVEL


def has_clock_events(state: MetadataState) -> bool:
    """Whether all nodes can read the event ``ClockChanged``."""
    return state.features.level >= CLOCK_EVENTS_LEVEL


def has_topic_ids(state: MetadataState) -> bool:
    """Whether new topics have a drawn id, and names of deleted topics are free at once."""
    return state.features.level >= TOPIC_IDS_LEVEL


def has_relative_times(state: MetadataState) -> bool:
    """Whether all nodes know relative times in published frames."""
    return state.features.level >= RELATIVE_TIMES_LEVEL


def has_batches(state: MetadataState) -> bool:
    """Whether all nodes know commands that change many partitions."""
    return state.features.level >= BATCHES_LEVEL


def has_audit_topic(state: MetadataState) -> bool:
    """Whether all nodes know the topic of the audit trail."""
    return state.features.level >= AUDIT_LEVEL


def has_optional_settings(state: MetadataState) -> bool:
    """Whether all nodes know the settings that only some topics have."""
    return state.features.level >= OPTIONAL_SETTINGS_LEVEL


def has_total_retention(state: MetadataState) -> bool:
    """Whether all nodes know the settings of total retention."""
    return state.features.level >= TOTAL_RETENTION_LEVEL


def has_renewals(state: MetadataState) -> bool:
    """Whether all nodes know the command by which a leader gets another epoch."""
    return state.features.level >= RENEWALS_LEVEL


def has_push_streams(state: MetadataState) -> bool:
    """Whether all nodes know the streams over which leaders push."""
    return state.features.level >= PUSH_STREAMS_LEVEL


def has_head_proofs(state: MetadataState) -> bool:
    """Whether all nodes send the digest of a body with the head of a call."""
    return state.features.level >= HEAD_PROOFS_LEVEL


def has_adoption(state: MetadataState) -> bool:
    """Whether all nodes know topics that are created with their messages."""
    return state.features.level >= ADOPTION_LEVEL


def has_stream_calls(state: MetadataState) -> bool:
    """Whether all nodes know calls and renewals of sessions over streams."""
    return state.features.level >= STREAM_CALLS_LEVEL


def has_held_calls(state: MetadataState) -> bool:
    """Whether all nodes know calls over streams that are held, and can be given up."""
    return state.features.level >= HELD_CALLS_LEVEL


def has_earlier_runs(state: MetadataState) -> bool:
    """Whether all nodes take earlier runs of schedules after a clock was set back."""
    return state.features.level >= EARLIER_RUNS_LEVEL
