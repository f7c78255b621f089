"""An export has every message once, however often it is stopped, and readers see whole files."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow.parquet as pq

from goq.errors import Conflict, CorruptData
from goq.model import Message
from goq.pipeline.arrow.json_columns import parse_columns
from goq.pipeline.arrow.tables import MESSAGES_TABLE
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.export import Decoding, Export
from goq.pipeline.export.ledger import ExportLedger
from goq.pipeline.export.plan import Piece
from goq.pipeline.export.publish import Positions, missing_positions
from goq.pipeline.export.staged_files import PieceFiles, TimeSpan, Work, stage_here
from tests.support.effort import first_of
from tests.support.pipeline.logged_frames import LoggedFrames

ALL_TIME = TimeSpan()
DAY_US = 86_400_000_000


class Stopped(BaseException):
    """The process ended here."""


class StoppingTarget(LocalDestination):
    """Ends the process before or after its n-th change."""

    def __init__(self, root: Path, changes: int, *, after: bool) -> None:
        super().__init__(root)
        self.left = changes
        self.after = after

    def _change(self, do: Callable[[], None]) -> None:
        self.left -= 1
        if self.left < 0 and not self.after:
            raise Stopped
        do()
        if self.left < 0:
            raise Stopped

    def write(self, path: str, data: bytes) -> None:
        self._change(lambda: LocalDestination.write(self, path, data))

    def publish(self, made: str, path: str) -> None:
        self._change(lambda: LocalDestination.publish(self, made, path))

    def remove(self, path: str) -> None:
        self._change(lambda: LocalDestination.remove(self, path))


def grow(log: LoggedFrames, rng: random.Random, frames: int) -> None:
    for _ in range(frames):
        partition = rng.randrange(len(log.frames))
        count = rng.randrange(1, 30)
        messages = [Message(b"%d" % rng.getrandbits(64), b"k%d" % (i % 3)) for i in range(count)]
        log.publish(partition, messages, rng.randrange(4) * DAY_US + rng.randrange(1000))


def wanted(log: LoggedFrames, span: TimeSpan = ALL_TIME) -> list[tuple[Any, ...]]:
    return sorted(
        (partition, view.header.base_offset + i, message.value, view.header.append_time_us)
        for partition, frames in enumerate(log.frames)
        for view in frames
        if (span.from_us is None or view.header.append_time_us >= span.from_us)
        and (span.to_us is None or view.header.append_time_us < span.to_us)
        for i, message in enumerate(view.messages(0, view.header.message_count))
    )


def found(root: Path) -> list[tuple[Any, ...]]:
    rows = []
    for path in sorted(root.glob("messages/topic_folder=*/date=*/*.parquet")):
        table = pq.ParquetFile(path).read()
        times = table.column("timestamp").cast("int64").to_pylist()
        columns = [table.column(name).to_pylist() for name in ("partition", "offset", "value")]
        rows += list(zip(*columns, times, strict=True))
        date = path.parent.name.removeprefix("date=")
        assert {str(t.date()) for t in table.column("timestamp").to_pylist()} == {date}
    return sorted(rows)


def export(log: LoggedFrames, target: LocalDestination, span: TimeSpan = ALL_TIME) -> Export:
    return Export(log, target, MESSAGES_TABLE, "orders", span, messages_max=50)


def test_what_is_new_is_added_by_each_run_and_nothing_twice(tmp_path: Path) -> None:
    log, rng = LoggedFrames(3), random.Random(1)
    for _ in range(5):
        grow(log, rng, 20)
        export(log, LocalDestination(tmp_path)).run()
        assert found(tmp_path) == wanted(log)
    again = export(log, LocalDestination(tmp_path)).run()
    assert again[:4] == (0, 0, 0, 0)


@pytest.mark.parametrize("after", first_of([True, False], quick=1))
def test_stopped_at_any_change_the_next_run_makes_it_whole(tmp_path: Path, after: bool) -> None:
    changes = 0
    while True:
        root = tmp_path / str(changes)
        log, rng = LoggedFrames(2), random.Random(2)
        grow(log, rng, 10)
        export(log, LocalDestination(root)).run()
        grow(log, rng, 10)
        target = StoppingTarget(root, changes, after=after)
        try:
            export(log, target).run()
        except Stopped:
            pass
        else:
            break
        seen = found(root)
        assert len(seen) == len(set(seen))
        assert set(seen) <= set(wanted(log))
        grow(log, rng, 5)
        export(log, LocalDestination(root)).run()
        assert found(root) == wanted(log)
        assert not list((root / "_goq" / "tmp").rglob("*.parquet"))
        changes += 1
    assert changes > 10


def test_files_of_an_unfinished_plan_have_the_same_names_when_it_is_finished(
    tmp_path: Path,
) -> None:
    names = []
    for stops_at in (None, 4):
        root = tmp_path / str(stops_at)
        log, rng = LoggedFrames(2), random.Random(3)
        grow(log, rng, 20)
        if stops_at is not None:
            with pytest.raises(Stopped):
                export(log, StoppingTarget(root, stops_at, after=False)).run()
        export(log, LocalDestination(root)).run()
        names.append(sorted(str(p.relative_to(root)) for p in root.glob("messages/*/*/*")))
    assert names[0] == names[1]


def test_bounds_in_time_are_exact_and_belong_to_the_folder(tmp_path: Path) -> None:
    log, rng = LoggedFrames(2), random.Random(4)
    grow(log, rng, 30)
    times = [t for *_, t in wanted(log)]
    span = TimeSpan(times[len(times) // 4], times[len(times) // 2])
    export(log, LocalDestination(tmp_path), span).run()
    assert found(tmp_path) == wanted(log, span)
    with pytest.raises(Conflict, match="other bounds"):
        export(log, LocalDestination(tmp_path)).run()


def test_what_retention_took_first_is_counted_and_the_rest_exported(tmp_path: Path) -> None:
    log, rng = LoggedFrames(1), random.Random(5)
    grow(log, rng, 10)
    export(log, LocalDestination(tmp_path)).run()
    reached = log.bounds("orders")[0].end
    grow(log, rng, 10)
    log.starts[0] = reached + 7
    done = export(log, LocalDestination(tmp_path)).run()
    assert done.missing == 7
    assert found(tmp_path) == [row for row in wanted(log) if not reached <= row[1] < reached + 7]


def test_a_topic_that_was_made_anew_is_refused(tmp_path: Path) -> None:
    log = LoggedFrames(1)
    grow(log, random.Random(6), 10)
    export(log, LocalDestination(tmp_path)).run()
    with pytest.raises(Conflict, match="not the topic that was exported"):
        export(LoggedFrames(1), LocalDestination(tmp_path)).run()


def test_a_topic_that_is_made_anew_while_it_is_read_leaves_no_rows(tmp_path: Path) -> None:
    log, rng = LoggedFrames(1), random.Random(6)
    log.id = "first"
    grow(log, rng, 20)

    def stage(work: Work, todo: Sequence[Piece]) -> Iterator[PieceFiles]:
        for number, piece in enumerate(todo):
            if number == 2:
                log.frames, log.id = [[]], "second"
                grow(log, rng, 40)
            yield from stage_here(log)(work, [piece])

    before = wanted(log)[:100]
    target = LocalDestination(tmp_path)
    run = Export(log, target, MESSAGES_TABLE, "orders", messages_max=50, stager=stage)
    with pytest.raises(Conflict, match="deleted and created again"):
        run.run()
    assert found(tmp_path) == before


def test_a_state_that_cannot_be_read_is_said_and_nothing_written(tmp_path: Path) -> None:
    log = LoggedFrames(1)
    grow(log, random.Random(7), 10)
    export(log, LocalDestination(tmp_path)).run()
    state = tmp_path / "_goq/messages/orders/state.json"
    state.write_bytes(state.read_bytes()[:-3])
    with pytest.raises(CorruptData, match=r"state\.json"):
        export(log, LocalDestination(tmp_path)).run()


@pytest.mark.parametrize("left", ["files and manifests", "files", "manifests"])
def test_a_state_that_is_gone_is_said_and_nothing_exported_again(tmp_path: Path, left: str) -> None:
    log = LoggedFrames(1)
    grow(log, random.Random(15), 10)
    export(log, LocalDestination(tmp_path)).run()
    (tmp_path / "_goq/messages/orders/state.json").unlink()
    if left == "files":
        (tmp_path / "_goq/messages/orders/manifest-000001.json").unlink()
    if left == "manifests":
        shutil.rmtree(tmp_path / "messages/topic_folder=orders")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    grow(log, random.Random(16), 10)
    with pytest.raises(CorruptData, match=r"state\.json is gone.*restore it"):
        export(log, LocalDestination(tmp_path)).run()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("stored", ["state.json", "plan.json"])
def test_a_folder_with_a_decoded_column_of_a_folders_name_is_not_exported_on(
    tmp_path: Path, stored: str
) -> None:
    log = LoggedFrames(1)
    log.publish(0, [Message(b'{"date": "1999-01-01"}', b"k")], 0)
    decoding = Decoding(parse_columns("date string"))

    def run(target: LocalDestination) -> None:
        Export(log, target, MESSAGES_TABLE, "orders", decoding=decoding).run()

    if stored == "plan.json":
        with pytest.raises(Stopped):  # its file is published
            run(StoppingTarget(tmp_path, 2, after=True))
    else:
        run(LocalDestination(tmp_path))
    path = tmp_path / "_goq/messages/orders" / stored
    assert b'"version": 3' in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(b'"version": 3', b'"version": 2'))
    with pytest.raises(Conflict, match="use another folder"):
        run(LocalDestination(tmp_path))


def test_a_folder_of_version_2_is_exported_on(tmp_path: Path) -> None:
    log, rng = LoggedFrames(1), random.Random(14)
    grow(log, rng, 5)
    export(log, LocalDestination(tmp_path)).run()
    for path in tmp_path.glob("_goq/**/*.json"):
        path.write_bytes(path.read_bytes().replace(b'"version": 3', b'"version": 2'))
    grow(log, rng, 5)
    export(log, LocalDestination(tmp_path)).run()
    assert found(tmp_path) == wanted(log)


def manifests(root: Path) -> tuple[set[str], int, set[tuple[int, int]]]:
    """Return what all manifests name: files, how many rows, and which offsets are missing."""
    found = ExportLedger(LocalDestination(root), "messages", "orders").manifests()
    entries = [entry for manifest in found for entry in manifest.files]
    missing = {(p, n) for m in found for p, start, end in m.missing for n in range(start, end)}
    assert len({entry.path for entry in entries}) == len(entries)
    return {entry.path for entry in entries}, sum(entry.rows for entry in entries), missing


def test_what_retention_takes_from_an_unfinished_plan_is_missing_only_if_it_was_not_published(
    tmp_path: Path,
) -> None:
    changes, seen = 2, set()
    while True:
        root = tmp_path / str(changes)
        log, rng = LoggedFrames(2), random.Random(8)
        grow(log, rng, 12)
        try:
            export(log, StoppingTarget(root, changes, after=True)).run()
            break
        except Stopped:
            pass
        log.starts = [bounds.end // 2 for bounds in log.bounds("orders").values()]
        export(log, LocalDestination(root)).run()
        rows, (files, count, missing) = found(root), manifests(root)
        assert files == {str(p.relative_to(root)) for p in root.glob("messages/*/*/*")}
        assert count == len(rows) == len(set(rows))
        everything = {(row[0], row[1]) for row in wanted(log)}
        assert missing == everything - {(row[0], row[1]) for row in rows}
        seen.add(len(missing))
        changes += 1
    assert len(seen) > 2


def test_a_long_plan_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    log, rng = LoggedFrames(2), random.Random(9)
    grow(log, rng, 60)
    read: list[int] = []

    def stage(work: Work, todo: Sequence[Piece]) -> Iterator[PieceFiles]:
        read.append(len(todo))
        return stage_here(log)(work, todo)

    def long_export(target: LocalDestination) -> Export:
        return Export(log, target, MESSAGES_TABLE, "orders", stager=stage, messages_max=50)

    with pytest.raises(Stopped):
        long_export(StoppingTarget(tmp_path, 40, after=False)).run()
    long_export(LocalDestination(tmp_path)).run()
    assert read[1] < read[0] / 2
    assert found(tmp_path) == wanted(log)
    files, count, missing = manifests(tmp_path)
    assert files == {str(p.relative_to(tmp_path)) for p in tmp_path.glob("messages/*/*/*")}
    assert (count, missing) == (len(wanted(log)), set())


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("after", first_of([True, False], quick=1))
def test_stopped_while_it_fetches_what_was_missing_the_next_run_has_each_row_once(
    tmp_path: Path, after: bool, step: int
) -> None:
    changes = 0
    while True:
        root = tmp_path / str(changes)
        log, rng = LoggedFrames(2), random.Random(13)
        export(log, LocalDestination(root)).run()
        grow(log, rng, 30)
        log.starts = [bounds.end - 40 for bounds in log.bounds("orders").values()]
        export(log, LocalDestination(root)).run()
        log.starts = [10, 0]  # the archive has all but ten

        def whole(target: LocalDestination, log: LoggedFrames = log) -> Export:
            return Export(
                log, target, MESSAGES_TABLE, "orders", include_deleted=True, messages_max=50
            )

        assert len(found(root)) == 80
        try:
            whole(StoppingTarget(root, changes, after=after)).run()
        except Stopped:
            pass
        else:
            break
        whole(LocalDestination(root)).run()
        everything = [row for row in wanted(log) if row[:2] not in {(0, n) for n in range(10)}]
        assert found(root) == everything
        state = ExportLedger(LocalDestination(root), "messages", "orders").state()
        assert state is not None
        assert state.missing == [(0, 0, 10)]
        assert whole(LocalDestination(root)).run()[:4] == (0, 0, 0, 0)
        changes += step
    assert changes > 8


def test_what_is_missing_is_told_by_the_run_that_finishes_a_plan(tmp_path: Path) -> None:
    log, rng = LoggedFrames(2), random.Random(12)
    grow(log, rng, 5)
    export(log, LocalDestination(tmp_path)).run()
    log.starts = [bounds.end + 7 for bounds in log.bounds("orders").values()]
    grow(log, rng, 60)
    with pytest.raises(Stopped):
        export(log, StoppingTarget(tmp_path, 40, after=False)).run()
    noted = ExportLedger(LocalDestination(tmp_path), "messages", "orders").plan()
    assert noted is not None
    assert noted.missing
    assert export(log, LocalDestination(tmp_path)).run().missing == 14


def test_what_is_repaired_after_a_file_was_published_without_it_is_missing(tmp_path: Path) -> None:
    log = LoggedFrames(1)
    grow(log, random.Random(10), 10)
    with pytest.raises(Stopped):  # at the note of the first piece: its files are published
        export(log, StoppingTarget(tmp_path, 2, after=True)).run()
    path = sorted(tmp_path.glob("messages/*/*/00000-0-50.parquet"))[0]
    table = pq.ParquetFile(path).read()
    pq.write_table(table.slice(3), path)
    export(log, LocalDestination(tmp_path)).run()
    files, count, missing = manifests(tmp_path)
    assert missing == {(0, offset) for offset in table.column("offset").to_pylist()[:3]}
    assert count == len(found(tmp_path)) == len(wanted(log)) - 3
    assert len(files) == len(list(tmp_path.glob("messages/*/*/*")))


def test_two_exports_of_a_topic_to_a_folder_are_kept_apart(tmp_path: Path) -> None:
    with LocalDestination(tmp_path).claimed(["a", "b"]):
        with (
            pytest.raises(Conflict, match="being exported"),
            LocalDestination(tmp_path).claimed(["b", "c"]),
        ):
            pass
        with LocalDestination(tmp_path).claimed(["c"]):
            pass
    with LocalDestination(tmp_path).claimed(["b", "c"]):
        pass


def test_the_staged_files_of_another_topic_are_not_touched(tmp_path: Path) -> None:
    log = LoggedFrames(1)
    grow(log, random.Random(11), 5)
    other = LocalDestination(tmp_path).staging("messages", "orders-messages")
    other.empty()
    made = Path(other.directory) / "0-0-50-1970-01-01.parquet"
    made.write_bytes(b"in the making")
    export(log, LocalDestination(tmp_path)).run()
    assert made.exists()


def test_which_positions_are_missing_is_told_by_what_was_found() -> None:
    def numbers(*each: int) -> Positions:
        return np.array(each, np.int64)

    assert missing_positions([(0, 3), (5, 7)], numbers(), numbers()) == [(0, 3), (5, 7)]
    assert missing_positions([(0, 10)], numbers(11), numbers(0, 4, 5)) == [
        (1, 4),
        (6, 10),
        (11, 12),
    ]
    assert missing_positions([(4, 6)], numbers(), numbers(4, 5)) == []
