"""A report as one page of HTML: bars drawn in it, nothing loaded from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

from goq.pipeline.jobs.report import Bars, Report, Section

_BARS_MAX = 40
_WIDTH, _LABEL_WIDTH, _LINE = 720, 260, 22
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c2430; background: #fff; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.failed { color: #b3261e; } .ok { color: #1b6e3c; }
table { border-collapse: collapse; font-size: 13px; } th, td { padding: 2px 10px 2px 0; }
th { text-align: left; border-bottom: 1px solid #9aa5b1; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { display: block; margin: .5rem 0 1rem; } svg rect { fill: #3b6ea8; }
svg text { font: 12px system-ui, sans-serif; fill: #1c2430; } .none { color: #5b6672; }
@media (prefers-color-scheme: dark) {
  body { color: #e3e8ee; background: #14181d; } svg text { fill: #e3e8ee; }
  svg rect { fill: #6ea3dd; } .failed { color: #ff8a80; } .ok { color: #7fd6a0; } }
"""


def page_of(report: Report) -> str:
    """Return the page."""
    verdict = ""
    if report.name == "audit":
        word = ("failed", "No: see below.") if report.failed else ("ok", "Yes.")
        verdict = f'<p class="{word[0]}">{word[1]}</p>'
    body = "".join(map(_section, report.sections))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>goq: {escape(report.name)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(report.question)}</h1>{verdict}{body}</html>\n"
    )


def _section(section: Section) -> str:
    heading = f"<h2>{escape(section.title)}</h2>"
    if not section.rows:
        return f'{heading}<p class="none">Nothing.</p>'
    chart = _chart(section, section.bars) if section.bars is not None else ""
    return heading + chart + _table(section)


def _chart(section: Section, bars: Bars) -> str:
    places = [section.columns.index(name) for name in bars.label]
    value_at = section.columns.index(bars.value)
    rows = [row for row in section.rows if row[value_at] is not None][:_BARS_MAX]
    most = max((float(row[value_at]) for row in rows), default=0) or 1.0
    lines = []
    for number, row in enumerate(rows):
        label = " · ".join(_text(row[place]) for place in places)
        value = float(row[value_at])
        width = max(1.0, (_WIDTH - _LABEL_WIDTH - 120) * value / most)
        y = number * _LINE
        lines.append(
            f'<text x="{_LABEL_WIDTH - 8}" y="{y + 15}" text-anchor="end">'
            f"{escape(_cut(label))}</text>"
            f'<rect x="{_LABEL_WIDTH}" y="{y + 3}" width="{width:.1f}" height="{_LINE - 6}"/>'
            f'<text x="{_LABEL_WIDTH + width + 6:.1f}" y="{y + 15}">'
            f"{_number(value)} {escape(bars.unit)}</text>"
        )
    height = len(rows) * _LINE
    title = f"{section.title}: {bars.value} by {', '.join(bars.label)}"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">'
        f"<title>{escape(title)}</title>{''.join(lines)}</svg>"
    )


def _table(section: Section) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in section.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in section.rows)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="number">{_number(float(value))}</td>'
    return f"<td>{escape(_text(value))}</td>"


def _text(value: Any) -> str:
    return "-" if value is None or value == "" else str(value)


def _cut(label: str) -> str:
    return label if len(label) <= 40 else label[:39] + "…"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}".rstrip("0")
