"""What nodes tell each other of their archives, and how much at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import msgspec
import pytest

from goq import limits
from goq.broker.metadata import MetadataStore
from goq.broker.partition.loader import PartitionLogs, open_logs
from goq.broker.partition_context import PartitionId
from goq.broker.retention.archiver import Archiver
from goq.clock import ManualClock
from goq.cluster.replication import archive_sync
from goq.cluster.replication.archive_sync import (
    ArchiveRequest,
    ArchiveSync,
    decode_archive_request,
    decode_rows,
    is_covered,
)
from goq.cluster.replication.progress import LogOffsets
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.repair.protocol import ReplicaLogs
from goq.cluster.replication.replica import Replica
from goq.cluster.replication.segment_manifest import LOGS
from goq.config.topic import TopicSettings
from goq.errors import InvalidFrame, NotFound, TopicNotFound, Unavailable
from goq.storage.catalog.rows import ArchiveRow
from tests.support.cluster.replication.loop import run_simulated
from tests.support.cluster.replication.manifest import SimManifest
from tests.support.eventually import until
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import append, frame_of

KEY = PartitionKey("t", 1, 0)
IDENTITY = PartitionId("t", 0)


class Node:
    """A node with a log of some segments, or with none of it left but the end."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.settings = TopicSettings(archive=True)
        self.manifest = SimManifest()
        store = cast(MetadataStore, self.manifest)
        self.archive = Archiver(Path("/data/archive"), self.disk, store, ManualClock())
        self.logs: PartitionLogs = open_logs(Path("/data/topics/t/0"), self.disk, self.settings)

    def publish(self, segments: int) -> None:
        for number in range(segments):
            for log in self.logs:
                append(log, [frame_of([b"%d" % number * 100] * 5)])
                log.roll()

    async def retire(self, keep: int) -> None:
        """Archive and delete all but some segments."""
        for name, log in zip(LOGS, self.logs, strict=True):
            for segment in log.segments[:-keep]:
                await self.archive.archive_segment(IDENTITY, name, segment)
                log.remove(log.detach_before(segment.end_offset))

    def follows(self, others: dict[str, ArchiveSync], broken: bytes | None = None) -> ArchiveSync:
        """Return what completes this node's archive from others'; ``broken`` comes instead."""
        replica = Replica.__new__(Replica)
        replica.key, replica.as_leader, replica.as_follower = KEY, None, None
        replica.idle_logs = self.logs
        assert replica.open_logs == ReplicaLogs(self.logs, LogOffsets(0, 0))

        async def ask(node: str, request: ArchiveRequest) -> bytes:
            if node not in others:
                raise Unavailable("it does not answer")
            if request.is_file and broken is not None:
                return broken
            return await others[node].answer(
                decode_archive_request(msgspec.msgpack.encode(request))
            )

        names = [*others, "dead"]
        return ArchiveSync(
            self.archive,
            [replica],
            lambda _: self.settings,
            lambda _: names,
            ask,
            check_interval_s=0.001,
        )


def rows(node: Node, log: str = "messages") -> list[ArchiveRow]:
    found = node.archive.segments.rows(IDENTITY, log)
    return [row._replace(archived_at_us=0) for row in found]


async def completed(lacking: Node, full: Node, broken: bytes | None = None) -> None:
    """Let one node look once for what it lacks."""
    archives = lacking.follows({"full": full.follows({})}, broken)
    await archives.run_once()


async def two_nodes() -> tuple[Node, Node]:
    """Return a node that archived five of six segments, and one that began with the last."""
    full, lacking = Node(), Node()
    for node in (full, lacking):
        node.publish(6)
    await full.retire(2)
    for log in lacking.logs:
        log.remove(log.detach_before(log.segments[-2].base_offset))
    return full, lacking


