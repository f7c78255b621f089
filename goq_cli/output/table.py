"""Tables: aligned columns on a terminal, tab-separated fields in a pipe.

A cell is one line of plain text: nothing in it is obeyed, by a terminal or by a markup language.
In a pipe nothing is shortened. On a terminal that is too narrow, empty columns are left out, and
those of free text are shortened. Then columns are left out from the right, and a notice names them.
The first column is always whole.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Sequence
from typing import Final

from goq_cli.output.text import escaped, shorten, shown_age, width_of

FREE_TEXT: Final = (
    *("key", "value", "reason", "headers", "members", "consumers", "moves"),
    *("url", "status", "state", "leaders", "incomplete"),
)
_GAP: Final = 2
_FREE_COLUMNS_MIN: Final = 12
_COLUMNS_MIN: Final = 2
"""A table of so few columns is wrapped by the terminal instead."""


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Collection[str] = ()
) -> None:
    """Print a table on a terminal, else lines of tab-separated fields below their names.

    On a terminal the columns in ``right`` and columns of numbers are right-aligned, and columns of
    bytes and milliseconds have units.
    """
    if not sys.stdout.isatty():
        lines = ["\t".join(columns), *("\t".join(map(_cell, row)) for row in rows)]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        return
    table = TerminalTable(columns, rows, right)
    left_out = table.fit(shutil.get_terminal_size().columns)
    begin_block()
    bold = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    sys.stdout.write("".join(f"{line}\n" for line in table.lines(bold=bold)))
    if left_out and sys.stderr.isatty():
        sys.stderr.write(f"too narrow for: {', '.join(left_out)}\n")


_has_table = False


def begin_block(*, is_table: bool = True) -> None:
    """Print an empty line between two tables on a terminal."""
    global _has_table
    if _has_table and is_table:
        sys.stdout.write("\n")
    _has_table = is_table


class TerminalTable:
    """A table for a terminal, with each cell as it is shown."""

    def __init__(
        self, columns: Sequence[str], rows: Sequence[Sequence[object]], right: Collection[str] = ()
    ) -> None:
        self._columns = [
            _Column(name, [row[place] for row in rows], name in right)
            for place, name in enumerate(columns)
        ]
        self._row_count = len(rows)

    def fit(self, columns: int) -> list[str]:
        """Shorten free text and leave out columns to fit; return the names of those left out."""
        left_out: list[str] = []
        if len(self._columns) <= _COLUMNS_MIN:
            return left_out
        if self._width() > columns:
            self._columns[1:] = [c for c in self._columns[1:] if any(c.cells)]
        while (excess := self._width() - columns) > 0:
            free = [c for c in self._columns if c.width > _FREE_COLUMNS_MIN and c.is_free]
            if sum(c.width - _FREE_COLUMNS_MIN for c in free) >= excess:
                widest = max(free, key=lambda c: c.width)
                widest.width = max(_FREE_COLUMNS_MIN, widest.width - excess)
            elif len(self._columns) > 1:
                left_out.append(self._leave_out())
            else:
                break
        return left_out[::-1]

    def _leave_out(self) -> str:
        place = max(range(1, len(self._columns)), key=lambda p: (not self._columns[p].is_free, p))
        return self._columns.pop(place).name

    def lines(self, *, bold: bool) -> list[str]:
        """Return the lines, without spaces at their ends."""
        head = self._line([c.padded(c.name) for c in self._columns])
        rows = [
            self._line([c.padded(c.cells[number]) for c in self._columns])
            for number in range(self._row_count)
        ]
        return [f"\x1b[1m{head}\x1b[0m" if bold else head, *rows]

    def _line(self, cells: Sequence[str]) -> str:
        return (" " * _GAP).join(cells).rstrip()

    def _width(self) -> int:
        return sum(c.width for c in self._columns) + _GAP * (len(self._columns) - 1)


class _Column:
    """A column: its name, its cells, and how wide it is."""

    def __init__(self, name: str, values: Sequence[object], is_right: bool) -> None:
        numbers = [value for value in values if value not in (None, "")]
        is_count = bool(numbers) and all(_is_int(value) for value in numbers)
        if is_count and name.endswith("_ms"):
            self.name = name.removesuffix("_ms").replace("_", " ")
            self.cells = ["" if v in (None, "") else shown_age(int(str(v))) for v in values]
        elif is_count and name == "bytes":
            from goq.units import round_size_bytes

            self.name = name
            self.cells = ["" if v in (None, "") else round_size_bytes(int(str(v))) for v in values]
        else:
            self.name, self.cells = name, [_cell(value) for value in values]
        self.is_free = name in FREE_TEXT
        self._is_right = is_right or is_count or (bool(numbers) and all(map(_is_number, numbers)))
        self.width = max(map(width_of, (self.name, *self.cells)))

    def padded(self, cell: str) -> str:
        """Return a cell in the width of the column."""
        shown = shorten(cell, self.width)
        space = " " * (self.width - width_of(shown))
        return space + shown if self._is_right else shown + space


def _cell(value: object) -> str:
    return "" if value is None else escaped(value)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return str(value).replace(",", "").isdigit()
