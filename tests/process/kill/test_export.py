"""Whenever ``goq export`` is killed, its folder has whole files, and in the end each row once."""

from __future__ import annotations

import glob
import os
import random
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.forked_goq import start_goq
from tests.support.eventually import eventually
from tests.support.node.node_process import NodeProcess, clean_environment

pytest.importorskip("pyarrow")

import pyarrow.dataset as ds

from goq.client import Client
from goq.errors import GoqError
from goq.pipeline.arrow.events import events_batch
from goq.pipeline.arrow.node_source import NodeSource
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.ledger import ExportLedger

SEED = int(os.environ.get("GOQ_KILL_SEED") or random.SystemRandom().getrandbits(32))
IDENTITY = {
    "messages": ("partition", "offset"),
    "events": ("partition", "sequence", "offset"),
    "groups": ("time", "group", "partition"),
}


class Publisher(threading.Thread):
    """Publishes, receives and acks until told to stop; knows what was confirmed."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.confirmed: dict[tuple[int, int], bytes] = {}
        self.is_ended = threading.Event()
        self._url = url

    def run(self) -> None:
        number = 0
        while not self.is_ended.is_set():
            try:
                with Client(self._url, timeout="5s") as client:
                    while not self.is_ended.wait(0.01):
                        values = [b"%d of %d" % (number + n, SEED) for n in range(20)]
                        number += len(values)
                        for value, found in zip(
                            values, client.publish_many("t", values), strict=True
                        ):
                            self.confirmed[found.id.partition, found.id.offset] = value
                        client.receive_batch("t", "g", max_messages=10).ack()
            except (GoqError, OSError):
                self.is_ended.wait(0.05)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data") as serving:
        with Client(serving.url) as client:
            client.create_topic("t", 3)
        yield serving


@pytest.fixture
def publisher(node: NodeProcess) -> Iterator[Publisher]:
    thread = Publisher(node.url)
    thread.start()
    try:
        yield thread
    finally:
        thread.is_ended.set()
        thread.join()


class Exporting:
    """Runs ``goq export`` into a folder, and looks at what is there."""

    def __init__(self, url: str, folder: Path, *words: str, **told: str) -> None:
        self.root = folder / "lake"
        self._words = ["export", "t", "--to", str(self.root), *words]
        self._environment = clean_environment(folder) | {"GOQ_SERVER": url} | told
        self._log = folder / "export.stderr"

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return start_goq(
                [*self._words, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=self._environment,
            )

    def finish(self, *words: str) -> None:
        process = self.start(*words)
        assert process.wait(120) == 0, (SEED, self._log.read_text())

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return what a reader of the folder sees now; fail if that is broken, or there twice."""
        if not (self.root / table).exists():
            return []
        rows: list[dict[str, Any]]
        rows = ds.dataset(self.root / table, format="parquet").to_table().to_pylist()
        times = Counter(tuple(row[name] for name in IDENTITY[table]) for row in rows)
        assert len(times) == len(rows), (SEED, table, times.most_common(3))
        return rows

    def manifests(self) -> int:
        """Return how many plans were finished."""
        return len(glob.glob(f"{self.root}/_goq/*/t/manifest-*.json"))

    def check_whole(self, publisher: Publisher, url: str) -> None:
        """Check that each confirmed message, and each event, is there once, and in a manifest."""
        rows = {(r["partition"], r["offset"]): r["value"] for r in self.rows("messages")}
        wrong = [p for p, value in publisher.confirmed.items() if rows.get(p) != value]
        assert not wrong, (SEED, wrong[:5])
        with Client(url) as client:
            for each in client.describe_topic("t").partitions:
                offsets = sorted(o for p, o in rows if p == each.partition)
                assert offsets == list(range(each.end_offset)), SEED
            events = [row for p in range(3) for row in events_of(NodeSource(client), p)]
        assert sorted(self.rows("events"), key=repr) == sorted(events, key=repr), SEED
        assert events
        target = LocalDestination(self.root)
        for table in IDENTITY:
            named = [e for m in ExportLedger(target, table, "t").manifests() for e in m.files]
            there = [str(p.relative_to(self.root)) for p in self.root.glob(f"{table}/*/*/*")]
            assert sorted(e.path for e in named) == sorted(there), SEED
            assert sum(e.rows for e in named) == len(self.rows(table)), SEED
        assert not list((self.root / "_goq" / "tmp").rglob("*.parquet")), SEED


def events_of(source: NodeSource, partition: int) -> list[dict[str, Any]]:
    """Return the events of a partition as the node tells them."""
    end = source.event_bounds("t")[partition].end
    frame_batches = list(source.read_events("t", partition, 0, end))
    frames = [frame for frame_batch in frame_batches for frame in frame_batch.frames]
    rows: list[dict[str, Any]] = events_batch("t", partition, frames).to_pylist()
    return rows


