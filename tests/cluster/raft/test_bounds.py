"""What a Raft node holds is bounded, and reaching a bound is an answer."""

from __future__ import annotations

from random import Random

import pytest
from pysyncobj import FAIL_REASON

from goq import limits
from goq.cluster.raft import codec
from goq.cluster.raft.member import check_member
from goq.cluster.raft.state_machine.state_machine import Proposal
from goq.errors import InvalidInput, TooLarge
from tests.support.cluster.raft.node import (
    ManualTime,
    elect,
    hardened,
    next_index,
    transport_of,
)
from tests.support.storage.disk import SimulatedDisk


def test_a_command_fits_up_to_its_bound() -> None:
    around = len(codec.encode_proposal(Proposal(1, 2**63 - 1, 1, b"x" * 70_000))) - 70_000
    fits = Proposal(1, 2**63 - 1, 1, b"x" * (limits.RAFT_COMMAND_BYTES_MAX - around))
    message = {"type": "apply_command", "command": b"\x00" + codec.encode_proposal(fits)}
    assert codec.decode_message(codec.encode_message(message)) == message
    too_large = Proposal(1, 2**63 - 1, 1, b"x" * (limits.RAFT_COMMAND_BYTES_MAX - around + 1))
    with pytest.raises(TooLarge):
        codec.encode_proposal(too_large)


def test_a_member_is_written_in_few_characters() -> None:
    host = "h" * (limits.RAFT_MEMBER_CHARS_MAX - len("n1=:80"))
    assert check_member(f"n1={host}:80")
    assert check_member("n1=[::1]:80/0a1b")
    misspelt = ("", "=a:1", "n1=", "n1=host", "n1=:1", "n 1=a:1", "n1=a:b", "n1=a:1/", "n1=a:1/a/b")
    for wrong in (f"n1={host}h:80", f"n1={host}:80/d", *misspelt):
        with pytest.raises(InvalidInput):
            check_member(wrong)


def test_a_full_log_takes_no_more_commands(
    time: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = hardened("n1", [], SimulatedDisk(Random(1)), logCompactionMinEntries=1000)
    elect(node, time)
    monkeypatch.setattr(limits, "RAFT_JOURNAL_BYTES_MAX", 2000)
    reasons: list[int] = []
    for _ in range(30):
        node.apply("x" * 100, lambda _result, reason: reasons.append(reason))
        time.tick(node, 2)
    assert reasons[0] == FAIL_REASON.SUCCESS
    assert reasons[-1] == FAIL_REASON.QUEUE_FULL
    assert node._SyncObj__raftLog.size_bytes < 2200


def test_a_large_log_is_trimmed_however_few_entries_it_has(
    time: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = hardened("n1", [], SimulatedDisk(Random(1)), logCompactionMinEntries=1000)
    elect(node, time)
    monkeypatch.setattr(limits, "RAFT_JOURNAL_BYTES", 2000)
    for _ in range(30):
        node.apply("x" * 100)
        time.tick(node, 2)
        assert node._SyncObj__raftLog.size_bytes < 2300


def test_terms_alone_do_not_make_the_log_grow_for_ever(
    time: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = hardened("n2", ["n1", "n3"], SimulatedDisk(Random(1)))
    monkeypatch.setattr(limits, "RAFT_JOURNAL_BYTES", 500)
    for term in range(1, 200):
        ask = {"type": "request_vote", "term": term, "last_log_index": 1, "last_log_term": 0}
        transport_of(node).tell("n1", ask)
        time.tick(node, step_s=0.01)
        assert node._SyncObj__raftLog.size_bytes < 700


def test_no_more_than_a_bound_is_under_way_to_a_follower_that_does_not_answer(
    time: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RAFT_IN_FLIGHT_ENTRIES_MAX", 10)
    node = hardened("n1", ["n2", "n3"], SimulatedDisk(Random(1)))
    elect(node, time)
    time.tick(node)
    transport_of(node).tell("n2", next_index(3, term=node.raftCurrentTerm))
    for _ in range(50):
        node.apply("x")
        transport_of(node).tell("n3", next_index(1, term=node.raftCurrentTerm))
        time.tick(node, step_s=0.01)
    sent = [
        entry[1]
        for peer, message in transport_of(node).sent
        if peer == "n2" and message["type"] == "append_entries"
        for entry in message["entries"]
    ]
    assert max(sent) == 2 + 11
