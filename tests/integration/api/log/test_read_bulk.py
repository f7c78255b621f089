"""Reading frames by their bytes: as many as fit, within bounds, the same that come one by one."""

from __future__ import annotations

import pytest

from goq import limits
from goq.client import Client
from tests.support.api import frames as f
from tests.support.node.running_node import RunningNode

FRAMES, EACH = 9, 50


@pytest.fixture
def filled(node: RunningNode, topic: str) -> str:
    for number in range(FRAMES):
        body = f.placed(f.frame(*[b"%d.%d" % (number, n) for n in range(EACH)]), 0)
        node.request("POST", f"/v1/topics/{topic}/messages", body, f.FRAMES)
    return topic


@pytest.mark.parametrize("bytes_max", [1, 600, 3_000, limits.READ_BYTES_MAX])
def test_pieces_of_any_size_have_every_message_once(
    node: RunningNode, filled: str, bytes_max: int
) -> None:
    found: list[tuple[int, bytes | None]] = []
    offset, pieces = 7, []
    with Client(node.url) as client:
        while offset < FRAMES * EACH:
            piece = client.read(filled, partition=0, offset=offset, bytes_max=bytes_max)
            found += [(message.offset, message.value) for message in piece.messages]
            pieces.append([view.header.frame_bytes for view in piece.frames])
            offset = piece.next
        one_by_one = client.read(filled, partition=0, offset=7)
    assert found == [(message.offset, message.value) for message in one_by_one.messages]
    assert found[0] == (7, b"0.7")
    assert all(len(sizes) == 1 or sum(sizes) <= bytes_max for sizes in pieces)
    assert any(len(sizes) > 1 for sizes in pieces) is (bytes_max > 1_000)


def test_with_bytes_there_may_be_more_messages_than_a_read_has_otherwise(
    node: RunningNode, topic: str
) -> None:
    count = limits.READ_MESSAGES_MAX
    for _ in range(2):
        body = f.placed(f.frame(*[b""] * count), 0)
        node.request("POST", f"/v1/topics/{topic}/messages", body, f.FRAMES)
    with Client(node.url) as client:
        assert client.read(topic, partition=0).next == count
        assert client.read(topic, partition=0, bytes_max=limits.READ_BYTES_MAX).next == 2 * count
        both = client.read(topic, partition=0, bytes_max=limits.READ_BYTES_MAX, limit=count + 1)
        assert both.next == count + 1


def test_a_read_by_bytes_waits_for_what_comes(node: RunningNode, filled: str) -> None:
    with Client(node.url) as client:
        end = FRAMES * EACH
        empty = client.read(filled, partition=0, offset=end, bytes_max=1000, wait="10ms")
        assert (empty.frames, empty.next) == ([], end)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("bytes=0", "bytes"),
        (f"bytes={limits.READ_BYTES_MAX + 1}", "bytes"),
        ("bytes=many", "bytes"),
        ("bytes=8.1MiB", "bytes"),
        ("bytes=8MiBs", "bytes"),
        (f"bytes=8{'%20' * 70}MiB", "bytes"),
        (f"bytes=1000&limit={limits.READ_BULK_MESSAGES_MAX + 1}", "limit"),
        ("bytes=1000&limit=0", "limit"),
    ],
)
def test_a_bound_that_is_none_is_refused(
    node: RunningNode, filled: str, query: str, field: str
) -> None:
    path = f"/v1/topics/{filled}/messages?partition=0&{query}"
    answer = node.request("GET", path, headers=f.ACCEPT_FRAMES)
    assert (answer.status, answer.json["field"]) == (400, field)


@pytest.mark.parametrize("size", [str(limits.READ_BYTES_MAX), "8MiB", "8192kib"])
def test_the_largest_bounds_are_taken(node: RunningNode, filled: str, size: str) -> None:
    most = f"bytes={size}&limit={limits.READ_BULK_MESSAGES_MAX}"
    path = f"/v1/topics/{filled}/messages?partition=0&{most}"
    preface, frames = f.answered(node.request("GET", path, headers=f.ACCEPT_FRAMES).body)
    assert (preface["next"], len(frames)) == (FRAMES * EACH, FRAMES)
