"""A batch is published once, whatever breaks between its beginning and its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from goq import limits
from goq.client import Client
from goq.client._sync.publish.frame_publisher import FramePublisher
from goq.errors import Conflict, OutOfOrderSequence
from goq.frame.encoder import Columns, encode_frame
from goq.pipeline.spark.transaction_topics import StagedTopic, TopicLedger
from goq.pipeline.spark.transactions import (
    OVERTAKEN_MAX,
    LedgerEntry,
    Staged,
    Transaction,
    commit,
    commit_once,
)
from tests.support.node.running_node import RunningNode, running_node
from tests.support.paths import topic_dir

QUERY = Transaction("t", "query-1", "query-1")


class Crash(Exception):
    """The driver is gone."""


class Fuse:
    """Lets so many steps happen; then crashes, before the next one or after it."""

    def __init__(self, steps: int, *, after: bool = False) -> None:
        self.left = steps
        self.after = after

    def before_step(self) -> None:
        if self.left == 0 and not self.after:
            raise Crash

    def after_step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash


NEVER = 10**9


@dataclass
class FakeTopic:
    """A topic in memory that counts a producer's messages as a node does."""

    staged: dict[int, list[bytes]]
    stored: dict[int, list[bytes]] = field(default_factory=dict)
    next: dict[tuple[int, int], int] = field(default_factory=dict)
    fuse: Fuse = field(default_factory=lambda: Fuse(NEVER))
    piece: int = 3

    def reached(self, producer_id: int) -> Mapping[int, int]:
        return {p: at for (who, p), at in self.next.items() if who == producer_id}

    def check_staged(self, staged: Sequence[Staged]) -> None:
        pass

    def frames(self, staged: Sequence[Staged], skipped: int) -> Iterable[Sequence[bytes]]:
        waiting = [
            self.staged[each.partition][n] for each in staged for n in range(each.start, each.end)
        ][skipped:]
        for start in range(0, len(waiting), self.piece):
            yield waiting[start : start + self.piece]

    def publish(
        self, partition: int, frames: Sequence[bytes], producer_id: int, sequence: int
    ) -> int:
        self.fuse.before_step()
        at = self.next.get((producer_id, partition), 0)
        if sequence != at:
            raise OutOfOrderSequence(f"{at}, not {sequence}")
        self.stored.setdefault(partition, []).extend(frames)
        self.next[producer_id, partition] = sequence + len(frames)
        self.fuse.after_step()
        return sequence + len(frames)


@dataclass
class FakeLedger:
    """A ledger in memory."""

    entries: list[tuple[str, LedgerEntry]] = field(default_factory=list)
    fuse: Fuse = field(default_factory=lambda: Fuse(NEVER))

    def newest(self, transaction: str) -> LedgerEntry | None:
        own = [entry for name, entry in self.entries if name == transaction]
        latest = [e for e in own if e.batch == max(each.batch for each in own)]
        return next((e for e in latest if e.done), latest[0] if latest else None)

    def begin(self, transaction: str, entry: LedgerEntry) -> LedgerEntry:
        self.fuse.before_step()
        for name, known in self.entries:
            if (name, known.batch) == (transaction, entry.batch):
                return known
        self.entries.append((transaction, entry))
        self.fuse.after_step()
        return entry

    def done(self, transaction: str, entry: LedgerEntry) -> None:
        self.fuse.before_step()
        self.entries.append((transaction, entry))
        self.fuse.after_step()


def rows(partition: int, count: int, tag: str = "") -> list[bytes]:
    return [f"{tag}{partition}-{n}".encode() for n in range(count)]


def staged_twice() -> tuple[FakeTopic, list[Staged], list[Staged]]:
    """What a batch staged, and what it staged once more when it was run again."""
    topic = FakeTopic({p: rows(p, 10) + rows(p, 10, "again ") for p in range(2)})
    first = [Staged(0, 0, 4), Staged(1, 0, 10), Staged(0, 4, 10)]
    again = [Staged(1, 10, 20), Staged(0, 10, 20)]
    return topic, first, again


CRASHES = [(steps, after) for steps in range(12) for after in (False, True)]


@pytest.mark.parametrize(("steps", "after"), CRASHES)
def test_a_commit_that_crashed_at_any_step_is_finished_by_the_next_one(
    steps: int, after: bool
) -> None:
    topic, ranges, again = staged_twice()
    ledger = FakeLedger()
    topic.fuse = ledger.fuse = Fuse(steps, after=after)
    try:
        commit(QUERY, 0, ranges, ledger, topic)
    except Crash:
        pass
    begun = any(not entry.done for _, entry in ledger.entries)
    topic.fuse = ledger.fuse = Fuse(NEVER)
    commit(QUERY, 0, again, ledger, topic)
    commit(QUERY, 0, again, ledger, topic)
    tag = "" if begun else "again "
    assert topic.stored == {p: rows(p, 10, tag) for p in range(2)}


