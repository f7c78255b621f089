"""The digest of the metadata: what changes it, what does not, and where it is kept."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from goq.cluster.metadata import tables
from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.commands import CreateTopic, FenceNode, RaiseFeatureLevel, RegisterNode
from goq.cluster.metadata.digest import next_digest, state_digest
from goq.cluster.metadata.divergence import diverged_partitions
from goq.cluster.metadata.rows import changed_rows
from goq.cluster.metadata.state import MetadataState, NodeMetadata, PartitionMetadata
from goq.cluster.metadata.state_machine import FILE_NAME, MetadataStateMachine
from tests.support.cluster.metadata.machines import history, request
from tests.support.cluster.metadata.states import after, nodes, with_topic


def small_state() -> MetadataState:
    return with_topic(with_topic(nodes(3), "orders", 2), "mails", 1)


@pytest.mark.parametrize("seed", range(4))
def test_the_digest_of_each_step_is_that_of_the_whole_state(seed: int) -> None:
    _, states = history(f"digests {seed}", 200)
    digest = state_digest(states[0])
    for before, state in pairwise(states):
        digest = next_digest(digest, before, state)
        assert digest == state_digest(state)
        assert state_digest(state) == state_digest(replace(state, version=state.version + 7))


def test_each_row_and_each_field_counts() -> None:
    state = small_state()
    digests = {state_digest(state)}
    for name, node in state.nodes.items():
        for field, value in (("incarnation", 9), ("rack", "r"), ("unfit_reason", "x")):
            changed = replace(node, **{field: value})
            digests.add(state_digest(replace(state, nodes={**state.nodes, name: changed})))
    topic = state.topics["orders"]
    for field, value in (("leader", None), ("leader_epoch", 9), ("in_sync", ()), ("version", 9)):
        partition = replace(topic.partitions[1], **{field: value})
        changed_topic = replace(topic, partitions=(topic.partitions[0], partition))
        topics = {**state.topics, "orders": changed_topic}
        digests.add(state_digest(replace(state, topics=topics)))
    without = {name: other for name, other in state.topics.items() if name != "mails"}
    digests.add(state_digest(replace(state, topics=without)))
    assert len(digests) == 1 + 3 * 3 + 4 + 1


def test_a_field_of_a_later_version_with_its_default_changes_nothing() -> None:
    class Later(msgspec.Struct, frozen=True):
        id: str
        rack: str | None = None
        more: str = ""

    class Earlier(msgspec.Struct, frozen=True):
        id: str
        rack: str | None = None

    def digest(node: msgspec.Struct) -> int:
        return state_digest(replace(MetadataState(), nodes={"n1": node}))

    assert digest(Later("n1")) == digest(Earlier("n1"))
    assert digest(Later("n1", more="x")) != digest(Earlier("n1"))


def test_a_machine_has_no_digest_until_all_nodes_know_digests(tmp_path: Path) -> None:
    machine = MetadataStateMachine(tmp_path)
    registration = RegisterNode("n1", 1, "http://n1", "n1:9")
    for index, command in enumerate((registration, CreateTopic("orders", 3, {}, 1)), 1):
        machine.apply(request(command, index), index)
    state = machine.state
    assert state.topics
    machine.close()
    machine = MetadataStateMachine(tmp_path)
    assert machine.digest is None
    raised = RaiseFeatureLevel(1, {n.id: (n.incarnation, 1) for n in state.nodes.values()})
    machine.apply(request(raised, 100), 100)
    assert machine.digest == state_digest(machine.state).to_bytes(16, "big")
    digest = machine.digest
    machine.close()
    machine = MetadataStateMachine(tmp_path)
    assert machine.digest == digest, "a restart computes the same"
    machine.close()


def test_a_snapshot_after_a_divergence_tells_what_differed(tmp_path: Path) -> None:
    for name in ("true", "odd"):
        (tmp_path / name).mkdir()
    true, odd = MetadataStateMachine(tmp_path / "true"), MetadataStateMachine(tmp_path / "odd")
    commands, _ = history("divergence", 60)
    for index, command in enumerate(commands, 1):
        true.apply(request(command, index), index)
        odd.apply(request(command, index), index)
    assert true.state.topics
    with closing(sqlite3.connect(tmp_path / "odd" / FILE_NAME)) as db, db:
        db.execute("DELETE FROM state_digest")  # else the rows are damage
        db.execute("UPDATE partitions SET leader_epoch = leader_epoch + 1 WHERE partition = 0")
    odd.close()
    odd = MetadataStateMachine(tmp_path / "odd")
    expected = diverged_partitions(odd.state, true.state)
    assert {number for _, number in expected} == {0}
    assert odd.diverged is None
    true.snapshot(tmp_path / "snapshot")
    odd.restore(tmp_path / "snapshot", is_diverged=True)
    assert odd.state == true.state
    assert odd.diverged == expected
    odd.close()
    odd = MetadataStateMachine(tmp_path / "odd")
    assert odd.diverged == expected, "a restart in the midst of it forgets nothing"
    odd.restore(tmp_path / "snapshot", is_diverged=True)
    assert odd.diverged == expected
    odd.forget_diverged()
    assert odd.diverged is None
    odd.apply(request(RegisterNode("n9", 1, "http://n9", "n9:9"), 1, proposer=9), 1000)
    true.apply(request(RegisterNode("n9", 1, "http://n9", "n9:9"), 1, proposer=9), 1000)
    odd.close()
    odd = MetadataStateMachine(tmp_path / "odd")
    assert odd.diverged is None
    odd.restore(tmp_path / "snapshot")
    assert odd.diverged is None, "a snapshot for a member that was only behind"
    true.close()
    odd.close()


def test_only_another_leader_or_epoch_makes_a_replica_suspect() -> None:
    state = after(small_state(), FenceNode("n1", 1))
    topic = state.topics["orders"]

    def changed(**fields: object) -> MetadataState:
        partition: PartitionMetadata = replace(topic.partitions[1], **fields)
        changed_topic = replace(topic, partitions=(topic.partitions[0], partition))
        return replace(state, topics={**state.topics, "orders": changed_topic})

    key = (topic.topic_id, 1)
    assert diverged_partitions(changed(version=9, damaged=("n2",)), state) == ()
    assert diverged_partitions(changed(leader="n1"), state) == (key,)
    assert diverged_partitions(changed(leader_epoch=9), state) == (key,)


def test_tables_of_an_earlier_version_get_what_they_lack(tmp_path: Path) -> None:
    machine = MetadataStateMachine(tmp_path)
    commands, _ = history("earlier tables", 40)
    for index, command in enumerate(commands, 1):
        machine.apply(request(command, index), index)
    before = machine.state
    machine.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db, db:
        db.execute("ALTER TABLE nodes DROP COLUMN feature_level")
        db.execute("DROP TABLE features")
        db.execute("DROP TABLE diverged")
    machine = MetadataStateMachine(tmp_path)
    expected = {name: replace(node, feature_level=0) for name, node in before.nodes.items()}
    assert machine.state.nodes == expected
    assert machine.state.topics == before.topics
    (tmp_path / "old").mkdir()
    machine.snapshot(tmp_path / "old" / "snapshot")
    with closing(sqlite3.connect(tmp_path / "old" / "snapshot")) as db, db:
        db.execute("ALTER TABLE nodes DROP COLUMN feature_level")
        db.execute("DROP TABLE features")
    machine.restore(tmp_path / "old" / "snapshot")
    assert machine.state.topics == before.topics
    machine.close()


def test_a_topic_whose_partitions_alone_change_has_no_changed_row() -> None:
    before = small_state()
    state = apply(before, FenceNode("n1", 1), 50).state
    found = {(change.table, *change.key.values()) for change in changed_rows(before, state)}
    assert ("nodes", "n1") in found
    assert {table for table, *_ in found} == {"nodes", "partitions"}
    assert isinstance(before.nodes["n1"], NodeMetadata)
    assert tables.SCHEMA.count("CREATE TABLE") == 11
