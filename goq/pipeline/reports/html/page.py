"""A report as one HTML page with inline charts; nothing is loaded."""

from __future__ import annotations

from html import escape

from goq.pipeline.reports.html.axes import STYLE as CHART_STYLE
from goq.pipeline.reports.html.charts import chart_of, note_of
from goq.pipeline.reports.report import (
    ROWS_MAX,
    Report,
    Scope,
    Section,
    headings,
    is_number,
    shown,
    span,
)

_TOPICS_SHOWN = 8
_CELL_MAX = 200
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --faint: #5b6672; --rule: #c6cdd5;
        --back: #fff; --bad: #b3261e; --good: #1b6e3c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ee; --faint: #9ba7b4; --rule: #3c4651; --back: #14181d; --bad: #ff8a80;
          --good: #7fd6a0; } }
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif;
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
       background: var(--back); }
h1 { font-size: 1.5rem; line-height: 1.25; margin-bottom: .25rem; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
.scope, .note, .none { color: var(--faint); } .scope { margin-top: 0; overflow-wrap: anywhere; }
.verdict { font-size: 1.1rem; font-weight: 600; color: var(--good); }
.failed { color: var(--bad); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; } th, td { padding: 3px 14px 3px 0; }
th { text-align: left; border-bottom: 1px solid var(--rule); white-space: nowrap; }
td { overflow-wrap: anywhere; max-width: 24rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.goq-chart { display: block; max-width: 100%; height: auto; margin: .5rem 0 1rem; }
"""


def page_of(report: Report) -> str:
    """Return the HTML page of a report."""
    verdict = ""
    if report.verdict:
        kind = "verdict failed" if report.failed else "verdict"
        verdict = f'<p class="{kind}">{escape(report.verdict)}</p>'
    scope = (
        "" if report.scope is None else f'<p class="scope">{escape(scope_line(report.scope))}</p>'
    )
    body = "".join(map(_section, report.sections))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>goq: {escape(report.name)}</title><style>{_STYLE}{CHART_STYLE}</style>"
        f"<h1>{escape(report.question)}</h1>{scope}{verdict}{body}</html>\n"
    )


def scope_line(scope: Scope) -> str:
    """Return the scope of a report as one line."""
    if scope.first is None or scope.last is None:
        return "There are no messages."
    names = ", ".join(scope.topics[:_TOPICS_SHOWN])
    if len(scope.topics) > _TOPICS_SHOWN:
        names += f" and {len(scope.topics) - _TOPICS_SHOWN} more topics"
    many = "1 message" if scope.messages == 1 else f"{scope.messages:,} messages"
    return f"{names}: {many}, {span(scope.first, scope.last)}"


def _section(section: Section) -> str:
    heading = f"<h2>{escape(section.title)}</h2>"
    if not section.rows:
        return f'{heading}<p class="none">{escape(section.nothing)}</p>'
    notes = [note_of(section)]
    if section.is_cut:
        notes.append(f"The table ends after {ROWS_MAX:,} rows; there are more.")
    told = "".join(f'<p class="note">{escape(note)}</p>' for note in notes if note)
    return heading + chart_of(section) + told + _table(section)


def _table(section: Section) -> str:
    kinds = [
        ' class="number"' if any(is_number(name, row[place]) for row in section.rows) else ""
        for place, name in enumerate(section.columns)
    ]
    head = "".join(
        f"<th{kind}>{escape(name)}</th>"
        for kind, name in zip(kinds, headings(list(section.columns)), strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{escape(shown(name, value, _CELL_MAX))}</td>"
            for kind, name, value in zip(kinds, section.columns, row, strict=True)
        )
        + "</tr>"
        for row in section.rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'
