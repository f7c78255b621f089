"""``goq report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from goq_cli.output import notice, print_json, print_table
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.pipeline.jobs.inputs import Exported
    from goq.pipeline.jobs.report import Report, Section

REPORTS = ("latency", "retries", "lateness", "fairness", "skew", "audit")


def command(
    name: Annotated[str, typer.Argument(metavar="REPORT", help=", ".join(REPORTS))],
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC…]", help="Default: all that are there.")
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
    """Analyse exported topics with Spark; audit exits 1 if a message is not accounted for."""
    from goq.errors import UsageError
    from goq_cli.extras import needs_extra

    if name not in REPORTS:
        raise UsageError(f"there is no report {name!r}; there are {', '.join(REPORTS)}")
    if not source:
        raise UsageError("say what to analyse: --from DIR, where goq export wrote")
    with needs_extra("spark"):
        from goq.pipeline.jobs.inputs import Exported
        from goq.pipeline.jobs.page import page_of
        from goq.pipeline.session import spark_session
    notice("starting Spark…")
    session = spark_session(master)
    try:
        report = _run(name, Exported(session, source, topics or []))
    finally:
        session.stop()
    if html is not None:
        html.write_text(page_of(report))
        notice(f"wrote {html}")
    _print(report)
    if report.failed:
        raise typer.Exit(1)


def _run(name: str, tables: Exported) -> Report:
    from goq.pipeline.jobs import audit, failures, skew, waits

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
    from goq.pipeline.jobs.page import scope_line

    lines = [report.question, *([scope_line(report.scope)] if report.scope else [])]
    sys.stdout.write("\n".join([*lines, *filter(None, [report.verdict])]) + "\n")
    for section in report.sections:
        sys.stdout.write(f"\n{section.title}:\n")
        _print_section(section)


def _print_section(section: Section) -> None:
    from goq.pipeline.jobs.shown import headings, is_number, shown

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
