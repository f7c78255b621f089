"""``goq export``."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from goq_cli.interrupts import noted_signals
from goq_cli.output.export import print_export
from goq_cli.output.output import notice
from goq_cli.output.progress import Advance, show_progress
from goq_cli.session import SESSION, node_time_us

if TYPE_CHECKING:
    from goq.client import Client
    from goq.pipeline.export.catalogs.catalog import TableCatalog
    from goq.pipeline.export.compaction import MergedFiles
    from goq.pipeline.export.destination import Destination
    from goq.pipeline.export.export import Decoding, Export, ExportResult
    from goq.pipeline.export.plan import ExportGate
    from goq.pipeline.export.staged_files import Stager, TimeSpan

_MAX_WAIT = "10m"
_TARGET_SIZE = "128MiB"
_NICENESS = 10


class ExportCommand(typer.core.TyperCommand):
    """The command, whose ``--register delta`` takes no catalog."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line."""
        words: list[str] = []
        for word in args:
            is_delta = word == "delta" and words[-1:] == ["--register"]
            words += [word, ""] if is_delta else [word]
        return super().parse_args(ctx, words)


COMMAND = ExportCommand


def command(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC…")],
    to: Annotated[str, typer.Option(metavar="DIR", help="A folder, or a URI as s3://…")],
    from_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Appended then or later.")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Appended before then.")
    ] = None,
    include_deleted: Annotated[
        bool, typer.Option("--include-deleted", help="Also archived messages.")
    ] = False,
    register: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="iceberg CATALOG|delta", help="Also add the files to tables of this format."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Export new messages until interrupted.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option("--decode", metavar="json", help="Also decode values to typed columns."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="As 'id bigint, total double'; default: by the first messages.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="ENGINE", help="local, or spark for a cluster's tasks.")
    ] = "local",
    master: Annotated[
        str, typer.Option(metavar="URL", help="With --engine spark: the Spark master.")
    ] = "local[*]",
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="With --engine spark: a setting of Spark."),
    ] = None,
    every: Annotated[
        str, typer.Option(metavar="DURATION", help="With --follow: how often.")
    ] = "1m",
    min_rows: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="With --follow: no files of a topic for fewer new rows."
        ),
    ] = None,
    max_wait: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="With --min-rows: but after this time; default 10m."),
    ] = None,
    compact: Annotated[
        bool,
        typer.Option("--compact", help="Then merge small files of hours that are over."),
    ] = False,
    target_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="With --compact: of merged files; default 128MiB."),
    ] = None,
    retry_for: Annotated[
        str | None,
        typer.Option(
            metavar="D|forever",
            help="How long to wait for a node; default 10s, with --follow forever.",
        ),
    ] = None,
) -> None:
    """Export topics as Parquet tables for Spark; run again, it adds what is new."""
    from goq.errors import UsageError
    from goq.units import parse_duration_ms, parse_size_bytes
    from goq_cli.session import needs_extra

    if form not in (None, "json") or (schema is not None and form is None):
        raise UsageError("--decode takes json, and --schema goes with it")
    if engine not in ("local", "spark"):
        raise UsageError(f"there is no engine {engine!r}; there are local and spark")
    if conf and engine != "spark":
        raise UsageError("--conf goes with --engine spark")
    if (min_rows is not None and not follow) or (max_wait is not None and min_rows is None):
        raise UsageError("--min-rows goes with --follow, and --max-wait with --min-rows")
    if target_size is not None and not compact:
        raise UsageError("--target-size goes with --compact")
    size_bytes = parse_size_bytes(target_size or _TARGET_SIZE, field="--target-size")
    if not size_bytes:
        raise UsageError("--target-size is at least 1 byte")
    pause_s = parse_duration_ms(every, field="--every") / 1000
    wait_s = parse_duration_ms(max_wait or _MAX_WAIT, field="--max-wait") / 1000
    with needs_extra("parquet"):
        from goq.pipeline.export.destination import check_ours, open_target
        from goq.pipeline.export.plan import ExportGate
    target = open_target(to)
    check_ours(target, to)
    catalog = _catalog(register)
    names = list(dict.fromkeys(topics))
    nodes = Nodes(follow or retry_for is not None, retry_for)
    gate = ExportGate(min_rows or 0, wait_s)
    pause = Pause(pause_s, gate) if follow else None
    with noted_signals(nodes.is_over.set):
        order = Order(
            names,
            target,
            _span(from_time, to_time, _node_time_us(names, nodes)),
            _decoding(form, schema),
            include_deleted,
            size_bytes if compact else 0,
        )
        failed = _export(order, nodes, Engine(engine, master, conf or []), catalog, pause)
    if failed:
        raise typer.Exit(1)


