"""The metadata depends on values alone, not on the order of a mapping or on where it came from."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from goq.cluster.metadata import tables
from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.commands import FenceNode
from goq.cluster.metadata.handlers import partitions
from goq.cluster.metadata.state import MetadataState, TopicMetadata, encode_state
from goq.cluster.metadata.state_machine import MetadataStateMachine
from tests.support.cluster.metadata.machines import history, request
from tests.support.cluster.metadata.random_commands import Commands
from tests.support.cluster.metadata.states import nodes, with_topic
from tests.support.paths import REPOSITORY

Change = Callable[[MetadataState], MetadataState]
TOPICS = ("zebra", "apple", "mango", "berry", "quince", "cherry", "fig", "grape")
COMMANDS = 200


def reordered(state: MetadataState, order: Callable[[list[Any]], list[Any]]) -> MetadataState:
    """Return the same state with the entries of each mapping in another order."""

    def mapping(value: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
        return {key: change(entry) for key, entry in order(list(value.items()))}

    def same(value: Any) -> Any:
        return value

    def with_settings(value: Any) -> Any:
        return replace(value, settings=mapping(value.settings, same))

    return replace(
        state,
        nodes=mapping(state.nodes, same),
        topics=mapping(state.topics, with_settings),
        groups=mapping(state.groups, lambda groups: mapping(groups, with_settings)),
        deleted_topics=mapping(state.deleted_topics, same),
    )


def from_tables(state: MetadataState) -> MetadataState:
    """Return the state as a node finds it that writes it to tables and starts again."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(tables.SCHEMA)
        tables.save_state(db, MetadataState(), state)
        return tables.load_state(db, state.version)


def shuffling(seed: str) -> Change:
    chance = random.Random(seed)
    return lambda state: reordered(state, lambda entries: chance.sample(entries, len(entries)))


CHANGES: dict[str, Change] = {
    "shuffled": shuffling("determinism"),
    "reversed": lambda state: reordered(state, lambda entries: entries[::-1]),
    "sorted": lambda state: reordered(state, sorted),
    "from tables": from_tables,
}


def large_state() -> MetadataState:
    """Return five nodes, and topics on three of them each, not created in the order of names."""
    state = nodes(5)
    for name in TOPICS:
        state = with_topic(state, name, 3, 3)
    return state


def first_difference(change: Change, seed: object, count: int = COMMANDS) -> str | None:
    """Return the first command that another order of the same state makes a difference to."""
    commands, state = Commands(seed, TOPICS), large_state()
    for index in range(state.version + 1, state.version + count + 1):
        command = commands.next(state)
        other, other_result = apply(change(state), command, index)
        state, result = apply(state, command, index)
        if result != other_result or encode_state(state) != encode_state(other):
            return f"{index}: {command}"
    return None


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("seed", range(6))
def test_the_order_of_a_mapping_changes_nothing(name: str, seed: int) -> None:
    assert first_difference(CHANGES[name], seed) is None


def test_a_node_that_restarts_after_each_command_has_the_state_of_one_that_never_did(
    tmp_path: Path,
) -> None:
    (tmp_path / "restarting").mkdir()
    (tmp_path / "joining").mkdir()
    commands, states = history("restarts", 80)
    for index, command in enumerate(commands, 1):
        machine = MetadataStateMachine(tmp_path / "restarting")
        machine.apply(request(command, index), index)
        assert encode_state(machine.state) == encode_state(states[index])
        (tmp_path / "snapshot").unlink(missing_ok=True)
        machine.snapshot(tmp_path / "snapshot")
        machine.close()
        joining = MetadataStateMachine(tmp_path / "joining")
        joining.restore(tmp_path / "snapshot")
        assert encode_state(joining.state) == encode_state(states[index])
        joining.close()


def test_a_fence_elects_the_same_leaders_in_topics_created_in_any_order() -> None:
    state = nodes(3)
    for name in TOPICS:
        state = with_topic(state, name, 3, 2)
    after = apply(state, FenceNode("n1", 1), 100).state
    assert encode_state(apply(from_tables(state), FenceNode("n1", 1), 100).state) == encode_state(
        after
    )


def creation_order(state: MetadataState) -> Iterator[TopicMetadata]:
    """The fault: topics in the order in which they are in memory."""
    return (topic for topic in state.topics.values() if not topic.deleting)


def test_a_walk_in_the_order_of_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "active_topics", creation_order)
    for name in ("shuffled", "reversed", "from tables"):
        found = [first_difference(CHANGES[name], seed) for seed in range(6)]
        assert any(found), name


_HASH_SEED_CHECK = """
from hashlib import sha256
from goq.cluster.metadata.state import encode_state
from tests.support.cluster.metadata.machines import history
_, states = history("hash seeds", 300)
print(sha256(b"".join(map(encode_state, states))).hexdigest())
"""


def test_processes_with_other_hash_seeds_have_the_same_states() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _HASH_SEED_CHECK],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY)},
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(found) == 1
