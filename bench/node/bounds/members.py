"""Members of a group that shares 1,000 partitions."""

from __future__ import annotations

from bench.node.bounds.work import Request, Rows, Work
from goq import limits

ROWS = Rows()
_GROUP = "/v1/topics/shared/groups/g"
_PARTITIONS = 1_000


def _shared(work: Work, count: int) -> None:
    """Make a topic whose group has so many members."""
    work.topic("shared", _PARTITIONS, {"delivery.ordering": "partition"})
    while work.member_count < count:
        name = f"m{work.member_count}"
        body = {"consumer": name, "session_timeout": "5m"}
        work.caller.do("POST", f"{_GROUP}/members", body)
        work.member_count += 1


@ROWS.add
def members_first_join(work: Work) -> Request:
    _shared(work, 0)
    body = {"consumer": "first", "session_timeout": "5m"}
    return lambda: work.caller.call("POST", f"{_GROUP}/members", body)


@ROWS.add
def members_last_join(work: Work) -> Request:
    _shared(work, limits.MEMBERS_PER_GROUP_MAX - 2)
    body = {"consumer": "last", "session_timeout": "5m"}
    return lambda: work.caller.call("POST", f"{_GROUP}/members", body)


@ROWS.add
def members_list(work: Work) -> Request:
    return lambda: work.caller.call("GET", f"{_GROUP}/members")


@ROWS.add
def members_heartbeat(work: Work) -> Request:
    return lambda: work.caller.call("POST", f"{_GROUP}/members/m7/heartbeat")


@ROWS.add
def members_leave(work: Work) -> Request:
    return lambda: work.caller.call("DELETE", f"{_GROUP}/members/m7")


@ROWS.add
def members_of_a_group_deleted(work: Work) -> Request:
    return lambda: work.caller.call("DELETE", _GROUP)