class Nodes:
    """The clients of an export; lasting ones wait for a node as long as ``retry_for``."""

    def __init__(self, is_lasting: bool, retry_for: str | None) -> None:
        self.is_over = threading.Event()
        self._is_lasting = is_lasting
        self._retry_for = retry_for

    def client(self) -> Client:
        """Return a client; a context manager."""
        if not self._is_lasting:
            return SESSION.long_client()
        return SESSION.lasting_client(None, self._retry_for, self.is_over.is_set, tells_once=True)


class Engine(NamedTuple):
    """The engine of an export: ``local``, or ``spark`` on a master with settings."""

    name: str
    master: str
    settings: list[str]


class Pause(NamedTuple):
    """The time between the runs of a following export, and the gate of each run."""

    seconds: float
    gate: ExportGate


def _export(
    order: Order,
    nodes: Nodes,
    engine: Engine,
    catalog: TableCatalog | None,
    pause: Pause | None,
) -> bool:
    """Export once, or after each pause; return whether anything was missing."""
    failed = False
    with order.target.claimed(order.topics), _stager(engine, order.include_deleted) as stager:
        while True:
            now_us = _node_time_us(order.topics, nodes) if order.target_bytes else 0
            results = _export_all(order, nodes, stager, None if pause is None else pause.gate)
            registered = _register(order, catalog) if catalog is not None and results else None
            merged = _compact(order, catalog, now_us) if order.target_bytes else None
            if results or merged:
                print_export(results, registered, merged)
            failed |= any(done.missing for done in results.values())
            if pause is None:
                return failed
            time.sleep(pause.seconds)


class Order(NamedTuple):
    """An export: topics, bounds, destination."""

    topics: list[str]
    target: Destination
    span: TimeSpan
    decoding: Decoding | None
    include_deleted: bool
    target_bytes: int
    """The size of merged files; 0 if none are merged."""


def _decoding(form: str | None, schema: str | None) -> Decoding | None:
    from goq.pipeline.arrow.json_columns import parse_columns
    from goq.pipeline.export.export import Decoding

    if form is None:
        return None
    return Decoding(None if schema is None else parse_columns(schema))


def _span(from_time: str | None, to_time: str | None, now_us: int) -> TimeSpan:
    """Return the bounds in time; relative times count from ``now_us``."""
    from goq.errors import UsageError
    from goq.pipeline.export.staged_files import TimeSpan
    from goq.units import parse_time_us

    given = (("--from-time", from_time), ("--to-time", to_time))
    span = TimeSpan(
        *(
            None if text is None else parse_time_us(text, now_us=now_us, field=name)
            for name, text in given
        )
    )
    if span.from_us is not None and span.to_us is not None and span.to_us <= span.from_us:
        raise UsageError("--to-time is not after --from-time: no message is between them")
    return span


def _catalog(register: tuple[str, str] | None) -> TableCatalog | None:
    from goq.errors import UsageError
    from goq_cli.session import needs_extra

    if register is None:
        return None
    kind, name = register
    if kind == "delta":
        with needs_extra("delta"):
            from goq.pipeline.export.catalogs.delta import DeltaTables
        return DeltaTables()
    if kind != "iceberg":
        raise UsageError(f"--register takes iceberg and a catalog, or delta, not {kind!r}")
    with needs_extra("iceberg"):
        from goq.pipeline.export.catalogs.iceberg import open_catalog
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # it logs a line for each column
    return open_catalog(name)


