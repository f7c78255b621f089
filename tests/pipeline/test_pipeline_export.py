"""An export has every message once, however often it is stopped, and readers see whole files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from goq.errors import Conflict, DamagedData
from goq.model import Message
from goq.pipeline.export import Export
from goq.pipeline.piece_files import Span
from goq.pipeline.tables import MESSAGES_TABLE
from goq.pipeline.target import LocalTarget
from tests.support.logged_frames import LoggedFrames

DAY_US = 86_400_000_000


class Stopped(BaseException):
    """The process ended here."""


class StoppingTarget(LocalTarget):
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
        self._change(lambda: LocalTarget.write(self, path, data))

    def publish(self, made: str, path: str) -> None:
        self._change(lambda: LocalTarget.publish(self, made, path))

    def remove(self, path: str) -> None:
        self._change(lambda: LocalTarget.remove(self, path))


def grow(log: LoggedFrames, rng: random.Random, frames: int) -> None:
    for _ in range(frames):
        partition = rng.randrange(len(log.frames))
        count = rng.randrange(1, 30)
        messages = [Message(b"%d" % rng.getrandbits(64), b"k%d" % (i % 3)) for i in range(count)]
        log.publish(partition, messages, rng.randrange(4) * DAY_US + rng.randrange(1000))


def wanted(log: LoggedFrames, span: Span = Span()) -> list[tuple[Any, ...]]:  # noqa: B008
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
    for path in sorted(root.glob("messages/topic=*/date=*/*.parquet")):
        table = pq.ParquetFile(path).read()
        times = table.column("timestamp").cast("int64").to_pylist()
        columns = [table.column(name).to_pylist() for name in ("partition", "offset", "value")]
        rows += list(zip(*columns, times, strict=True))
        date = path.parent.name.removeprefix("date=")
        assert {str(t.date()) for t in table.column("timestamp").to_pylist()} == {date}
    return sorted(rows)


def export(log: LoggedFrames, target: LocalTarget, span: Span = Span()) -> Export:  # noqa: B008
    return Export(log, target, MESSAGES_TABLE, "orders", span, messages_max=50)


def test_what_is_new_is_added_by_each_run_and_nothing_twice(tmp_path: Path) -> None:
    log, rng = LoggedFrames(3), random.Random(1)
    for _ in range(5):
        grow(log, rng, 20)
        export(log, LocalTarget(tmp_path)).run()
        assert found(tmp_path) == wanted(log)
    again = export(log, LocalTarget(tmp_path)).run()
    assert again == (0, 0, 0, 0)


@pytest.mark.parametrize("after", [False, True])
def test_stopped_at_any_change_the_next_run_makes_it_whole(tmp_path: Path, after: bool) -> None:
    changes = 0
    while True:
        root = tmp_path / str(changes)
        log, rng = LoggedFrames(2), random.Random(2)
        grow(log, rng, 10)
        export(log, LocalTarget(root)).run()
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
        export(log, LocalTarget(root)).run()
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
        export(log, LocalTarget(root)).run()
        names.append(sorted(str(p.relative_to(root)) for p in root.glob("messages/*/*/*")))
    assert names[0] == names[1]


def test_bounds_in_time_are_exact_and_belong_to_the_folder(tmp_path: Path) -> None:
    log, rng = LoggedFrames(2), random.Random(4)
    grow(log, rng, 30)
    times = [t for *_, t in wanted(log)]
    span = Span(times[len(times) // 4], times[len(times) // 2])
    export(log, LocalTarget(tmp_path), span).run()
    assert found(tmp_path) == wanted(log, span)
    with pytest.raises(Conflict, match="other bounds"):
        export(log, LocalTarget(tmp_path)).run()


def test_what_retention_took_first_is_counted_and_the_rest_exported(tmp_path: Path) -> None:
    log, rng = LoggedFrames(1), random.Random(5)
    grow(log, rng, 10)
    export(log, LocalTarget(tmp_path)).run()
    reached = log.bounds("orders")[0].end
    grow(log, rng, 10)
    log.starts[0] = reached + 7
    done = export(log, LocalTarget(tmp_path)).run()
    assert done.missing == 7
    assert found(tmp_path) == [row for row in wanted(log) if not reached <= row[1] < reached + 7]


def test_a_topic_that_was_made_anew_is_refused(tmp_path: Path) -> None:
    log = LoggedFrames(1)
    grow(log, random.Random(6), 10)
    export(log, LocalTarget(tmp_path)).run()
    with pytest.raises(Conflict, match="not the topic that was exported"):
        export(LoggedFrames(1), LocalTarget(tmp_path)).run()


def test_a_state_that_cannot_be_read_is_said_and_nothing_written(tmp_path: Path) -> None:
    log = LoggedFrames(1)
    grow(log, random.Random(7), 10)
    export(log, LocalTarget(tmp_path)).run()
    state = tmp_path / "_goq/messages/orders/state.json"
    state.write_bytes(state.read_bytes()[:-3])
    with pytest.raises(DamagedData, match=r"state\.json"):
        export(log, LocalTarget(tmp_path)).run()
