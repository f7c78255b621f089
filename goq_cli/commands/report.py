"""``goq report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from goq_cli.commands import republishing
from goq_cli.output.output import notice, print_json, print_table
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.pipeline.reports.report import Report, Section
    from goq.pipeline.reports.tables import Exported

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
            typer.Argument(metavar="[TOPIC…]", help="Default: all that are there."),
        ] = None,
        source: Annotated[
            str, typer.Option("--from", metavar="DIR", help="What goq export wrote.")
        ] = "",
        master: Annotated[
            str, typer.Option(metavar="URL", help="The Spark master to work on.")
        ] = "local[*]",
        html: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Write a page with charts, too.")
        ] = None,
    ) -> None:
        _report(name, topics or [], source, master, html)

    app.command(name, help=REPORTS[name])(command)


for _name in REPORTS:
    _register(_name)
app.command("republish")(republishing.command)


def _report(name: str, topics: list[str], source: str, master: str, html: Path | None) -> None:
    """Analyse exported topics with Spark."""
    from goq.errors import UsageError
    from goq_cli.extras import needs_extra

    if not source:
        raise UsageError("say what to analyse: --from DIR, where goq export wrote")
    with needs_extra("spark"):
        from goq.pipeline.reports.tables import Exported
        from goq.pipeline.spark.session import spark_session
    notice("starting Spark…")
    session = spark_session(master)
    try:
        report = _run(name, Exported(session, source, topics))
    finally:
        session.stop()
    show(report, html)
    if report.failed:
        raise typer.Exit(1)


def show(report: Report, html: Path | None) -> None:
    """Print a report, and write its page where that was asked for."""
    if html is not None:
        from goq.pipeline.reports.html.page import page_of

        html.write_text(page_of(report))
        notice(f"wrote {html}")
    _print(report)


def _run(name: str, tables: Exported) -> Report:
    from goq.pipeline.reports import audit, skew, waits
    from goq.pipeline.reports import retries as failures

    messages = tables.table("messages")
    if name == "skew":
        return skew.skew(messages, tables.table("groups"))
    events = tables.table("events")
    if name == "audit":
        tables.check_whole()
        return audit.audit(messages, events, tables.table("groups"))
    if name == "retries":
        return failures.retries(messages, events)
    jobs = {"latency": waits.latency, "lateness": waits.lateness, "fairness": waits.fairness}
    return jobs[name](messages, events)


def _print(report: Report) -> None:
    """Print a report: for people with units, for pipes and programs as the columns' names say."""
    if SESSION.json:
        print_json(report.as_json())
        return
    if not sys.stdout.isatty():
        for section in report.sections:
            sys.stdout.write(f"{section.title}:\n")
            print_table(section.columns, section.rows)
            sys.stdout.write("\n")
        return
    from goq.pipeline.reports.html.page import scope_line

    lines = [report.question, *([scope_line(report.scope)] if report.scope else [])]
    sys.stdout.write("\n".join([*lines, *filter(None, [report.verdict])]) + "\n")
    for section in report.sections:
        sys.stdout.write(f"\n{section.title}:\n")
        _print_section(section)


def _print_section(section: Section) -> None:
    from goq.pipeline.reports.shown import headings, is_number, shown

    if not section.rows:
        sys.stdout.write(f"{section.nothing}\n")
        return
    columns = headings(list(section.columns))
    numbers = {
        columns[place]
        for place, name in enumerate(section.columns)
        if any(is_number(name, row[place]) for row in section.rows)
    }
    rows = [
        [shown(name, value) for name, value in zip(section.columns, row, strict=True)]
        for row in section.rows
    ]
    print_table(columns, rows, right=numbers)
    if section.is_cut:
        sys.stdout.write("… and more\n")
