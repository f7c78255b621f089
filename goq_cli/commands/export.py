"""``goq export``."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from goq_cli.output import notice, print_json, print_table
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.pipeline.decoding import Columns
    from goq.pipeline.export import Exported, Stager
    from goq.pipeline.source import Source
    from goq.pipeline.target import Target

_COLUMNS = ("topic", "table", "files", "rows", "bytes", "missing")


def command(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC…")],
    to: Annotated[str, typer.Option(metavar="DIR", help="A folder, or a URI as s3://…")],
    from_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not what was appended before.")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only what was appended before.")
    ] = None,
    include_deleted: Annotated[
        bool, typer.Option("--include-deleted", help="Also what retention has archived.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on exporting what comes, until interrupted.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option("--decode", metavar="json", help="Values as typed columns beside them."),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="As 'id bigint, total double'; default: what the first messages have.",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="ENGINE", help="local, or spark for a cluster's tasks.")
    ] = "local",
    master: Annotated[
        str, typer.Option(metavar="URL", help="With --engine spark: the Spark master.")
    ] = "local[*]",
    every: Annotated[
        str, typer.Option(metavar="DURATION", help="With --follow: how often.")
    ] = "1m",
) -> None:
    """Write topics as Parquet files that Spark reads as one table; again, only what is new."""
    from goq.errors import UsageError
    from goq.units import parse_duration_ms

    if form not in (None, "json") or (schema is not None and form is None):
        raise UsageError("--decode takes json, and --schema goes with it")
    decoding = Decoding(form is not None, schema)
    pause_s = parse_duration_ms(every, field="--every") / 1000
    failed = False
    with _stager(engine, master, to, include_deleted) as stager:
        staging = Staging(stager, include_deleted)
        while True:
            results = _export_all(topics, to, (from_time, to_time), decoding, staging)
            _print(results)
            failed |= any(done.missing for done in results.values())
            if not follow:
                break
            time.sleep(pause_s)
    if failed:
        raise typer.Exit(1)


class Decoding(NamedTuple):
    """Whether values are decoded, and into which columns if that was said."""

    is_wanted: bool
    schema: str | None

    def columns(self, source: Source, target: Target, topic: str) -> Columns | None:
        """Return the columns of a topic, None where its values are left as they are."""
        from goq.pipeline.decoding import parse_columns
        from goq.pipeline.export import known_columns

        if not self.is_wanted:
            return None
        if self.schema is not None:
            return parse_columns(self.schema)
        return known_columns(source, target, topic)


class Staging(NamedTuple):
    """What stages pieces, None for this process itself, and whether archives are read."""

    stager: Stager | None
    include_deleted: bool


@contextmanager
def _stager(
    engine: str, master: str, to: str, include_deleted: bool
) -> Generator[Stager | None, None, None]:
    """Give what stages pieces; None for this process itself."""
    from goq.errors import UsageError
    from goq_cli.extras import needs_extra

    if engine not in ("local", "spark"):
        raise UsageError(f"there is no engine {engine!r}; there are local and spark")
    if engine == "local":
        yield None
        return
    if "://" in to and not to.startswith("file://"):
        raise UsageError(
            "--engine spark writes to a folder that all executors share; without it goq export"
            f" writes to {to} itself"
        )
    with needs_extra("spark"):
        from goq.pipeline.session import spark_session
        from goq.pipeline.spark_export import Node, stage_in_spark
    notice("starting Spark…")
    session = spark_session(master)
    try:
        node = Node(*SESSION.servers_and_token(), include_deleted)
        yield stage_in_spark(session, node)
    finally:
        session.stop()


def _export_all(
    topics: list[str],
    to: str,
    times: tuple[str | None, str | None],
    decoding: Decoding,
    staging: Staging,
) -> dict[tuple[str, str], Exported]:
    from goq_cli.extras import needs_extra

    with needs_extra("parquet"):
        from goq.pipeline.export import Export, Span
        from goq.pipeline.group_rows import export_groups
        from goq.pipeline.source import NodeSource
        from goq.pipeline.tables import MESSAGES_TABLE, TABLES
        from goq.pipeline.target import check_ours, open_target, staging_of
    from goq.units import parse_time_us

    now_us = time.time_ns() // 1000
    names = ("--from-time", "--to-time")
    span = Span(
        *(
            None if text is None else parse_time_us(text, now_us=now_us, field=name)
            for text, name in zip(times, names, strict=True)
        )
    )
    target = open_target(to)
    check_ours(target, to)
    with SESSION.client() as client, staging_of(target) as folder:
        source = NodeSource(client, include_deleted=staging.include_deleted)
        for topic in topics:
            export_groups(client, target, topic, folder, now_us)
        results = {}
        for topic in topics:
            columns = decoding.columns(source, target, topic)
            for table in TABLES.values():
                export = Export(
                    source,
                    target,
                    table,
                    topic,
                    folder,
                    span,
                    stager=staging.stager,
                    include_deleted=staging.include_deleted,
                    decoded=columns if table is MESSAGES_TABLE else None,
                )
                results[topic, table.name] = export.run()
        return results


def _print(results: dict[tuple[str, str], Exported]) -> None:
    if SESSION.json:
        print_json({"exports": [_row(*named, done) for named, done in results.items()]})
        return
    print_table(_COLUMNS, [(*named, *done) for named, done in results.items()])
    for (topic, table), done in results.items():
        if done.missing:
            notice(f"{topic}: {done.missing} {table} are damaged, or were deleted before")


def _row(topic: str, table: str, done: Exported) -> dict[str, object]:
    return {"topic": topic, "table": table, **done._asdict()}