def _node_time_us(topics: list[str], nodes: Nodes) -> int:
    """Return the time of the node; raise ``TopicNotFound`` before anything is written."""
    with nodes.client() as client:
        return node_time_us(client, topics)


@contextmanager
def _low_priority() -> Generator[None, None, None]:
    """Run at a lower CPU priority, where the platform supports it: a node goes first."""
    if not hasattr(os, "setpriority"):
        yield
        return
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(before, _NICENESS))
    try:
        yield
    finally:
        with suppress(PermissionError):  # only root may raise it
            os.setpriority(os.PRIO_PROCESS, 0, before)


@contextmanager
def _stager(engine: Engine, include_deleted: bool) -> Generator[Stager | None, None, None]:
    """Return the stager of pieces; None for this process."""
    from goq_cli.session import needs_extra

    if engine.name == "local":
        with _low_priority():
            yield None
        return
    with needs_extra("spark"):
        from goq.pipeline.export.spark_tasks import NodeAccess, stage_in_spark
        from goq.pipeline.spark.session import await_executor, parse_settings, spark_session
    settings = parse_settings(engine.settings)
    notice("starting Spark…")
    session = spark_session(engine.master, settings)
    try:
        await_executor(session)
        node = NodeAccess(*SESSION.servers_and_token(), include_deleted)
        yield stage_in_spark(session, node)
    finally:
        session.stop()


def _export_all(
    order: Order, nodes: Nodes, stager: Stager | None, gate: ExportGate | None
) -> dict[tuple[str, str], ExportResult]:
    """Export the topics that are due to their current end; export none if one cannot be."""
    from goq.pipeline.arrow.node_source import NodeSource
    from goq.pipeline.arrow.tables import MESSAGES_TABLE, TABLES
    from goq.pipeline.export.export import Export
    from goq.pipeline.export.groups_table import export_groups

    target = order.target
    with nodes.client() as client:
        source = NodeSource(client, include_deleted=order.include_deleted)
        exports: dict[tuple[str, str], Export] = {}
        counted: list[Advance] = []
        for topic in order.topics:
            for table in TABLES.values():
                export = exports[topic, table.name] = Export(
                    source,
                    target,
                    table,
                    topic,
                    order.span,
                    stager=stager,
                    include_deleted=order.include_deleted,
                    decoding=order.decoding if table is MESSAGES_TABLE else None,
                    on_done=lambda count: counted[0](count),
                )
                export.check()
        if gate is not None:
            exports = _due(exports, gate)
        for topic in dict.fromkeys(topic for topic, _ in exports):
            export_groups(client, target, topic, source.time_us(topic))
        with show_progress(
            total=lambda: sum(export.outstanding() for export in exports.values())
        ) as advance:
            counted.append(advance)
            return {named: export.run() for named, export in exports.items()}


def _due(exports: dict[tuple[str, str], Export], gate: ExportGate) -> dict[tuple[str, str], Export]:
    """Return the exports of the topics that are due."""
    rows: dict[str, int] = {}
    for (topic, _), export in exports.items():
        rows[topic] = rows.get(topic, 0) + export.outstanding()
    now_s = time.monotonic()
    due = {topic for topic, count in rows.items() if gate.is_due(topic, count, now_s)}
    return {named: export for named, export in exports.items() if named[0] in due}


def _register(order: Order, catalog: TableCatalog) -> dict[str, int]:
    """Return the number of files registered in each table of the catalog."""
    counts: dict[str, int] = {}
    for topic in order.topics:
        for table, files in catalog.register(order.target, topic):
            counts[table] = counts.get(table, 0) + files
    return counts


def _compact(
    order: Order, catalog: TableCatalog | None, now_us: int
) -> list[tuple[str, MergedFiles]]:
    """Merge files of each topic, tell the catalog, and return what was merged.

    ``now_us`` is the node's time: append times tell which hours are over.
    """
    from goq.pipeline.export.compaction import compact

    done = [
        (topic, each)
        for topic in order.topics
        for each in compact(
            order.target,
            topic,
            now_us,
            target_bytes=order.target_bytes,
            keeps_registered=catalog is not None,
        )
        if each.files
    ]
    if done and catalog is not None:
        _register(order, catalog)
    return done
