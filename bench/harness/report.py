"""Results as a table and as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

from bench.harness.rows import Result

_HEAD = ("work", "figure", "target", "to target", "Redis", "to Redis")


def table(results: list[Result]) -> str:
    """Return a table in Markdown, as wide as its cells."""
    cells = [_HEAD, *(_cells(result) for result in results)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEAD))]
    rule = "|".join(["", "-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:]), ""])
    lines = [_line(row, widths) for row in cells]
    return "\n".join([lines[0], rule, *lines[1:]])


def line(result: Result) -> str:
    """Return a result in one line, for who waits for the table."""
    to_target, to_redis = _ratio(result.to_target), _ratio(result.to_redis)
    figures = " ".join(_number(figure) for figure in result.goq)
    return (
        f"{result.row.name:22} {figures} {result.row.unit}"
        f"  to target {to_target or '-'}  to Redis {to_redis or '-'}  {result.note}"
    )


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [row[0].ljust(widths[0])]
    cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return f"| {' | '.join(cells)} |"


def _cells(result: Result) -> tuple[str, ...]:
    row = result.row
    target = ""
    if result.target is not None:
        target = f"{'under' if row.at_most else 'from'} {_number(result.target)}"
    return (
        row.text,
        result.note or f"{_number(result.figure)} {row.unit}",
        target,
        _ratio(result.to_target),
        _number(result.redis_figure),
        _ratio(result.to_redis),
    )


def _number(figure: float | None) -> str:
    if figure is None:
        return ""
    if figure >= 1000:
        return f"{figure:,.0f}"
    return f"{figure:.0f}" if figure >= 100 else f"{figure:.2f}"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None or math.isinf(ratio) else f"{ratio:.2f}"


def _finite(ratio: float | None) -> float | None:
    return None if ratio is None or math.isinf(ratio) else ratio


def save(path: Path, machine: dict[str, str], results: list[Result]) -> None:
    """Write everything that was measured, each repetition too."""
    rows = [
        {
            "name": result.row.name,
            "work": result.row.text,
            "unit": result.row.unit,
            "figure": result.figure,
            "target": result.target,
            "to_target": _finite(result.to_target),
            "redis": result.redis_figure,
            "to_redis": result.to_redis,
            "repetitions": result.goq,
            "repetitions_redis": result.redis,
            "note": result.note,
        }
        for result in results
    ]
    path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
