"""The bytes between nodes: other versions read them, so they stay as they are."""

from __future__ import annotations

import pytest

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
from goq.cluster.replication.repair.protocol import (
    RepairRequest,
    RepairResponse,
    decode_repair_request,
    decode_repair_response,
    encode_repair,
)
from goq.errors import InvalidFrame
from goq.storage.log.repair import Gap, SoundFrame

KEY = PartitionKey("t", 1, 2)
ENDS = LogOffsets(5, 6)
REQUEST = FetchRequest("n", 3, True, [Position(KEY, 4, ENDS, LogOffsets(7, 8), 9)], [KEY], 10)
UPDATE = PartitionUpdate(
    KEY, 4, ENDS, LogUpdate(0, 1, 2, 3, 4, 5, True, (6, 7)), None, "why", LogOffsets(8, 9)
)
SHORT = PartitionUpdate(KEY, 4, ENDS, LogUpdate(0, 1, 2), None)


def test_a_fetch_has_the_bytes_that_it_always_had() -> None:
    data = (
        b"\x96\xa1n\x03\xc3\x91\x95\x93\xa1t\x01\x02\x04\x92\x05\x06\x92\x07\x08\t"
        b"\x91\x93\xa1t\x01\x02\n"
    )
    assert encode(REQUEST) == data
    assert decode_request(data) == REQUEST


@pytest.mark.parametrize(
    ("response", "data"),
    [
        (
            FetchResponse([UPDATE], True, 11),
            b"\x93\x91\x97\x93\xa1t\x01\x02\x04\x92\x05\x06\x98\x00\x01\x02\x03\x04\x05\xc3\x92"
            b"\x06\x07\xc0\xa3why\x92\x08\t\xc3\x0b",
        ),
        (
            FetchResponse([SHORT]),
            b"\x93\x91\x97\x93\xa1t\x01\x02\x04\x92\x05\x06\x98\x00\x01\x02\xc0\xff\xff\xc2\xc0"
            b"\xc0\xa0\xc0\xc2\x00",
        ),
    ],
)
def test_an_answer_has_the_bytes_that_it_always_had(response: FetchResponse, data: bytes) -> None:
    assert encode(response) == data
    assert decode_response(data) == response


def test_an_answer_of_an_earlier_version_says_nothing_of_what_it_does_not_know() -> None:
    earlier = b"\x91\x91\x95\x93\xa1t\x01\x02\x04\x92\x05\x06\x93\x00\x01\x02\xc0"
    assert decode_response(earlier) == FetchResponse([SHORT], False, 0)


def test_a_repair_has_the_bytes_that_it_always_had() -> None:
    request = RepairRequest(KEY, 1, Gap(2, 3), SoundFrame(4, 5), None)
    data = b"\x95\x93\xa1t\x01\x02\x01\x92\x02\x03\x92\x04\x05\xc0"
    assert encode_repair(request) == data
    assert decode_repair_request(data) == request
    for has_none, answer in ((True, b"\x92\xc3\x07"), (False, b"\x92\xc2\x07")):
        assert encode_repair(RepairResponse(has_none, 7)) == answer
        assert decode_repair_response(answer) == RepairResponse(has_none, 7)
        earlier, later = b"\x91" + answer[1:2], b"\x93" + answer[1:] + b"\xc0"
        assert decode_repair_response(earlier) == RepairResponse(has_none, -1)
        assert decode_repair_response(later) == RepairResponse(has_none, 7)
    with pytest.raises(InvalidFrame, match="no log 2"):
        decode_repair_request(data.replace(b"\x02\x01\x92", b"\x02\x02\x92"))


@pytest.mark.parametrize(
    "decode", [decode_request, decode_response, decode_repair_request, decode_repair_response]
)
@pytest.mark.parametrize("data", [b"", b"\xff", b"\xc1", b"\x91\xa1n", b"\x91\x91\xa1\xff"])
def test_other_bytes_are_refused(decode: object, data: bytes) -> None:
    assert callable(decode)
    with pytest.raises(InvalidFrame):
        decode(data)
