"""What retention has moved into the archive is read and exported where that is asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from goq import limits
from goq.client import Client
from goq.errors import Conflict
from goq.pipeline.arrow.node_source import FrameBatch, LogBounds, NodeSource
from goq.pipeline.arrow.tables import EVENTS_TABLE, MESSAGES_TABLE, Table, rows_between
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.export import Export, ExportResult
from goq.pipeline.export.ledger import ExportLedger
from tests.support.node.archive import publish_segments, retire
from tests.support.node.running_node import RunningNode
from tests.support.paths import topic_dir


@pytest.fixture
def client(node: RunningNode) -> Iterator[Client]:
    with Client(node.url) as client:
        yield client


def whole(client: Client) -> NodeSource:
    return NodeSource(client, include_deleted=True)


def read(source: NodeSource, topic: str, start: int, end: int) -> tuple[list[int], list[object]]:
    """Return which numbers the messages of partition 0 have, and what is missing of them."""
    return numbers_of(source.read_messages(topic, 0, start, end))


def numbers_of(frame_batches: Iterator[FrameBatch]) -> tuple[list[int], list[object]]:
    numbers: list[int] = []
    missing: list[object] = []
    for frame_batch in frame_batches:
        missing += frame_batch.missing
        for view in frame_batch.frames:
            values = view.values(0, view.header.message_count)
            numbers += [int((value or b"").split()[0]) for value in values]
    return numbers, missing


def archive_file(node: RunningNode, topic: str, offset: int) -> Path:
    return topic_dir(node.data_dir, topic, "archive") / f"0/messages/{offset:020d}.log.zst"


def forget_archive(node: RunningNode, topic: str) -> None:
    """Let the node read the archive's files anew, as after a restart."""
    broker = node.node.broker
    assert broker is not None
    broker.archive.disk.invalidate(topic_dir(node.data_dir, topic, "archive"))


def test_archived_messages_are_there_only_if_asked_for(
    node: RunningNode, topic: str, client: Client
) -> None:
    publish_segments(node, topic, range(6))
    retire(node, topic, archive=True)
    assert NodeSource(client).bounds(topic)[0] == LogBounds(5, 6)
    assert whole(client).bounds(topic) == {0: (0, 6), 1: (0, 0), 2: (0, 0)}
    assert read(whole(client), topic, 0, 6) == ([0, 1, 2, 3, 4, 5], [])
    assert read(whole(client), topic, 2, 4) == ([2, 3], [])
    assert read(NodeSource(client), topic, 0, 6) == ([5], [(0, 5)])


def test_what_was_deleted_without_an_archive_is_named_as_missing(
    node: RunningNode, topic: str, client: Client
) -> None:
    publish_segments(node, topic, range(3))
    retire(node, topic, archive=False)
    publish_segments(node, topic, range(3, 6))
    retire(node, topic, archive=True)
    publish_segments(node, topic, range(6, 9))
    retire(node, topic, archive=False)
    publish_segments(node, topic, range(9, 11))
    assert whole(client).bounds(topic)[0] == LogBounds(2, 11)
    assert read(whole(client), topic, 0, 11) == ([2, 3, 4, 8, 9, 10], [(0, 2), (5, 8)])
    assert read(whole(client), topic, 6, 7) == ([], [(6, 7)])


