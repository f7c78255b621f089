"""A columns file that is cut, changed, stale, gone, or cannot be written costs time only."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from random import Random

import pytest

from goq import limits
from goq.frame.encoder import Columns, encode_frame
from goq.frame.header import HEADER_BYTES, parse_header
from goq.frame.view import FrameView
from goq.storage.column_index.block import SegmentPosition
from goq.storage.column_index.file import ColumnFile
from goq.storage.log.log import Log, LogConfig
from tests.support.storage.columns import NO_ID, START_MS, Said, expected, random_frame, said_by
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import DIRECTORY, START_US, append, frame_of, read_all

CONFIG = LogConfig(columns=True)
SEGMENT = DIRECTORY / "00000000000000000000.log"
FILE = SEGMENT.with_suffix(".columns")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COLUMNS_BLOCK_BYTES", 400)


def attributed(count: int, due_ms: int = START_MS + 1000) -> bytes:
    return encode_frame(
        Columns(
            [b"value"] * count,
            deliver_at_ms=[due_ms] * count,
            dedup_ids=[b"%016d" % i for i in range(count)],
            tenants=["acme", None] * (count // 2) + ["zoë"] * (count % 2),
            lanes=range(count),
        )
    )


def filled(disk: SimulatedDisk, *, seal: bool = True) -> Said:
    log = Log.open(DIRECTORY, disk, CONFIG)
    for count in (5, 9, 2, 7):
        append(log, [attributed(count), frame_of([b"plain"])])
    if seal:
        log.roll()
    log.close()
    return said_by(log)


def of_frames(log: Log) -> Said:
    views = [FrameView.parse(frame) for frame in read_all(log).frames.values()]
    return expected(
        [(v.header.base_offset, bytes(v.buffer), v.header.append_time_us) for v in views]
    )


def check_says(disk: SimulatedDisk, said: Said) -> Log:
    """Open, read, append, open and read again."""
    log = Log.open(DIRECTORY, disk, CONFIG)
    assert said_by(log) == said
    append(log, [attributed(3, 0)])
    more = of_frames(log)
    assert more.rows[: len(said.rows)] == said.rows
    assert said_by(log) == more
    log.close()
    again = Log.open(DIRECTORY, disk, CONFIG)
    assert said_by(again) == more
    return again


def is_whole(disk: SimulatedDisk) -> bool:
    """Whether the file holds all that there is to say of the segment, and nothing else."""
    file, size_bytes = ColumnFile(disk, SEGMENT), len(disk.read_all(SEGMENT))
    blocks = file.blocks(SegmentPosition(0, 0), size_bytes)
    return (
        blocks[-1].frames.end.position == size_bytes
        and blocks[-1].file_end == len(disk.read_all(FILE))
        and all(file.body(block) is not None for block in blocks)
    )


@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "growing"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_flipped_bit_never_changes_what_is_said_and_is_made_good(seal: bool, step: int) -> None:
    disk = SimulatedDisk()
    said = filled(disk, seal=seal)
    data = disk.read_all(FILE)
    assert len(data) > 800, "several blocks"
    for position in range(0, len(data), step):
        case = disk.copy()
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        case.put(FILE, bytes(changed))
        check_says(case, said)
        if seal:
            assert is_whole(case)


@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "growing"])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_file_cut_anywhere_is_made_good(seal: bool, step: int) -> None:
    disk = SimulatedDisk()
    said = filled(disk, seal=seal)
    data = disk.read_all(FILE)
    for size in range(0, len(data), step):
        case = disk.copy()
        case.put(FILE, data[:size])
        check_says(case, said)
        if seal:
            assert is_whole(case)


@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "growing"])
@pytest.mark.parametrize("junk", [b"x", bytes(104), bytes(5000)], ids=len)
def test_junk_behind_the_blocks_is_not_believed(seal: bool, junk: bytes) -> None:
    disk = SimulatedDisk()
    said = filled(disk, seal=seal)
    disk.put(FILE, disk.read_all(FILE) + junk)
    check_says(disk, said)


@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "growing"])
def test_a_file_that_is_gone_is_made_anew(seal: bool) -> None:
    disk = SimulatedDisk()
    said = filled(disk, seal=seal)
    disk.delete(FILE)
    check_says(disk, said)
    if seal:
        assert is_whole(disk)


def test_a_file_that_goes_or_changes_under_a_running_node_is_read_from_the_frames() -> None:
    for seal in (True, False):
        disk = SimulatedDisk()
        said = filled(disk, seal=seal)
        log = Log.open(DIRECTORY, disk, CONFIG)
        assert said_by(log) == said
        data = disk.read_all(FILE)
        disk.delete(FILE)
        assert said_by(log) == said
        disk.put(FILE, bytes(len(data)))
        assert said_by(log) == said
        append(log, [attributed(30)])
        assert said_by(log) == of_frames(log)
        log.close()
        check_says(disk, of_frames(log))


def test_the_file_of_a_segment_that_was_sealed_in_this_life_is_made_good_when_it_is_read() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, CONFIG)
    for count in (5, 9, 2, 7):
        append(log, [attributed(count), frame_of([b"plain"])])
    log.roll()
    said, data = said_by(log), bytearray(disk.read_all(FILE))
    data[-1] ^= 1
    disk.put(FILE, bytes(data))
    assert not is_whole(disk)
    assert said_by(log) == said
    assert is_whole(disk)


@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "growing"])
def test_a_file_that_lacks_a_block_is_not_believed_behind_it(seal: bool) -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, CONFIG)
    for _ in range(5):
        append(log, [attributed(10)])
    if seal:
        log.roll()
    log.close()
    said = said_by(log)
    data, size_bytes = disk.read_all(FILE), len(disk.read_all(SEGMENT))
    blocks = ColumnFile(disk, SEGMENT).blocks(SegmentPosition(0, 0), size_bytes)
    assert len(blocks) > 2
    for block in blocks:
        case = disk.copy()
        case.put(FILE, data[: block.file_position] + data[block.file_end :])
        check_says(case, said)


def test_the_file_of_another_segment_is_not_believed() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(columns=True, segment_bytes=1))
    for lane in range(3):
        append(log, [encode_frame(Columns([b""], lanes=[lane]))])
    log.close()
    said = said_by(log)
    other = disk.read_all(DIRECTORY / f"{1:020d}.columns")
    for base in (0, 2):
        disk.put(DIRECTORY / f"{base:020d}.columns", other)
    check_says(disk, said)


def test_the_file_of_another_log_with_the_same_sizes_is_not_believed() -> None:
    disk = SimulatedDisk()
    files = []
    for lane in (1, 2):
        disk = SimulatedDisk()
        log = Log.open(DIRECTORY, disk, CONFIG)
        append(log, [encode_frame(Columns([b""] * 3, lanes=[lane] * 3))])
        log.close()
        files.append(disk.read_all(FILE))
    said = said_by(log)
    disk.put(FILE, files[0])
    assert len(files[0]) == len(files[1])
    check_says(disk, said)


def test_a_file_from_before_a_truncation_is_not_believed() -> None:
    """The log is cut and has grown to the same size, with other messages."""
    for seal in (True, False):
        disk = SimulatedDisk()
        log = Log.open(DIRECTORY, disk, CONFIG)
        append(log, [attributed(5)])
        append(log, [attributed(9), attributed(2)])
        log.close()
        stale = disk.read_all(FILE)
        log = Log.open(DIRECTORY, disk, CONFIG)
        log.truncate(5)
        for due_ms in (START_MS + 7, START_MS + 8):
            append(log, [attributed(9 if due_ms % 2 else 2, due_ms)])
        if seal:
            log.roll()
        log.close()
        said = of_frames(log)
        assert said_by(log) == said
        disk.put(FILE, stale)
        check_says(disk, said)


def test_a_file_that_reaches_behind_what_recovery_kept_is_cut() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, CONFIG)
    append(log, [attributed(5)])
    mark, held = disk.read_all(DIRECTORY / "watermark"), disk.read_all(SEGMENT)
    said = said_by(log)
    append(log, [attributed(9)])
    log.close()
    disk.put(DIRECTORY / "watermark", mark)
    disk.put(SEGMENT, held + b"torn")
    log = check_says(disk, said)
    assert log.damage == []


@pytest.mark.parametrize("offset", range(0, 40, 3))
def test_a_truncated_log_says_what_is_left(offset: int) -> None:
    random = Random(offset)
    for segment_bytes in (1, 10**6):
        disk = SimulatedDisk()
        config = LogConfig(columns=True, segment_bytes=segment_bytes)
        log = Log.open(DIRECTORY, disk, config)
        for _ in range(10):
            append(log, [random_frame(random), attributed(4)])
        log.truncate(offset)
        assert said_by(log) == of_frames(log)
        append(log, [attributed(3), random_frame(random)])
        assert said_by(log) == of_frames(log)
        log.close()
        check_says(disk, of_frames(log))


def test_a_damaged_frame_gives_no_rows_when_the_file_is_made_anew() -> None:
    disk = SimulatedDisk()
    said = filled(disk)
    ends, data = [0], disk.read_all(SEGMENT)
    while ends[-1] < len(data):
        ends.append(ends[-1] + parse_header(data, ends[-1]).frame_bytes)
    for start in ends[:-1]:
        for place in (start + 20, start + HEADER_BYTES + 1):
            case = disk.copy()
            changed = bytearray(data)
            changed[place] ^= 1
            case.put(SEGMENT, bytes(changed))
            for lose in (FILE, SEGMENT.with_suffix(".index")):
                case.delete(lose)
            log = Log.open(DIRECTORY, case, CONFIG)
            header = parse_header(data, start)
            lost = range(header.base_offset, header.end_offset)
            assert said_by(log) == Said(
                [row for row in said.rows if row.offset not in lost],
                [pair for pair in said.dedup if pair[0] not in lost],
            )
            assert said_by(Log.open(DIRECTORY, case, CONFIG)) == said_by(log)


@pytest.mark.parametrize("failing", range(1, 6))
def test_a_segment_that_cannot_be_read_for_a_while_says_all_afterwards(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedDisk()
    said = filled(disk)
    disk.delete(FILE)
    log = Log.open(DIRECTORY, disk, CONFIG)
    read, reads = disk.read, iter(range(1, 1000))

    def read_or_fail(
        path: Path, position: int, size_bytes: int, *, wait: bool = True
    ) -> memoryview:
        if path == SEGMENT and next(reads) == failing:
            raise OSError(errno.EACCES, "cannot be read")
        return read(path, position, size_bytes, wait=wait)

    monkeypatch.setattr(limits, "MIB", 200)
    monkeypatch.setattr(disk, "read", read_or_fail)
    with pytest.raises(OSError, match="cannot be read"):
        said_by(log)
    assert said_by(log) == said
    assert is_whole(disk)


def test_a_frame_whose_sections_are_not_sound_gives_no_rows() -> None:
    frame = bytearray(encode_frame(Columns([b""], tenants=["acme"])))
    frame[HEADER_BYTES] = 9  # the number of no tenant
    view = FrameView.parse(bytes(frame))
    from crc32c import crc32c

    header = view.header._replace(body_crc32c=crc32c(view.body))
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, CONFIG)
    append(log, [header.pack() + bytes(view.body), attributed(2)])
    assert [row.offset for row in said_by(log).rows] == [1, 2]
    log.close()
    disk.delete(FILE)
    assert [row.offset for row in said_by(Log.open(DIRECTORY, disk, CONFIG)).rows] == [1, 2]


@pytest.mark.parametrize("operation", ["open", "write_at", "truncate"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_no_failure_to_write_the_file_fails_an_append(operation: str, error: int) -> None:
    disk = SimulatedDisk()

    def fault(tried: str, path: Path) -> int | None:
        return error if tried == operation and path.suffix == ".columns" else None

    disk.fault = fault
    log = Log.open(DIRECTORY, disk, LogConfig(columns=True, segment_bytes=3000))
    for number in range(40):
        append(log, [attributed(number % 7 + 1)])
        if number == 20:
            log.truncate(log.end_offset - 5)
    assert said_by(log) == of_frames(log)
    log.close()
    log = Log.open(DIRECTORY, disk, CONFIG)
    assert said_by(log) == of_frames(log)
    disk.fault = lambda _operation, _path: None
    assert said_by(log) == of_frames(log)
    log.close()
    check_says(disk, of_frames(log))


@pytest.mark.parametrize("room", range(0, 1500, 53))
def test_a_disk_that_is_full_at_any_byte_of_the_file_changes_nothing(room: int) -> None:
    disk = SimulatedDisk(Random(room))
    said = filled(disk)
    disk.delete(FILE)
    disk.capacity_bytes = disk.used_bytes + room
    log = Log.open(DIRECTORY, disk, CONFIG)
    assert said_by(log) == said
    assert said_by(log) == said
    disk.capacity_bytes = None
    check_says(disk, said)
    assert is_whole(disk)


def test_much_that_gathers_is_written_before_a_checkpoint() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, CONFIG)
    for _ in range(20):
        append(log, [attributed(10)])
    assert len(disk.read_all(FILE)) > 4000
    disk.crash(power=False)
    check_says(disk, of_frames(log))


def test_columns_of_a_segment_dropped_by_recovery_go_with_it() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, LogConfig(columns=True, segment_bytes=1))
    append(log, [attributed(2)])
    mark = disk.read_all(DIRECTORY / "watermark")
    append(log, [attributed(2)])
    append(log, [attributed(2)])
    log.close()
    disk.put(DIRECTORY / "watermark", mark)
    disk.put(SEGMENT, disk.read_all(SEGMENT) + b"torn")
    log = Log.open(DIRECTORY, disk, CONFIG)
    assert said_by(log) == of_frames(log)
    log.close()
    assert [path for path in disk.paths() if path.suffix == ".columns"] == [FILE]


def test_a_reader_that_writes_the_file_of_a_segment_deleted_meanwhile_leaves_none() -> None:
    disk = SimulatedDisk()
    filled(disk)
    disk.delete(FILE)
    log = Log.open(DIRECTORY, disk, CONFIG)
    writing, deleted = threading.Event(), threading.Event()

    def fault(operation: str, path: Path) -> None:
        if operation == "write_at" and path == FILE:
            writing.set()
            assert deleted.wait(10)

    disk.fault = fault
    reader = threading.Thread(target=lambda: said_by(log))
    reader.start()
    assert writing.wait(10)
    log.remove(log.detach_before(log.end_offset))
    deleted.set()
    reader.join()
    assert FILE not in disk.paths()


def test_blocks_that_could_be_written_stay_when_later_ones_could_not() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, CONFIG)
    for _ in range(3):
        append(log, [attributed(20)])
    held = disk.read_all(FILE)
    disk.fault = lambda op, path: errno.EIO if (op, path) == ("write_at", FILE) else None
    append(log, [attributed(20)])
    append(log, [attributed(20)])
    disk.fault = lambda _operation, _path: None
    for _ in range(5):
        append(log, [attributed(20)])
    assert said_by(log) == of_frames(log)
    assert disk.read_all(FILE) == held
    log.roll()
    assert said_by(log) == of_frames(log)
    assert is_whole(disk)


def test_ids_of_zeros_take_no_room_in_the_file() -> None:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, disk, CONFIG)
    append(log, [encode_frame(Columns([b""] * 50, dedup_ids=[NO_ID] * 50))], time_us=START_US)
    log.close()
    assert len(disk.read_all(FILE)) == 104