def moments(exporting: Exporting) -> Mapping[str, Callable[[int], bool]]:
    """Return steps of an export by whether it is in one, after so many plans were finished."""

    def has(pattern: str) -> bool:
        # unlike a Path's, this glob passes over folders that are removed meanwhile
        return bool(glob.glob(f"{exporting.root}/_goq/{pattern}"))

    return {
        "planned": lambda n: exporting.manifests() > n and has("*/t/plan.json"),
        "making": lambda n: exporting.manifests() > n and has("tmp/*/t/*.parquet"),
        "noting": lambda n: exporting.manifests() > n and has("*/t/*.new"),
        "finished": lambda n: exporting.manifests() > n,
    }


@pytest.mark.long
@pytest.mark.parametrize("kills", [2, pytest.param(60, marks=pytest.mark.long)])
def test_killed_at_any_moment_an_export_leaves_whole_files_and_each_row_once(
    kills: int, node: NodeProcess, publisher: Publisher, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    exporting = Exporting(node.url, tmp_path)
    for number in range(kills):
        name, is_there = list(moments(exporting).items())[number % 4]
        process = exporting.start("--follow", "--every", "1ms")
        until = exporting.manifests() + chance.randrange(8)
        try:
            eventually(lambda is_there=is_there, n=until: is_there(n), name, seconds=120)
        finally:
            process.kill()
            process.wait()
        for table in IDENTITY:
            exporting.rows(table)
    publisher.is_ended.set()
    publisher.join()
    exporting.finish()
    exporting.check_whole(publisher, node.url)


def test_two_exports_at_once_write_each_row_once(
    node: NodeProcess, publisher: Publisher, tmp_path: Path
) -> None:
    exporting = Exporting(node.url, tmp_path)
    first = exporting.start("--follow", "--every", "1ms")
    try:
        eventually(lambda: exporting.manifests() > 3, "the first one exports", seconds=120)
        for _ in range(2):
            assert exporting.start().wait(120) == 6
            assert first.poll() is None
        exporting.rows("messages")
    finally:
        first.kill()
        first.wait()
    publisher.is_ended.set()
    publisher.join()
    together = [exporting.start() for _ in range(3)]
    codes = [process.wait(120) for process in together]
    assert 0 in codes
    assert set(codes) <= {0, 6}
    exporting.check_whole(publisher, node.url)


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.long)])
def test_a_node_that_dies_ends_an_export_with_a_line_and_the_next_one_goes_on(
    kills: int, node: NodeProcess, publisher: Publisher, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    exporting = Exporting(node.url, tmp_path)
    for number in range(kills):
        process = exporting.start("--follow", "--every", "1ms", "--retry-for", "2s")
        until = exporting.manifests() + chance.randrange(1, 20)
        eventually(lambda n=until: exporting.manifests() > n, "it exports", seconds=120)
        node.kill()
        assert process.wait(120) == 5
        lines = (tmp_path / "export.stderr").read_text().splitlines()
        assert len(lines) == number + 1, lines
        exporting.rows("messages")
        node.start()
    publisher.is_ended.set()
    publisher.join()
    exporting.finish()
    exporting.check_whole(publisher, node.url)


@pytest.mark.parametrize("kills", [1, pytest.param(40, marks=pytest.mark.long)])
def test_killed_while_it_registers_an_export_has_each_file_in_its_tables_once(
    kills: int, node: NodeProcess, publisher: Publisher, tmp_path: Path
) -> None:
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog.sql import SqlCatalog

    chance = random.Random(SEED)
    places = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/house"}
    told = {f"PYICEBERG_CATALOG__LAKE__{name.upper()}": at for name, at in places.items()}
    exporting = Exporting(node.url, tmp_path, "--register", "iceberg", "lake", **told)

    def commits() -> int:
        return len(list((tmp_path / "house").rglob("*.metadata.json")))

    for _ in range(kills):
        process = exporting.start("--follow", "--every", "1ms")
        until = commits() + chance.randrange(1, 6)
        eventually(lambda n=until: commits() >= n, "it registers", seconds=120)
        process.kill()
        process.wait()
    publisher.is_ended.set()
    publisher.join()
    exporting.finish()
    exporting.check_whole(publisher, node.url)
    catalog = SqlCatalog("lake", **places)
    for table in IDENTITY:
        tasks = catalog.load_table(f"goq.{table}").scan().plan_files()
        files = [task.file.file_path.removeprefix(f"file://{exporting.root}/") for task in tasks]
        named = ExportLedger(LocalDestination(exporting.root), table, "t").manifests()
        assert sorted(files) == sorted(e.path for m in named for e in m.files), SEED
    rows = catalog.load_table("goq.messages").scan().to_arrow()
    assert rows.num_rows == len(exporting.rows("messages"))