def test_who_lacks_an_archive_copies_it_though_another_node_is_dead() -> None:
    async def run() -> None:
        full, lacking = await two_nodes()
        await completed(lacking, full)
        assert rows(lacking) == rows(full)
        assert rows(lacking, "events") == rows(full, "events")
        assert len(rows(full)) == len(rows(full, "events")) == 5
        for row in rows(full):
            path = full.archive.segments.file_of(row)
            assert lacking.disk.read_all(path) == full.disk.read_all(path)

    asyncio.run(run())


def test_more_than_is_told_at_once_comes_with_the_next_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_ROWS_MAX", 2)
    monkeypatch.setattr(limits, "FETCH_BYTES_MAX", 100)

    async def run() -> None:
        full, lacking = await two_nodes()
        answer = await full.follows({}).answer(ArchiveRequest(KEY, 0, 0))
        assert len(decode_rows(answer)) == 2
        await completed(lacking, full)
        assert rows(lacking) == rows(full)

    asyncio.run(run())


def test_an_archive_that_is_complete_asks_again_only_for_what_it_did_not_archive_itself() -> None:
    async def run() -> None:
        full, lacking = await two_nodes()
        archives = lacking.follows({"full": full.follows({})})
        archives._sources = lambda _: ["full"]
        asked: list[int] = []
        answer = archives._call

        async def count(node: str, request: ArchiveRequest) -> bytes:
            asked.append(request.start)
            return await answer(node, request)

        archives._call = count
        await archives.run_once()
        assert rows(lacking) == rows(full)
        complete = len(asked)
        await archives.run_once()
        lacking.publish(2)
        await lacking.retire(1)
        await archives.run_once()
        assert len(asked) == complete
        lacking.publish(2)
        messages = lacking.logs.messages
        messages.remove(messages.detach_before(messages.segments[-1].base_offset))
        await archives.run_once()
        assert len(asked) > complete

    asyncio.run(run())


@pytest.mark.parametrize(
    ("start", "end", "is_missing"),
    [
        (0, 10, False),
        (5, 15, False),  # both parts are here
        (15, 25, True),
        (5, 25, False),  # with a whole segment that is here in it, it could not be named
        (20, 30, True),
        (40, 50, False),  # live here
        (35, 45, True),
    ],
)
def test_a_segment_is_missing_that_has_more_and_takes_no_other_ones_place(
    monkeypatch: pytest.MonkeyPatch, start: int, end: int, is_missing: bool
) -> None:
    def row(base_offset: int, end_offset: int) -> ArchiveRow:
        return ArchiveRow("t", 0, "messages", base_offset, end_offset, 1, 1, 1, 1, 1, 1)

    node = Node()
    own = [row(0, 10), row(10, 20)]
    monkeypatch.setattr(node.archive.segments, "rows", lambda _identity, _log: own)
    assert node.follows({})._is_missing(KEY, row(start, end), 40) is is_missing


@pytest.mark.parametrize("broken", [b"", b"something else" * 100])
def test_what_comes_broken_gets_no_name(broken: bytes) -> None:
    async def run() -> None:
        full, lacking = await two_nodes()
        await completed(lacking, full, broken)
        assert rows(lacking) == []
        assert not [p for p in lacking.disk.paths() if p.name.endswith(".zst")]
        await completed(lacking, full)
        assert rows(lacking) == rows(full)

    asyncio.run(run())


def test_a_node_that_does_not_answer_is_waited_for_once_a_round() -> None:
    async def run() -> None:
        full, lacking = await two_nodes()
        archives = lacking.follows({"full": full.follows({})})
        answer, asked = archives._call, list[str]()

        async def count(node: str, request: ArchiveRequest) -> bytes:
            asked.append(node)
            return await answer(node, request)

        archives._call = count
        await archives.run_once()
        assert asked.count("dead") == 1
        lacking.publish(1)
        await lacking.retire(1)
        await archives.run_once()
        assert asked.count("dead") == 1, "all that was deleted since is archived here"
        messages = lacking.logs.messages
        lacking.publish(2)
        messages.remove(messages.detach_before(messages.segments[-1].base_offset))
        await archives.run_once()
        assert asked.count("dead") == 2

    asyncio.run(run())


