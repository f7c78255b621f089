"""The JSON shapes of a group's members."""

from __future__ import annotations

import msgspec

from goq.api.schemas.base import Input


class JoinRequest(Input):
    """A consumer that takes part, and how long it may be silent: ``30s``, or seconds."""

    consumer: str
    session_timeout: str | float | None = None


class MemberAssignmentOut(msgspec.Struct):
    """What a member has: partitions it takes from, and those it is to finish and give up."""

    generation: int
    partitions: list[int]
    revoking: list[int]


class GroupMemberOut(msgspec.Struct):
    """A member; one that has a receive or a stream ``open`` is alive however long that takes."""

    consumer: str
    partitions: list[int]
    revoking: list[int]
    last_seen: str
    session_timeout_ms: int
    open: bool


class AssignmentMoveOut(msgspec.Struct):
    """A partition on its way; ``paused_ms`` is null until it is handed over."""

    partition: int
    source: str | None = msgspec.field(name="from")
    target: str | None = msgspec.field(name="to")
    paused_ms: int | None


class GroupRebalanceOut(msgspec.Struct):
    """A change of the members, and what it moved; ``reason`` says what ``consumers`` did."""

    time: str
    generation: int
    reason: str
    consumers: list[str]
    moves: list[AssignmentMoveOut]


class MembersOut(msgspec.Struct):
    """Members by name, what is being handed over now, and the latest changes, oldest first."""

    generation: int
    members: list[GroupMemberOut]
    moving: list[AssignmentMoveOut]
    history: list[GroupRebalanceOut]