def test_the_last_step_of_the_crashes_above_is_behind_the_end_of_a_commit() -> None:
    topic, ranges, _ = staged_twice()
    ledger = FakeLedger()
    topic.fuse = ledger.fuse = Fuse(CRASHES[-1][0])
    commit(QUERY, 0, ranges, ledger, topic)


def test_a_batch_before_the_latest_one_is_left_alone() -> None:
    topic, ranges, again = staged_twice()
    ledger = FakeLedger()
    commit(QUERY, 3, ranges, ledger, topic)
    commit(QUERY, 2, again, ledger, topic)
    assert topic.stored == {p: rows(p, 10) for p in range(2)}


def test_a_batch_that_was_begun_is_finished_before_the_next_one() -> None:
    topic, ranges, again = staged_twice()
    ledger = FakeLedger()
    topic.fuse = ledger.fuse = Fuse(3)
    with pytest.raises(Crash):
        commit(QUERY, 0, ranges, ledger, topic)
    topic.fuse = ledger.fuse = Fuse(NEVER)
    commit(QUERY, 1, again, ledger, topic)
    assert topic.stored == {p: rows(p, 10) + rows(p, 10, "again ") for p in range(2)}


def test_one_that_was_begun_is_finished_also_by_a_batch_without_rows() -> None:
    topic, ranges, _ = staged_twice()
    ledger = FakeLedger()
    topic.fuse = ledger.fuse = Fuse(2)
    with pytest.raises(Crash):
        commit(QUERY, 0, ranges, ledger, topic)
    topic.fuse = ledger.fuse = Fuse(NEVER)
    commit(QUERY, 1, [], ledger, topic)
    assert topic.stored == {p: rows(p, 10) for p in range(2)}


def test_two_that_commit_the_same_batch_at_once_publish_it_once() -> None:
    topic, ranges, again = staged_twice()
    ledger = FakeLedger()

    class Overtaken(FakeTopic):
        """Somebody else commits the same batch in the middle of ours."""

        def publish(self, partition: int, *rest: object) -> int:
            if len(self.stored) == 0:
                plain = FakeTopic(self.staged, self.stored, self.next, piece=2)
                commit(QUERY, 0, again, ledger, plain)
            return super().publish(partition, *rest)

    slow = Overtaken(topic.staged, topic.stored, topic.next)
    commit(QUERY, 0, ranges, ledger, slow)
    assert topic.stored == {p: rows(p, 10) for p in range(2)}


def test_a_name_that_another_query_has_is_refused() -> None:
    topic, ranges, again = staged_twice()
    ledger = FakeLedger()
    commit(QUERY, 0, ranges, ledger, topic)
    for batch in (0, 1):
        with pytest.raises(Conflict, match="another txnId"):
            commit(replace(QUERY, query="query-2"), batch, again, ledger, topic)
    assert topic.stored == {p: rows(p, 10) for p in range(2)}


def test_a_topic_that_forgot_the_producer_in_the_middle_of_a_batch_is_not_guessed_about() -> None:
    topic, ranges, again = staged_twice()
    ledger = FakeLedger()
    commit(QUERY, 0, ranges, ledger, topic)
    topic.fuse = ledger.fuse = Fuse(2)
    with pytest.raises(Crash):
        commit(QUERY, 1, again, ledger, topic)
    topic.fuse = ledger.fuse = Fuse(NEVER)
    topic.next.clear()
    with pytest.raises(Conflict, match="is not known"):
        commit(QUERY, 1, again, ledger, topic)


def test_who_gets_no_further_gives_up() -> None:
    topic, ranges, _ = staged_twice()
    tries = []

    class Stuck(FakeTopic):
        def publish(self, *_: object) -> int:
            tries.append(1)
            raise OutOfOrderSequence("no")

    with pytest.raises(OutOfOrderSequence):
        commit(QUERY, 0, ranges, FakeLedger(), Stuck(topic.staged))
    assert len(tries) == OVERTAKEN_MAX + 1


def test_a_batch_without_a_name_is_published_once_by_who_has_it() -> None:
    topic, ranges, _ = staged_twice()
    topic.fuse = Fuse(2)
    nameless = Transaction("t", "once-1")
    with pytest.raises(Crash):
        commit_once(nameless, ranges, topic)
    topic.fuse = Fuse(NEVER)
    commit_once(nameless, ranges, topic)
    commit_once(nameless, ranges, topic)
    assert topic.stored == {p: rows(p, 10) for p in range(2)}


def put_staged(client: Client, staged: StagedTopic, partition: int, values: list[bytes]) -> Staged:
    frame = encode_frame(Columns(values, keys=[b"k"] * len(values)))
    [stored] = FramePublisher(client).publish(staged.staging, [(partition, frame)])
    return staged.staged(stored)


