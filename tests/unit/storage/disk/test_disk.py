"""The real disk: what it does beyond the system calls, and what readers in other threads see."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from goq.errors import CorruptData, DataDirLocked, GoqError, StorageFailed, UnsupportedFormat
from goq.model import topic_folder
from goq.storage.catalog.rows import SegmentRow, TopicRow
from goq.storage.data_dir_lock import DataDirLock
from goq.storage.disk import NotCached, RealDisk
from goq.storage.log.log import Log, LogConfig
from goq.storage.node_db import NodeDb
from tests.support.storage.logs import append, frame_of, read_all

FRAME = frame_of([b"a message"] * 3)


def test_a_log_on_the_real_disk_survives_being_opened_again(tmp_path: Path) -> None:
    disk = RealDisk()
    log = Log.open(tmp_path / "a/b/messages", disk, LogConfig(segment_bytes=500))
    for _ in range(10):
        append(log, [FRAME])
    log.truncate(25)
    log.remove(log.detach_before(7))
    stored = read_all(log)
    log.close()
    again = Log.open(tmp_path / "a/b/messages", disk, LogConfig(segment_bytes=500))
    assert read_all(again) == stored
    assert again.scanned_bytes == 0
    again.close()


def test_what_is_made_belongs_to_its_user_alone(tmp_path: Path) -> None:
    disk, path = RealDisk(), tmp_path / "a/b/file"
    disk.make_dir(path.parent)
    disk.replace(path, b"new")
    modes = [each.stat().st_mode & 0o777 for each in (tmp_path / "a", path.parent, path)]
    assert modes == [0o700, 0o700, 0o600]


def test_a_renamed_file_is_read_under_its_new_name_only(tmp_path: Path) -> None:
    disk, path, target = RealDisk(), tmp_path / "file", tmp_path / "other"
    disk.replace(path, b"new")
    disk.replace(target, b"what was there")
    assert bytes(disk.read(path, 0, 9)) == b"new"
    assert bytes(disk.read(target, 0, 20)) == b"what was there"
    disk.rename(path, target)
    assert bytes(disk.read(target, 0, 20)) == b"new"
    with pytest.raises(FileNotFoundError):
        disk.read(path, 0, 9)
    assert disk.names(tmp_path) == ["other"]


def test_a_replaced_file_is_read_anew(tmp_path: Path) -> None:
    disk, path = RealDisk(), tmp_path / "file"
    disk.replace(path, b"old")
    assert bytes(disk.read(path, 0, 10)) == b"old"
    disk.replace(path, b"newer")
    assert bytes(disk.read(path, 0, 10)) == b"newer"
    assert disk.names(tmp_path) == ["file"]


def test_a_removed_directory_leaves_nothing_to_be_read_by_its_name(tmp_path: Path) -> None:
    disk, path = RealDisk(), tmp_path / "topic" / "0" / "file"
    for content in (b"first", b"second"):
        disk.make_dir(path.parent)
        disk.replace(path, content)
        assert bytes(disk.read(path, 0, 10)) == content
        disk.remove_dir(tmp_path / "topic")
        with pytest.raises(FileNotFoundError):
            disk.read(path, 0, 10)
    disk.remove_dir(tmp_path / "topic")


def synced_folders(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list that the paths of synced folders are added to."""
    found: list[Path] = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: found.append(Path(f"/proc/self/fd/{fd}").readlink())
    )
    return found


def test_new_folders_are_synced_in_those_above_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = synced_folders(monkeypatch)
    RealDisk().make_dir(tmp_path / "new" / "too")
    assert set(synced) == {tmp_path.parent, tmp_path, tmp_path / "new"}


def test_an_empty_folder_is_synced_for_the_process_that_made_it_may_have_been_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = synced_folders(monkeypatch)
    (tmp_path / "empty").mkdir()
    RealDisk().make_dir(tmp_path / "empty")
    assert synced == [tmp_path]


