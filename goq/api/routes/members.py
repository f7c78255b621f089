"""Routes of group members: join, heartbeat, leave, list."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET, Raw

from goq import limits
from goq.api.codec.messages import encode_list, json_response
from goq.api.codec.receive_request import parse_session_id
from goq.api.codec.request import duration_ms, json_body
from goq.api.needs import CONSUME, DESCRIBE_GROUP
from goq.api.route import Route
from goq.api.routing_policy import CustomRouting, ToAllLeaders
from goq.api.schemas.members import (
    AssignmentMoveOut,
    GroupMemberOut,
    GroupRebalanceOut,
    JoinRequest,
    MemberAssignmentOut,
    MembersOut,
)
from goq.api.views.merge import merge_assignments, merge_members
from goq.broker.broker import Broker
from goq.broker.group.coordinator import Coordinator, MemberAssignment
from goq.broker.group.membership import GroupMembers
from goq.broker.topic.topic import Topic
from goq.delivery.membership.membership import MemberPartitions, name_of, session_of
from goq.delivery.membership.rebalance_history import Move
from goq.errors import GroupNotFound
from goq.http.message import Request, Response
from goq.units import format_time_us

_MEMBERS = "/v1/topics/{topic}/groups/{group}/members"
_MEMBER = f"{_MEMBERS}/{{consumer}}"
_NOT_ONE = ("topic_not_found", "member_not_found", "conflict")


class MemberRoutes:
    """Join, heartbeat, leave and list of members."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                _MEMBERS,
                self.show,
                "Show the members of a group and how its partitions were shared out",
                answer=MembersOut,
                errors=("topic_not_found", "group_not_found"),
                routing=ToAllLeaders(merge_members),
                needs=DESCRIBE_GROUP,
            ),
            Route(
                "POST",
                _MEMBERS,
                self.join,
                "Let a consumer take part in a group",
                body=JoinRequest,
                answer=MemberAssignmentOut,
                errors=("topic_not_found", "conflict", "too_many_requests", "node_full"),
                routing=ToAllLeaders(merge_assignments),
                needs=CONSUME,
            ),
            Route(
                "POST",
                f"{_MEMBER}/heartbeat",
                self.heartbeat,
                "Say that a member is alive",
                answer=MemberAssignmentOut,
                errors=_NOT_ONE,
                routing=CustomRouting.HEARTBEAT,
                needs=CONSUME,
            ),
            Route(
                "DELETE",
                _MEMBER,
                self.leave,
                "Let a member leave its group",
                status=204,
                errors=_NOT_ONE,
                routing=CustomRouting.LEAVE,
                needs=CONSUME,
            ),
        ]

    async def show(self, _request: Request, name: str, group: str) -> Response:
        """Show members and rebalances; there are none where all consumers share all partitions."""
        topic = self._broker.topic(name)
        if group not in topic.groups:
            raise GroupNotFound(f"topic {name} has no group {group[:200]!r}", field="group")
        members = topic.coordinator.members(group)
        if members is None:
            return json_response(MembersOut(0, Raw(b"[]"), [], []))
        return json_response(await _shown(members, _local_partitions(topic)))

    async def join(self, request: Request, name: str, group: str) -> Response:
        """Join a consumer; for a member this is a heartbeat."""
        asked = json_body(request, JoinRequest)
        topic, coordinator = self._of(name)
        coordinator.check(group, asked.consumer)
        session_id = parse_session_id(request)
        timeout_ms = None
        if asked.session_timeout is not None:
            maximum_ms = limits.SESSION_TIMEOUT_MS_MAX
            timeout_ms = duration_ms(asked.session_timeout, "session_timeout", maximum_ms)
        await self._broker.group_admin.remember(topic, group)
        joined = coordinator.join(group, asked.consumer, timeout_ms, session_id)
        return _assignment(joined, topic)

    def heartbeat(self, request: Request, name: str, group: str, consumer: str) -> Response:
        """Renew a consumer's sessions, or the one that the request names."""
        topic, coordinator = self._of(name)
        topic.settler.on_heartbeat(group, consumer)
        known = coordinator.heartbeat(group, consumer, parse_session_id(request))
        return _assignment(known, topic)

    def leave(self, request: Request, name: str, group: str, consumer: str) -> Response:
        """Remove a consumer's members, or the one of the session that the request names.

        Their partitions move once their leases have ended.
        """
        _, coordinator = self._of(name)
        coordinator.leave(group, consumer, parse_session_id(request))
        return Response(204)

    def _of(self, name: str) -> tuple[Topic, Coordinator]:
        topic = self._broker.topic(name)
        return topic, topic.coordinator


def _local_partitions(topic: Topic) -> set[int]:
    """Return the partitions that this node leads and therefore assigns."""
    return {partition.identity.number for partition in topic.partitions}


def _assignment(assignment: MemberAssignment, topic: Topic) -> Response:
    here = _local_partitions(topic)
    partitions = [number for number in assignment.partitions if number in here]
    revoking = [number for number in assignment.revoking if number in here]
    return json_response(MemberAssignmentOut(assignment.generation, partitions, revoking))


async def _shown(members: GroupMembers, here: set[int]) -> MembersOut:
    """Return the members, moves and rebalances of now; members are encoded in slices."""
    membership = members.membership

    def of(numbers: Iterable[int]) -> list[int]:
        return [number for number in numbers if number in here]

    def moved(moves: Iterable[Move]) -> list[AssignmentMoveOut]:
        return [_move(move) for move in moves if move.partition in here]

    def shown(each: MemberPartitions) -> GroupMemberOut:
        member = each.member
        return GroupMemberOut(
            consumer=name_of(member.consumer),
            partitions=of(each.owned),
            revoking=of(each.revoking),
            last_seen=format_time_us(members.wall_us(member.last_seen_ms)),
            session_timeout_ms=member.session_timeout_ms,
            open=member.open_count > 0,
            session=session_of(member.consumer) or UNSET,
        )

    out = MembersOut(
        generation=membership.generation,
        members=Raw(b"[]"),
        moving=moved(membership.moves()),
        history=[
            GroupRebalanceOut(
                time=format_time_us(time_us),
                generation=rebalance.generation,
                reason=rebalance.reason,
                consumers=list(rebalance.consumers),
                moves=moved(rebalance.moves),
            )
            for time_us, rebalance in members.history
        ],
    )
    out.members = await encode_list(map(shown, membership.assignments()))
    return out


def _move(move: Move) -> AssignmentMoveOut:
    return AssignmentMoveOut(move.partition, move.source, move.target, move.paused_ms)
