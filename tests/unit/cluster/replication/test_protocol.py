"""What nodes tell each other of replicas: arrays, which other versions read by place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from goq.cluster.replication.archive_sync import ArchiveRequest
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import (
    FetchRequest,
    FetchResponse,
    LogUpdate,
    PartitionKey,
    PartitionUpdate,
    Position,
    decode_request,
    decode_response,
    encode,
)
from goq.cluster.replication.push.protocol import PushHead
from goq.cluster.replication.repair.protocol import RepairRequest, RepairResponse
from goq.cluster.replication.status import FollowerReport, ReplicaQuery, ReplicaReport
from goq.errors import InvalidFrame
from goq.storage.log.repair import Gap, SoundFrame

KEY, KEY_FORM = PartitionKey("t", 1, 2), ["t", 1, 2]
POSITION = Position(KEY, 3, LogOffsets(4, 5), LogOffsets(6, 7))
POSITION_FORM = [KEY_FORM, 3, [4, 5], [6, 7], -1]
LOG, LOG_FORM = LogUpdate(1, 2, 3), [1, 2, 3, None, -1, -1, False, None]
UPDATE = PartitionUpdate(KEY, 3, LogOffsets(4, 5), LOG, None)
UPDATE_FORM = [KEY_FORM, 3, [4, 5], LOG_FORM, None, "", None]


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (POSITION, POSITION_FORM),
        (UPDATE, UPDATE_FORM),
        (
            FetchRequest("n", 7, True, [POSITION], [KEY], 10),
            ["n", 7, True, [POSITION_FORM], [KEY_FORM], 10],
        ),
        (FetchResponse([UPDATE]), [[UPDATE_FORM], False, 0]),
        (PushHead(7, 8, 9, [UPDATE]), [7, 8, 9, [UPDATE_FORM], False]),
        (ArchiveRequest(KEY, 1, 5), [KEY_FORM, 1, 5, False, 0]),
        (
            RepairRequest(KEY, 1, Gap(2, 3), SoundFrame(4, 5)),
            [KEY_FORM, 1, [2, 3], [4, 5], None],
        ),
        (RepairResponse(has_none=True), [True, -1]),
        (FollowerReport(1, None), [1, None]),
        (ReplicaReport("t", 2, True, 3, 4), ["t", 2, True, 3, 4, {}]),
        (ReplicaQuery(), [None, None]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_nodes_tell_each_other_is_an_array_with_its_defaults(value: Any, form: Any) -> None:
    data = msgspec.msgpack.encode(value)
    assert msgspec.msgpack.decode(data) == form
    assert msgspec.msgpack.decode(data, type=type(value)) == value


def test_what_an_earlier_version_leaves_out_has_its_default() -> None:
    short = msgspec.msgpack.encode([[[KEY_FORM, 3, [4, 5], [1, 2, 3], None]]])
    assert decode_response(short) == FetchResponse([UPDATE])


def test_bytes_that_are_no_request_or_response_are_refused() -> None:
    for data in (b"", b"\xc1", encode(FetchResponse([UPDATE]))[:-1], b"\x91\xa1\xff"):
        with pytest.raises(InvalidFrame):
            decode_request(data)
        with pytest.raises(InvalidFrame):
            decode_response(data)
