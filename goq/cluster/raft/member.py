"""Members of the Raft group: id, address and disk.

A member is identified by its id, and bound to one disk. With another disk it would have lost its
votes and its log. After a member is removed, its id may join again with another disk.
"""

from __future__ import annotations

from collections.abc import Iterable

from pysyncobj.node import Node

from goq import limits
from goq.errors import InvalidInput


class RaftMember(Node):  # type: ignore[misc]
    """A member; ``spec`` is ``id``, ``id=host:port`` or ``id=host:port/disk``.

    Members are equal if their ids are. ``disk`` is the id of the member's disk, empty if the log
    does not name it.
    """

    def __init__(self, spec: str) -> None:
        id_, _, place = spec.partition("=")
        address, _, disk = place.partition("/")
        super().__init__(id_, address=address)
        self.address: str = address
        self.disk: str = disk

    @property
    def spec(self) -> str:
        """The member as written in the log and on the command line."""
        place = f"{self.address}/{self.disk}" if self.disk else self.address
        return f"{self.id}={place}" if place else str(self.id)


def check_member(spec: str) -> str:
    """Return the member's spec, or raise ``InvalidInput``."""
    id_, equals, place = spec.partition("=")
    address, slash, disk = place.partition("/")
    host, _, port = address.rpartition(":")
    sound = id_.isprintable() and id_ and (not equals or (host and port.isdecimal()))
    sound = sound and (not slash or (disk.isascii() and disk.isalnum()))
    if not sound or len(spec) > limits.RAFT_MEMBER_CHARS_MAX or " " in spec:
        raise InvalidInput(f"{spec!r} is not a member; write ID=HOST:PORT, as n1=10.0.0.1:9080")
    return spec


def sorted_members(members: Iterable[RaftMember]) -> list[RaftMember]:
    """Return members by id: a set has no stable order."""
    return sorted(members, key=lambda member: str(member.id))


def members_after(members: list[str], operation: str, spec: str) -> list[str]:
    """Return the members after one was added or removed."""
    id_ = RaftMember(spec).id
    others = [other for other in members if RaftMember(other).id != id_]
    return sorted([*others, spec]) if operation == "add" else others
