"""Members of a cluster: an id that means one disk for ever, and where to find it."""

from __future__ import annotations

from collections.abc import Iterable

from pysyncobj.node import Node

from goq import limits
from goq.errors import InvalidInput


class Member(Node):  # type: ignore[misc]
    """A member; ``spec`` is ``id`` or ``id=host:port``. Equal by the id alone."""

    def __init__(self, spec: str) -> None:
        id_, _, address = spec.partition("=")
        super().__init__(id_, address=address)
        self.address: str = address

    @property
    def spec(self) -> str:
        """The member as it is written in the log and on the command line."""
        return f"{self.id}={self.address}" if self.address else str(self.id)


def check_member(spec: str) -> str:
    """Return the member's text, or raise ``InvalidInput``."""
    id_, equals, address = spec.partition("=")
    host, _, port = address.rpartition(":")
    sound = id_.isprintable() and id_ and (not equals or (host and port.isdecimal()))
    if not sound or len(spec) > limits.RAFT_MEMBER_CHARS_MAX or " " in spec:
        raise InvalidInput(f"{spec!r} is not a member; write ID=HOST:PORT, as n1=10.0.0.1:9080")
    return spec


def in_order(members: Iterable[Member]) -> list[Member]:
    """Return members in order of their ids, which a set has not."""
    return sorted(members, key=lambda member: str(member.id))


def changed(members: list[str], operation: str, spec: str) -> list[str]:
    """Return the members after one was added or removed."""
    id_ = Member(spec).id
    others = [other for other in members if Member(other).id != id_]
    return sorted([*others, spec]) if operation == "add" else others
