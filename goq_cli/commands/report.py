"""``goq report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from goq_cli.output.output import notice
from goq_cli.output.report import print_report

if TYPE_CHECKING:
    from goq.pipeline.reports.report import Report
    from goq.pipeline.reports.tables import ExportedTables

REPORTS = {
    "latency": "How long did messages take to their first delivery, and to their ack?",
    "retries": "What had to be delivered again, what was given up, and why?",
    "lateness": "How late did scheduled messages come?",
    "fairness": "Whose messages waited longer than those of others?",
    "skew": "Do some partitions or keys carry more than others?",
    "audit": "Is every published message accounted for? Ends with 1 if one is not.",
}

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


def _register(name: str) -> None:
    def command(
        topics: Annotated[
            list[str] | None,
            typer.Argument(metavar="[TOPIC…]", help="Default: all."),
        ] = None,
        source: Annotated[
            str, typer.Option("--from", metavar="DIR", help="What goq export wrote.")
        ] = "",
        master: Annotated[str, typer.Option(metavar="URL", help="The Spark master.")] = "local[*]",
        html: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Also write a page with charts.")
        ] = None,
    ) -> None:
        _report(name, topics or [], source, master, html)

    app.command(name, help=REPORTS[name])(command)


for _name in REPORTS:
    _register(_name)


def _report(name: str, topics: list[str], source: str, master: str, html: Path | None) -> None:
    """Analyse exported topics with Spark."""
    from goq.errors import UsageError
    from goq_cli.session import needs_extra

    if not source:
        raise UsageError("say what to analyse: --from DIR, where goq export wrote")
    with needs_extra("spark"):
        from goq.pipeline.reports.tables import ExportedTables
        from goq.pipeline.spark.session import spark_session
    notice("starting Spark…")
    session = spark_session(master)
    try:
        report = _run(name, ExportedTables(session, source, topics))
    finally:
        session.stop()
    print_report(report, html)
    if report.failed:
        raise typer.Exit(1)


def _run(name: str, tables: ExportedTables) -> Report:
    from goq.pipeline.reports import audit, skew, waits
    from goq.pipeline.reports import retries as failures

    messages = tables.table("messages")
    if name == "skew":
        return skew.skew(messages, tables.table("groups"))
    events = tables.table("events")
    if name == "audit":
        tables.check_whole()
        return audit.audit(messages, events, tables.table("groups"), tables.changed_files())
    if name == "retries":
        return failures.retries(messages, events)
    jobs = {"latency": waits.latency, "lateness": waits.lateness, "fairness": waits.fairness}
    return jobs[name](messages, events)
