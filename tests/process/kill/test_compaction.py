"""Whenever a compaction is killed, readers see each row once, and the next export goes on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow.dataset as ds

from goq.model import Message
from goq.pipeline.arrow.tables import MESSAGES_TABLE
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.export import Export
from goq.pipeline.export.ledger import ExportLedger
from tests.support.pipeline.logged_frames import LoggedFrames

SEED = int(os.environ.get("GOQ_KILL_SEED") or random.SystemRandom().getrandbits(32))


class Reader(threading.Thread):
    """Reads the folder again and again; notes what no reader may see."""

    def __init__(self, folder: Path, rows: int) -> None:
        super().__init__()
        self.is_ended = threading.Event()
        self.wrong: list[str] = []
        self.whole = 0
        self.vanished = 0
        self._folder = folder
        self._rows = rows

    def run(self) -> None:
        while not self.is_ended.is_set():
            try:
                found = offsets(self._folder)
            except FileNotFoundError:  # it had listed the folder before
                self.vanished += 1
                continue
            self.whole += 1
            if len(found) != self._rows or max(Counter(found).values()) > 1:
                self.wrong.append(f"{len(found)} rows of {self._rows}, {len(set(found))} different")


def offsets(folder: Path) -> list[tuple[int, int]]:
    table = ds.dataset(folder, format="parquet").to_table(columns=["partition", "offset"])
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def grow(log: LoggedFrames, root: Path, rng: random.Random, files: int) -> int:
    """Export so many small files; return the number of rows of the folder."""
    for _ in range(files):
        count = rng.randrange(1, 400)
        messages = [Message(rng.randbytes(50)) for _ in range(count)]
        log.publish(rng.randrange(2), messages, 1_700_000_000_000_000)
        Export(log, LocalDestination(root), MESSAGES_TABLE, "t").run()
    return sum(each.end for each in log.bounds("t").values())


@pytest.mark.long
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.long)])
def test_killed_at_any_moment_a_compaction_shows_each_row_once(kills: int, tmp_path: Path) -> None:
    rng, root, log = random.Random(SEED), tmp_path / "lake", LoggedFrames(2)
    took_s = 0.3
    for number in range(kills):
        rows = grow(log, root, rng, 8)
        reader = Reader(root / "messages", rows)
        reader.start()
        try:
            command = [sys.executable, "-m", "tests.support.pipeline.compacting", str(root), "t"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"compacting\n"
                began_s = time.perf_counter()
                if number % 3 == 2:
                    assert process.wait(120) == 0
                    took_s = time.perf_counter() - began_s
                else:
                    try:
                        process.wait(rng.random() * took_s)
                    except subprocess.TimeoutExpired:
                        process.kill()
        finally:
            reader.is_ended.set()
            reader.join()
        assert not reader.wrong, (SEED, reader.wrong)
        assert reader.whole + reader.vanished, SEED
        assert len(set(offsets(root / "messages"))) == len(offsets(root / "messages")) == rows
        Export(log, LocalDestination(root), MESSAGES_TABLE, "t").run()
        named = [
            entry
            for manifest in ExportLedger(LocalDestination(root), "messages", "t").manifests()
            for entry in manifest.files
        ]
        there = [str(path.relative_to(root)) for path in root.glob("messages/*/*/*")]
        assert sorted(entry.path for entry in named) == sorted(there), SEED
        assert sum(entry.rows for entry in named) == rows, SEED
        assert not list((root / "_goq" / "tmp").rglob("*.parquet")), SEED
