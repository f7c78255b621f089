"""JSON bodies of a group's members."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from goq.api.schemas.base import Input
from goq.api.values import Consumer, DateTime, Duration


class JoinRequest(Input):
    """A consumer that joins, and its session timeout: ``30s``, or seconds."""

    consumer: Consumer
    session_timeout: Duration | None = None


class MemberAssignmentOut(msgspec.Struct):
    """A member's partitions, and those that it must finish and give up."""

    generation: int
    partitions: list[int]
    revoking: list[int]


class GroupMemberOut(msgspec.Struct):
    """A member; with an ``open`` receive or stream its session does not end.

    ``session`` tells members of one name apart; the member of the name alone has none.
    """

    consumer: str
    partitions: list[int]
    revoking: list[int]
    last_seen: DateTime
    session_timeout_ms: int
    open: bool
    session: str | msgspec.UnsetType = msgspec.UNSET


class AssignmentMoveOut(msgspec.Struct):
    """A partition that moves between members; ``paused_ms`` is null until it is handed over.

    A member is its name, and after a slash its session if it has one.
    """

    partition: int
    source: str | None = msgspec.field(name="from")
    target: str | None = msgspec.field(name="to")
    paused_ms: int | None


class GroupRebalanceOut(msgspec.Struct):
    """A change of the members and the moved partitions; ``reason`` says what ``consumers`` did."""

    time: DateTime
    generation: int
    reason: str
    consumers: list[str]
    moves: list[AssignmentMoveOut]


_MEMBERS_SCHEMA = {"type": "array", "items": {"$ref": "#/components/schemas/GroupMemberOut"}}
"""Members are encoded one by one: there may be 2,000."""


class MembersOut(msgspec.Struct):
    """Members by name, moves in progress, and the latest rebalances, oldest first."""

    generation: int
    members: Annotated[msgspec.Raw, Meta(extra_json_schema=_MEMBERS_SCHEMA)]
    moving: list[AssignmentMoveOut]
    history: list[GroupRebalanceOut]