class Breaking(StagedTopic):
    """The node's topic, which the driver loses after so many requests."""

    fuse = Fuse(NEVER)

    def publish(self, *args: object) -> int:
        self.fuse.before_step()
        at = super().publish(*args)
        self.fuse.after_step()
        return at


class BreakingLedger(TopicLedger):
    """The node's ledger, which the driver loses after so many requests."""

    fuse = Fuse(NEVER)

    def begin(self, *args: object) -> LedgerEntry:
        self.fuse.before_step()
        entry = super().begin(*args)
        self.fuse.after_step()
        return entry

    def done(self, *args: object) -> None:
        self.fuse.before_step()
        super().done(*args)
        self.fuse.after_step()


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("after", [False, True])
def test_a_node_has_every_batch_once_and_in_order_after_a_crash_at_any_step(
    node: RunningNode, topic: str, steps: int, after: bool
) -> None:
    query = Transaction(topic, "query-1", "query-1")
    with Client(node.url) as client:
        staged, ledger = Breaking(client, topic), BreakingLedger(client, topic)
        commit(
            query,
            0,
            [put_staged(client, staged, p, rows(p, 5, "a")) for p in (0, 2)],
            ledger,
            staged,
        )
        put_staged(client, staged, 0, rows(0, 2, "of nobody "))
        ranges = [put_staged(client, staged, p, rows(p, 5, "b")) for p in (0, 2, 0)]
        staged.fuse = ledger.fuse = Fuse(steps, after=after)
        try:
            commit(query, 1, ranges, ledger, staged)
        except Crash:
            pass
        staged.fuse = ledger.fuse = Fuse(NEVER)
        again = [put_staged(client, staged, p, rows(p, 5, "b")) for p in (0, 2, 0)]
        commit(query, 1, again, ledger, staged)
        commit(query, 0, again, ledger, staged)
        found = [(m.partition, m.value) for m in client.read_log(topic)]
    assert [v for p, v in found if p == 0] == rows(0, 5, "a") + 2 * rows(0, 5, "b")
    assert [v for p, v in found if p == 2] == rows(2, 5, "a") + rows(2, 5, "b")
    assert len(found) == 25


def test_what_two_tasks_staged_in_turn_comes_apart_again_whatever_its_size(
    node: RunningNode, topic: str
) -> None:
    with Client(node.url) as client:
        staged = StagedTopic(client, topic)
        mine, yours = [], []
        for turn in range(3):
            large = bytes([turn]) * 5 * limits.MIB
            mine.append(put_staged(client, staged, 1, [b"", large, f"mine {turn}".encode()]))
            yours.append(put_staged(client, staged, 1, rows(1, 4, f"yours {turn} ")))
        commit_once(Transaction(topic, "once"), [*yours, *mine], staged)
        found = [m.value or b"" for m in client.read_log(topic)]
    assert found[:12] == [row for turn in range(3) for row in rows(1, 4, f"yours {turn} ")]
    assert [(len(value), value[-1:]) for value in found[12:]] == [
        each
        for turn in range(3)
        for each in ((0, b""), (5 * limits.MIB, bytes([turn])), (6, str(turn).encode()))
    ]


def test_what_was_staged_and_deleted_before_it_was_published_is_said_to_be_gone(
    node: RunningNode, topic: str
) -> None:
    with Client(node.url) as client:
        staged, ledger = StagedTopic(client, topic), TopicLedger(client, topic)
        kept = put_staged(client, staged, 0, rows(0, 5))
        beyond = kept._replace(end=kept.end + 1)
        with pytest.raises(Conflict, match="are gone before they were published"):
            commit(Transaction(topic, "x"), 0, [beyond], ledger, staged)


def test_what_was_staged_in_a_topic_that_was_deleted_is_not_taken_from_the_next_one(
    node: RunningNode, topic: str
) -> None:
    name = Transaction(topic, "x")
    with Client(node.url) as client:
        staged, ledger = Breaking(client, topic), BreakingLedger(client, topic)
        ranges = [put_staged(client, staged, 0, rows(0, 5))]
        client.delete_topic(staged.staging)
        put_staged(client, StagedTopic(client, topic), 0, rows(0, 5, "of another query "))
        with pytest.raises(Conflict, match="run the query again"):
            commit(name, 0, ranges, ledger, StagedTopic(client, topic))
        staged = Breaking(client, topic)
        ranges = [put_staged(client, staged, 0, rows(0, 5))]
        commit(name, 0, ranges, ledger, staged)
        ranges = [put_staged(client, staged, 0, rows(0, 5, "b"))]
        ledger.fuse = Fuse(0, after=True)
        with pytest.raises(Crash):
            commit(name, 1, ranges, ledger, staged)
        ledger.fuse = Fuse(NEVER)
        client.delete_topic(staged.staging)
        put_staged(client, StagedTopic(client, topic), 0, rows(0, 50, "of another query "))
        with pytest.raises(Conflict, match="cannot be finished"):
            commit(name, 1, ranges, ledger, StagedTopic(client, topic))
        assert [m.value for m in client.read_log(topic)] == rows(0, 5)