def test_archived_events_are_read_like_messages(
    node: RunningNode, topic: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EVENT_SEGMENT_BYTES", 300)
    monkeypatch.setattr(limits, "SNAPSHOT_EVENTS_MIN", 2)
    for number in range(12):
        publish_segments(node, topic, [number])
        client.receive_batch(topic, "g", max_messages=1, wait="5s").ack()
    retire(node, topic, archive=True)

    def events(source: NodeSource) -> set[tuple[str, str]]:
        start, end = source.event_bounds(topic)[0]
        found = set()
        for frame_batch in source.read_events(topic, 0, start, end):
            assert not frame_batch.missing
            batch = EVENTS_TABLE.batch(topic, 0, frame_batch.frames, 1, EVENTS_TABLE.schema.names)
            batch = rows_between(batch, "sequence", start, end)
            found |= {(row["message_id"], row["event"]) for row in batch.to_pylist()}
        return found

    wanted = {
        (f"{topic}:0:{offset}", event)
        for offset in range(12)
        for event in ("DELIVERED", "ACKNOWLEDGED")
    }
    assert events(whole(client)) >= wanted
    assert wanted - events(NodeSource(client))
    assert NodeSource(client).event_bounds(topic)[0].start > 0


@pytest.mark.parametrize("harm", ["missing", "cut", "flipped"])
def test_an_archive_that_is_harmed_under_a_reader_costs_what_was_harmed(
    node: RunningNode, topic: str, client: Client, harm: str
) -> None:
    publish_segments(node, topic, range(6))
    retire(node, topic, archive=True)
    path = archive_file(node, topic, 2)
    if harm == "missing":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        data = bytearray(path.read_bytes())
        data[20] ^= 0x55
        path.write_bytes(bytes(data))
    forget_archive(node, topic)
    assert read(whole(client), topic, 0, 6) == ([0, 1, 3, 4, 5], [(2, 3)])


def test_retention_may_move_on_in_the_middle_of_a_reading(
    node: RunningNode, topic: str, client: Client
) -> None:
    publish_segments(node, topic, range(240), each=10)  # too much for one answer
    frame_batches = whole(client).read_messages(topic, 0, 0, 240)
    first = next(frame_batches)
    assert first.next_offset < 230
    retire(node, topic, archive=True)
    assert NodeSource(client).bounds(topic)[0].start == 240
    numbers, missing = numbers_of(itertools.chain([first], frame_batches))
    assert (numbers, missing) == (list(range(240)), [])


def export(
    client: Client, topic: str, root: Path, *, include_deleted: bool, table: Table = MESSAGES_TABLE
) -> ExportResult:
    source = NodeSource(client, include_deleted=include_deleted)
    target = LocalDestination(root)
    return Export(
        source, target, table, topic, include_deleted=include_deleted, messages_max=2
    ).run()


def exported_offsets(root: Path) -> list[int]:
    offsets: list[int] = []
    for path in root.glob("messages/topic_folder=*/date=*/*.parquet"):
        offsets += pq.ParquetFile(path).read().column("offset").to_pylist()
    return sorted(offsets)


def test_what_retention_took_between_two_exports_is_fetched_from_the_archive(
    node: RunningNode, topic: str, client: Client, tmp_path: Path
) -> None:
    publish_segments(node, topic, range(3))
    export(client, topic, tmp_path, include_deleted=False)
    publish_segments(node, topic, range(3, 6))
    retire(node, topic, archive=False)
    publish_segments(node, topic, range(6, 9))
    retire(node, topic, archive=True)
    publish_segments(node, topic, range(9, 10))
    missed = export(client, topic, tmp_path, include_deleted=False)
    found = exported_offsets(tmp_path)
    lost = [offset for offset in range(10) if offset not in found]
    assert missed.missing == len(lost) > 3
    fetched = export(client, topic, tmp_path, include_deleted=True)
    now = exported_offsets(tmp_path)
    assert len(now) == len(set(now)) == len(found) + fetched.rows > len(found)
    state = ExportLedger(LocalDestination(tmp_path), "messages", topic).state()
    assert state is not None
    listed = [n for _, start, end in state.missing or () for n in range(start, end)]
    assert sorted(listed + now) == list(range(10))
    assert listed, "what had no archive stays on the list"
    assert export(client, topic, tmp_path, include_deleted=True)[:4] == (0, 0, 0, 0)


def test_an_export_of_what_is_live_gets_the_archive_when_that_is_asked_for_later(
    node: RunningNode, topic: str, client: Client, tmp_path: Path
) -> None:
    publish_segments(node, topic, range(5))
    retire(node, topic, archive=True)
    assert export(client, topic, tmp_path, include_deleted=False).rows == 1
    publish_segments(node, topic, range(5, 7))
    assert export(client, topic, tmp_path, include_deleted=True)[1::2] == (6, 0)
    assert exported_offsets(tmp_path) == list(range(7))
    assert export(client, topic, tmp_path, include_deleted=True)[:4] == (0, 0, 0, 0)
    publish_segments(node, topic, range(7, 12))
    retire(node, topic, archive=True)
    assert export(client, topic, tmp_path, include_deleted=True)[1::2] == (5, 0)
    assert exported_offsets(tmp_path) == list(range(12))
    with pytest.raises(Conflict, match="with what was deleted"):
        export(client, topic, tmp_path, include_deleted=False)


def test_an_export_tells_what_is_in_no_archive(
    node: RunningNode, topic: str, client: Client, tmp_path: Path
) -> None:
    publish_segments(node, topic, range(3))
    retire(node, topic, archive=True)
    publish_segments(node, topic, range(3, 6))
    retire(node, topic, archive=False)
    assert export(client, topic, tmp_path, include_deleted=True)[1::2] == (3, 3)
    assert exported_offsets(tmp_path) == [0, 1, 5]