@pytest.mark.parametrize("fails_at", [False, True])
def test_what_cannot_be_had_is_asked_for_after_pauses_that_grow_to_a_minute_and_begin_anew(
    monkeypatch: pytest.MonkeyPatch, fails_at: bool
) -> None:
    """A node that does not answer at all, and one that tells what it has and gives no file."""
    now_s = 0
    monkeypatch.setattr(archive_sync, "_now_s", lambda: float(now_s))

    async def run() -> None:
        nonlocal now_s
        full, lacking = await two_nodes()
        archives = lacking.follows({"full": full.follows({})})
        archives._sources = lambda _: ["full"]
        answer, asked_s, is_down = archives._call, list[int](), True

        async def ask(node: str, request: ArchiveRequest) -> bytes:
            if request.is_file is fails_at and is_down:
                asked_s.append(now_s)
                raise Unavailable("it does not answer")
            return await answer(node, request)

        archives._call = ask

        async def run_until(end_s: int) -> list[int]:
            nonlocal now_s
            asked_s.clear()
            start_s = now_s
            while now_s < end_s:
                await archives.run_once()
                now_s += 1
            return [at_s - start_s for at_s in asked_s]

        assert await run_until(190) == [0, 1, 3, 7, 15, 31, 63, 123, 183]
        is_down = False
        assert await run_until(250) == []
        assert rows(lacking) == rows(full)
        is_down = True
        lacking.publish(2)
        for log in lacking.logs:
            log.remove(log.detach_before(log.segments[-1].base_offset))
        full.publish(2)
        await full.retire(1)
        assert await run_until(255) == [0, 1, 3]

    asyncio.run(run())


def test_what_is_missing_here_is_told_apart_from_what_is_gone_until_it_is_copied() -> None:
    async def run() -> None:
        full, lacking = await two_nodes()
        source, is_away = full.follows({}), True
        archives = lacking.follows({"full": source})
        answer = archives._call

        async def ask(node: str, request: ArchiveRequest) -> bytes:
            if is_away and request.is_file:
                raise Unavailable("it does not answer")
            return await answer(node, request)

        archives._call = ask
        end = lacking.logs.messages.start_offset
        assert "has yet to ask" in archives.why_absent(KEY.identity, "messages", 0, end)
        for _ in range(2):
            await archives.run_once()
            assert archives.why_absent(KEY.identity, "messages", 3, 4).startswith(
                "full has archived"
            )
            assert archives.why_absent(KEY.identity, "events", 3, 4).startswith("full has archived")
            archives._states[KEY].retry_at_s = 0
        assert "has yet to ask" in archives.why_absent(KEY.identity, "messages", end, end + 1)
        is_away = False
        full.disk.flip(full.archive.segments.file_of(rows(full)[0]), 30, 1)
        await archives.run_once()
        assert archives.why_absent(KEY.identity, "messages", 0, end) == "", "nobody has it whole"
        lacking.settings = TopicSettings()
        assert archives.why_absent(KEY.identity, "messages", 0, 2 * end) == ""

    asyncio.run(run())


def test_a_damaged_segment_keeps_no_later_one_from_being_copied() -> None:
    async def run() -> None:
        full, lacking = await two_nodes()
        first, *others = rows(full)
        full.disk.flip(full.archive.segments.file_of(first), 30, 1)
        await completed(lacking, full)
        assert rows(lacking) == others

    asyncio.run(run())