def test_damage_in_what_is_staged_stops_the_batch_that_it_is_of_and_no_other(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    with running_node(folder) as node, Client(node.url) as client:
        node.call("POST", "/v1/topics", {"name": "orders", "partitions": 1})
        staged = StagedTopic(client, "orders")
        values = [rows(0, 5, tag) for tag in ("first ", "second ", "third ")]
        ranges = [put_staged(client, staged, 0, each) for each in values]
    (segment,) = (topic_dir(folder, "orders.staged") / "0" / "messages").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"second")] ^= 1
    segment.write_bytes(data)
    with running_node(folder) as node, Client(node.url) as client:
        staged, ledger = StagedTopic(client, "orders"), TopicLedger(client, "orders")
        for number in (0, 2):
            commit(Transaction("orders", f"x{number}"), 0, [ranges[number]], ledger, staged)
        with pytest.raises(Conflict, match="some of them are damaged on the node"):
            commit(Transaction("orders", "x1"), 0, [ranges[1]], ledger, staged)
        assert [m.value for m in client.read_log("orders")] == values[0] + values[2]


def test_the_ledger_knows_a_batch_after_the_node_was_started_again(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    name = Transaction("orders", "query-1")
    with running_node(folder) as node, Client(node.url) as client:
        node.call("POST", "/v1/topics", {"name": "orders", "partitions": 1})
        staged, ledger = StagedTopic(client, "orders"), TopicLedger(client, "orders")
        commit(name, 7, [put_staged(client, staged, 0, rows(0, 5))], ledger, staged)
    with running_node(folder) as node, Client(node.url) as client:
        staged, ledger = StagedTopic(client, "orders"), TopicLedger(client, "orders")
        found = ledger.newest("query-1")
        assert found is not None
        assert (found.batch, found.done) == (7, True)
        assert ledger.newest("another") is None
        commit(name, 7, [put_staged(client, staged, 0, rows(0, 5))], ledger, staged)
        commit(name, 8, [put_staged(client, staged, 0, rows(0, 5, "b"))], ledger, staged)
        assert [m.value for m in client.read_log("orders")] == rows(0, 5) + rows(0, 5, "b")


def test_a_topic_that_was_made_anew_gets_the_batch_of_a_known_transaction(
    node: RunningNode, topic: str
) -> None:
    name = Transaction(topic, "totals of 2026-11-20")
    with Client(node.url) as client:
        for values in (rows(0, 5), rows(0, 5, "anew ")):
            staged, ledger = StagedTopic(client, topic), TopicLedger(client, topic)
            for _ in range(2):
                commit(name, 0, [put_staged(client, staged, 0, values)], ledger, staged)
            assert [m.value for m in client.read_log(topic)] == values
            node.call("DELETE", f"/v1/topics/{topic}")
            node.call("POST", "/v1/topics", {"name": topic, "partitions": 1})


def test_the_ledger_knows_what_was_done_after_it_was_compacted(
    node: RunningNode, topic: str
) -> None:
    name = Transaction(topic, "query-1")
    with Client(node.url) as client:
        staged, ledger = StagedTopic(client, topic), TopicLedger(client, topic)
        for batch in range(3):
            values = [f"v{batch}".encode()]
            commit(name, batch, [put_staged(client, staged, 0, values)], ledger, staged)
        broker = node.node.broker
        assert broker is not None
        node.on_loop(broker.topics[f"{topic}.commits"].partitions[0].trimmer.roll)
        node.on_loop(broker.compaction_manager.apply)
        assert len(list(client.read_log(f"{topic}.commits"))) == 1
        for batch in (2, 1, 3):
            values = [f"v{batch}".encode()]
            commit(name, batch, [put_staged(client, staged, 0, values)], ledger, staged)
        assert [m.value for m in client.read_log(topic)] == [b"v0", b"v1", b"v2", b"v3"]


def test_the_staging_topic_follows_the_one_that_it_is_for(node: RunningNode, topic: str) -> None:
    with Client(node.url) as client:
        assert StagedTopic(client, topic).partitions == 3
        client.alter_topic(
            topic, partitions=5, settings={"priority.lanes": "a,b", "delay.max": "1h"}
        )
        assert StagedTopic(client, topic).partitions == 5
        found = client.describe_topic(f"{topic}.staged")
    assert len(found.partitions) == 5
    assert found.settings["priority.lanes"] == "a,b"
    assert found.settings["delay.max"] == "1h"
    assert found.settings["retention.age"] == "1d"
