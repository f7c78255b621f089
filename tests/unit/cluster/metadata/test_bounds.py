"""Every bound of the metadata, from both sides; and bytes that are no command."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goq import limits
from goq.cluster.controller.controller import decide
from goq.cluster.controller.node_liveness import Heartbeat, NodeLiveness
from goq.cluster.metadata.apply import apply, apply_bytes
from goq.cluster.metadata.command_codec import decode_command, encode_command
from goq.cluster.metadata.commands import (
    AddPartitions,
    AlterClusterSettings,
    AlterTopic,
    CreateTopic,
    PutGroup,
    ReassignPartition,
    RegisterNode,
)
from goq.cluster.metadata.results import Accepted, CommandRejected, Rejected
from goq.cluster.metadata.state import MetadataState
from goq.errors import TooLarge
from tests.support.cluster.metadata.random_commands import Commands
from tests.support.cluster.metadata.states import after, at, nodes, partition, refused, with_topic


def test_a_cluster_has_so_many_nodes() -> None:
    state = nodes(limits.CLUSTER_NODES_MAX)
    assert refused(state, RegisterNode("more", 1, "", "")) == "too_many_nodes"
    after(state, RegisterNode("n1", 2, "", ""))


def test_a_cluster_has_so_many_partitions() -> None:
    each = limits.PARTITIONS_PER_TOPIC_MAX
    state = nodes(1)
    for number in range(limits.CLUSTER_PARTITIONS_MAX // each - 1):
        state = with_topic(state, f"t{number}", each, 1)
    state = with_topic(state, "last", each - 1, 1)
    topic = state.topics["last"]
    assert refused(state, CreateTopic("more", 2, {}, 1)) == "too_many_partitions"
    full = after(state, AddPartitions("last", topic.topic_id, 1, each))
    assert refused(full, CreateTopic("more", 1, {}, 1)) == "too_many_partitions"
    after(state, CreateTopic("more", 1, {}, 1))


@pytest.mark.parametrize("count", [0, limits.PARTITIONS_PER_TOPIC_MAX + 1])
def test_a_topic_has_so_many_partitions(count: int) -> None:
    state = with_topic(nodes(1), "largest", limits.PARTITIONS_PER_TOPIC_MAX, 1)
    assert refused(state, CreateTopic("orders", count, {}, 1)) == "invalid_partitions"


def test_a_partition_has_so_many_replicas() -> None:
    most = limits.REPLICAS_MAX
    state = nodes(most + 1)
    for factor in (0, most + 1):
        assert refused(state, CreateTopic("orders", 1, {}, factor)) == "invalid_replicas"
    state = with_topic(state, factor=most)
    every = ReassignPartition(*at(state), tuple(sorted(state.nodes)))
    assert refused(state, every) == "invalid_replicas"
    assert len(partition(state).replicas) == most


def test_there_are_so_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPICS_MAX", 3)
    state = nodes(1)
    for number in range(3):
        state = with_topic(state, f"t{number}")
    assert refused(state, CreateTopic("more", 1, {})) == "too_many_topics"


def test_a_topic_has_so_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUPS_PER_TOPIC_MAX", 3)
    state = with_topic(nodes(1))
    topic_id = state.topics["orders"].topic_id
    for number in range(3):
        state = after(state, PutGroup("orders", topic_id, f"g{number}", 0, {}))
    assert refused(state, PutGroup("orders", topic_id, "more", 0, {})) == "too_many_groups"
    after(state, PutGroup("orders", topic_id, "g1", 1, {}))


def test_settings_of_the_cluster_are_bounded() -> None:
    state = nodes(1)
    highest = AlterClusterSettings(
        1, limits.REPLICAS_MAX, limits.REPLICAS_MAX, limits.REASSIGNMENTS_MAX, 2**53
    )
    after(state, highest)
    for wrong in (
        AlterClusterSettings(1, replication_factor=0),
        AlterClusterSettings(1, replication_factor=limits.REPLICAS_MAX + 1),
        AlterClusterSettings(1, min_insync=0),
        AlterClusterSettings(1, min_insync=limits.REPLICAS_MAX + 1),
        AlterClusterSettings(1, moves_at_once=0),
        AlterClusterSettings(1, moves_at_once=limits.REASSIGNMENTS_MAX + 1),
    ):
        assert refused(state, wrong) == "invalid_setting"


@pytest.mark.parametrize("name", ["", "a b", ".n", "n" * 201])
def test_names_are_checked(name: str) -> None:
    assert refused(MetadataState(), RegisterNode(name, 1, "", "")) == "invalid_name"
    assert refused(MetadataState(), RegisterNode("n1", 1, "", "", name)) == "invalid_name"
    assert refused(nodes(1), CreateTopic(name, 1, {})) == "invalid_name"
    state = with_topic(nodes(1))
    topic_id = state.topics["orders"].topic_id
    assert refused(state, PutGroup("orders", topic_id, name, 0, {})) == "invalid_name"


def test_a_command_has_so_many_bytes() -> None:
    def sized(length: int) -> CreateTopic:
        return CreateTopic("orders", 1, {"a": "x" * length})

    room = limits.METADATA_COMMAND_BYTES_MAX
    over = len(encode_command(sized(room - 1000))) - (room - 1000)
    largest = sized(room - over)
    data = encode_command(largest)
    assert len(data) == room
    assert decode_command(data) == largest
    with pytest.raises(TooLarge):
        encode_command(sized(room - over + 1))
    result = apply_bytes(nodes(1), data + b"\0", 9).result
    assert isinstance(result, Rejected)
    assert result.code == "too_large"


def test_a_text_has_so_many_characters() -> None:
    longest = RegisterNode("n1", 1, "u" * limits.METADATA_TEXT_CHARS_MAX, "")
    assert decode_command(encode_command(longest)) == longest
    longer = RegisterNode("n1", 1, "u" * (limits.METADATA_TEXT_CHARS_MAX + 1), "")
    with pytest.raises(CommandRejected):
        decode_command(encode_command(longer))


@pytest.mark.parametrize("number", [-1, 2**53 + 1, 2**64 - 1])
def test_a_number_is_one_that_every_part_can_hold(number: int) -> None:
    with pytest.raises(CommandRejected):
        decode_command(encode_command(RegisterNode("n1", number, "", "")))


def test_one_look_decides_so_much() -> None:
    topic = with_topic(nodes(2), partitions=limits.CONTROLLER_COMMANDS_MAX + 50, factor=2)
    for place in range(limits.CONTROLLER_COMMANDS_MAX + 50):
        replicas = partition(topic, number=place).replicas
        topic = after(topic, ReassignPartition(*at(topic, number=place), replicas[::-1]))
    liveness = NodeLiveness.start(0)
    for name in topic.nodes:
        liveness = liveness.with_heartbeat(name, Heartbeat(1), 0)
    decided = decide(topic, liveness.tick(100), preferred_delay_ms=0)
    assert len(decided) == limits.CONTROLLER_COMMANDS_MAX


def test_a_command_of_another_version_is_named_in_the_refusal() -> None:
    data = encode_command(CreateTopic("orders", 1, {})).replace(b"topic/1", b"topic/7")
    result = apply_bytes(nodes(1), data, 9).result
    assert isinstance(result, Rejected)
    assert result.code == "unknown_command"
    assert "create_topic/7" in result.detail


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_applied_and_never_raise(data: bytes) -> None:
    state, result = apply_bytes(nodes(1), data, 9)
    assert isinstance(result, Accepted | Rejected)
    assert state.version == 9


def test_commands_with_a_byte_changed_never_raise() -> None:
    chance = random.Random(3)
    commands, state = Commands("flip"), MetadataState()
    for index in range(1, 3000):
        command = commands.next(state)
        data = bytearray(encode_command(command))
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        changed, result = apply_bytes(state, bytes(data), index)
        assert isinstance(result, Accepted | Rejected)
        if isinstance(result, Rejected):
            assert changed.topics is state.topics
            assert changed.nodes is state.nodes
        state = apply(state, command, index).state


def test_a_field_more_or_less_makes_a_command_malformed() -> None:
    data = msgspec.msgpack.decode(encode_command(AlterTopic("orders", 1, 1, {})))
    for wrong in (
        {**data, "more": 1},
        {key: value for key, value in data.items() if key != "version"},
        {**data, "version": "1"},
        {**data, "version": True},
        {**data, "settings": {"a": 1}},
    ):
        result = apply_bytes(nodes(1), msgspec.msgpack.encode(wrong), 9).result
        assert isinstance(result, Rejected)
        assert result.code == "malformed_command"
