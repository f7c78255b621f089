"""The high watermark: never too far, never back, whichever set a new leader comes from."""

from __future__ import annotations

import math
import random

import pytest

from goq import limits
from goq.cluster.replication.progress import (
    LatestRequest,
    LogOffsets,
    ReplicaProgress,
    RestingFollowers,
)

LAG_MS = 1000


def _progress(*in_sync: str, min_insync: int = 2, end: int = 0) -> ReplicaProgress:
    progress = ReplicaProgress("a", LogOffsets(end, end), in_sync=in_sync, min_insync=min_insync)
    progress.set_replicas(["a", "b", "c"], 0)
    progress.on_local_append(LogOffsets(end, end))
    return progress


def test_what_all_in_sync_have_is_safe() -> None:
    progress = _progress("a", "b", "c")
    progress.on_local_append(LogOffsets(10, 6))
    progress.on_fetch("b", LogOffsets(7, 6), 1)
    assert progress.high_watermark == LogOffsets(0, 0)
    progress.on_fetch("c", LogOffsets(8, 2), 1)
    assert progress.high_watermark == LogOffsets(7, 2)


def test_what_one_in_sync_was_never_asked_for_is_not_safe() -> None:
    progress = ReplicaProgress("a", LogOffsets(0, 0), in_sync=("a", "b"), min_insync=1)
    progress.on_local_append(LogOffsets(10, 6))
    assert progress.in_sync_to == LogOffsets(0, 0)
    assert progress.high_watermark == LogOffsets(0, 0)
    assert progress.holders(1, 0) == ["a"]


def test_who_holds_an_offset_is_in_sync_and_has_it_on_its_disk() -> None:
    progress = _progress("a", "b")
    progress.on_local_append(LogOffsets(10, 6))
    assert progress.holders(0, 3) == ["a"]
    progress.on_fetch("b", LogOffsets(4, 6), 1)
    progress.on_fetch("c", LogOffsets(9, 6), 1)
    assert progress.holders(0, 3) == ["a", "b"]
    assert progress.holders(0, 4) == ["a"]
    assert progress.holders(1, 5) == ["a", "b"]
    assert progress.holders(0, 10) == []


def test_one_out_of_sync_holds_nobody_up() -> None:
    progress = _progress("a", "b")
    progress.on_local_append(LogOffsets(10, 6))
    progress.on_fetch("b", LogOffsets(10, 6), 1)
    assert progress.high_watermark == LogOffsets(10, 6)


def test_with_too_few_in_sync_nothing_new_is_safe() -> None:
    progress = _progress("a", "b")
    progress.on_local_append(LogOffsets(3, 3))
    progress.on_fetch("b", LogOffsets(3, 3), 1)
    progress.set_in_sync(["a"], 2)
    assert not progress.has_min_insync
    progress.on_local_append(LogOffsets(9, 9))
    assert progress.high_watermark == LogOffsets(3, 3)
    progress.set_in_sync(["a"], 1)
    assert progress.has_min_insync
    assert progress.high_watermark == LogOffsets(9, 9)


def test_a_leader_that_is_not_in_sync_itself_acknowledges_nothing() -> None:
    progress = _progress("b", "c")
    progress.on_local_append(LogOffsets(9, 9))
    progress.on_fetch("b", LogOffsets(9, 9), 1)
    progress.on_fetch("c", LogOffsets(9, 9), 1)
    assert progress.high_watermark == LogOffsets(0, 0)


def test_a_member_that_is_asked_for_counts_before_it_is_one() -> None:
    progress = _progress("a", "b")
    progress.on_local_append(LogOffsets(5, 5))
    progress.on_fetch("b", LogOffsets(5, 5), 1)
    progress.on_fetch("c", LogOffsets(5, 5), 1)
    progress.begin_change(["a", "b", "c"])
    progress.on_local_append(LogOffsets(9, 9))
    progress.on_fetch("b", LogOffsets(9, 9), 2)
    assert progress.high_watermark == LogOffsets(5, 5)
    progress.on_fetch("c", LogOffsets(7, 9), 2)
    assert progress.high_watermark == LogOffsets(7, 9)


