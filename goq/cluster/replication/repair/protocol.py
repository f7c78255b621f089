"""The repair protocol: what a replica with bad frames asks of another, and the answer.

Frames are given only where both logs are certain to be the same. They are if the whole gap lies
below the high watermark. They also are if both logs have a frame of the same leader epoch at the
same offset behind the gap: an epoch has one leader, a leader has one log, and a follower appends
only to a prefix of its leader's log. Last, they are if the damaged log has the same epoch before
and behind the gap, and the frames are of that epoch, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from goq import limits
from goq.broker.partition.loader import PartitionLogs
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import PartitionKey
from goq.errors import InvalidFrame
from goq.storage.log.log import Log
from goq.storage.log.reader import LogReader
from goq.storage.log.repair import Gap, SoundFrame, first_sound_frame, read_gap


class RepairRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for a gap of the log ``which``: 0 messages, 1 events.

    ``after`` is the next sound frame behind the gap, ``before`` the one that ends where it begins.
    """

    key: PartitionKey
    which: int
    gap: Gap
    after: SoundFrame | None
    before: SoundFrame | None = None


class RepairResponse(msgspec.Struct, frozen=True, array_like=True):
    """Frames follow, from the one that holds the first offset of the gap.

    Without frames, ``has_none`` says that this replica will never have them. Otherwise it does not
    know, and may be asked again. ``rewrites`` is another number after each rewrite of a segment
    of the log, and after each opening; -1 from a version that does not say.
    """

    has_none: bool
    rewrites: int = -1


class ReplicaLogs(NamedTuple):
    """The open logs of a replica, and the high watermarks that it knows."""

    logs: PartitionLogs
    high_watermarks: LogOffsets


TieredReader = Callable[[PartitionKey, int, Log], LogReader]
"""Returns a reader of a log, 0 messages or 1 events, and of its archived part."""


def encode_repair(value: RepairRequest | RepairResponse) -> bytes:
    """Return a request or the head of a response as bytes."""
    return msgspec.msgpack.encode(value)


def decode_repair_request(data: bytes | memoryview) -> RepairRequest:
    """Return a request; raise ``InvalidFrame`` if the bytes are not one."""
    try:
        request = msgspec.msgpack.decode(data, type=RepairRequest)
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"not a repair request: {error}") from None
    if request.which not in (0, 1):
        raise InvalidFrame(f"a partition has no log {request.which}")
    return request


def decode_repair_response(data: bytes | memoryview) -> RepairResponse:
    """Return the head of a response; raise ``InvalidFrame`` if the bytes are not one."""
    try:
        return msgspec.msgpack.decode(data, type=RepairResponse)
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"not a repair response: {error}") from None


def answer_repair(
    request: RepairRequest, replica: ReplicaLogs | None, tiered_reader: TieredReader
) -> tuple[RepairResponse, list[memoryview]]:
    """Return what a replica has of a gap, archived or not; blocks on the disk."""
    if replica is None:
        return RepairResponse(has_none=False), []
    log, high_watermark = replica.logs[request.which], replica.high_watermarks[request.which]
    reader, rewrites = tiered_reader(request.key, request.which, log), log.rewrites.mark
    found = read_gap(reader, request.gap, log.end_offset, limits.FETCH_LOG_BYTES_MAX)
    if log.rewrites.mark != rewrites:
        return RepairResponse(has_none=False), []
    if not found.frames:
        return RepairResponse(has_none=True), []
    frames = found.frames
    if request.gap.end_offset > high_watermark and not _is_same_log(log, request.after):
        epoch = _epoch_around(request)
        frames = [
            view
            for view in frames
            if view.header.end_offset <= high_watermark or view.header.leader_epoch == epoch
        ]
    return RepairResponse(has_none=False, rewrites=rewrites), [view.buffer for view in frames]


def _epoch_around(request: RepairRequest) -> int | None:
    """Return the leader epoch of all that the damaged log had in its gap, None if not known."""
    before, after = request.before, request.after
    if before is None or after is None or before.leader_epoch != after.leader_epoch:
        return None
    return before.leader_epoch


def _is_same_log(log: Log, after: SoundFrame | None) -> bool:
    return after is not None and first_sound_frame(log, after.base_offset) == after
