"""Groups as a node describes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from goq.client.results.result import Json, Result, as_object, decode, items_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartition:
    """A group's progress in one partition: message counts, except for the two offsets.

    All messages below the offset ``cursor`` are done. With an ``end`` the group gets no message
    from that offset on. The counts are those of :class:`GroupDescription`.
    """

    partition: int
    cursor: int
    lag: int
    ready: int
    leased: int
    retry: int
    blocked: int | None
    scheduled: int
    dead: int
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """A consumer that holds leases, and of how many messages."""

    consumer: str
    leased: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IncompleteProgress:
    """Why a group's state at an earlier time may lack something, and between which times."""

    partition: int
    reason: str
    from_time: datetime | None = None
    to_time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription(Result):
    """One group: its progress over all partitions of its topic, in messages.

    ``lag`` is what the group has not done. Of these ``ready`` can be received now, ``leased`` are
    with consumers, and ``retry`` wait for their backoff. ``blocked`` are the ready ones that an
    earlier message with their key holds back, as far as is known. ``scheduled`` are not due yet,
    and not part of the lag. ``dead`` became dead letters since the group exists.

    ``oldest_ready_age_ms`` is the age of the oldest ready message in milliseconds; None without.

    For a state at an earlier time, ``as_of`` is that time. ``blocked`` and ``settings`` are not
    known then, and ``incomplete`` says what else may be missing.
    """

    group: str
    lag: int
    ready: int
    leased: int
    retry: int
    blocked: int | None
    scheduled: int
    dead: int
    oldest_ready_age_ms: int | None = None
    members: tuple[LeaseHolder, ...] = ()
    partitions: tuple[GroupPartition, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    as_of: datetime | None = None
    incomplete: tuple[IncompleteProgress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member of a group.

    It receives from ``partitions``, and finishes those in ``revoking`` before it gives them up.
    ``open`` says that it has a receive or a stream open: that keeps it alive beyond
    ``session_timeout_ms``, which is in milliseconds. ``session`` tells members of one name apart.
    """

    consumer: str
    session: str = ""
    partitions: tuple[int, ...]
    revoking: tuple[int, ...]
    last_seen: datetime
    session_timeout_ms: int
    open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHandover:
    """A partition on its way from one member to another, either of which may be none.

    ``paused_ms`` is the time without a receiver in milliseconds, None until it is taken over.
    """

    partition: int
    source: str | None
    target: str | None
    paused_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRebalance:
    """A change of a group's members, and the partitions that it moved."""

    time: datetime
    generation: int
    reason: str
    consumers: tuple[str, ...]
    moves: tuple[PartitionHandover, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMembership(Result):
    """The members of a group by name, what is being handed over, and the latest rebalances.

    ``history`` begins with the oldest rebalance that is known.
    """

    generation: int
    members: tuple[MemberDescription, ...]
    moving: tuple[PartitionHandover, ...]
    history: tuple[GroupRebalance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReset:
    """The effect of a reset on one partition.

    The group goes on at the offset ``to`` instead of ``cursor``. ``redelivers``, ``skips`` and
    ``voids`` count the messages that come again, that do not come, and whose lease ends.
    ``withholds`` counts the messages from the offset ``end`` on, where there is one.
    """

    partition: int
    cursor: int
    to: int
    redelivers: int
    skips: int
    voids: int
    end: int | None = None
    withholds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResetResult(Result):
    """The result of a reset; with ``dry_run`` nothing was changed."""

    group: str
    dry_run: bool
    partitions: tuple[PartitionReset, ...]


def decode_group(answer: object) -> GroupDescription:
    """Return a group from an answer."""
    found = as_object(answer)
    incomplete = [
        {**gap, "from_time": gap.get("from"), "to_time": gap.get("to")}
        for gap in found.get("incomplete", ())
    ]
    return decode(GroupDescription, answer, {"incomplete": incomplete})


def decode_groups(answer: object) -> tuple[GroupDescription, ...]:
    """Return the groups of a topic from an answer."""
    return tuple(map(decode_group, items_of(answer, "groups")))


def decode_membership(answer: object) -> GroupMembership:
    """Return a group's members from an answer."""
    fields = {
        "moving": [_handover(move) for move in items_of(answer, "moving")],
        "history": [
            {**change, "moves": [_handover(move) for move in change.get("moves", ())]}
            for change in items_of(answer, "history")
        ],
    }
    return decode(GroupMembership, answer, fields)


def decode_reset(answer: object) -> GroupResetResult:
    """Return what a reset did from an answer."""
    return decode(GroupResetResult, answer)


def _handover(move: Json) -> Json:
    return {**move, "source": move.get("from"), "target": move.get("to")}