def test_a_member_that_is_to_go_counts_until_it_has_gone() -> None:
    progress = _progress("a", "b", "c")
    progress.on_local_append(LogOffsets(9, 9))
    progress.on_fetch("b", LogOffsets(9, 9), 1)
    progress.begin_change(["a", "b"])
    assert progress.high_watermark == LogOffsets(0, 0)
    progress.set_in_sync(["a", "b"], 2)
    assert progress.high_watermark == LogOffsets(9, 9)


def test_who_lags_too_long_is_to_go_and_who_has_what_is_safe_may_come() -> None:
    progress = _progress("a", "b", "c")
    progress.on_local_append(LogOffsets(9, 9))
    progress.on_fetch("b", LogOffsets(9, 9), 500)
    progress.on_fetch("c", LogOffsets(8, 9), 900)
    assert progress.desired_in_sync(LAG_MS, LAG_MS) is None
    assert progress.desired_in_sync(LAG_MS + 1, LAG_MS) == {"a", "b"}
    progress.set_in_sync(["a", "b"], 2)
    progress.on_fetch("b", LogOffsets(9, 9), 1400)
    assert progress.desired_in_sync(1500, LAG_MS) is None
    progress.on_fetch("c", LogOffsets(9, 9), 1500)
    assert progress.desired_in_sync(1500, LAG_MS) == {"a", "b", "c"}


def test_nobody_leaves_a_set_that_would_be_too_small_to_acknowledge_anything() -> None:
    progress = _progress("a", "b", "c")
    progress.on_local_append(LogOffsets(9, 9))
    progress.on_fetch("b", LogOffsets(8, 9), 100)
    progress.on_fetch("c", LogOffsets(9, 9), 500)
    progress.on_fetch("c", LogOffsets(8, 9), 600)
    progress.on_local_append(LogOffsets(10, 10))
    assert progress.desired_in_sync(9000, LAG_MS) == {"a", "c"}, "c had everything last"
    progress.set_in_sync(["a", "c"], 2)
    assert progress.desired_in_sync(99_000, LAG_MS) is None
    progress.set_in_sync(["a", "c"], 1)
    assert progress.desired_in_sync(99_000, LAG_MS) == {"a"}
    progress.set_in_sync(["a"], 2)
    assert progress.desired_in_sync(99_000, LAG_MS) is None


def test_who_lacks_what_the_leadership_began_with_cannot_come() -> None:
    progress = _progress("a", "b", end=20)
    progress.on_fetch("c", LogOffsets(19, 20), 1)
    assert progress.desired_in_sync(1, LAG_MS) is None
    progress.on_fetch("c", LogOffsets(20, 20), 2)
    assert progress.desired_in_sync(2, LAG_MS) == {"a", "b", "c"}


def test_no_second_change_is_asked_for_before_the_first_is_decided() -> None:
    progress = _progress("a", "b", "c")
    progress.on_local_append(LogOffsets(1, 1))
    wanted = progress.desired_in_sync(LAG_MS + 1, LAG_MS)
    assert wanted is not None
    progress.begin_change(wanted)
    assert progress.desired_in_sync(LAG_MS + 1, LAG_MS) is None
    progress.set_in_sync(["a", "b", "c"], 2)
    assert progress.desired_in_sync(LAG_MS + 1, LAG_MS) == wanted


def test_a_stranger_changes_nothing() -> None:
    progress = _progress("a", "b")
    progress.on_local_append(LogOffsets(5, 5))
    assert not progress.on_fetch("z", LogOffsets(5, 5), 1)
    progress.note_caught_up("z", 1)
    assert progress.follower_ends("z") is None
    assert progress.desired_in_sync(1, LAG_MS) is None