def test_a_folder_may_be_in_one_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, disk = tmp_path / "data", RealDisk()
    folder.mkdir()

    def refuse(_path: Path, _flags: int) -> int:
        raise PermissionError

    monkeypatch.setattr(disk.files, "open_fd", refuse)
    disk.make_dir(folder)
    with pytest.raises(PermissionError):
        disk.make_dir(folder / "new")


def test_a_replaced_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.replace(tmp_path / "file", b"first")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        disk.replace(tmp_path / "file", b"later")
    assert len(os.listdir("/proc/self/fd")) < before + 10  # other threads may open some


def test_a_failed_replace_leaves_the_old_content_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = RealDisk(), tmp_path / "file"
    disk.replace(path, b"old")

    def full(_fd: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        disk.replace(path, b"new")
    monkeypatch.undo()
    assert disk.names(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


def test_an_append_that_fails_half_way_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk().open(tmp_path / "file")
    file.append([b"kept"])
    pwritev = os.pwritev

    def partial(fd: int, buffers: list[bytes], position: int) -> int:
        return pwritev(fd, [b"".join(buffers)[:3]], position)

    def full(_fd: int, _data: object, _position: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", partial)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        file.append([b"lost", b"lost"])
    monkeypatch.undo()
    assert file.size_bytes == 4
    file.append([b"|", b"more"] * 3000)
    file.close()
    assert (tmp_path / "file").read_bytes() == b"kept" + b"|more" * 3000


def test_readers_in_other_threads_see_a_log_that_rolls_and_is_trimmed(tmp_path: Path) -> None:
    disk = RealDisk()
    log = Log.open(tmp_path / "messages", disk, LogConfig(segment_bytes=400))
    append(log, [FRAME])
    problems: list[object] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                start, end = log.start_offset, log.end_offset
                for offset in (start, (start + end) // 2, end - 1):
                    reading = log.reader.read(offset, end, messages_max=20)
                    expected = None
                    for view in reading.frames:
                        base = view.header.base_offset
                        if expected not in (None, base) and base > log.start_offset:
                            problems.append((expected, base))  # not skipped because it was trimmed
                        expected = view.header.end_offset
                    problems.extend(reading.damage)
                log.reader.offset_for_time(0, end)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(150):
            append(log, [FRAME])
            if number % 3 == 0:
                log.remove(log.detach_before(log.end_offset - 12))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert log.damage == []
    log.close()


def test_many_readers_make_a_missing_index_anew_once(tmp_path: Path) -> None:
    disk = RealDisk()
    log = Log.open(tmp_path, disk, LogConfig(segment_bytes=400))
    for _ in range(60):
        append(log, [FRAME])
    log.close()
    for path in tmp_path.glob("*.index"):
        path.unlink()
    log = Log.open(tmp_path, disk)
    found: list[object] = []

    def read() -> None:
        try:
            found.append((log.reader.offset_for_time(0, 180), len(read_all(log).frames)))
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(0, 60)] * 6
    assert all(s.index_path.exists() for s in log.segments[:-1])
    log.close()


def test_bytes_that_are_not_in_memory_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = RealDisk(), tmp_path / "file"
    disk.replace(path, b"content")
    preadv = os.preadv

    def not_cached(fd: int, buffers: list[memoryview], position: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        return preadv(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", not_cached)
    with pytest.raises(NotCached):
        disk.read(path, 0, 7, wait=False)
    assert bytes(disk.read(path, 3, 100)) == b"tent"
    assert bytes(disk.read(path, 100, 100)) == b""


def test_a_filesystem_that_cannot_say_what_is_in_memory_is_read_as_usual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = RealDisk(), tmp_path / "file"
    disk.replace(path, b"content")
    preadv = os.preadv

    def unsupported(fd: int, buffers: list[memoryview], position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return preadv(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", unsupported)
    assert bytes(disk.read(path, 0, 7, wait=False)) == b"content"


def test_a_log_that_cannot_be_opened_leaves_no_file_open(tmp_path: Path) -> None:
    disk = RealDisk()
    log = Log.open(tmp_path, disk)
    append(log, [FRAME] * 3)
    log.close()
    overlapping = tmp_path / "00000000000000000004.log"
    overlapping.write_bytes(log.active.path.read_bytes())
    (tmp_path / "watermark").unlink()
    counts = []
    for _ in range(5):
        with pytest.raises(StorageFailed):
            Log.open(tmp_path, disk)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] == counts[2], "nothing but what the disk keeps open to read"


# The lock


def test_a_second_process_is_told_which_one_holds_the_folder(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path)
    code = (
        "import sys, pathlib\n"
        "from goq.storage.data_dir_lock import DataDirLock\n"
        "from goq.errors import DataDirLocked\n"
        "try: DataDirLock(pathlib.Path(sys.argv[1]))\n"
        "except DataDirLocked as error: print(error.detail)\n"
        "else: print('locked')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"in use by process {os.getpid()}" in told
    lock.release()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "locked\n"


def test_the_lock_names_this_process_alone_after_one_with_a_longer_number(tmp_path: Path) -> None:
    DataDirLock(tmp_path).release()
    lock_file = tmp_path / "LOCK"
    lock_file.write_text("99999999999\n")
    lock = DataDirLock(tmp_path)
    assert lock_file.read_text() == f"{os.getpid()}\n"
    lock.release()


def test_the_folder_cannot_be_locked_twice_by_one_process(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path)
    with pytest.raises(DataDirLocked, match=str(os.getpid())):
        DataDirLock(tmp_path)
    lock.release()
    DataDirLock(tmp_path).release()


@pytest.mark.parametrize(
    ("text", "error"),
    [("3\n", UnsupportedFormat), ("two", CorruptData), ("restoring\n", UnsupportedFormat)],
)
def test_a_folder_of_another_format_is_refused_and_not_kept_locked(
    tmp_path: Path, text: str, error: type[GoqError]
) -> None:
    (tmp_path / "FORMAT").write_text(text)
    for _ in range(2):
        with pytest.raises(error):
            DataDirLock(tmp_path)
    assert (tmp_path / "FORMAT").read_text() == text
    (tmp_path / "FORMAT").write_text("1\n")
    DataDirLock(tmp_path).release()
    assert (tmp_path / "FORMAT").read_text() == "2\n"


def test_the_format_of_a_folder_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bytes]] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        synced.append((path.name, b"" if path.is_dir() else path.read_bytes()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    DataDirLock(tmp_path).release()
    content = (tmp_path / "FORMAT").read_bytes()
    assert content
    assert synced[-2:] == [("FORMAT.new", content), (tmp_path.name, b"")]


def test_removing_the_lock_file_lets_no_second_process_in(tmp_path: Path) -> None:
    lock = DataDirLock(tmp_path)
    (tmp_path / "LOCK").unlink()
    with pytest.raises(DataDirLocked, match="in use by another process"):
        DataDirLock(tmp_path)
    lock.release()
    DataDirLock(tmp_path).release()


@pytest.mark.parametrize("names", [(), ("FORMAT", "node.db"), ("thesis.tex",)])
def test_others_lose_their_rights_to_a_folder_that_is_goqs(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        (tmp_path / name).write_text("2\n")
    tmp_path.chmod(0o775)
    DataDirLock(tmp_path).release()
    is_anothers = "thesis.tex" in names
    assert tmp_path.stat().st_mode & 0o777 == (0o775 if is_anothers else 0o700)


# node.db


def test_the_database_keeps_what_it_was_told(tmp_path: Path) -> None:
    db = NodeDb(tmp_path)
    assert [db.next_epoch(), db.next_epoch()] == [1, 2]
    topics = [TopicRow("a", 3, {"fsync": "always"}), TopicRow("b", 1, {}, deleting=True)]
    rows = [SegmentRow("a", n, "messages", o, o + 10, 100, 5) for n in (0, 1) for o in (0, 10)]
    for topic in reversed(topics):
        db.put_topic(topic)
    for row in rows:
        db.put_segment(row)
        db.put_segment(row)
    db.put_group("a", "g", {})
    db.put_group("a", "f", {"ordering": "none"})
    db.put_group("b", "g", {})
    db.delete_group("a", "g")
    db.delete_segments([("a", 0, "messages", 0)])
    db.close()
    db = NodeDb(tmp_path)
    assert db.topics() == topics
    assert db.groups("a") == {"f": {"ordering": "none"}}
    assert db.segments() == rows[1:]
    assert db.next_epoch() == 3
    db.delete_topic("a", 0)
    assert db.segments() == []
    assert db.groups("a") == {}
    assert db.groups("b") == {"g": {}}
    assert [t.name for t in db.topics()] == ["b"]
    db.close()


def test_the_rows_of_a_topic_stay_when_another_of_its_name_is_deleted(tmp_path: Path) -> None:
    db = NodeDb(tmp_path)
    first, second = 2**52 + 1, 2**52 + 2
    db.put_topic(TopicRow("a", 1, {}, id=second))
    rows = [SegmentRow(topic_folder("a", n), 0, "messages", 0, 9, 1, 5) for n in (first, second)]
    db.add_segments(rows)
    db.put_group("a", "g", {})
    db.delete_topic("a", first)
    assert db.segments() == rows[1:]
    assert db.groups("a") == {"g": {}}
    assert db.topics() == [TopicRow("a", 1, {}, id=second)]
    db.close()


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_database_that_is_none_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "node.db").write_bytes(content)
    with pytest.raises(CorruptData, match="backup, or move it away"):
        NodeDb(tmp_path)


def test_a_damaged_table_in_the_database_says_what_to_do(tmp_path: Path) -> None:
    db = NodeDb(tmp_path)
    for number in range(200):
        db.put_topic(TopicRow(f"topic-{number}", 1, {"x": "y" * 100}))
    db.close()
    path = tmp_path / "node.db"
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(CorruptData, match=r"node\.db"):
        NodeDb(tmp_path).topics()


class _Late(RealDisk):
    """Another thread creates a file in a folder that is being emptied, some times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def names(self, directory: Path) -> list[str]:
        found = super().names(directory)
        if self.left and directory.name == "messages":
            self.left -= 1
            (directory / f"late {self.left}.keys").touch()
        return found


@pytest.mark.parametrize("times", [1, 3])
def test_a_folder_goes_though_another_thread_still_creates_files_in_it(
    tmp_path: Path, times: int
) -> None:
    (tmp_path / "topic" / "0" / "messages").mkdir(parents=True)
    (tmp_path / "topic" / "0" / "messages" / "0.log").touch()
    _Late(times).remove_dir(tmp_path / "topic")
    assert not (tmp_path / "topic").exists()


def test_a_folder_that_never_gets_empty_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "messages").mkdir()
    with pytest.raises(OSError, match="not empty"):
        _Late(1000).remove_dir(tmp_path / "messages")


def test_a_lock_of_a_folder_leaves_no_file_open_once_it_is_released(tmp_path: Path) -> None:
    def opened() -> list[str]:
        links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
        targets = [os.readlink(each) for each in links if each.is_symlink()]
        return sorted(target for target in targets if target.startswith(str(tmp_path)))

    lock = DataDirLock(tmp_path)
    assert opened() == [str(tmp_path), str(tmp_path / "LOCK")]
    lock.release()
    assert opened() == []


def test_a_read_that_fails_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory") as failed:
        RealDisk().read(tmp_path, 0, 1)
    assert failed.value.filename == str(tmp_path)
