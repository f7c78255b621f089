"""Archived segments, compacted segments and attempts are the same before and after a restore."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import goq
from goq.backup.backup import back_up_folder
from goq.backup.place import BackupPlace
from goq.backup.restore import RestoreOrder, restore
from goq.client import Client, ReceivedMessage
from goq.frame.view import FrameView
from goq.storage.disk import RealDisk
from goq.storage.log.log import Log
from goq.storage.verification import verify_data_dir
from tests.support.eventually import eventually

SETTINGS = {"defaults.topic.partitions": 1, "defaults.delivery.backoff.initial": "1ms"}
SEGMENTS = {"segment.bytes": "64KiB"}
WAIT_S = 60
WHOLE = 2**60


def now_us() -> int:
    return time.time_ns() // 1000


def stored(node: goq.Node, topic: str) -> list[tuple[int, str, str | None]]:
    """Return offset, value and key of all messages of a topic, archived ones too."""
    found: list[tuple[int, str, str | None]] = []
    offset, end = 0, 1
    while offset < end:
        query = f"partition=0&include_deleted=true&offset={offset}&limit=200"
        with urlopen(f"{node.url}/v1/topics/{topic}/messages?{query}") as answer:
            page = json.load(answer)
        found += [(m["offset"], m["value"], m.get("key")) for m in page["messages"]]
        offset, end = page["next"], page["end"]
    return found


def archived_segments(q: Client) -> int:
    archived = q.describe_topic("archived").archived
    return 0 if archived is None else archived.segments


def seen(node: goq.Node, q: Client) -> dict[str, Any]:
    """Return what retention and compaction never change."""
    newest = {key: (offset, value) for offset, value, key in stored(node, "compacted")}
    return {"archived": stored(node, "archived"), "newest": newest, "hits": hits(q)}


def hits(q: Client) -> list[str]:
    page = q.search_messages("archived", "needle")
    found = [str(hit.id) for hit in page.messages]
    while page.next is not None:
        page = q.search_messages("archived", "needle", cursor=page.next)
        found += [str(hit.id) for hit in page.messages]
    return found


def receive_one(q: Client) -> ReceivedMessage:
    received: list[ReceivedMessage] = []

    def has_come() -> bool:
        received.extend(q.receive("jobs", "g"))
        return bool(received)

    eventually(has_come, seconds=WAIT_S)
    return received[0]


def fill(node: goq.Node, q: Client) -> None:
    q.create_topic("archived", settings=SEGMENTS | {"retention.bytes": "64KiB", "archive": True})
    q.create_topic("compacted", settings=SEGMENTS | {"cleanup": "compact"})
    for number in range(40):
        text = b"%d needle " if number % 7 == 0 else b"%d "
        q.publish("archived", (text % number).ljust(20_000, b"x"), key=b"k%d" % number)
    for number in range(200):
        q.publish("compacted", (b"%d " % number).ljust(3000, b"x"), key=b"k%d" % (number % 5))
    q.publish("jobs", b"again")
    for _ in range(3):
        receive_one(q).nack(delay="1ms")
    eventually(lambda: archived_segments(q) > 3, seconds=WAIT_S)
    eventually(lambda: len(stored(node, "compacted")) < 150, seconds=WAIT_S)


def test_archived_and_compacted_messages_and_attempts_are_those_of_the_lost_node(
    tmp_path: Path,
) -> None:
    with goq.Node(tmp_path / "data", settings=SETTINGS) as node, node.client() as q:
        fill(node, q)
        before, segments = seen(node, q), archived_segments(q)
        assert len(before["archived"]) == 40
        assert len(before["hits"]) == 6
    back_up_folder(RealDisk(), tmp_path / "data", tmp_path / "place", now_us())
    ids = set()
    for name in ("first", "second"):
        place = BackupPlace(RealDisk(), tmp_path / "place")
        restore(place, tmp_path / name, RestoreOrder(), now_us())
        assert verify_data_dir(RealDisk(), tmp_path / name).is_sound
        with goq.Node(tmp_path / name, settings=SETTINGS) as node, node.client() as q:
            assert seen(node, q) == before
            assert archived_segments(q) >= segments
            again = receive_one(q)
            assert (again.value, again.attempt) == (b"again", 4)
            ids.add(q.describe_topic("jobs").id)
    assert len(ids) == 2


def count_kept(data_dir: Path) -> int:
    """Count the messages of a folder's one topic that compaction has left."""
    [folder] = data_dir.glob("topics/*/0/messages")
    reader = Log.open(folder, RealDisk()).reader
    frames: list[FrameView] = []
    offset = 0
    while found := reader.read(offset, WHOLE).frames:
        frames += found
        offset = found[-1].header.end_offset
    return sum(sum(each.kept(0, each.header.message_count)) for each in frames)