def _check_histories() -> None:
    """Check in random histories that the watermark is safe in each set that may elect."""
    for seed in range(300):
        rng = random.Random(seed)
        nodes = ["a", "b", "c", "d"]
        members = set(rng.sample(nodes[1:], rng.randrange(4))) | {"a"}
        progress = ReplicaProgress(
            "a", LogOffsets(0, 0), in_sync=members, min_insync=rng.randrange(1, 4)
        )
        progress.set_replicas(nodes, 0)
        disks = dict.fromkeys(nodes, LogOffsets(0, 0))
        proposed: frozenset[str] | None = None
        before = LogOffsets(0, 0)
        for now_ms in range(1, 120):
            action = rng.randrange(5)
            if action == 0:
                disks["a"] = LogOffsets(*(end + rng.randrange(3) for end in disks["a"]))
                progress.on_local_append(disks["a"])
            elif action in (1, 2):
                name = rng.choice(nodes[1:])
                disks[name] = LogOffsets(
                    *(rng.randint(o, t) for o, t in zip(disks[name], disks["a"], strict=True))
                )
                progress.on_fetch(name, disks[name], now_ms)
            elif action == 3 and proposed is None:
                proposed = progress.desired_in_sync(now_ms, 10)
                if proposed is not None:
                    progress.begin_change(proposed)
            elif action == 4 and proposed is not None:
                if rng.random() < 0.7:
                    members = set(proposed)  # the others know it now, the leader a little later
                if rng.random() < 0.5:
                    progress.set_in_sync(members, progress.min_insync)
                    proposed = None
            safe = progress.high_watermark
            assert safe.reaches(before), seed
            before = safe
            if safe != LogOffsets(0, 0):
                assert all(disks[name].reaches(safe) for name in members), seed


def test_the_watermark_is_safe_in_every_set_that_may_elect_and_never_falls() -> None:
    _check_histories()