def test_what_a_node_has_damaged_is_not_waited_for_when_it_does_not_give_the_rest() -> None:
    async def run() -> None:
        full, lacking = await two_nodes()
        archives = lacking.follows({"full": full.follows({})})
        archives._sources = lambda _: ["full"]
        first, second, *_ = rows(full)
        full.disk.flip(full.archive.segments.file_of(first), 30, 1)
        answer = archives._call

        async def ask(node: str, request: ArchiveRequest) -> bytes:
            if request.is_file and request.start > first.base_offset:
                raise Unavailable("it does not answer")
            return await answer(node, request)

        archives._call = ask
        await archives.run_once()
        why_absent = archives.why_absent
        assert why_absent(KEY.identity, "messages", first.base_offset, first.end_offset) == ""
        assert "full has archived" in why_absent(
            KEY.identity, "messages", second.base_offset, second.end_offset
        )

    asyncio.run(run())


def test_what_has_expired_is_not_copied_again_from_a_node_that_still_has_it() -> None:
    async def run() -> None:
        full, lacking = await two_nodes()
        archives = lacking.follows({"full": full.follows({})})
        archives._sources = lambda _: ["full"]
        await archives.run_once()
        lacking.publish(2)
        await lacking.retire(1)
        await lacking.archive.expire("t", TopicSettings(total_bytes=0), 0, {})
        await lacking.archive.uploader.run_once()
        assert not rows(lacking)
        lacking.publish(2)
        await lacking.retire(1)
        archived_here = rows(lacking)
        assert archived_here
        await archives.run_once()
        assert rows(lacking) == archived_here
        archives._states.clear()  # another node has to be asked
        await archives.run_once()
        assert rows(lacking) == archived_here

    asyncio.run(run())


def test_archives_are_looked_at_once_in_an_interval() -> None:
    archives = Node().follows({})
    archives._check_interval_s = 5.0
    looked_s: list[float] = []

    async def look() -> None:
        looked_s.append(asyncio.get_running_loop().time())
        assert len(looked_s) < 10

    archives.run_once = look

    async def run() -> None:
        running = asyncio.ensure_future(archives.run())
        await asyncio.sleep(16)
        running.cancel()
        assert looked_s == [5, 10, 15]

    run_simulated(run())


def test_a_topic_that_is_being_deleted_holds_nobody_up() -> None:

    async def run() -> None:
        full, lacking = await two_nodes()
        archives = lacking.follows({"full": full.follows({})})
        asked = 0

        def settings_of(topic: str) -> TopicSettings:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise TopicNotFound(topic)
            return lacking.settings

        archives._settings_of = settings_of
        running = asyncio.ensure_future(archives.run())
        await until(lambda: running.done() or rows(lacking) == rows(full), seconds=30)
        assert not running.done()
        running.cancel()

    asyncio.run(run())


def test_a_file_that_is_not_there_and_bytes_that_ask_nothing_are_refused() -> None:
    async def run() -> None:
        full, _ = await two_nodes()
        with pytest.raises(NotFound):
            await full.follows({}).answer(ArchiveRequest(KEY, 0, 3, is_file=True))
        first = full.archive.segments.file_of(rows(full)[0])
        full.disk.remove(first)
        with pytest.raises(NotFound, match=str(first)):
            await full.follows({}).answer(ArchiveRequest(KEY, 0, 0, is_file=True))

    asyncio.run(run())
    for data in (b"", b"\xff", msgspec.msgpack.encode(ArchiveRequest(KEY, 2, 0))):
        with pytest.raises(InvalidFrame):
            decode_archive_request(data)
    with pytest.raises(InvalidFrame):
        decode_rows(b"\xc1")


def test_rows_that_touch_or_overlap_leave_nothing_out() -> None:
    def row(start: int, end: int) -> ArchiveRow:
        return ArchiveRow("t", 0, "messages", start, end, 1, 1, 0, 0, 0, 0)

    some = [row(0, 10), row(10, 20), row(15, 30), row(40, 50)]
    assert is_covered(some, 0, 30)
    assert is_covered(some, 12, 18)
    assert is_covered(some, 45, 50)
    assert not is_covered(some, 0, 31)
    assert not is_covered(some, 35, 45)
    assert is_covered([], 7, 7)
