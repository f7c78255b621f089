"""Which batches are one record, who writes it, and what each log is told."""

from __future__ import annotations

import asyncio

import pytest

from goq import limits
from goq.broker.log import commit_turn
from goq.broker.log.commit_turn import CommitTurn
from goq.errors import StorageFailed, StorageFull
from tests.support.broker.commit_turns import Member, Node, on_node
from tests.support.eventually import until


def test_logs_of_one_turn_are_one_record_and_each_is_told() -> None:
    async def test(node: Node) -> None:
        members = [Member(node, name) for name in "abc"]
        members[1].has_batch = False
        await node.write(*members)
        assert node.journal.records == [["a", "c"]]
        assert node.finished == {"a": None, "c": None}
        assert node.steps == ["append a", "append c", "journaled 1 a", "journaled 1 c"]
        await node.write(members[0])
        assert node.journal.records == [["a", "c"], ["a"]]

    on_node(test)


def test_a_log_that_refuses_its_batch_is_told_alone() -> None:
    async def test(node: Node) -> None:
        full = Member(node, "a")
        full.log.faults["append"] = StorageFull("full")
        await node.write(full, Member(node, "b"))
        assert isinstance(node.finished["a"], StorageFull)
        assert node.finished["b"] is None
        assert node.journal.records == [["b"]]
        alone = Member(node, "c")
        alone.log.faults["append"] = StorageFull("full")
        await node.write(alone)
        assert isinstance(node.finished["c"], StorageFull)
        assert node.journal.records == [["b"]]

    on_node(test)


def test_a_record_that_fails_ends_the_logs_that_are_in_it() -> None:
    async def test(node: Node) -> None:
        full, other = Member(node, "a"), Member(node, "b")
        full.log.faults["append"] = StorageFull("full")
        node.journal.fault = StorageFailed("broken")
        await node.write(full, other)
        assert (full.log.failed, other.log.failed) == (None, "broken")
        assert isinstance(node.finished["b"], StorageFailed)

    on_node(test)


def test_what_the_journal_has_no_room_for_is_synced_by_each_log_in_a_thread() -> None:
    async def test(node: Node) -> None:
        node.journal.has_room = False
        good, bad = Member(node, "a"), Member(node, "b")
        bad.log.faults["sync"] = OSError("EIO")
        await node.write(good, bad)
        assert node.finished == {}
        assert node.steps == ["append a", "append b"]
        node.thread.run()
        await until(lambda: len(node.finished) == 2)
        assert node.finished["a"] is None
        assert isinstance(node.finished["b"], OSError)
        assert node.steps[2:] == ["sync a"]

    on_node(test)


@pytest.mark.parametrize(
    ("count", "size_bytes", "in_thread"),
    [
        (commit_turn._INLINE_LOGS_MAX, 1, False),
        (commit_turn._INLINE_LOGS_MAX + 1, 1, True),
        (1, limits.JOURNAL_INLINE_BYTES_MAX, False),
        (1, limits.JOURNAL_INLINE_BYTES_MAX + 1, True),
    ],
)
def test_the_event_loop_writes_small_records_of_few_logs(
    count: int, size_bytes: int, in_thread: bool
) -> None:
    async def test(node: Node) -> None:
        members = [Member(node, str(number), size_bytes) for number in range(count)]
        await node.write(*members)
        assert bool(node.thread.jobs) == in_thread
        assert bool(node.finished) != in_thread
        node.thread.run()
        await until(lambda: len(node.finished) == count)
        assert len(node.journal.records) == 1

    on_node(test)


def test_a_thread_writes_while_the_journal_is_busy() -> None:
    async def test(node: Node) -> None:
        node.journal.is_busy = True
        await node.write(Member(node, "a"))
        assert node.thread.jobs

    on_node(test)


def test_what_comes_while_a_thread_writes_is_one_later_record() -> None:
    async def test(node: Node) -> None:
        node.journal.is_busy = True
        await node.write(Member(node, "a"))
        node.journal.is_busy = False
        await node.write(Member(node, "b"))
        await node.write(Member(node, "c"))
        assert node.journal.records == []
        node.thread.run()
        await until(lambda: len(node.finished) == 3)
        assert node.journal.records == [["a"], ["b", "c"]]

    on_node(test)


def test_after_a_slow_write_a_thread_writes_for_a_while_and_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_turn, "_THREAD_S_MAX", 0.3)

    async def test(node: Node) -> None:
        now_s = [1000.0]
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0], raising=False)
        held = list[float]()
        node.turn.on_inline_write = held.append
        node.journal.write_ms = 6
        for pause_s in (0.1, 0.2, 0.3, 0.3):
            await node.write(Member(node, "a"))
            assert held.pop() == pytest.approx(0.006)
            now_s[0] += 0.99 * pause_s
            await node.write(Member(node, "b"))
            assert node.thread.jobs
            node.thread.run()
            await node.write()
            now_s[0] += 0.02 * pause_s
        node.journal.write_ms = 1
        await node.write(Member(node, "a"))
        node.journal.write_ms = 6
        await node.write(Member(node, "a"))
        now_s[0] += 0.101
        await node.write(Member(node, "a"))
        assert not node.thread.jobs

    on_node(test)


def test_a_turn_that_is_larger_than_a_record_goes_on_in_the_next() -> None:
    async def test(node: Node) -> None:
        large = limits.JOURNAL_RECORD_BYTES_MAX - limits.JOURNAL_ENTRY_BYTES_MAX
        await node.write(Member(node, "a", large - 1), Member(node, "b", 1), Member(node, "c", 1))
        node.thread.run()
        await until(lambda: len(node.finished) == 3)
        assert node.journal.records == [["a", "b"], ["c"]]

    on_node(test)


