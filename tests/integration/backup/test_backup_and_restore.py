"""A stopped node is backed up, lost, and restored: nothing of what it had is missing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from shutil import rmtree
from urllib.request import Request, urlopen

import pytest

import goq
from goq.backup.backup import BackupResult, back_up_folder
from goq.backup.inspection import prune_place, verify_place
from goq.backup.place import BackupPlace
from goq.backup.restore import RestoreOrder, restore
from goq.errors import (
    Conflict,
    DataDirLocked,
    HistoryNotRetained,
    NotFound,
    TopicNotFound,
    UsageError,
)
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.storage.disk import RealDisk
from goq.storage.log.recovery_point import read_durable_end
from goq.storage.verification import verify_data_dir
from tests.support.eventually import eventually
from tests.support.storage.backup_source import SETTINGS, fill, stopped_source, view, view_of
from tests.support.storage.folder_copy import copy_in_use

NEWEST = RestoreOrder()


def now_us() -> int:
    return time.time_ns() // 1000


def back_up(data_dir: Path, folder: Path) -> BackupResult:
    return back_up_folder(RealDisk(), data_dir, folder, now_us())


def restored(folder: Path, data_dir: Path, order: RestoreOrder = NEWEST) -> Path:
    restore(BackupPlace(RealDisk(), folder), data_dir, order, now_us())
    return data_dir


def test_a_restored_node_has_all_that_the_lost_one_had(tmp_path: Path) -> None:
    before = stopped_source(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "place")
    rmtree(tmp_path / "data")
    restored(tmp_path / "place", tmp_path / "new")
    assert verify_data_dir(RealDisk(), tmp_path / "new").is_sound
    with goq.Node(tmp_path / "new", settings=SETTINGS) as node, node.client() as q:
        q.publish("orders", b"once", key="once", dedup_id="once")
        assert view(q) == before
        eventually(lambda: q.describe_group("orders", "billing").ready == 49, seconds=30)
        received: list[str] = []

        def all_are_received() -> bool:
            messages = q.receive("orders", "billing", max_messages=100, visibility="1h")
            received.extend(str(message.id) for message in messages)
            return len(received) == 49

        eventually(all_are_received, seconds=30)
        assert len(set(received)) == 49
        assert len(q.list_dead_letters("orders").messages) == 1


def test_others_may_read_nothing_that_was_restored_into_an_open_folder(tmp_path: Path) -> None:
    stopped_source(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "place")
    (tmp_path / "new").mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        restored(tmp_path / "place", tmp_path / "new")
    finally:
        os.umask(before)
    entries = list((tmp_path / "new").rglob("*"))
    assert {"node.db", "topics"} <= {entry.name for entry in entries}
    assert [entry for entry in entries if entry.stat().st_mode & 0o077] == []


def test_leases_end_with_the_restore(tmp_path: Path) -> None:
    with goq.Node(tmp_path / "data") as node, node.client() as q:
        q.publish("orders", b"1")
        (message,) = q.receive("orders", "g", visibility="12h")
    back_up(tmp_path / "data", tmp_path / "place")
    restored(tmp_path / "place", tmp_path / "new")
    with goq.Node(tmp_path / "new") as node, node.client() as q:
        settled = q.ack("orders", "g", [message.receipt])
        assert (settled.done, [each.code for each in settled.failed]) == (0, ["lease_lost"])
        (again,) = q.receive("orders", "g", wait="20s")
        assert (again.value, again.attempt) == (b"1", 2)


def test_a_receipt_for_what_was_published_after_the_backup_settles_nothing(tmp_path: Path) -> None:
    with goq.Node(tmp_path / "data") as node, node.client() as q:
        q.create_topic("orders", partitions=1)
    back_up(tmp_path / "data", tmp_path / "place")
    restored(tmp_path / "place", tmp_path / "new")
    with goq.Node(tmp_path / "data") as node, node.client() as q:
        q.publish("orders", b"lost")
        (lost,) = q.receive("orders", "g")
    with goq.Node(tmp_path / "new") as node, node.client() as q:
        q.publish("orders", b"new")
        (new,) = q.receive("orders", "g")
        assert str(new.id) == str(lost.id)
        assert q.ack("orders", "g", [lost.receipt]).done == 0
        assert q.ack("orders", "g", [new.receipt]).done == 1


def test_a_batch_that_a_producer_sends_again_is_not_stored_twice(tmp_path: Path) -> None:
    columns = Columns(values=[b"1", b"2"])
    batch = bytes(4) + encode_frame(columns, producer=ProducerMark(77, 1, 0))

    def send(node: goq.Node) -> None:
        headers = {"Content-Type": "application/vnd.goq.frames"}
        request = Request(f"{node.url}/v1/topics/orders/messages", batch, headers)
        with urlopen(request, timeout=30) as answer:
            assert answer.status == 200

    with goq.Node(tmp_path / "data") as node, node.client() as q:
        q.create_topic("orders", partitions=1)
        send(node)
        q.create_token("shop", allow=["publish:orders"])
    back_up(tmp_path / "data", tmp_path / "place")
    restored(tmp_path / "place", tmp_path / "new")
    with goq.Node(tmp_path / "new") as node, node.client() as q:
        send(node)
        assert [m.value for m in q.read_log("orders")] == [b"1", b"2"]
        assert [token.name for token in q.list_tokens()] == ["shop"]


def durable_ends(data_dir: Path) -> dict[Path, int]:
    """Return the segments, each with the position up to which it was synced."""
    found: dict[Path, int] = {}
    for path in data_dir.glob("topics/*/*/*/*.log"):
        durable = read_durable_end(RealDisk(), path.parent)
        assert durable is not None
        found[path] = durable.position
    return found


def unsynced(data_dir: Path) -> int:
    return sum(path.stat().st_size - at for path, at in durable_ends(data_dir).items())


def test_what_only_the_journal_has_is_in_the_backup(tmp_path: Path) -> None:
    with goq.Node(tmp_path / "live") as node, node.client() as q:
        q.create_topic("orders", partitions=1)
        sent: list[bytes] = []

        def the_journal_has_some() -> bool:  # the first are synced in their segment
            sent.append(b"%d" % len(sent))
            q.publish("orders", sent[-1])
            return unsynced(tmp_path / "live") > 1000

        eventually(the_journal_has_some, seconds=30)
        acked = q.receive("orders", "g", max_messages=5)
        for message in acked:
            message.ack()
        copy_in_use(tmp_path / "live", tmp_path / "data")
    assert unsynced(tmp_path / "data") > 1000
    for path, position in durable_ends(tmp_path / "data").items():  # a power cut
        os.truncate(path, position)
    back_up(tmp_path / "data", tmp_path / "place")
    restored(tmp_path / "place", tmp_path / "new")
    with goq.Node(tmp_path / "new") as node, node.client() as q:
        assert [m.value for m in q.read_log("orders")] == sent
        assert q.describe_group("orders", "g").lag == len(sent) - len(acked)


def test_a_torn_tail_is_left_out_as_a_start_would(tmp_path: Path) -> None:
    before = stopped_source(tmp_path / "data")
    newest = max((tmp_path / "data").glob("topics/payments*/0/messages/*.log"))
    with newest.open("ab") as file:
        file.write(b"goq\x01 torn")
    back_up(tmp_path / "data", tmp_path / "place")
    assert view_of(restored(tmp_path / "place", tmp_path / "new")) == before
    assert verify_data_dir(RealDisk(), tmp_path / "new").is_sound


def test_an_unchanged_folder_is_backed_up_without_a_read_of_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_source(tmp_path / "data")
    first = back_up(tmp_path / "data", tmp_path / "place")
    assert first.copied_bytes == first.bytes > 240_000
    read: list[Path] = []
    real = RealDisk.read

    def noted(disk: RealDisk, path: Path, *place: int, wait: bool = True) -> memoryview:
        read.append(path)
        return real(disk, path, *place, wait=wait)

    monkeypatch.setattr(RealDisk, "read", noted)
    second = back_up(tmp_path / "data", tmp_path / "place")
    assert second.copied_bytes == 0
    assert second.bytes == first.bytes
    assert not [path for path in read if path.suffix == ".log"]


def test_a_backup_copies_only_what_the_earlier_ones_lack(tmp_path: Path) -> None:
    stopped_source(tmp_path / "data")
    first = back_up(tmp_path / "data", tmp_path / "place")
    with goq.Node(tmp_path / "data", settings=SETTINGS) as node, node.client() as q:
        q.publish("payments", b"d")
        before = view(q)
    second = back_up(tmp_path / "data", tmp_path / "place")
    assert 0 < second.copied_bytes < first.bytes / 4
    assert view_of(restored(tmp_path / "place", tmp_path / "new")) == before


def test_each_backup_is_complete_without_the_others(tmp_path: Path) -> None:
    stopped_source(tmp_path / "data")
    first = back_up(tmp_path / "data", tmp_path / "place")
    with goq.Node(tmp_path / "data", settings=SETTINGS) as node, node.client() as q:
        q.publish("payments", b"d")
        after = view(q)
    back_up(tmp_path / "data", tmp_path / "place")
    place = BackupPlace(RealDisk(), tmp_path / "place")
    done = prune_place(place, now_us())
    assert (done.backups, done.objects > 0) == (1, True)
    assert first.name not in place.names()
    assert verify_place(place).problems == []
    assert view_of(restored(tmp_path / "place", tmp_path / "new")) == after


def test_the_newest_backup_is_never_pruned(tmp_path: Path) -> None:
    stopped_source(tmp_path / "data")
    newest = back_up(tmp_path / "data", tmp_path / "place")
    place = BackupPlace(RealDisk(), tmp_path / "place")
    assert prune_place(place, now_us() + 10**12) == (0, 0, 0)
    assert place.names() == [newest.name]


def test_a_topic_is_restored_alone_under_another_name(tmp_path: Path) -> None:
    before = stopped_source(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "place")
    order = RestoreOrder(topics={"payments": "ledger"})
    restored(tmp_path / "place", tmp_path / "new", order)
    found = view_of(tmp_path / "new", ["ledger"])["ledger"]
    renamed = [("ledger" + name.removeprefix("payments"), *rest) for name, *rest in
               before["payments"][1]]  # fmt: skip
    assert found[1] == renamed
    assert found[2] == before["payments"][2]
    with pytest.raises(TopicNotFound):
        restored(tmp_path / "place", tmp_path / "other", RestoreOrder(topics={"no": "no"}))


def test_a_restore_to_a_time_has_what_there_was_then(tmp_path: Path) -> None:
    with goq.Node(tmp_path / "data", settings=SETTINGS) as node, node.client() as q:
        fill(q)
        then, at_us = view(q), now_us()
        as_of = q.describe_group("orders", "billing", as_of=at_us / 1000)
        for message in q.receive("orders", "billing", max_messages=9):
            message.ack()
        q.publish_many("payments", [b"d", b"e"])
        replayed = [m.value for m in q.read_log("payments", to_time=at_us / 1000)]
    back_up(tmp_path / "data", tmp_path / "place")
    restored(tmp_path / "place", tmp_path / "new", RestoreOrder(at_us=at_us))
    with goq.Node(tmp_path / "new", settings=SETTINGS) as node, node.client() as q:
        assert view(q) == then
        assert sorted(m.value or b"" for m in q.read_log("payments")) == sorted(replayed)
        found = q.describe_group("orders", "billing", as_of=at_us / 1000)
        assert (found.lag, found.ready, found.leased, found.retry) == (
            as_of.lag,
            as_of.ready,
            as_of.leased,
            as_of.retry,
        )


def test_topics_that_retention_will_empty_are_named(tmp_path: Path) -> None:
    with goq.Node(tmp_path / "data") as node, node.client() as q:
        q.publish("orders", b"1")
        q.create_topic("kept", settings={"retention.age": "none"})
        q.publish("kept", b"1")
        q.create_topic("empty")
    back_up(tmp_path / "data", tmp_path / "place")
    place = BackupPlace(RealDisk(), tmp_path / "place")
    day_us = 86_400_000_000
    assert restore(place, tmp_path / "6", NEWEST, now_us() + 6 * day_us).aged == ()
    assert restore(place, tmp_path / "8", NEWEST, now_us() + 8 * day_us).aged == ("orders",)


def test_a_time_that_no_backup_reaches_is_refused(tmp_path: Path) -> None:
    stopped_source(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "place")
    with pytest.raises(HistoryNotRetained):
        restored(tmp_path / "place", tmp_path / "new", RestoreOrder(at_us=now_us() + 10**9))
    assert not (tmp_path / "new").exists()


def test_a_folder_with_anything_in_it_is_never_restored_into(tmp_path: Path) -> None:
    stopped_source(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "place")
    with pytest.raises(Conflict, match="not empty"):
        restored(tmp_path / "place", tmp_path / "data")


def test_the_folder_of_a_running_node_is_refused(tmp_path: Path) -> None:
    with goq.Node(tmp_path / "data"), pytest.raises(DataDirLocked):
        back_up(tmp_path / "data", tmp_path / "place")


@pytest.mark.parametrize("name", ["data/place", ".", "data"])
def test_a_place_in_or_around_the_data_folder_is_refused(tmp_path: Path, name: str) -> None:
    stopped_source(tmp_path / "data")
    with pytest.raises(UsageError, match="contain each other"):
        back_up(tmp_path / "data", tmp_path / name)


def test_a_folder_without_backups_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no backups"):
        restored(tmp_path, tmp_path / "new")
