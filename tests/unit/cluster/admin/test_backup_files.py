"""The archived segments of a log in a backup: what its replicas have together."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from goq.backup.cluster_source import RemoteFile
from goq.backup.planned_files import PlannedTopic
from goq.cluster.admin.backup_files import LeaderFiles, PlanResponse, add_lacking
from goq.cluster.replication.archive_sync import ArchiveRequest
from goq.errors import Unavailable
from goq.storage.catalog.rows import ArchiveRow

_TOPIC = PlannedTopic("t", 1, 1, {}, {}, [0])


def row(start: int, end: int) -> ArchiveRow:
    return ArchiveRow("t~1", 0, "messages", start, end, 1, end - start, 1, 1, 1, 0)


def archived(rows: dict[str, list[ArchiveRow]]) -> list[RemoteFile]:
    """Return the archived files of a log that n1 leads; nodes without rows do not answer."""

    async def plan(_node: str, _path: str, _body: bytes, _wait_ms: int) -> bytes:
        return msgspec.msgpack.encode(PlanResponse(40, []))

    async def answer(node: str, request: ArchiveRequest) -> bytes:
        if node not in rows:
            raise Unavailable(f"{node} is down")
        if request.is_file:
            return node.encode()
        return msgspec.msgpack.encode([r for r in rows[node] if r.base_offset >= request.start][:1])

    partition = SimpleNamespace(leader="n1", leader_epoch=1, holders=("n1", "n2", "n3"))
    topic = SimpleNamespace(topic_id=1, deleting=False, partitions=[partition])
    state: Any = SimpleNamespace(topics={"t": topic})

    async def nothing() -> None: ...

    async def run() -> list[RemoteFile]:
        log = await LeaderFiles(lambda: state, plan, answer, nothing, 1).plan_log(_TOPIC, 0, 0)
        return list(await log.list_archived())

    return asyncio.run(run())


def offsets(files: list[RemoteFile]) -> list[int]:
    return [file.base_offset for file in files]


def test_what_a_new_leader_has_not_copied_yet_is_taken_from_the_other_replicas() -> None:
    whole = [row(0, 10), row(10, 20), row(20, 30)]
    files = archived({"n1": [row(10, 20)], "n2": [], "n3": whole})
    assert offsets(files) == [0, 10, 20]
    read = [asyncio.run(file.read(0, 9)) for file in files]
    assert read == [b"n3", b"n1", b"n3"]


def test_a_replica_that_is_down_is_told_and_does_not_keep_the_others_from_being_backed_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert offsets(archived({"n1": [row(10, 20)], "n3": [row(0, 10)]})) == [0, 10]
    assert "the backup lacks what only n2 has archived" in caplog.text


def test_a_leader_whose_archive_cannot_be_read_is_asked_again() -> None:
    with pytest.raises(Unavailable):
        archived({"n2": [row(0, 10)], "n3": []})


@pytest.mark.parametrize(
    ("known", "more", "expected"),
    [
        ([(0, 10)], [(0, 10)], ["a 0-10"]),
        ([(0, 10)], [(0, 20)], ["b 0-20"]),
        ([(0, 20)], [(0, 10), (10, 20)], ["a 0-20"]),
        ([(0, 10), (20, 30)], [(5, 25)], ["a 0-10", "b 5-25", "a 20-30"]),
        ([], [(5, 9)], ["b 5-9"]),
    ],
)
def test_segments_are_added_where_none_covers_them(
    known: list[tuple[int, int]], more: list[tuple[int, int]], expected: list[str]
) -> None:
    found = add_lacking([("a", row(*each)) for each in known], "b", [row(*each) for each in more])
    assert [f"{node} {each.base_offset}-{each.end_offset}" for node, each in found] == expected