def test_what_follows_a_staged_batch_is_in_its_record() -> None:
    async def test(node: Node) -> None:
        first, follower = Member(node, "a", stages=True), Member(node, "b")
        follower.follows = first.log
        first.then = lambda: node.turn.join(follower)
        other = Member(node, "c")
        await node.write(other, first)
        assert node.journal.records == [["a", "c", "b"]]
        assert node.steps[0] == "stage a"
        assert node.finished == {"a": None, "b": None, "c": None}

    on_node(test)


def test_what_follows_a_staged_batch_fails_with_it() -> None:
    async def test(node: Node) -> None:
        first, follower, other = (
            Member(node, "a", stages=True),
            Member(node, "b"),
            Member(node, "c"),
        )
        follower.follows = other.follows = first.log
        first.log.faults["append"] = StorageFull("full")
        first.then = lambda: node.turn.join(follower)
        await node.write(first)
        assert isinstance(node.finished["a"], StorageFull)
        assert isinstance(node.finished["b"], StorageFull)
        assert node.journal.records == []
        await node.write(other)
        assert node.finished["c"] is None

    on_node(test)


def test_a_staged_record_that_has_no_room_is_synced_before_anyone_can_see_it() -> None:
    async def test(node: Node) -> None:
        member = Member(node, "a", stages=True)
        member.then = lambda: setattr(node.journal, "has_room", False)
        await node.write(member)
        assert node.finished == {"a": None}
        assert node.steps == ["stage a", "append a", "sync a"]
        assert not node.thread.jobs

    on_node(test)


@pytest.mark.parametrize("why", ["large", "busy", "no room", "many"])
def test_nothing_is_staged_that_the_event_loop_does_not_write(why: str) -> None:
    async def test(node: Node) -> None:
        size_bytes = limits.JOURNAL_STAGED_BYTES_MAX + (why == "large")
        count = commit_turn._INLINE_LOGS_MAX if why == "many" else 1
        members = [Member(node, str(n), size_bytes // count, stages=n == 0) for n in range(count)]
        node.journal.is_busy = why == "busy"
        node.journal.has_room = why != "no room"
        await node.write(*members)
        assert "stage 0" not in node.steps

    on_node(test)


def test_as_much_is_staged_as_the_event_loop_writes() -> None:
    async def test(node: Node) -> None:
        each_bytes = limits.JOURNAL_STAGED_BYTES_MAX // (commit_turn._INLINE_LOGS_MAX - 1)
        members = [
            Member(node, str(n), each_bytes, stages=n == 0)
            for n in range(commit_turn._INLINE_LOGS_MAX - 1)
        ]
        await node.write(*members)
        assert node.steps[0] == "stage 0"

    on_node(test)


def test_bugs_beside_the_logs_hold_nobody_up() -> None:
    async def test(node: Node) -> None:
        def bug() -> None:
            raise ValueError("a bug")

        node.turn.before_write = bug
        staged, other = Member(node, "a", stages=True), Member(node, "b")
        staged.then = bug
        await node.write(staged, other)
        assert node.finished == {"a": None, "b": None}
        assert node.problems == ["a bug", "a bug"]
        node.journal.fault = ValueError("a bug in the journal")
        node.journal.is_busy = True
        await node.write(Member(node, "c"))
        node.thread.run()
        await until(lambda: "c" in node.finished)
        assert isinstance(node.finished["c"], ValueError)

    on_node(test)


def test_an_error_in_the_end_of_one_write_holds_up_no_other() -> None:
    async def test(node: Node) -> None:
        bad = Member(node, "a")

        def fail(_error: Exception | None) -> None:
            raise ValueError("a bug")

        bad._finish = fail
        await node.write(bad, Member(node, "b"))
        assert node.finished == {"b": None}
        assert node.problems == ["a bug"]
        await node.write(Member(node, "c"))
        assert node.finished == {"b": None, "c": None}

    on_node(test)


def test_before_a_record_is_written_others_may_act_once() -> None:
    async def test(node: Node) -> None:
        calls = list[int]()
        node.turn.before_write = lambda: calls.append(len(node.journal.records))
        await node.write(Member(node, "a"), Member(node, "b"))
        idle = Member(node, "c")
        idle.has_batch = False
        await node.write(idle)
        await node.write(Member(node, "d"))
        assert calls == [0, 1]

    on_node(test)


def test_without_a_journal_each_log_writes_by_itself() -> None:
    async def test(node: Node) -> None:
        turn, started = CommitTurn(), list[str]()
        for name in "ab":
            member = Member(node, name, stages=True)
            member.start = lambda name=name: started.append(name)
            turn.join(member)
        await until(lambda: started == ["a", "b"])

    on_node(test)


def test_a_turn_looks_again_while_more_comes() -> None:
    async def test(node: Node) -> None:
        await node.write(Member(node, "a"), Member(node, "b"))  # more than one: look for more
        node.turn.append_count += 1
        node.turn.join(Member(node, "c"))
        await asyncio.sleep(0)
        node.turn.append_count += 1
        node.turn.join(Member(node, "d"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert node.journal.records == [["a", "b"], ["c", "d"]]

    on_node(test)


def test_a_turn_ends_however_much_goes_on_to_come() -> None:
    async def test(node: Node) -> None:
        await node.write(Member(node, "a"), Member(node, "b"))
        node.turn.join(Member(node, "c"))
        for _ in range(20):
            node.turn.append_count += 1
            await asyncio.sleep(0)
        assert node.journal.records == [["a", "b"], ["c"]]

    on_node(test)
