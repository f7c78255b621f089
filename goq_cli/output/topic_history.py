"""A topic over time: bars on a terminal, tab-separated fields in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from goq_cli.output.output import format_time
from goq_cli.output.table import print_table

if TYPE_CHECKING:
    from goq.client import DailyVolume, TopicHistory

_BAR_COLUMNS_MIN = 4
_BAR_COLUMNS_MAX = 60
_EIGHTHS = " ▏▎▍▌▋▊▉"
_GAP = 2


def print_history(history: TopicHistory) -> None:
    """Print the first and last time, the messages a day, and the current rates."""
    rates, scheduled = history.rates, history.scheduled
    print_table(
        ("over time", "value"),
        [
            ("first", format_time(history.first_time) or "-"),
            ("last", format_time(history.last_time) or "-"),
            ("published/s", round(rates.published_per_s, 1)),
            ("bytes/s", round(rates.published_bytes_per_s, 1)),
            ("delivered/s", round(rates.delivered_per_s, 1)),
            ("acked/s", round(rates.acked_per_s, 1)),
            ("scheduled", scheduled.count),
            ("next due", format_time(scheduled.next_due) or "-"),
        ],
    )
    if not sys.stdout.isatty():
        columns = ("date", "messages", "bytes")
        print_table(columns, [[getattr(day, c) for c in columns] for day in history.days])
    elif history.days:
        _print_bars(history.days)


def bar(value: int, maximum: int, columns: int, *, plain: bool) -> str:
    """Return a bar for a share of ``columns``; a share above 0 is always visible.

    ``plain`` uses ASCII characters.
    """
    if not value:
        return ""
    eighths = max(1, value * columns * 8 // maximum)
    if plain:
        return "#" * max(1, eighths // 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _print_bars(days: Sequence[DailyVolume]) -> None:
    from rich.console import Console
    from rich.text import Text

    from goq.units import round_size_bytes

    console = Console()
    rows = [(str(d.date), f"{d.messages:,}", round_size_bytes(d.bytes)) for d in days]
    heads = ("date", "messages", "bytes")
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    room = min(console.width - sum(widths) - _GAP * len(widths), _BAR_COLUMNS_MAX)
    most = max(1, *(day.messages for day in days))
    plain = not (console.encoding or "").lower().startswith("utf")
    console.print(Text(_line(heads, widths), style="bold"), overflow="crop", no_wrap=True)
    for day, row in zip(days, rows, strict=True):
        line = Text(_line(row, widths))
        if room >= _BAR_COLUMNS_MIN:
            line.append(bar(day.messages, most, room, plain=plain), style="cyan")
        console.print(line, overflow="crop", no_wrap=True)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    first, *others = (
        cell.ljust(width) if not number else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return (" " * _GAP).join((first, *others)) + " " * _GAP
