"""What a replica with bad frames asks of another, and what that one answers.

Frames are given only where it is certain that both logs are to be the same there. They are if all
of it lies below the high watermark. And they are if both have a frame of one leader epoch at one
offset behind it: an epoch has one leader, a leader one log, and a follower appends only to what
begins as the leader's does.
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
from goq.storage.repair import Gap, SoundFrame, first_sound_frame, read_gap


class RepairRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What lies in a gap of the log ``which`` (0 messages, 1 events); ``after`` is behind it."""

    key: PartitionKey
    which: int
    gap: Gap
    after: SoundFrame | None


class RepairResponse(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Frames follow, from the one that holds the gap's first offset on.

    Without any, ``has_none`` says that this replica will not have them either, else that it is not
    known: it may be asked again.
    """

    has_none: bool


class ReplicaLogs(NamedTuple):
    """A replica's logs, and the high watermarks that it knows of, as somebody may ask for them."""

    logs: PartitionLogs
    high_watermarks: LogOffsets


TieredReader = Callable[[PartitionKey, int, Log], LogReader]
"""Returns a reader of a log, 0 messages or 1 events, and of what of it is archived."""


def encode_repair(value: RepairRequest | RepairResponse) -> bytes:
    """Return a request or the head of an answer as bytes."""
    return msgspec.msgpack.encode(value)


def decode_repair_request(data: bytes | memoryview) -> RepairRequest:
    """Return a request; raise ``InvalidFrame`` if the bytes are none."""
    try:
        request = msgspec.msgpack.decode(data, type=RepairRequest)
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"this is no request of a damaged replica: {error}") from None
    if request.which not in (0, 1):
        raise InvalidFrame(f"a partition has no log {request.which}")
    return request


def decode_repair_response(data: bytes | memoryview) -> RepairResponse:
    """Return the head of an answer; raise ``InvalidFrame`` if the bytes are none."""
    try:
        return msgspec.msgpack.decode(data, type=RepairResponse)
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"this is no answer to a damaged replica: {error}") from None


def answer_repair(
    request: RepairRequest, replica: ReplicaLogs | None, tiered_reader: TieredReader
) -> tuple[RepairResponse, list[memoryview]]:
    """Return what a replica has of what another asks for, archived or not; blocks on the disk."""
    if replica is None:
        return RepairResponse(has_none=False), []
    log, high_watermark = replica.logs[request.which], replica.high_watermarks[request.which]
    reader = tiered_reader(request.key, request.which, log)
    found = read_gap(reader, request.gap, log.end_offset, limits.FETCH_LOG_BYTES_MAX)
    if not found.frames:
        return RepairResponse(has_none=True), []
    if request.gap.end_offset > high_watermark and not _is_same_log(log, request.after):
        return RepairResponse(has_none=False), []
    return RepairResponse(has_none=False), [view.buffer for view in found.frames]


def _is_same_log(log: Log, after: SoundFrame | None) -> bool:
    return after is not None and first_sound_frame(log, after.base_offset) == after
