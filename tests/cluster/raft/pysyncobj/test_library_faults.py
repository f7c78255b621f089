"""Each fault of the library as it is sold, shown on it, and mended in goq's node."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pysyncobj import FAIL_REASON

from goq.cluster.raft.log.journal import Journal
from goq.cluster.raft.state_machine.state_machine import Refused
from goq.errors import CorruptData
from tests.support.cluster.raft.node import (
    FOLDER,
    ManualTime,
    Words,
    append_entries,
    elect,
    entries,
    hardened,
    next_index,
    stock,
    transport_of,
    without_power,
)
from tests.support.storage.disk import SimulatedDisk


class Crash(BaseException):
    """The process ends here."""


def crash(*_arguments: object, **_named: object) -> None:
    raise Crash


def journal_of(node: Any) -> Any:
    return node._SyncObj__raftLog


# 1. A dump that is newer than the journal


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the library leaves files open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_stock_forgets_what_came_after_a_dump_when_it_dies_before_trimming(
    time: ManualTime, tmp_path: Path
) -> None:
    files = {"journalFile": str(tmp_path / "journal"), "fullDumpFile": str(tmp_path / "dump")}
    node, words = stock("n1", [], **files)
    elect(node, time)
    for word in "abc":
        words.apply(word)
        time.tick(node, 2)
    node.forceLogCompaction()
    time.tick(node)
    node._SyncObj__tryLogCompaction = lambda: None  # a fork that is still writing its dump
    acknowledged = []
    for word in "def":
        words.apply(word, callback=lambda result, _reason: acknowledged.append(result))
        time.tick(node, 2)
    assert acknowledged == [4, 5, 6]
    again, words = stock("n1", [], **files)
    time.tick(again, 20)
    again.destroy()
    node.destroy()
    assert len(words.words) < 6


def test_a_node_that_dies_between_flush_and_trim_keeps_all(
    time: ManualTime, disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = hardened("n1", [], disk, logCompactionMinEntries=4)
    elect(node, time)
    acknowledged: list[int] = []
    monkeypatch.setattr(Journal, "trim", crash)
    with suppress(Crash):
        for word in "abcdef":
            node.apply(word, lambda result, _reason: acknowledged.append(result))
            time.tick(node, 2)
    disk.crash(power=True)
    assert 0 < len(acknowledged) < 6
    words = Words(disk)
    again = hardened("n1", [], disk, machine=words, logCompactionMinEntries=100)
    elect(again, time)
    time.tick(again, 5)
    assert words.words == list("abcdef")[: len(words.words)]
    assert len(words.words) >= len(acknowledged)


# 2. Truncation of what an older message does not mention


def test_stock_cuts_off_what_it_acknowledged_when_a_message_comes_twice(time: ManualTime) -> None:
    node, _ = stock("n2", ["n1", "n3"])
    first, second = (
        append_entries((i, i and 0), entries(i + 1, i + 1, 0), term=0, commit=1) for i in (1, 2)
    )
    for message in (first, second, first):
        transport_of(node).tell("n1", dict(message))
    assert journal_of(node)[-1][1] == 2


def test_a_message_that_comes_twice_cuts_nothing_off(time: ManualTime, disk: SimulatedDisk) -> None:
    node = hardened("n2", ["n1", "n3"], disk)
    first = append_entries((1, 0), entries(2, 2, 1), term=1, commit=1)
    second = append_entries((2, 1), entries(3, 3, 1), term=1, commit=1)
    for message in (first, second, first):
        transport_of(node).tell("n1", dict(message))
    time.tick(node)
    assert journal_of(node).last.index == 3
    answers = [m for _, m in transport_of(node).sent if m["type"] == "next_node_idx"]
    assert all(answer["success"] for answer in answers)


def test_entries_that_contradict_the_leader_are_cut_off(
    time: ManualTime, disk: SimulatedDisk
) -> None:
    node = hardened("n2", ["n1", "n3"], disk)
    transport_of(node).tell("n1", append_entries((1, 0), entries(2, 6, 1), term=1, commit=1))
    transport_of(node).tell("n3", append_entries((3, 1), entries(4, 4, 2), term=2, commit=1))
    assert [entry.term for entry in journal_of(node)[:]] == [0, 1, 1, 2]


def test_a_leader_that_contradicts_what_is_committed_stops_the_node(
    time: ManualTime, disk: SimulatedDisk
) -> None:
    node = hardened("n2", ["n1", "n3"], disk)
    transport_of(node).tell("n1", append_entries((1, 0), entries(2, 3, 1), term=1, commit=3))
    with pytest.raises(CorruptData, match="contradicts"):
        transport_of(node).tell("n3", append_entries((2, 1), entries(3, 3, 2), term=2, commit=3))
    assert node.failure is not None


# 3. Commit of a tail that nobody has vouched for


def test_stock_applies_an_old_tail_when_a_snapshot_begins_to_come(time: ManualTime) -> None:
    node, _ = stock("n2", ["n1", "n3"])
    transport_of(node).tell("n1", append_entries((1, 0), entries(2, 5, 1), term=1, commit=1))
    piece = {
        "type": "append_entries",
        "term": 2,
        "commit_index": 5,
        "serialized": (b"x", True, False),
    }
    transport_of(node).tell("n3", piece)
    time.tick(node)
    assert node.raftLastApplied == 5


def snapshot_piece(**changes: Any) -> dict[str, Any]:
    return {
        "type": "snapshot",
        "term": 2,
        "commit_index": 5,
        "index": 5,
        "index_term": 2,
        "members": ["n1", "n2", "n3"],
        "size_bytes": 10,
        "crc32c": 1,
        "offset": 0,
        "data": b"x",
        **changes,
    }


def test_a_snapshot_that_begins_to_come_commits_nothing(
    time: ManualTime, disk: SimulatedDisk
) -> None:
    node = hardened("n2", ["n1", "n3"], disk)
    transport_of(node).tell("n1", append_entries((1, 0), entries(2, 5, 1), term=1, commit=1))
    transport_of(node).tell("n3", snapshot_piece())
    time.tick(node)
    assert node.raftLastApplied == 1


def test_a_heartbeat_commits_no_further_than_it_vouches(
    time: ManualTime, disk: SimulatedDisk
) -> None:
    node = hardened("n2", ["n1", "n3"], disk)
    transport_of(node).tell("n1", append_entries((1, 0), entries(2, 5, 1), term=1, commit=1))
    transport_of(node).tell("n3", append_entries((3, 1), [], term=2, commit=5))
    time.tick(node)
    assert node.raftLastApplied == 3


# 4. Answers of another term, and of a snapshot that was not taken


def test_stock_counts_an_answer_of_an_earlier_term(time: ManualTime) -> None:
    node, words = stock("n1", ["n2", "n3"])
    elect(node, time)
    words.apply("a")
    time.tick(node)
    late = {"type": "next_node_idx", "next_node_idx": 4, "reset": False, "success": True}
    transport_of(node).tell("n2", late)  # it cannot even say of which term it is
    time.tick(node)
    assert words.words == ["a"]


def test_an_answer_of_an_earlier_term_counts_for_nothing(
    time: ManualTime, disk: SimulatedDisk
) -> None:
    words = Words(disk)
    node = hardened("n1", ["n2", "n3"], disk, machine=words)
    elect(node, time)
    node.apply("a")
    time.tick(node)
    term = node.raftCurrentTerm
    answer = {
        "type": "next_node_idx",
        "term": term - 1,
        "round": 0,
        "next_node_idx": 4,
        "success": True,
    }
    transport_of(node).tell("n2", answer)
    time.tick(node)
    assert words.words == []
    transport_of(node).tell("n2", next_index(4, term=term))
    time.tick(node)
    assert words.words == ["a"]


def test_a_snapshot_that_came_damaged_is_not_acknowledged(
    time: ManualTime, disk: SimulatedDisk
) -> None:
    node = hardened("n2", ["n1", "n3"], disk)
    transport_of(node).tell("n3", snapshot_piece(data=b"0123456789"))
    time.tick(node)
    kinds = [message["type"] for _, message in transport_of(node).sent]
    assert kinds == ["snapshot_reply"]
    assert transport_of(node).last("snapshot_reply")["offset"] == 0


# 5. Request ids that come again


def test_stock_uses_the_same_request_ids_in_every_life(time: ManualTime) -> None:
    ids = []
    for _ in range(2):
        node, words = stock("n2", ["n1", "n3"])
        transport_of(node).tell("n1", append_entries((1, 0), [], term=1, commit=1))
        words.apply("a", callback=lambda *_: None)
        time.tick(node)
        ids.append(transport_of(node).last("apply_command")["request_id"])
    assert ids[0] == ids[1]


def test_each_life_of_a_node_has_request_ids_of_its_own(time: ManualTime) -> None:
    ids = []
    for life in range(2):
        node = hardened("n2", ["n1", "n3"], SimulatedDisk(Random(life)))
        node._random.seed(life)
        node._SyncObj__commandsLocalCounter = node._random.getrandbits(62)
        transport_of(node).tell("n1", append_entries((1, 0), [], term=1, commit=1))
        node.apply("a", lambda *_: None)
        time.tick(node)
        ids.append(transport_of(node).last("apply_command")["request_id"])
    assert ids[0] != ids[1]


# 6. Refusals that are under way together


def refused_thrice(node: Any, refusals: list[dict[str, Any]]) -> list[int]:
    """Return where the leader goes on after each of several refusals."""
    found = []
    for refusal in refusals:
        transport_of(node).tell("n2", refusal)
        found.append(node._SyncObj__raftNextIndex[transport_of(node).peers["n2"]])
        node._SyncObj__sendAppendEntries()
    return found


def test_stock_goes_back_again_for_each_refusal_under_way(time: ManualTime) -> None:
    node, words = stock("n1", ["n2", "n3"])
    elect(node, time)
    for word in "abc":
        words.apply(word)
        time.tick(node)
    refusals = [
        {"type": "next_node_idx", "next_node_idx": index, "reset": True, "success": False}
        for index in (2, 4, 3)
    ]
    assert refused_thrice(node, refusals) == [2, 4, 3]


def test_a_leader_goes_back_once_for_all_refusals_under_way(
    time: ManualTime, disk: SimulatedDisk
) -> None:
    node = hardened("n1", ["n2", "n3"], disk)
    elect(node, time)
    for word in "abc":
        node.apply(word)
        time.tick(node)
    term = node.raftCurrentTerm
    refusals = [next_index(2, term=term, success=False) for _ in range(3)]
    after_all = journal_of(node).last.index + 1
    assert refused_thrice(node, refusals) == [2, after_all, after_all]


# 7. Commands and callbacks that raise


def test_stock_never_gets_past_a_command_that_raises(time: ManualTime) -> None:
    node, words = stock("n1", [])
    elect(node, time)
    words.apply("poison")
    for _ in range(5):
        with pytest.raises(ValueError, match="no machine"):
            time.tick(node, 2)
    applied = node.raftLastApplied
    assert applied < journal_of(node)[-1][1]


def test_a_command_that_raises_is_refused_and_passed_by(
    time: ManualTime, disk: SimulatedDisk
) -> None:
    node = hardened("n1", [], disk)
    elect(node, time)
    results: list[Any] = []
    for word in ("poison", "a"):
        node.apply(word, lambda *result: results.append(result))
    time.tick(node, 3)
    assert results[0] == (Refused("internal", "ValueError: no machine can apply this"), 0)
    assert results[1] == (1, FAIL_REASON.SUCCESS)


def raising(*_result: object) -> None:
    raise RuntimeError("of the caller")


def test_stock_applies_a_command_twice_when_its_callback_raises(time: ManualTime) -> None:
    node, words = stock("n1", [])
    elect(node, time)
    words.apply("a", callback=raising)
    with pytest.raises(RuntimeError):
        time.tick(node, 3)
    time.tick(node, 3)
    assert words.words == ["a", "a"]


def test_a_callback_that_raises_harms_nothing(time: ManualTime, disk: SimulatedDisk) -> None:
    words = Words(disk)
    node = hardened("n1", [], disk, machine=words)
    elect(node, time)
    node.apply("a", raising)
    time.tick(node, 6)
    assert words.words == ["a"]


# What is durable before anyone hears of it


def test_a_follower_syncs_before_it_answers(time: ManualTime, disk: SimulatedDisk) -> None:
    node = hardened("n2", ["n1", "n3"], disk)
    transport_of(node).tell("n1", append_entries((1, 0), entries(2, 3, 1), term=1, commit=1))
    assert not [m for _, m in transport_of(node).sent if m["type"] == "next_node_idx"]
    time.tick(node)
    assert transport_of(node).last("next_node_idx")["next_node_idx"] == 4
    disk.crash(power=True)
    assert Journal.open(disk, FOLDER, []).last.index == 3


@pytest.mark.parametrize("others", [[], ["n2", "n3"]])
def test_a_leader_syncs_before_it_applies(
    time: ManualTime, disk: SimulatedDisk, others: list[str]
) -> None:
    checked = []

    class Careful(Words):
        def apply(self, request: Any, index: int) -> int:
            after = without_power(disk)
            checked.append(Journal.open(after, FOLDER, []).last.index >= index)
            return super().apply(request, index)

    node = hardened("n1", others, disk, machine=Careful(disk))
    elect(node, time)
    node.apply("a")
    time.tick(node)
    for peer in others[:1]:
        transport_of(node).tell(peer, next_index(4, term=node.raftCurrentTerm))
    time.tick(node, 3)
    assert checked == [True]


def test_a_vote_is_durable_before_it_is_given(time: ManualTime, disk: SimulatedDisk) -> None:
    node = hardened("n2", ["n1", "n3"], disk)
    ask = {"type": "request_vote", "term": 5, "last_log_index": 1, "last_log_term": 0}
    transport_of(node).tell("n1", ask)
    assert transport_of(node).last("response_vote")["term"] == 5
    disk.crash(power=True)
    again = hardened("n2", ["n1", "n3"], disk)
    transport_of(again).tell("n3", ask)
    assert transport_of(again).sent == []


def test_a_second_change_of_members_waits_for_the_first(
    time: ManualTime, disk: SimulatedDisk
) -> None:
    node = hardened("n1", ["n2"], disk)
    elect(node, time)
    term = node.raftCurrentTerm
    answer = {
        "type": "next_node_idx",
        "term": term,
        "round": 0,
        "next_node_idx": 3,
        "success": True,
    }
    transport_of(node).tell("n2", answer)
    time.tick(node)
    reasons: list[int] = []
    node.add_member("n3=c:3", lambda _result, reason: reasons.append(reason))
    node.add_member("n4=d:4", lambda _result, reason: reasons.append(reason))
    time.tick(node, 2)
    assert reasons == [FAIL_REASON.REQUEST_DENIED]
    assert node.members() == ["n1", "n2", "n3=c:3"]


def test_nobody_is_added_while_a_member_is_away_or_behind(
    time: ManualTime, disk: SimulatedDisk
) -> None:
    node = hardened("n1", ["n2", "n3"], disk)
    elect(node, time)
    told, term = transport_of(node), node.raftCurrentTerm
    told.tell("n2", next_index(3, term=term))
    time.tick(node)
    reasons: list[int] = []

    def try_to_add() -> list[int]:
        node.add_member("n4=d:4", lambda _result, reason: reasons.append(reason))
        time.tick(node)
        return reasons

    denied = FAIL_REASON.REQUEST_DENIED
    assert try_to_add() == [denied]  # n3 has answered nothing yet
    told.tell("n3", next_index(3, term=term))
    told._onNodeDisconnected(told.peers["n3"])
    assert try_to_add() == [denied, denied]
    told._onNodeConnected(told.peers["n3"])
    assert try_to_add() == [denied, denied]
    assert node.members() == ["n1", "n2", "n3", "n4=d:4"]


def test_a_member_that_is_away_can_be_removed(time: ManualTime, disk: SimulatedDisk) -> None:
    node = hardened("n1", ["n2", "n3", "n4"], disk)
    elect(node, time)
    told, term = transport_of(node), node.raftCurrentTerm
    for peer in ("n2", "n3"):
        told.tell(peer, next_index(3, term=term))
    told._onNodeDisconnected(told.peers["n4"])
    time.tick(node)
    node.remove_member("n4", lambda *_: None)
    time.tick(node)
    assert node.members() == ["n1", "n2", "n3"]


def test_a_member_that_restarts_alone_still_knows_the_others(
    time: ManualTime, disk: SimulatedDisk
) -> None:
    node = hardened("n1", ["n2", "n3"], disk)
    elect(node, time)
    disk.crash(power=True)
    again = hardened("n1", [], disk)
    time.tick(again, 30)
    assert not again._isLeader()
    assert sorted(other.id for other in again.otherNodes) == ["n2", "n3"]
