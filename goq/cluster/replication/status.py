"""Reports of a node's replicas for operators; no decision depends on them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from goq.errors import InvalidFrame
from goq.storage.disk import Disk
from goq.storage.log.segment_files import list_segments
from goq.storage.scanner import ScannedFrame, Scanner

if TYPE_CHECKING:  # a standalone node has reports, and no replicas
    from goq.cluster.replication.progress import ReplicaProgress
    from goq.cluster.replication.replica import Replica


class FollowerReport(msgspec.Struct, frozen=True, array_like=True):
    """A follower as its leader sees it.

    ``end_offset`` is None before its first fetch. ``behind_ms`` is how long ago it had everything,
    None if it never did.
    """

    end_offset: int | None
    behind_ms: int | None


class ReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """One replica: the bounds of its messages, and its followers if it leads."""

    topic: str
    number: int
    is_leading: bool
    start_offset: int
    end_offset: int
    followers: dict[str, FollowerReport] = {}


class ReplicaQuery(msgspec.Struct, frozen=True, array_like=True):
    """The replicas that are asked about: those that lead, or the replica of one partition."""

    topic: str | None = None
    number: int | None = None


def leader_reports(
    replicas: Iterable[Replica], topic: str | None, now_ms: int
) -> list[ReplicaReport]:
    """Return reports of the partitions that a node leads, of one topic or of all."""
    return [
        _of_leading(replica, now_ms)
        for replica in replicas
        if replica.as_leader is not None and topic in (None, replica.key.topic)
    ]


def _of_leading(replica: Replica, now_ms: int) -> ReplicaReport:
    assert replica.as_leader is not None
    progress = replica.as_leader.progress
    followers = {
        node: _of_follower(progress, node, now_ms)
        for node in (replica.assignment.replicas if replica.assignment else ())
        if node != progress.node
    }
    start = replica.as_leader.logs.messages.start_offset
    return ReplicaReport(
        replica.key.topic, replica.key.number, True, start, progress.ends.messages, followers
    )


def _of_follower(progress: ReplicaProgress, node: str, now_ms: int) -> FollowerReport:
    ends, since_ms = progress.follower_ends(node), progress.caught_up_ms(node)
    if ends is None:
        return FollowerReport(None, None)
    if ends.reaches(progress.ends):
        return FollowerReport(ends.messages, 0)
    return FollowerReport(ends.messages, None if since_ms is None else max(now_ms - since_ms, 0))


def end_offset_of(replica: Replica) -> int | None:
    """Return the end offset of a replica's messages, None if it is not open."""
    if replica.as_leader is not None:
        return replica.as_leader.progress.ends.messages
    follower = replica.as_follower
    return None if follower is None else follower.position.ends.messages


def stored_report(disk: Disk, directory: Path, topic: str, number: int) -> ReplicaReport | None:
    """Return what the disk holds of a partition that is not open, None if nothing.

    Reads the newest segment and changes nothing. A frame torn by a crash does not count.
    """
    segments = list_segments(disk, directory / "messages")
    if not segments:
        return None
    newest = segments[-1]
    end = newest.base_offset
    scan = Scanner(disk, newest.path, newest.size_bytes)
    for place in scan.frames(0, newest.base_offset):
        if isinstance(place, ScannedFrame):
            end = place.view.header.end_offset
    return ReplicaReport(topic, number, False, segments[0].base_offset, end)


def encode_reports(reports: list[ReplicaReport]) -> bytes:
    """Return reports as bytes."""
    return msgspec.msgpack.encode(reports)


def decode_reports(data: bytes) -> list[ReplicaReport]:
    """Return reports; raise ``InvalidFrame`` if the bytes are not reports."""
    try:
        return msgspec.msgpack.decode(data, type=list[ReplicaReport])
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"not reports of replicas: {error}") from None


def decode_query(data: bytes) -> ReplicaQuery:
    """Return a query; raise ``InvalidFrame`` if the bytes are not one."""
    try:
        return msgspec.msgpack.decode(data, type=ReplicaQuery)
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"not a query about replicas: {error}") from None
