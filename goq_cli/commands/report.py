"""``goq report``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from goq_cli.output.output import notice
from goq_cli.output.report import print_report
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.pipeline.reports.audit.node_comparison import NodeComparison
    from goq.pipeline.reports.report import Report
    from goq.pipeline.reports.tables import ExportedTables

REPORTS = {
    "traffic": "How much came, was delivered and acknowledged, and what waited?",
    "latency": "How long did messages take to their first delivery, and to their ack?",
    "retries": "What had to be delivered again, what was given up, and why?",
    "lateness": "How late did scheduled messages come?",
    "fairness": "Whose messages waited longer than those of others?",
    "skew": "Do some partitions or keys carry more than others?",
    "audit": "Is every published message accounted for? Ends with 1 if one is not.",
}

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


_Topics = Annotated[list[str] | None, typer.Argument(metavar="[TOPIC…]", help="Default: all.")]
_Source = Annotated[str, typer.Option("--from", metavar="DIR", help="What goq export wrote.")]
_Master = Annotated[str, typer.Option(metavar="URL", help="The Spark master.")]
_Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page with charts.")]
_OF_WAITS = ("traffic", "latency", "lateness", "fairness")


class _Order(NamedTuple):
    """A report: of which topics, which export, and where to."""

    name: str
    topics: list[str]
    source: str
    master: str
    html: Path | None


def _register(name: str) -> None:
    def command(
        topics: _Topics = None,
        source: _Source = "",
        master: _Master = "local[*]",
        html: _Html = None,
        since: Annotated[
            str | None, typer.Option(metavar="TIME", help="Messages appended at TIME or later.")
        ] = None,
        until: Annotated[
            str | None, typer.Option(metavar="TIME", help="Messages appended before TIME.")
        ] = None,
        group: Annotated[
            str | None, typer.Option(metavar="GROUP", help="What happened in this group alone.")
        ] = None,
        slo: Annotated[
            str | None,
            typer.Option(metavar="DURATION", help="Of waits: the share that is longer, as 5s."),
        ] = None,
    ) -> None:
        from goq.errors import UsageError
        from goq.units import parse_duration_ms, parse_time_us

        if slo is not None and name not in _OF_WAITS:
            raise UsageError(f"--slo goes with {', '.join(_OF_WAITS)}")
        now_us = time.time_ns() // 1000
        since_us, until_us = (
            None if text is None else parse_time_us(text, now_us=now_us, field=field)
            for field, text in (("--since", since), ("--until", until))
        )
        if since_us is not None and until_us is not None and until_us <= since_us:
            raise UsageError("--until is not after --since: no message is between them")
        slo_ms = None if slo is None else parse_duration_ms(slo, field="--slo")
        order = _Order(name, topics or [], source, master, html)
        _report(order, _Chosen(since_us, until_us, group, slo_ms))

    app.command(name, help=REPORTS[name])(command)


class _Chosen(NamedTuple):
    """The part of an export that a report is about, and the bound of its waits.

    ``with_node``: an audit compares each message with the node's.
    """

    since_us: int | None = None
    until_us: int | None = None
    group: str | None = None
    slo_ms: int | None = None
    with_node: bool = False


@app.command("audit", help=REPORTS["audit"])
def _audit(
    topics: _Topics = None,
    source: _Source = "",
    master: _Master = "local[*]",
    html: _Html = None,
    with_node: Annotated[
        bool, typer.Option("--with-node", help="Also compare each message with the node's.")
    ] = False,
) -> None:
    _report(_Order("audit", topics or [], source, master, html), _Chosen(with_node=with_node))


for _name in REPORTS:
    if _name != "audit":
        _register(_name)


def _report(order: _Order, chosen: _Chosen) -> None:
    """Analyse exported topics with Spark."""
    from goq.errors import UsageError
    from goq_cli.session import needs_extra

    if not order.source:
        raise UsageError("say what to analyse: --from DIR, where goq export wrote")
    with needs_extra("spark"):
        from goq.pipeline.reports.report import with_lane_names
        from goq.pipeline.reports.tables import ExportedTables, check_has_topics
        from goq.pipeline.spark.session import spark_session
    check_has_topics(order.source, order.topics)
    notice("starting Spark…")
    session = spark_session(order.master)
    try:
        tables = ExportedTables(session, order.source, order.topics)
        report = with_lane_names(_run(order.name, tables, chosen), tables.lane_names())
    finally:
        session.stop()
    print_report(report, order.html)
    if report.failed:
        raise typer.Exit(1)


def _run(name: str, tables: ExportedTables, chosen: _Chosen) -> Report:
    from goq.pipeline.reports import retries as failures
    from goq.pipeline.reports import skew, waits
    from goq.pipeline.reports.audit.audit import audit
    from goq.pipeline.reports.report_selection import ReportSelection
    from goq.pipeline.reports.traffic import traffic

    if name == "audit":
        tables.check_whole()
        comparison = _comparison(tables) if chosen.with_node else None
        return audit(tables.slices(), tables.changed_files(), comparison)
    selection = ReportSelection(chosen.since_us, chosen.until_us, chosen.group)
    messages = selection.messages(tables.table("messages"))
    if name == "skew":
        return skew.skew(messages, selection.groups(tables.table("groups")))
    events = selection.events(tables.table("events"), messages)
    if name == "retries":
        return failures.retries(messages, events)
    jobs = {
        "traffic": traffic,
        "latency": waits.latency,
        "lateness": waits.lateness,
        "fairness": waits.fairness,
    }
    return jobs[name](messages, events, chosen.slo_ms)


def _comparison(tables: ExportedTables) -> NodeComparison:
    from goq.pipeline.arrow.node_source import NodeSource

    with SESSION.long_client() as client:
        return tables.compare_with_node(NodeSource(client, include_deleted=True))
