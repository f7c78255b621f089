"""``goq republish``."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from goq.errors import TopicNotFound, UsageError
from goq.units import is_by_clock, parse_time_us
from goq_cli.output.output import notice
from goq_cli.output.report import print_report
from goq_cli.session import SESSION, node_time_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from goq.pipeline.reports.report import Report
    from goq.pipeline.reports.tables import LiveSource
    from goq.pipeline.spark.sink_options import SinkOptions

_TABLES = ("messages", "events", "groups")


def command(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="As SELECT * FROM messages …")],
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC…]", help="Topics of the tables; of an export default all."),
    ] = None,
    into: Annotated[str, typer.Option(metavar="TOPIC", help="The target topic.")] = "",
    source: Annotated[
        str, typer.Option("--from", metavar="DIR", help="What goq export wrote; else the node.")
    ] = "",
    txn_id: Annotated[
        str, typer.Option(metavar="ID", help="Happens once; default by the words given.")
    ] = "",
    include_deleted: Annotated[
        bool, typer.Option("--include-deleted", help="Of the node: archived messages, too.")
    ] = False,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of the node: read from TIME on.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of the node: read up to TIME.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the effect.")] = False,
    master: Annotated[
        str, typer.Option(metavar="URL", help="The Spark master to work on.")
    ] = "local[*]",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page.")] = None,
) -> None:
    """Publish messages chosen by a SQL query again, each exactly once, in order.

    The query can use the tables messages, events and groups. An interrupted run is finished by the
    same command.
    """
    from goq_cli.session import needs_extra

    topics = topics or []
    if not into:
        raise UsageError("say where they go: --into TOPIC")
    if not source and not topics:
        raise UsageError("say what to read: --from DIR, or topics of the node")
    if source and (include_deleted or since is not None or until is not None):
        raise UsageError(
            "--include-deleted, --since and --until are for what is read from the node"
        )
    with needs_extra("spark"):
        from goq.pipeline.reports.republish import check_columns_of
        from goq.pipeline.reports.spark_errors import told_plainly
        from goq.pipeline.reports.tables import LiveSource, check_has_topics
        from goq.pipeline.spark.session import spark_session
        from goq.pipeline.spark.sink_options import SinkOptions
    servers, token = SESSION.servers_and_token()
    options = SinkOptions.parse(
        {
            "topic": into,
            "server": ",".join(servers),
            "token": token or "",
            "txnId": txn_id
            or default_transaction(
                query, topics, into, _place(source), since, until, include_deleted
            ),
        }
    )
    live = LiveSource(servers, token, topics, include_deleted, *_span(since, until, topics))
    if source:
        check_has_topics(source, topics)
    exists = _look(options, dry_run=dry_run)
    notice("starting Spark…")
    session = spark_session(master)
    try:
        with told_plainly():
            rows = _rows(session, query, source, topics, live)
            if not exists and not dry_run:
                check_columns_of(rows)
                _open(options)
            report = _run(rows, options, dry_run=dry_run)
    finally:
        session.stop()
    print_report(report, html)


def default_transaction(query: str, topics: list[str], into: str, *read: str | bool | None) -> str:
    """Return the default transaction id: a hash of the query, and of all that it reads, as given.

    Another slice is another transaction: else it would count as published before.
    """
    told = json.dumps([query.strip(), sorted(topics), into, *read])
    return f"republish-{hashlib.blake2b(told.encode(), digest_size=8).hexdigest()}"


def _place(source: str) -> str:
    """Return the export as it is named from every folder."""
    return source if not source or "://" in source else str(Path(source).absolute())


def _span(
    since: str | None, until: str | None, topics: Sequence[str]
) -> tuple[int | None, int | None]:
    """Return the bounds of what is read, in microseconds, by the node's clock."""
    now_us = time.time_ns() // 1000
    if is_by_clock(since) or is_by_clock(until):
        with SESSION.long_client() as client:
            now_us = node_time_us(client, topics)
    from_us, to_us = (
        None if text is None else parse_time_us(text, now_us=now_us, field=field)
        for field, text in (("--since", since), ("--until", until))
    )
    return from_us, to_us


def _look(options: SinkOptions, *, dry_run: bool) -> bool:
    """Return whether the target exists, before Spark starts; print what will be done."""
    exists = True
    try:
        with SESSION.long_client() as client:
            client.describe_topic(options.topic)
    except TopicNotFound:
        exists = False
        if dry_run:
            sys.stderr.write(f"there is no topic {options.topic} yet\n")
    if not dry_run:
        sys.stderr.write(
            f"republishing into {options.topic} as --txn-id {options.transaction}: the same"
            " command goes on if it is cut short, and stores nothing twice\n"
        )
    return exists


def _open(options: SinkOptions) -> None:
    """Create the target, now that the query is known to be right."""
    from goq.client._sync.publish.frame_publisher import FramePublisher

    with SESSION.long_client() as client:
        FramePublisher(client).open_topic(options.topic)


def _rows(
    session: SparkSession, query: str, source: str, topics: list[str], live: LiveSource
) -> DataFrame:
    from goq.pipeline.reports.tables import ExportedTables, LiveTables

    if source:
        tables: ExportedTables | LiveTables = ExportedTables(session, source, topics)
    else:
        tables = LiveTables(session, live)
    for name in _TABLES:
        if name in query.lower():  # the others are not loaded
            tables.table(name).createOrReplaceTempView(name)
    return session.sql(query)


def _run(rows: DataFrame, options: SinkOptions, *, dry_run: bool) -> Report:
    from goq.pipeline.reports.republish import preview, report_of, republish

    if dry_run:
        return preview(rows)
    done = republish(rows, options)
    if done.outcome != "stored":
        said = "was done before" if done.outcome == "known" else "is finished that was begun"
        sys.stderr.write(f"{options.transaction} {said}; to publish again, give another --txn-id\n")
    return report_of(done, options)
