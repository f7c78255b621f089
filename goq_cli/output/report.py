"""A report of ``goq report`` and ``goq republish`` on stdout, and its page in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from goq_cli.output.output import notice, print_json
from goq_cli.output.table import print_table
from goq_cli.session import SESSION

if TYPE_CHECKING:
    from goq.pipeline.reports.report import Report, Section


def print_report(report: Report, html: Path | None) -> None:
    """Print a report; write its page to ``html`` if given."""
    if html is not None:
        from goq.pipeline.reports.html.page import page_of

        html.write_text(page_of(report))
        notice(f"wrote {html}")
    _print(report)


def _print(report: Report) -> None:
    """Print a report: with units on a terminal, plain values in a pipe, JSON with --json."""
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
    from goq.pipeline.reports.report import headings, is_number, shown

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
