"""The pieces that charts are drawn of, and what they look like in light and in dark."""

from __future__ import annotations

from html import escape

WIDTH = 760
VALUE_WIDTH = 90  # at the right of a chart

STYLE = """
.goq-chart { --ink: #1c2430; --faint: #5b6672; --grid: #dfe4ea; --mark: #0b62a8; --soft: #a9cbe8;
             --other: #b34700; --back: #fff; }
@media (prefers-color-scheme: dark) {
  .goq-chart { --ink: #e3e8ee; --faint: #9ba7b4; --grid: #313a45; --mark: #7ab8f0; --soft: #2f567c;
               --other: #ffb070; --back: #14181d; } }
.goq-chart text { font: 12px system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif;
                  fill: var(--ink); }
.goq-chart .faint { fill: var(--faint); } .goq-chart .grid { stroke: var(--grid); }
.goq-chart .mark { fill: var(--mark); } .goq-chart .soft { fill: var(--soft); }
.goq-chart .line { stroke: var(--mark); stroke-width: 2; fill: none; }
.goq-chart .thin { stroke: var(--mark); stroke-width: 1; fill: none; }
.goq-chart .hollow { stroke: var(--mark); stroke-width: 1.5; fill: var(--back); }
.goq-chart .other { stroke: var(--other); stroke-width: 2; fill: none; stroke-dasharray: 5 3; }
.goq-chart .dot { fill: var(--other); } .goq-chart .back { fill: var(--back); }
.goq-chart .title { font-weight: 600; }
"""


def grid(x1: float, x2: float, y1: float, y2: float) -> str:
    """Return a faint line."""
    return f'<line class="grid" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def text_at(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    """Return a text in a class of the style; its start, ``middle`` or ``end`` is at ``x``."""
    of_kind = f' class="{kind}"' if kind else ""
    anchored = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{of_kind}{anchored}>{escape(text)}</text>'
