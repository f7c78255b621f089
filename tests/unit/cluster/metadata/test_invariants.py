"""Whatever commands come, in whatever order: the rules of the state hold after each of them."""

from __future__ import annotations

from collections import Counter

import pytest

from goq.cluster.metadata.apply import apply, apply_bytes
from goq.cluster.metadata.command_codec import TAGS, decode_command, encode_command
from goq.cluster.metadata.results import Accepted
from goq.cluster.metadata.state import MetadataState, encode_state
from tests.support.cluster.metadata.checks import check_step
from tests.support.cluster.metadata.random_commands import Commands

SEEDS = 40
COMMANDS = 400


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rules_hold_after_every_command(seed: int) -> None:
    commands = Commands(seed)
    state = MetadataState()
    for index in range(1, COMMANDS + 1):
        command = commands.next(state)
        after, result = apply(state, command, index)
        check_step(state, command, after, result)
        state = after


def test_random_commands_reach_every_kind_both_accepted_and_refused() -> None:
    accepted: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for seed in range(SEEDS):
        commands, state = Commands(seed), MetadataState()
        for index in range(1, COMMANDS + 1):
            command = commands.next(state)
            state, result = apply(state, command, index)
            tag = str(type(command).__struct_config__.tag)
            (accepted if isinstance(result, Accepted) else refused)[tag] += 1
    assert set(accepted) == TAGS
    assert set(refused) == TAGS - {"record_schedule_runs/1"}


def test_two_machines_are_equal_to_the_byte() -> None:
    commands = Commands("twins")
    one, other = MetadataState(), MetadataState()
    for index in range(1, COMMANDS + 1):
        data = encode_command(commands.next(one))
        assert encode_command(decode_command(data)) == data
        one, result = apply_bytes(one, data, index)
        other, same = apply_bytes(other, data, index)
        assert result == same
        assert encode_state(one) == encode_state(other)