def fill_prices(node: goq.Node, q: Client, place: Path) -> int:
    """Fill a compacted topic, have old prices removed, back up; return the time of those."""
    settings = SEGMENTS | {"cleanup": "compact", "retention.age": "1s", "segment.age": "1s"}
    q.create_topic("prices", settings=settings)
    q.publish("prices", b"10", key=b"apple")
    at_us = next(iter(q.read_log("prices"))).timestamp + 1
    for number in range(80):
        q.publish("prices", (b"%d " % number).ljust(3000, b"x"), key=b"k%d" % (number % 5))
        q.publish("prices", b"20", key=b"apple")
    eventually(lambda: len(stored(node, "prices")) < 150, seconds=WAIT_S)
    assert (0, "10", "apple") not in stored(node, "prices")
    q.create_backup()
    last_us = now_us()
    eventually(lambda: now_us() > last_us + 1_000_000, seconds=WAIT_S)
    return at_us


def test_a_restore_of_a_compacted_topic_tells_what_there_no_longer_is_and_counts_what_is(
    tmp_path: Path,
) -> None:
    place = tmp_path / "place"
    settings = SETTINGS | {"backup.to": str(place)}
    with goq.Node(tmp_path / "data", settings=settings) as node, node.client() as q:
        at_us = fill_prices(node, q, place)
        now = q.restore_topic("prices", "now")  # it is compacted further while it is looked at
        assert not now.is_compacted
        assert now.messages >= len(stored(node, "now")) > 0
        done = q.restore_topic("prices", "then", at=at_us / 1_000_000)
        assert (done.messages, done.is_compacted) == (0, True)
    opened = BackupPlace(RealDisk(), place)
    then = restore(opened, tmp_path / "then", RestoreOrder(at_us=at_us), now_us())
    assert (then.messages, then.compacted, then.aged) == (0, ("prices",), ())
    whole = restore(opened, tmp_path / "whole", RestoreOrder(), now_us())
    assert (whole.compacted, whole.aged) == ((), ())
    assert now.messages == whole.messages == count_kept(tmp_path / "whole")


def test_a_restore_tells_of_archived_messages_that_are_older_than_the_total_retention(
    tmp_path: Path,
) -> None:
    settings = {"retention.bytes": "64KiB", "archive": True, "retention.total_age": "1h"}
    with goq.Node(tmp_path / "data", settings=SETTINGS) as node, node.client() as q:
        q.create_topic("archived", settings=SEGMENTS | settings)
        for number in range(12):
            q.publish("archived", (b"%d " % number).ljust(20_000, b"x"))
        eventually(lambda: archived_segments(q) > 0, seconds=WAIT_S)
    back_up_folder(RealDisk(), tmp_path / "data", tmp_path / "place", now_us())
    place, later_us = BackupPlace(RealDisk(), tmp_path / "place"), now_us() + 2 * 3_600_000_000
    assert restore(place, tmp_path / "now", RestoreOrder(), now_us()).aged == ()
    assert restore(place, tmp_path / "later", RestoreOrder(), later_us).aged == ("archived",)
    chosen = RestoreOrder(settings={"retention.total_age": "none"})
    assert restore(place, tmp_path / "kept", chosen, later_us).aged == ()