@pytest.mark.parametrize("counted", ["in sync", "to be in sync"])
def test_while_the_set_changes_it_would_not_be_safe_to_count_one_of_both_alone(
    counted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ReplicaProgress._advance

    def advance(self: ReplicaProgress) -> None:
        in_sync, proposed = self.in_sync, self._proposed
        self._proposed = None
        if counted == "to be in sync":
            self.in_sync = proposed or in_sync
        original(self)
        self.in_sync, self._proposed = in_sync, proposed

    monkeypatch.setattr(ReplicaProgress, "_advance", advance)
    with pytest.raises(AssertionError):
        _check_histories()


def test_compaction_waits_for_who_copies_and_for_nobody_who_is_silent() -> None:
    progress = ReplicaProgress("a", LogOffsets(100, 50), in_sync=["a"], min_insync=1)
    progress.set_replicas(["a", "b", "c"], 0)
    assert progress.copied_to(0) == LogOffsets(100, 50)
    progress.on_fetch("b", LogOffsets(0, 60), 500)
    assert progress.copied_to(500) == LogOffsets(0, 50)
    progress.on_fetch("b", LogOffsets(30, 60), 1_000)
    assert progress.copied_to(1_000 + limits.REPLICA_UNREACHABLE_MS) == LogOffsets(30, 50)
    assert progress.copied_to(1_001 + limits.REPLICA_UNREACHABLE_MS) == LogOffsets(100, 50)


def test_one_that_is_silent_does_not_keep_another_out() -> None:
    progress = _progress("a", "b")
    progress.on_fetch("b", LogOffsets(0, 0), 1)
    progress.set_in_sync("a", 1)  # it died
    progress.on_fetch("c", LogOffsets(0, 0), LAG_MS + 2)
    assert progress.desired_in_sync(LAG_MS + 2, LAG_MS) == frozenset("ac")


def test_what_a_node_had_before_its_restart_does_not_count_until_it_says_so_again() -> None:
    progress = ReplicaProgress("a", LogOffsets(10, 0), in_sync="abc", min_insync=2)
    progress.set_replicas("abc", 0, (1, 1, 1))
    for node in "bc":
        progress.on_fetch(node, LogOffsets(10, 0), 1)
    progress.on_local_append(LogOffsets(12, 0))
    progress.on_fetch("b", LogOffsets(12, 0), 2)
    progress.on_fetch("c", LogOffsets(12, 0), 2)
    progress.on_local_append(LogOffsets(14, 0))
    progress.on_fetch("c", LogOffsets(14, 0), 3)
    progress.set_replicas("abc", 3, (1, 2, 1))
    progress.on_local_append(LogOffsets(14, 0))
    assert progress.high_watermark == LogOffsets(12, 0)
    progress.on_fetch("b", LogOffsets(14, 0), 4)
    assert progress.high_watermark == LogOffsets(14, 0)


def test_who_went_out_by_its_restart_comes_back_for_what_it_has_now_alone() -> None:
    progress = ReplicaProgress("a", LogOffsets(10, 0), in_sync="abc", min_insync=2)
    progress.set_replicas("abc", 0, (1, 1, 1))
    for node in "bc":
        progress.on_fetch(node, LogOffsets(10, 0), 1)
    progress.set_replicas("abc", 1, (1, 2, 1))
    progress.set_in_sync("ac", 2)
    assert progress.desired_in_sync(1, 2000) is None
    progress.on_fetch("b", LogOffsets(9, 0), 2)  # it lost what it had not synced
    assert progress.desired_in_sync(2, 2000) is None
    progress.on_fetch("b", LogOffsets(10, 0), 3)
    assert progress.desired_in_sync(3, 2000) == frozenset("abc")


def test_who_returned_is_vouched_for_once_it_was_heard_of_with_all_that_is_safe() -> None:
    progress = ReplicaProgress("a", LogOffsets(10, 0), in_sync="abc", min_insync=2)
    progress.set_replicas("abc", 0, (1, 1, 1))
    for node in "bc":
        progress.on_fetch(node, LogOffsets(10, 0), 1)
    progress.set_replicas("abc", 1, (1, 2, 2), restarted="bc")
    assert progress.desired_in_sync(1, 2000) is None
    assert progress.unconfirmed == frozenset("bc")
    progress.on_fetch("b", LogOffsets(10, 0), 2)
    assert progress.desired_in_sync(2, 2000) == frozenset("abc")
    assert progress.unconfirmed == frozenset("c")
    assert progress.desired_in_sync(2002, 2000) == frozenset("ab")  # it never came


def test_a_raised_min_insync_holds_what_comes_and_takes_nothing_back() -> None:
    progress = _progress("a", "b", end=5)
    progress.on_fetch("b", LogOffsets(5, 5), 1)
    assert progress.high_watermark == LogOffsets(5, 5)
    progress.set_in_sync({"a", "b"}, 3)
    progress.on_local_append(LogOffsets(9, 9))
    progress.on_fetch("b", LogOffsets(9, 9), 2)
    assert not progress.has_min_insync
    assert progress.high_watermark == LogOffsets(5, 5)
    progress.on_fetch("c", LogOffsets(9, 9), 3)
    assert progress.desired_in_sync(3, LAG_MS) == {"a", "b", "c"}
    progress.set_in_sync({"a", "b", "c"}, 3)
    assert progress.high_watermark == LogOffsets(9, 9)


def test_a_lowered_min_insync_lets_the_one_that_lags_most_go_and_no_other() -> None:
    progress = _progress("a", "b", "c", min_insync=3, end=5)
    progress.on_fetch("b", LogOffsets(5, 5), 10)
    progress.on_fetch("c", LogOffsets(5, 5), 20)
    progress.on_local_append(LogOffsets(9, 9))
    later_ms = 21 + LAG_MS
    assert progress.desired_in_sync(later_ms, LAG_MS) is None  # three are needed
    progress.set_in_sync({"a", "b", "c"}, 2)
    assert progress.desired_in_sync(later_ms, LAG_MS) == {"a", "c"}
    assert progress.high_watermark == LogOffsets(5, 5)
    progress.set_in_sync({"a", "c"}, 2)
    assert progress.high_watermark == LogOffsets(5, 5)  # c has not got it either


def test_a_steady_set_is_as_it_should_be_whatever_happens() -> None:
    seen = 0
    for seed in range(300):
        rng = random.Random(seed)
        progress = ReplicaProgress("a", LogOffsets(0, 0), in_sync="abc", min_insync=2)
        progress.set_replicas("abc", 0)
        for now_ms in range(1, 80):
            action = rng.randrange(6)
            if action == 0:
                progress.on_local_append(LogOffsets(now_ms, 0))
            elif action <= 3:
                progress.on_fetch(rng.choice("bc"), progress.ends, now_ms)
            elif action == 4 and rng.random() < 0.2:
                replicas, restarted = rng.choice(["abc", "abcd", "ab"]), rng.choice(["", "b"])
                progress.set_replicas(replicas, now_ms, restarted=restarted)
            elif action == 5 and rng.random() < 0.3:
                progress.set_in_sync(rng.choice(["abc", "abcd", "ab", "a"]), 2)
            is_steady = progress.is_steady(now_ms)
            seen += is_steady
            assert progress.desired_in_sync(now_ms, 10) is None or not is_steady, seed
    assert seen > 1_000


def test_a_replica_at_rest_lags_from_the_last_request_before_something_was_appended() -> None:
    progress = ReplicaProgress("a", LogOffsets(1, 0), in_sync=["a", "b"], min_insync=1)
    progress.set_replicas(["a", "b"], 0)
    progress.on_fetch("b", LogOffsets(1, 0), 1000)
    follower, latest = progress.follower("b"), LatestRequest(1000)
    assert follower is not None
    follower.begin_rest(latest)
    latest.at_ms = 5000
    assert (follower.caught_up_ms, follower.last_fetch_ms) == (5000, 5000)
    assert progress.desired_in_sync(5400, 500) is None
    progress.on_local_append(LogOffsets(2, 0))
    latest.at_ms = 9000  # it asks, and stores nothing
    assert (follower.caught_up_ms, follower.last_fetch_ms) == (5000, 5000)
    assert progress.desired_in_sync(5600, 500) == {"a"}


def test_a_replica_that_asks_and_gets_nothing_does_not_enter_the_set_again() -> None:
    progress = ReplicaProgress("a", LogOffsets(1, 0), in_sync=["a", "b", "c"], min_insync=2)
    progress.set_replicas(["a", "b", "c"], 0)
    for name in "bc":
        progress.on_fetch(name, LogOffsets(1, 0), 0)
    progress.on_local_append(LogOffsets(9, 0))
    decided = []
    for now_ms in range(0, 9000, 200):
        for name in "bc":
            progress.on_fetch(name, LogOffsets(1, 0), now_ms)  # the answers are lost
        wanted = progress.desired_in_sync(now_ms, 1000)
        if wanted is not None:
            decided.append(wanted)
            progress.set_in_sync(wanted, 2)
    assert decided == [{"a", "b"}]
    progress.on_fetch("c", LogOffsets(5, 0), 9000)
    assert progress.desired_in_sync(9000, 1000) == {"a", "c"}


def test_the_lag_that_is_allowed_may_be_used_up_and_not_exceeded() -> None:
    progress = _progress("a", min_insync=1)
    progress.on_local_append(LogOffsets(10, 6))
    progress.on_fetch("b", LogOffsets(10, 6), 100)
    assert progress.desired_in_sync(100 + LAG_MS, LAG_MS) == {"a", "b"}
    assert progress.desired_in_sync(100 + LAG_MS + 1, LAG_MS) is None
    member = _progress("a", "b", "c")
    for node in "bc":
        member.on_fetch(node, LogOffsets(0, 0), 100)
    member.on_local_append(LogOffsets(10, 6))
    member.on_fetch("b", LogOffsets(10, 6), 500)
    assert member.desired_in_sync(100 + LAG_MS, LAG_MS) is None
    assert member.desired_in_sync(100 + LAG_MS + 1, LAG_MS) == {"a", "b"}
    beside_one_out = _progress("a", "b", min_insync=1)
    beside_one_out.on_fetch("b", LogOffsets(0, 0), 100)
    beside_one_out.on_local_append(LogOffsets(10, 6))
    assert beside_one_out.desired_in_sync(100 + LAG_MS, LAG_MS) is None
    assert beside_one_out.desired_in_sync(100 + LAG_MS + 1, LAG_MS) == {"a"}


def test_followers_rest_until_one_of_them_does_not_and_again_once_it_does() -> None:
    partitions = [_progress("a", "b", "c"), _progress("a", "b", "c")]
    latest = {name: LatestRequest(at_ms) for name, at_ms in (("b", 1000), ("c", 1200))}

    def rest(progress: ReplicaProgress) -> None:
        for name, each in latest.items():
            progress.on_fetch(name, progress.ends, each.at_ms)
            follower = progress.follower(name)
            assert follower is not None
            follower.begin_rest(each)
            follower.begin_rest(each)  # it counts once

    rest(partitions[0])
    assert RestingFollowers(partitions).steady_until_ms(LAG_MS) == -math.inf
    rest(partitions[1])
    resting = RestingFollowers(partitions)
    assert resting.steady_until_ms(LAG_MS) == 1000 + LAG_MS
    latest["b"].at_ms = 1300
    assert resting.steady_until_ms(LAG_MS) == 1200 + LAG_MS
    partitions[0].on_local_append(LogOffsets(9, 9))
    assert resting.steady_until_ms(LAG_MS) == -math.inf
    rest(partitions[0])
    assert resting.steady_until_ms(LAG_MS) == 1200 + LAG_MS
    partitions[1].begin_change(["a", "b"])
    assert RestingFollowers(partitions).steady_until_ms(LAG_MS) == -math.inf


def test_a_replica_that_asks_by_itself_rests_no_more() -> None:
    progress = _progress("a", "b", end=1)
    progress.on_fetch("b", LogOffsets(1, 1), 1000)
    follower, latest = progress.follower("b"), LatestRequest(2000)
    assert follower is not None
    follower.begin_rest(latest)
    progress.on_fetch("b", LogOffsets(0, 1), 3000)  # it lost something
    latest.at_ms = 5000  # other replicas of its node ask
    assert (follower.caught_up_ms, follower.last_fetch_ms) == (2000, 3000)
    progress.on_fetch("b", LogOffsets(1, 1), 6000)
    assert (follower.caught_up_ms, follower.last_fetch_ms) == (6000, 6000)


def test_an_older_word_of_having_had_everything_does_not_undo_a_newer_one() -> None:
    progress = _progress("a", "b")
    assert progress.caught_up_ms("c") is None
    for at_ms, known_ms in ((700, 700), (500, 700), (900, 900)):
        progress.note_caught_up("c", at_ms)
        assert progress.caught_up_ms("c") == known_ms


def test_setting_the_replicas_anew_forgives_no_lag_and_makes_nobody_caught_up() -> None:
    progress = _progress("a", "b")
    progress.on_fetch("b", LogOffsets(0, 0), 100)
    progress.set_replicas(["a", "b", "c", "d"], 900)
    assert progress.caught_up_ms("b") == 100
    assert progress.caught_up_ms("c") is None
    assert progress.caught_up_ms("d") is None
    assert progress.caught_up_ms("a") is None, "a node does not follow itself"


def test_what_a_leader_appends_is_safe_at_once_where_one_replica_is_enough() -> None:
    progress = ReplicaProgress("a", LogOffsets(0, 0), in_sync=["a"], min_insync=1)
    progress.set_replicas(["a", "b"], 0)
    progress.on_local_append(LogOffsets(10, 6))
    assert progress.high_watermark == LogOffsets(10, 6)


def test_a_follower_has_told_its_ends_once_it_has_fetched_even_if_it_has_nothing() -> None:
    progress = _progress("a", "b")
    assert progress.follower_ends("b") is None
    assert progress.on_fetch("b", LogOffsets(0, 0), 1)
    assert progress.follower_ends("b") == LogOffsets(0, 0)
    assert not progress.on_fetch("b", LogOffsets(0, 0), 2), "nothing has moved"
    assert progress.on_fetch("b", LogOffsets(1, 0), 2)
