"""Push streams of one session, and of the members of a group."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.errors import Conflict, InvalidInput
from tests.support.broker.harness import leased
from tests.support.broker.push_streams import GROUP, Node, Reader, expire, on_node
from tests.support.eventually import until


def test_a_new_stream_of_a_session_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.publish(b"0", b"1")
        old = node.open(session_id="loop")
        await old.got(b"0", b"1")
        other = node.open(0, session_id="other")
        new = node.open(session_id="loop")
        await old.ended()
        await new.got(b"0", b"1")
        assert [attempt for _, attempt, _ in leased(new.batches)] == [2, 2]
        assert len(node.broker.streams) == 2
        node.broker.streams.close(old.stream)  # its connection breaks at last
        await node.publish(b"2")
        await new.got(b"0", b"1", b"2")
        other.stream.end()

    on_node(tmp_path, test)


def test_a_part_is_not_opened_again_once_its_session_has_another_stream(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        old = node.open(session_id="loop", merged_id="old")
        again = node.open(session_id="loop", merged_id="old", is_reopened=True)
        await old.ended()
        new = node.open(session_id="loop", merged_id="new")
        await again.ended()
        with pytest.raises(Conflict, match="newer"):
            node.open(session_id="loop", merged_id="old", is_reopened=True)
        await node.publish(b"0")
        await new.got(b"0")
        assert len(node.broker.streams) == 1
        await new.disconnect(node)
        node.open(session_id="loop", merged_id="old", is_reopened=True)

    on_node(tmp_path, test)


def test_streams_share_the_partitions_of_a_group_and_a_closed_one_leaves_its_own(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        coordinator = node.topic.coordinator
        readers = [node.open() for _ in range(2)]
        await until(lambda: all(_owned(node, reader) for reader in readers))
        assert sorted(_owned(node, readers[0]) + _owned(node, readers[1])) == [0, 1, 2, 3]
        for number in range(4):
            await node.publish(b"%d" % number, partition=number)
        for reader in readers:
            await reader.got(*(b"%d" % number for number in _owned(node, reader)))
        await readers[0].disconnect(node)
        await until(lambda: _owned(node, readers[1]) == [0, 1, 2, 3])
        await readers[1].got(b"0", b"1", b"2", b"3")
        await readers[1].disconnect(node)
        members = coordinator.members(GROUP)
        assert members is None or not members.membership.members

    on_node(tmp_path, test, partitions=4, ordering="partition")


def _owned(node: Node, reader: Reader) -> list[int]:
    member = reader.stream.session[2]
    return sorted(node.topic.coordinator.partitions_for(GROUP, member))


def test_a_stream_of_a_member_stays_one_without_credit_and_hung_ones_lose_their_session(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        reader = node.open(1, visibility_ms=20)
        await node.publish(b"0", b"1")
        await reader.got(b"0")
        members = node.topic.coordinator.members(GROUP)
        assert members is not None
        (member,) = members.membership.members.values()
        assert member.open_count == 1
        await expire(node, reader)
        await until(lambda: member.open_count == 0)
        reader.stream.grant(1)
        await until(lambda: member.open_count == 1)

    on_node(tmp_path, test, ordering="partition")


def test_a_stream_that_may_not_join_its_group_is_not_opened(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        with pytest.raises(InvalidInput):
            node.open(consumer="")
        assert len(node.broker.streams) == 0
        node.open()
        members = node.topic.coordinator.members(GROUP)
        assert members is not None
        assert len(members.membership.members) == 1  # before it asks for messages

    on_node(tmp_path, test, ordering="partition")


def test_a_session_that_is_taken_over_is_open_once(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        old = node.open(session_id="loop")
        new = node.open(0, session_id="loop")
        await old.ended()
        members = node.topic.coordinator.members(GROUP)
        assert members is not None
        (member,) = members.membership.members.values()
        assert member.open_count == 1
        await new.disconnect(node)
        assert not members.membership.members

    on_node(tmp_path, test, ordering="partition")
